"""Evidence: (1) a study's form is checked and every committed study names arms, claims, recipes and systems that exist;
(2) a system's page shows formula, needs, use, claims and numbers; (3) the table of studies has a line for each with its
verdict; (4) `benchmarks/studies.py` runs a study to its end and keeps numbers and measures, from which the site draws
the plot; (5) formulas become MathML.
"""

from __future__ import annotations

import importlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import formulas
import made_pages
import pytest
from site_pages import curves
from site_pages.evidence import Evidence, evidence_of, studies_page, system_page

from palaestra.catalogue import Study, System, studies, system, systems
from palaestra.catalogue.findings import Results
from palaestra.catalogue.studies import results_of
from palaestra.errors import RecipeError
from palaestra.recipe import load
from tests.house.source_text import ROOT
from tests.messages import told
from tests.registered import declared

STUDIES = studies(ROOT)
TINY: dict[str, Any] = {
    "title": "Row against trajectory",
    "method": "grpo",
    "expected": "no difference",
    "claims": ["row level with plain"],
    "setup": "setup.yaml",
    "seeds": 1,
    "metric": "success",
    "reference": "plain",
    "arms": {"plain": ["grpo/method.yaml"], "row": ["grpo/method.yaml", "advantage.grpo.unit=row"]},
    "also": ["policy/grad_norm", "no/such"],
}
SETUP = """
environment: {echo: {turns: 1}}
policies: {main: {policy: {network: {hidden: [8]}}}}
rollout: {tasks: 2, group: 4, max_turns: 2}
training: {iterations: 2, max_empty: 5}
evaluation: {tasks: 8}
"""
CURVES = {"1": [0.2, 0.6, 0.4], "2": [0.1, 0.7, 0.5], "3": [0.1, 0.6, 0.6]}
PER_SEED = {"plain": {"1": 0.4, "2": 0.5, "3": 0.6}, "row": {"1": 0.5, "2": 0.4, "3": 0.9}}
ARMS = {
    name: {
        "seeds": [1, 2, 3],
        "curves": CURVES,
        **{what: {"mean": 0.5, "low": 0.4, "high": 0.6, "per_seed": values} for what in ("final", "area")},
    }
    for name, values in PER_SEED.items()
}
FOUND = {"budget": 64.0, "axis": "environment_steps", "arms": ARMS}
MEASURES = {"policy/grad_norm": {"plain": {"mean": 1.0, "low": 0.5, "high": 1.5}}}


def tiny_evidence(seen: str = "None.") -> Evidence:
    study = Study(name="tiny", **TINY)
    return Evidence(study, Results(study, Path(), FOUND, MEASURES), seen)


@cache
def described() -> dict[str, System]:
    return {each.name: each for each in systems()}


@pytest.mark.parametrize("study", STUDIES, ids=[study.name for study in STUDIES])
def test_1_committed_studies(study: Study) -> None:
    assert set(study.methods) <= set(described())
    for name, layers in study.arms.items():
        files = [layer for layer in layers if layer.endswith(".yaml")]
        assert files, name
        load([study.setup, *files], [*study.overrides, *(layer for layer in layers if layer not in files)])
    evidence = evidence_of(ROOT, study)
    results = evidence.results
    assert study.relations, "say what is expected as claims, too"
    assert results is None or set(results.comparison["arms"]) == set(study.arms), "its results are of other arms"
    assert results is None or evidence.seen, "say what was seen"


def test_1_form(tmp_path: Path) -> None:
    folder = tmp_path / "benchmarks" / "studies"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_text(json.dumps({**TINY, "reference": "nobody"}))
    with pytest.raises(RecipeError, match="no arm is called `nobody`"):
        studies(tmp_path)
    (folder / "a.yaml").write_text(json.dumps({**TINY, "arm": {}}))
    with pytest.raises(RecipeError, match=r"a.yaml  arm"):
        studies(tmp_path)
    for claim, message in {
        "row > plain": "`row > plain`",
        "row above nobody": "`nobody`",
        "turns/mean: row above plain": "`turns/mean`",
    }.items():
        (folder / "a.yaml").write_text(json.dumps({**TINY, "claims": [claim]}))
        with told(RecipeError, message):
            studies(tmp_path)


