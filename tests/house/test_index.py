"""The index: (1) the search of the source text finds every registration, which stands above a function or class of a
module, with literal slot and name; (2) two parts of one name in a slot are refused; (3) a wheel's index is what the
search finds; (4) the heads of parts say the same as their whole declarations; (5) the options that the text shows are
those of the schema, in one order and with one default, groups of options among them.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from palaestra import index
from palaestra.catalogue import Declaration, declarations, heads
from palaestra.catalogue.scan import is_registration
from palaestra.errors import ContractError
from palaestra.registry import part
from tests.house.source_text import PACKAGE, ROOT, package_files, tree


def test_1_every_registration_is_found() -> None:
    files = package_files()
    calls = [node for path in files for node in ast.walk(tree(path)) if is_registration(node)]
    found = {(slot, name): target for slot, names in index.search(PACKAGE).items() for name, target in names.items()}
    assert len(calls) == len(found) == len(declarations())
    assert found == {(part.slot, part.name): part.target for part in declarations()}


def test_1_no_registration_hides() -> None:
    texts = [path.read_text(encoding="utf-8") for path in package_files()]
    decorators = sum(1 for text in texts for line in text.splitlines() if line.startswith("@register("))
    assert decorators == len(declarations()), "slot and name must be literals"


def test_2_two_parts_of_one_name(tmp_path: Path) -> None:
    text = '@register("advantage", "twice")\ndef {}(table):\n    """One."""\n'
    (tmp_path / "one.py").write_text(text.format("one"))
    (tmp_path / "two.py").write_text(text.format("two"))
    with pytest.raises(ContractError, match="one:one is already the advantage `twice`"):
        index.search(tmp_path)


def test_3_a_wheels_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"parts": index.search(PACKAGE), "systems": {}}
    (tmp_path / "index.json").write_text(json.dumps(stored))
    monkeypatch.setattr(index, "INDEX", tmp_path / "index.json")
    monkeypatch.setattr(index, "PACKAGE", tmp_path)
    assert index.known_parts() == stored["parts"]


def test_3_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "build_index.py").read_text(encoding="utf-8")
    made: dict[str, object] = {}
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", type(sys)("interface"))
    sys.modules["hatchling.builders.hooks.plugin.interface"].BuildHookInterface = object  # type: ignore[attr-defined]
    exec(compile(text, "build_index.py", "exec"), made)
    found = made["verdicts"](PACKAGE / "systems")  # type: ignore[operator]
    assert found["gigpo"].startswith("compared") and found["gigpo_similar"]


def test_4_heads() -> None:
    whole = [(p.slot, p.name, p.target, p.reads, p.uses, p.source, p.extra, p.summary) for p in declarations()]
    assert [(p.slot, p.name, p.target, p.reads, p.uses, p.source, p.extra, p.summary) for p in heads()] == whole


def _value(text: str | None) -> object:
    """The value of a default, if it is a literal."""
    try:
        return ast.literal_eval(text or "")
    except (ValueError, SyntaxError):
        return None


@pytest.mark.parametrize("declared", declarations(), ids=lambda part: f"{part.slot}-{part.name}")
def test_5_options_of_the_text(declared: Declaration) -> None:
    try:
        fields = part(declared.slot, declared.name).options.model_fields
    except ImportError:
        pytest.skip("an extra that is not installed")
    assert [option.name for option in declared.options] == [*fields]
    for option in declared.options:
        assert (option.default is None) == fields[option.name].is_required()
        assert _value(option.default) in (None, fields[option.name].default), option.name


def test_5_a_group_of_options() -> None:
    found = {part.name: part for part in declarations() if part.slot == "advantage"}
    options = {option.name: option for option in found["dr_mas"].options}
    assert options["by"].kind == "Columns" and options["by"].default == "('group', 'agent')"
    assert options["ddof"].parameter == "peers" and options["penalty"].parameter == "penalty"
    assert options["ddof"].text.startswith("degrees of freedom taken off"), "the group's own text"
    assert "AT-GRPO" in options["by"].text, "the part's text"
    assert "unit" not in {option.name for option in found["grpo_process"].options}, "each row counts once"
