"""What parts of the table say of columns: (1) every part between rollout and loss says what it reads and writes; (2) in
every golden case a part reads no other columns than those, with the options of the case; (3) the text of its module
names no others; (4) a read that is not declared is seen.

Columns that a table always has need not be named, nor does a column that an option names.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra.data import Iteration, StepTable
from palaestra.registry import Part, index, part
from palaestra.registry.column_names import REQUIRED
from tests.golden_cases import GoldenCase, golden_cases
from tests.registered import target

MAY_WRITE = {  # None: whatever it returns
    "reward": None,
    "selection": {"row_weight"},
    "advantage": None,
    "weights": {"weight", "counts"},
}
ALWAYS = frozenset({*REQUIRED, "token_count", "row_weight", "act"})
PARTS = [(slot, name) for slot in MAY_WRITE for name in sorted(index()[slot])]


@contextmanager
def recorded() -> Iterator[set[str]]:
    """Names of the columns that tables are asked for from outside; what a table asks itself is not counted."""
    asked: set[str] = set()
    inside = False

    def recording(method: Any) -> Any:
        def call(self: StepTable, *names: Any, **columns: Any) -> Any:
            nonlocal inside
            if inside:
                return method(self, *names, **columns)
            asked.update(name for name in names if isinstance(name, str))
            inside = True
            try:
                return method(self, *names, **columns)
            finally:
                inside = False

        return call

    methods = ("__getitem__", "__contains__", "key", "labels", "unit", "timeline", "replace", "take")
    with pytest.MonkeyPatch.context() as patch:
        for name in methods:
            patch.setattr(StepTable, name, recording(getattr(StepTable, name)))
        patch.setattr(StepTable, "act", property(recording(StepTable.act.fget)))  # type: ignore[attr-defined]
        yield asked


def names_in(value: Any) -> set[str]:
    """What may be columns in the value of an option."""
    return {name for name in (value if isinstance(value, list | tuple) else [value]) if isinstance(name, str)}


def undeclared(declared: Part, options: Mapping[str, Any], asked: Collection[str]) -> set[str]:
    """Columns that were asked for and are neither declared nor named by an option."""
    checked = declared.check(options, where="options")
    known = {column.removesuffix("?") for column in declared.reads_with(checked) or ()}
    known |= {name for value in checked.values() for name in names_in(value)}
    units = {"row", "token"}  # of `StepTable.unit`, where they are no columns
    return set(asked) - ALWAYS - known - units


def asked_in(case: GoldenCase) -> set[str]:
    """The columns that the part of a case asks for."""
    called = target(case.slot, case.part)
    data = [torch.tensor(case.extra["advantage"])] if "advantage" in case.extra else []
    iteration = Iteration({}, case.extra.get("step", 0), seed=0, temperature=1.0, token_budget=64)
    given = {"iteration": iteration} if called.part.takes_iteration else {}
    table, options = case.table, case.options
    if inspect.isclass(called):  # holds state
        called, options = called(**options), {}
    with recorded() as asked:
        called(table, *data, **given, **options)
    return asked


def named_in(text: str) -> set[str]:
    """Columns that a text names: `table["outcome"]`, `"outcome" in table`, `table.key("state_key")`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Subscript(value=ast.Name(id="table"), slice=ast.Constant(value=str(name))):
                found.add(name)
            case ast.Compare(left=ast.Constant(value=str(name)), comparators=[ast.Name(id="table")]):
                found.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="table"), attr="key" | "labels" | "timeline")):
                found.update(one.value for one in node.args if isinstance(one, ast.Constant))
    return found


def may_read(declared: Part) -> set[str]:
    """Columns that a part reads under some options, that it wrote before, or that its options name by default."""
    reads = (*(declared.reads or ()), *(column for columns in declared.reads_if.values() for column in columns))
    defaults = (field.default for field in declared.options.model_fields.values())
    named = {name for value in defaults for name in names_in(value)}
    return {column.removesuffix("?") for column in reads} | named | set(declared.writes or ())


def silent(declared: Part) -> Iterator[str]:
    """What a part does not say of the columns that it reads and writes."""
    writes, allowed = set(declared.writes or ()), MAY_WRITE[declared.slot]
    if declared.reads is None:
        yield f"{declared.name}: declare `reads=`, () for a part that needs only what every table has"
    if not writes:
        yield f"{declared.name}: declare `writes=`"
    if allowed is not None and not writes <= allowed:
        yield f"{declared.name}: writes {sorted(writes - allowed)}"
    if declared.slot == "advantage" and "advantage" not in writes:
        yield f"{declared.name}: an estimator writes `advantage`"


def test_parts_say_what_they_read_and_write() -> None:  # rule 1
    assert PARTS
    assert not [fault for slot, name in PARTS for fault in silent(part(slot, name))]


def test_golden_cases_read_what_is_declared() -> None:  # rule 2
    cases = [case for case in golden_cases() if case.slot in MAY_WRITE and "method" not in case.extra]
    found = [(f"{c.file}: {c.part}", undeclared(part(c.slot, c.part), c.options, asked_in(c))) for c in cases]
    assert found
    assert not {place: columns for place, columns in found if columns}


def test_texts_read_what_is_declared() -> None:  # rule 3
    modules: dict[str, list[Part]] = {}  # with their parts of the table
    for slot, name in PARTS:
        modules.setdefault(index()[slot][name].partition(":")[0], []).append(part(slot, name))
    found = {}
    for module, declared in modules.items():
        text = Path(str(importlib.import_module(module).__file__)).read_text(encoding="utf-8")
        found[module] = named_in(text) - ALWAYS - set().union(*(may_read(each) for each in declared))
    assert found and not {module: columns for module, columns in found.items() if columns}


def test_the_rules_can_fail() -> None:  # rule 4
    table = StepTable(
        group=["g"], trajectory=["a"], agent=["x"], turn=[0], reward=[1.0], outcome=[1.0], state_key=["s"]
    )
    with recorded() as asked:
        changed = table.replace(reward=table["outcome"])
        assert "process" not in changed
        changed.key("group", "state_key")
        changed.labels("state_key")
        changed.timeline("trajectory")
    assert asked == {"outcome", "process", "group", "state_key", "trajectory"}
    bare = Part(slot="advantage", name="bare", target=len, reads=None, writes=("weight",))
    assert len([*silent(bare)]) == 2
    declared = part("reward", "role_mix")
    assert undeclared(declared, {}, {"reward", "outcome"}) == {"outcome"}
    assert not undeclared(declared, {"team": "outcome"}, {"reward", "outcome"})
    assert not undeclared(declared, {"own": "score"}, {"score"})
    assert named_in('"invalid" in table and table["progress"].any() or table.key("group", "stratum")') == {
        *("invalid", "progress", "group", "stratum"),
    }
