"""The index: (1) the search of the source text finds every registration, which stands above a function or class of a
module, with literal slot and name; (2) two parts of one name in a slot are refused; (3) a wheel's index is what the
search finds; (4) the heads of parts say the same as their whole declarations; (5) the options that the text shows are
those of the schema, in one order and with one default, groups of options among them.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic.fields import FieldInfo

from palaestra.catalogue import Declaration, heads, status, systems
from palaestra.catalogue.scan import is_registration
from palaestra.errors import ContractError
from palaestra.registry import part, source_search
from tests.house.source_text import PACKAGE, ROOT, package_files, tree
from tests.registered import declared


def test_1_every_registration_is_found() -> None:
    files = package_files()
    calls = [node for path in files for node in ast.walk(tree(path)) if is_registration(node)]
    found = {
        (slot, name): target for slot, names in source_search.search(PACKAGE).items() for name, target in names.items()
    }
    assert len(calls) == len(found) == len(declared())
    assert found == {(part.slot, part.name): part.target for part in declared()}


def test_1_no_registration_hides() -> None:
    texts = [path.read_text(encoding="utf-8") for path in package_files()]
    decorators = sum(1 for text in texts for line in text.splitlines() if line.startswith("@register("))
    assert decorators == len(declared()), "slot and name must be literals"


def test_2_two_parts_of_one_name(tmp_path: Path) -> None:
    text = '@register("advantage", "twice")\ndef {}(table):\n    """One."""\n'
    (tmp_path / "one.py").write_text(text.format("one"))
    (tmp_path / "two.py").write_text(text.format("two"))
    with pytest.raises(ContractError, match="one:one is already the advantage `twice`"):
        source_search.search(tmp_path)


def test_3_a_wheels_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {"parts": source_search.search(PACKAGE), "systems": {}}
    (tmp_path / "index.json").write_text(json.dumps(stored))
    monkeypatch.setattr(source_search, "INDEX", tmp_path / "index.json")
    monkeypatch.setattr(source_search, "PACKAGE", tmp_path)
    assert source_search.known_parts() == stored["parts"]


def test_3_statuses(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "build_index.py").read_text(encoding="utf-8")
    made: dict[str, object] = {}
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", type(sys)("interface"))
    sys.modules["hatchling.builders.hooks.plugin.interface"].BuildHookInterface = object  # type: ignore[attr-defined]
    exec(compile(text, "build_index.py", "exec"), made)
    found = made["statuses"](PACKAGE / "systems", source_search.search(PACKAGE), status)  # type: ignore[operator]
    assert found == {each.name: each.status for each in systems()}


def test_4_heads() -> None:
    whole = [(p.slot, p.name, p.target, p.reads, p.uses, p.source, p.extra, p.summary) for p in declared()]
    assert [(p.slot, p.name, p.target, p.reads, p.uses, p.source, p.extra, p.summary) for p in heads()] == whole


def _value(text: str | None) -> object:
    """The value of a default, if it is a literal."""
    try:
        return ast.literal_eval(text or "")
    except (ValueError, SyntaxError):
        return None


def differences(declaration: Declaration, fields: Mapping[str, Any]) -> Iterator[str]:
    """Where the options that the text shows differ from the schema's."""
    if [option.name for option in declaration.options] != [*fields]:
        yield f"{declaration.target}: {[option.name for option in declaration.options]}, the schema has {[*fields]}"
        return
    for option in declaration.options:
        default = _value(option.default)
        required = fields[option.name].is_required()
        if (option.default is None) != required or default not in (None, fields[option.name].default):
            yield f"{declaration.target}: `{option.name}` has the default {option.default}"


def test_5_options_of_the_text() -> None:
    found, checked = [], 0
    for each in declared():
        try:
            fields = part(each.slot, each.name).options.model_fields
        except ImportError:  # an extra that is not installed
            continue
        checked += 1
        found += differences(each, fields)
    assert not found and checked >= 200


def test_5_the_rule_can_fail() -> None:
    gigpo = next(each for each in declared() if each.name == "gigpo")
    fields = part("advantage", "gigpo").options.model_fields
    other = {**fields, "gamma": FieldInfo(default=0.5)}
    assert [text.rpartition(": ")[2] for text in differences(gigpo, other)] == ["`gamma` has the default 0.95"]
    assert [*differences(gigpo, {})] and not [*differences(gigpo, fields)]


def test_5_a_group_of_options() -> None:
    found = {part.name: part for part in declared() if part.slot == "advantage"}
    options = {option.name: option for option in found["dr_mas"].options}
    assert options["by"].default == "('group', 'agent')"
    assert options["ddof"].parameter == "peers" and options["penalty"].parameter == "penalty"
    assert options["ddof"].text.startswith("degrees of freedom taken off"), "the group's own text"
    assert "AT-GRPO" in options["by"].text, "the part's text"
    assert "unit" not in {option.name for option in found["grpo_process"].options}, "each row counts once"
