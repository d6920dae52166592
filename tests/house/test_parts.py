"""Every part is finished: (1) formulas have hand-derived numbers; (2) a system lists each formula, and systems list
only what exists; (3) every option of a part is read by the part, and (4) every key of a recipe is read by the package
from its own section. That a recipe uses each part is rule 2 of test_recipes.py. (5) Each rule can fail. (6) Every
option has a meaning of its own in a docstring.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from palaestra.catalogue import Declaration, Option, System, systems
from tests.golden_cases import golden_cases
from tests.house.source_text import PACKAGE, ROOT, package_files, tree
from tests.registered import declared

FORMULAS = ("advantage", "weights", "loss", "regularizer")
AFTER_ANY = {("advantage", "center"), ("advantage", "clip_advantage"), ("advantage", "whiten"), ("weights", "ones")}


def known() -> set[tuple[str, str]]:
    return {(part.slot, part.name) for part in declared()}


def test_parts_are_found() -> None:
    assert {part.slot for part in declared()} >= {"environment", "policy", "advantage", "loss", "optimizer"}


# ---- numbers and descriptions -----------------------------------------------------------------------------
def without_numbers(parts: Iterable[Declaration], cases: Collection[tuple[str, str]]) -> list[str]:
    return [f"{p.slot}: {p.name}" for p in parts if p.slot in FORMULAS and (p.slot, p.name) not in cases]


def test_1_formulas_have_golden_numbers() -> None:
    missing = without_numbers(declared(), {(case.slot, case.part) for case in golden_cases()})
    assert not missing, "add a case with its derivation to the system's golden.yaml, or to tests/golden/"


def unlisted(parts: Iterable[Declaration], listed: Collection[tuple[str, str]]) -> list[str]:
    return without_numbers(parts, {*listed, *AFTER_ANY})


def faults_of(system: System, known: Collection[tuple[str, str]]) -> list[str]:
    """What a description says that is not so."""
    named = [(slot, name) for slot, names in system.parts.items() for name in names]
    faults = [f"{system.name}: no {slot} is called {name}" for slot, name in named if (slot, name) not in known]
    if system.evidence is not None and not (ROOT / system.evidence).exists():
        faults.append(f"{system.name}: no {system.evidence}")
    if system.variant and not system.overlay:
        faults.append(f"{system.name}: a variant without an overlay")
    return faults


def test_2_systems_list_what_exists() -> None:
    listed = {(slot, name) for system in systems() for slot, names in system.parts.items() for name in names}
    assert not unlisted(declared(), listed), "no system.yaml lists them under `parts`"
    assert not [fault for system in systems() for fault in faults_of(system, known())]


def without_meaning(part: Declaration) -> list[str]:
    """Options without a text, or whose text stands inside of another option's."""
    names = "|".join(option.name for option in part.options)
    hidden = {found for option in part.options for found in re.findall(rf"[.;,] ({names}): ", option.text)}
    return [option.name for option in part.options if len(option.text.split()) < 2 or option.name in hidden]


def test_6_every_option_has_a_meaning() -> None:
    missing = {f"{part.slot}: {part.name}": without_meaning(part) for part in declared() if without_meaning(part)}
    assert not missing, "say under `Args:` of the part what they do, one entry for each"


def test_6_a_missing_meaning_is_found() -> None:
    texts = {"a": "how many. b: how often.", "b": "", "c": "as in `grpo`.", "d": "steps"}
    options = tuple(Option(name=name, default=None, text=text, parameter=name) for name, text in texts.items())
    assert without_meaning(replace(declared()[0], options=options)) == ["b", "d"]


# ---- what may be written is read --------------------------------------------------------------------------
def source_of(part: Declaration) -> tuple[ast.AST, Path]:
    """The function or class of a part, and its file."""
    module, _, attribute = part.target.partition(":")
    path = next(p for p in (ROOT / (module.replace(".", "/") + e) for e in (".py", "/__init__.py")) if p.exists())
    return next(node for node in tree(path).body if getattr(node, "name", None) == attribute), path


def unread_parameters(code: ast.AST, parameters: Iterable[str]) -> list[str]:
    names = {node.id for node in ast.walk(code) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    names |= {node.attr for node in ast.walk(code) if isinstance(node, ast.Attribute)}
    return [name for name in parameters if name not in names]


def test_3_every_option_is_read() -> None:
    own = {part.target: (source_of(part)[0], {option.parameter for option in part.options}) for part in declared()}
    unread = {target: unread_parameters(*one) for target, one in own.items()}
    assert not {target: names for target, names in unread.items() if names}


# Class of a section → what its objects are called where they are read. A key counts as read only there, so that
# `rollout.group` is not read because a table has an attribute `group`.
SECTIONS: Mapping[str, tuple[str, str]] = {
    "RunSettings": ("settings|_settings|run|recipe.settings", "*"),
    "RolloutSettings": ("rollout|_settings|s|settings", "*"),
    "ToolSettings": ("tools|declared", "*"),
    "RoleSettings": (r"role|chosen|own|.*role\(\w+\)|s", "*"),
    "PolicySettings": (r"own|policy|settings|.*policies\[.+\]", "*"),
    "WarmStartSettings": ("warm_start|settings", "training/*"),
    "AggregateSettings": ("aggregate", "*"),
    "TrainingSettings": ("training|_settings", "*"),
    "EvaluationSettings": ("evaluation|_settings", "*"),
}


def keys_of(code: ast.Module) -> list[tuple[str, str]]:
    """Section class and key of every public field."""
    return [
        (node.name, field.target.id)
        for node in code.body
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id[0] != "_"
    ]


def reads(code: ast.AST) -> set[tuple[str, str]]:
    """Object, as it is called there, and attribute: `self.rollout.group` is ("rollout", "group")."""
    return {
        (ast.unparse(node.value).removeprefix("self."), node.attr)
        for node in ast.walk(code)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def is_read(section: str, key: str, found: Collection[tuple[str, str]]) -> bool:
    pattern = re.compile(rf"(.*\.)?({SECTIONS[section][0]})")
    return any(attribute == key and pattern.fullmatch(owner) for owner, attribute in found)


def test_4_every_recipe_key_is_read() -> None:
    found = {path: reads(tree(path)) for path in package_files()}
    unread = []
    for section, key in [k for room in ("training", "rollout") for k in keys_of(tree(PACKAGE / room / "settings.py"))]:
        place = SECTIONS[section][1]
        inside = {pair for path, pairs in found.items() if place == "*" or path.match(place) for pair in pairs}
        unread += [] if is_read(section, key, inside) else [f"{section}.{key}"]
    assert not unread, "a recipe may set them, and nothing reads them"


# ---- rule 5 -----------------------------------------------------------------------------------------------
def test_5_the_rules_can_fail() -> None:
    some = [part for part in declared() if part.name in ("grpo", "gigpo", "whiten")]
    assert without_numbers(some, {("advantage", "grpo"), ("advantage", "whiten")}) == ["advantage: gigpo"]
    assert unlisted(some, {("advantage", "grpo")}) == ["advantage: gigpo"]
    gigpo = next(system for system in systems() if system.name == "gigpo")
    assert faults_of(gigpo, known() - {("advantage", "gigpo")}) == ["gigpo: no advantage is called gigpo"]
    assert unread_parameters(ast.parse("def f(*, a, b, c):\n    c = 1\n    return a"), "abc") == ["b", "c"]
    found = reads(ast.parse("table.group\nself.rollout.tasks\nrollout.max_turns = 3"))
    assert [is_read("RolloutSettings", key, found) for key in ("group", "tasks", "max_turns")] == [False, True, False]
