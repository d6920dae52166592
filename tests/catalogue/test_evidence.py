"""Evidence: (1) a study's form is checked and every committed study names arms, recipes and methods that exist;
(2) a method's page shows formula, needs, use and numbers; (3) the table of studies says expectation and verdict;
(4) `benchmarks/studies.py` runs a study to its end and keeps numbers, measures and plot; (5) formulas become MathML.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from palaestra.catalogue import Study, declarations, methods, studies
from palaestra.catalogue.evidence import method_page, studies_page
from palaestra.catalogue.studies import result
from palaestra.errors import RecipeError
from palaestra.recipe import load
from tests.house.source_text import ROOT

STUDIES = studies(ROOT)
TINY: dict[str, Any] = {
    "title": "Row against trajectory",
    "method": "grpo",
    "expected": "no difference",
    "setup": "setup.yaml",
    "seeds": 1,
    "metric": "success",
    "reference": "plain",
    "arms": {"plain": ["methods/grpo.yaml"], "row": ["methods/grpo.yaml", "advantage.grpo.unit=row"]},
    "also": ["policy/grad_norm", "no/such"],
}
SETUP = """
environment: {echo: {turns: 1}}
policies: {main: {policy: {network: {hidden: [8]}}}}
rollout: {tasks: 2, group: 4, max_turns: 2}
training: {iterations: 2, max_empty: 5}
evaluation: {tasks: 8}
"""
FOUND = {
    "budget": 64.0,
    "axis": "environment_steps",
    "arms": {
        name: {"seeds": [1, 2], **{what: {"mean": 0.5, "low": 0.4, "high": 0.6} for what in ("final", "area")}}
        for name in ("plain", "row")
    },
    "differences": {
        "row": {
            what: {"student": {"mean": 0.1, "low": -0.1, "high": 0.3}, "verdict": "no difference seen"}
            for what in ("final", "area")
        }
    },
    "measures": {"policy/grad_norm": {"plain": {"mean": 1.0, "low": 0.5, "high": 1.5}}},
}


@pytest.mark.parametrize("study", STUDIES, ids=[study.name for study in STUDIES])
def test_1_committed_studies(study: Study) -> None:
    assert set(study.methods) <= {row.name for row in methods()}
    for name, layers in study.arms.items():
        files = [layer for layer in layers if layer.endswith(".yaml")]
        assert files, name
        load([study.setup, *files], [*study.overrides, *(layer for layer in layers if layer not in files)])
    found = result(ROOT, study)
    assert found is None or set(found["arms"]) == set(study.arms), "its results are of other arms"
    assert found is None or study.seen, "say what was seen"


def test_1_form(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks" / "studies"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_text(json.dumps({**TINY, "reference": "nobody"}))
    with pytest.raises(RecipeError, match="no arm is called `nobody`"):
        studies(tmp_path)
    (folder / "a.yaml").write_text(json.dumps({**TINY, "arm": {}}))
    with pytest.raises(RecipeError, match=r"a.yaml  arm"):
        studies(tmp_path)


def test_2_a_methods_page() -> None:
    grpo = next(row for row in methods() if row.name == "grpo").model_copy(
        update={"formula": "A = R - b", "when": "Always."}
    )
    study = Study(name="tiny", seen="None.", **TINY)
    page = method_page(grpo, declarations(), [(study, FOUND)])
    for text in (
        "$$\nA = R - b\n$$",
        "Always.",
        "groups of at least two",
        "+0.100 (-0.100 to +0.300)",
        "studies/tiny.png",
    ):
        assert text in page
    assert "It has not been run yet." in method_page(grpo, declarations(), [(study, None)])


def test_3_the_table() -> None:
    page = studies_page([(Study(name="tiny", seen="None.", **TINY), FOUND)])
    assert "no difference seen" in page and "python benchmarks/studies.py tiny" in page and "None." in page


def test_4_a_study_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("studies")
    setup = tmp_path / "setup.yaml"
    setup.write_text(SETUP)
    study = Study(name="tiny", **{**TINY, "setup": str(setup)})
    assert module.run(study, runs=tmp_path / "runs", root=tmp_path) > 0
    found = result(tmp_path, study)
    assert found is not None and set(found["arms"]) == {"plain", "row"}
    assert set(found["measures"]) == {"policy/grad_norm"} and set(found["measures"]["policy/grad_norm"]) == set(
        found["arms"]
    )
    assert (tmp_path / "docs/images/studies/tiny.png").read_bytes().startswith(b"\x89PNG")


def test_5_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    module = importlib.import_module("formulas")
    page = module.rendered("Text.\n\n$$\n\\frac{a}{b} + \\sum_{i=1}^n x_i\n$$\n\nMore $5 and $6.")
    assert "<mfrac>" in page and "$$" not in page and "More $5 and $6." in page
    for row in methods():
        for formula in row.formulas:
            assert "<math" in module.rendered(f"$$\n{formula}\n$$"), row.name