def test_1_studies_lie_with_their_system() -> None:
    for study in STUDIES:
        owners = {described()[name].folder for name in study.methods}
        if study.folder == "benchmarks":
            assert study.name not in {each.folder for each in described().values()}
            assert len(owners) > 1 or study.methods == ["grpo"], study.name
        else:
            assert study.folder.rpartition("/")[2] in owners, study.name


def test_2_a_systems_page() -> None:
    grpo = system("grpo").model_copy(update={"formula": "A = R - b", "when": "Always."})
    page = system_page(grpo, declared(), [tiny_evidence()])
    for text in (
        "$$\nA = R - b\n$$",
        "Always.",
        "groups of at least two",
        "`row level with plain` | +0.100 \\[-0.397, +0.597\\]",
        "**Verdict: no difference seen.**",
        "studies/tiny.png",
    ):
        assert text in page
    assert "It has not been run yet." in system_page(grpo, declared(), [Evidence(tiny_evidence().study, None, "")])


def test_2_what_was_not_measured_has_no_number() -> None:
    hrpo = next(study for study in STUDIES if study.name == "hrpo")
    page = system_page(system("hrpo"), declared(), [evidence_of(ROOT, hrpo)])
    assert "| `grpo` | not measured |  | not measured |  |" in page
    assert "| `action-only` | 0.068" in page and "+0.058" not in page
    assert "Of `grpo` and `hrpo` only the first point is a measurement" in page


def test_3_the_table() -> None:
    page = studies_page([tiny_evidence(), Evidence(tiny_evidence().study, None, "")], systems())
    assert "## No difference seen: 1\n" in page and "## Not run yet: 1\n" in page
    lines = [line for line in page.splitlines() if line.startswith("| [tiny](methods/grpo.md#tiny) | GRPO |")]
    assert len(lines) == 2 and "| `row level with plain` | `setup` | +0.100" in lines[0]
    assert max(len(line) for line in lines) < 200


@pytest.mark.slow
def test_4_a_study_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("studies")
    setup = tmp_path / "setup.yaml"
    setup.write_text(SETUP)
    study = Study(name="tiny", **{**TINY, "setup": str(setup)})
    assert module.run(study, runs=tmp_path / "runs", root=tmp_path) > 0
    found = evidence_of(tmp_path, study).results
    assert found is not None and set(found.comparison["arms"]) == {"plain", "row"}
    assert {name: set(per_arm) for name, per_arm in found.measures.items()} == {"policy/grad_norm": {"plain", "row"}}
    assert results_of(tmp_path, study) == tmp_path / "benchmarks/results/tiny"


def test_4_what_a_study_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    shown = importlib.import_module("studies").shown
    text = shown(next(study for study in STUDIES if study.name == "hrpo"))
    assert text.startswith("hrpo: not measured\n  hrpo at least grpo: not measured\n") and "{" not in text
    assert shown(tiny_evidence().study, Path("nowhere")) == "tiny: not run yet"


def test_4_plots_are_drawn_from_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"shop": curves.measured(ROOT)["shop"]}  # one of each kind: the site draws all
    monkeypatch.setattr(curves, "measured", lambda root: one)
    monkeypatch.setattr(made_pages, "studies", lambda root: [study for study in STUDIES if study.name == "gspo"])
    found = made_pages.pictures(ROOT, tmp_path / "picture.png")
    for name in ("images/studies/gspo.png", "images/curves/shop.png", "images/textworld.png"):
        assert found[name].startswith(b"\x89PNG")


def test_5_formulas() -> None:
    page = formulas.rendered("Text.\n\n$$\n\\frac{a}{b} + \\sum_{i=1}^n x_i\n$$\n\nMore $5 and $6.")
    assert "<mfrac>" in page and "$$" not in page and "More $5 and $6." in page
    for each in systems():
        for formula in each.formulas:
            assert "<math" in formulas.rendered(f"$$\n{formula}\n$$"), each.name
