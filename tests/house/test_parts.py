"""Every part is finished: (1) formulas have hand-derived numbers, (2) other parts are named in a test,
(3) a recipe uses it, (4) a system lists it, and systems list only what exists; every recipe (5) loads,
(6) and every key that a recipe may hold, and every option of a part, is read by something; (7) every option has a
meaning of its own in a docstring.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from palaestra.catalogue import Declaration, Option, declarations, systems
from palaestra.recipe import load
from palaestra.training.settings import RunSettings
from tests.golden_cases import golden_cases
from tests.house.source_text import (
    PACKAGE,
    ROOT,
    document,
    of_systems,
    overlays,
    package_files,
    python_files,
    recipes,
    shown,
    strings,
    tree,
)

FORMULAS = ("advantage", "weights", "loss", "regularizer")
PARTS = declarations()
WITHOUT_RECIPE = {  # may only shrink
    ("environment", "trl_class"): "an adapter: what it plays is a file of one's own",
    ("environment", "scienceworld"): "its texts are long and its steps slow for the small models of recipes",
    ("environment", "verifiers"): "an adapter: what it plays is a package of one's own",
    ("environment", "openenv"): "an adapter: what it plays is a file or a server of one's own",
    ("policy", "human"): "a person at the terminal; `palaestra play` takes it by name",
    ("policy", "expert"): "`palaestra eval --policy expert`",
    ("policy", "random"): "`palaestra eval --policy random`",
    ("weights", "ones"): "the neutral element: a recipe says nothing",
    ("selection", "all"): "the neutral element: a recipe says nothing",
    ("loss", "behavior_cloning"): "what a warm start minimizes",
}


AFTER_ANY = {("advantage", "center"), ("advantage", "clip_advantage"), ("advantage", "whiten"), ("weights", "ones")}


def each(*slots: str) -> pytest.MarkDecorator:
    """Run once for each part of these slots; for every part without any."""
    chosen = [part for part in PARTS if not slots or part.slot in slots]
    return pytest.mark.parametrize("part", chosen, ids=[f"{part.slot}-{part.name}" for part in chosen])


def test_parts_are_found() -> None:
    assert {part.slot for part in PARTS} >= {"environment", "policy", "advantage", "loss", "optimizer"}


@cache
def golden_names() -> set[tuple[str, str]]:
    """Slot and part of every case."""
    return {(case.slot, case.part) for case in golden_cases()}


@each(*FORMULAS)
def test_formulas_have_golden_numbers(part: Declaration) -> None:  # rule 1
    assert (part.slot, part.name) in golden_names(), (
        f"add a case `{part.slot}: {part.name}` with its derivation to the system's golden.yaml, or to tests/golden/"
    )


@cache
def words_of_tests() -> set[str]:
    own = [path for path in python_files("palaestra/systems") if path.name.startswith("test_")]
    files = [*own, *(path for path in python_files("tests") if path.parent.name != "house")]
    return {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


@each()
def test_parts_are_named_in_a_test(part: Declaration) -> None:  # rule 2
    attribute = part.target.partition(":")[2]
    known = (part.slot, part.name) in golden_names() or {part.name, attribute} & words_of_tests()
    assert known, f"no test uses {part.target}"


@cache
def used_names() -> set[str]:
    """Names in any recipe, and the neutral parts that a recipe gets when it says nothing."""
    written = {name for path in [*recipes(), *of_systems()] for name in strings(document(path))}
    defaults = {field.default for field in RunSettings.model_fields.values() if isinstance(field.default, str)}
    settings = (PACKAGE / "training/settings.py").read_text(encoding="utf-8")
    return (
        written
        | defaults
        | set(re.findall(r'BoundPart\(name="(\w+)"', settings))
        | set(re.findall(r'= "(\w+)"', settings))
    )


@each()
def test_a_recipe_uses_it(part: Declaration) -> None:  # rule 3
    if (part.slot, part.name) in WITHOUT_RECIPE or part.target.startswith("palaestra.testing"):
        return
    assert part.name in used_names(), f"no recipe uses the {part.slot} `{part.name}`"


def test_exceptions_only_shrink() -> None:  # rule 3
    assert set(WITHOUT_RECIPE) <= {(part.slot, part.name) for part in PARTS}


@each()
def test_a_system_lists_it(part: Declaration) -> None:  # rule 4
    if part.slot in FORMULAS and (part.slot, part.name) not in AFTER_ANY:
        rows = [system.name for system in systems() if part.name in system.parts.get(part.slot, [])]
        assert rows, f"no system.yaml has {part.slot}: [{part.name}]"


def test_systems_list_only_what_exists() -> None:  # rule 4
    known = {(part.slot, part.name) for part in PARTS}
    for system in systems():
        named = [(slot, name) for slot, names in system.parts.items() for name in names]
        missing = [f"{slot}: {name}" for slot, name in named if (slot, name) not in known]
        assert not missing, f"{system.name} names {missing}"
        assert system.evidence is None or (ROOT / system.evidence).exists(), f"{system.name}: no {system.evidence}"
        assert not system.variant or system.overlay, f"{system.name} has no overlay"


def without_meaning(part: Declaration) -> list[str]:
    """Options without a text, or whose text stands inside of another option's."""
    names = "|".join(option.name for option in part.options)
    hidden = {found for option in part.options for found in re.findall(rf"[.;,] ({names}): ", option.text)}
    return [option.name for option in part.options if len(option.text.split()) < 2 or option.name in hidden]


@each()
def test_every_option_has_a_meaning(part: Declaration) -> None:  # rule 7
    assert not without_meaning(part), f"say under `Args:` of {part.target} what they do, one entry for each"


def test_a_missing_meaning_is_found() -> None:  # rule 7
    texts = {"a": "how many. b: how often.", "b": "", "c": "as in `grpo`.", "d": "steps"}
    options = tuple(Option(name=name, default=None, text=text, parameter=name) for name, text in texts.items())
    assert without_meaning(replace(PARTS[0], options=options)) == ["b", "d"]


def loads(*layers: Path) -> Exception | None:
    try:
        load([str(layer) for layer in layers])
    except Exception as error:  # the reason is shown by the test
        return error
    return None


OVERLAYS = overlays()
SETUPS = [*recipes("setups"), *(path for path in of_systems() if path not in OVERLAYS and path.name != "recipe.yaml")]
WHOLE = [path for path in recipes() if path.parent.name != "setups"]
WHOLE += [path for path in of_systems() if path.name == "recipe.yaml"]


def loads_somewhere(pairs: list[tuple[Path, Path]]) -> bool:
    """Whether one of these overlays loads with its setup; where none does, the reasons are printed."""
    reasons = []
    for overlay, setup in pairs:
        reason = loads(overlay, setup)
        if reason is None:
            return True
        reasons.append(reason)
    print(*reasons, sep="\n")
    return False


@pytest.mark.parametrize("path", WHOLE, ids=shown)
def test_whole_recipes_load(path: Path) -> None:  # rule 5
    assert loads(path) is None


@pytest.mark.parametrize("overlay", OVERLAYS, ids=shown)
def test_overlays_load_with_a_setup(overlay: Path) -> None:  # rule 5
    assert loads_somewhere([(overlay, setup) for setup in SETUPS])


@pytest.mark.parametrize("setup", SETUPS, ids=shown)
def test_setups_load_with_an_overlay(setup: Path) -> None:  # rule 5
    assert loads_somewhere([(overlay, setup) for overlay in OVERLAYS])


def test_recipes_are_there() -> None:  # rule 5
    assert WHOLE and OVERLAYS and SETUPS


# ---- what may be written is read --------------------------------------------------------------------------
def settings_keys() -> set[tuple[str, str]]:
    classes = [node for node in tree(PACKAGE / "training/settings.py").body if isinstance(node, ast.ClassDef)]
    return {
        (node.name, field.target.id)
        for node in classes
        for field in node.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and not field.target.id.startswith("_")
    }


def read_names() -> set[str]:
    """Attributes and texts that occur anywhere in the package but in the settings themselves."""
    nodes = [n for p in package_files() if p != PACKAGE / "training/settings.py" for n in ast.walk(tree(p))]
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    return attributes | {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_recipe_key_is_read() -> None:  # rule 6
    read = read_names()
    assert not sorted(f"{owner}.{key}" for owner, key in settings_keys() if key not in read)


@each()
def test_every_option_is_read(part: Declaration) -> None:  # rule 6
    module, _, attribute = part.target.partition(":")
    path = next(p for p in (ROOT / (module.replace(".", "/") + e) for e in (".py", "/__init__.py")) if p.exists())
    owner = next(node for node in tree(path).body if getattr(node, "name", None) == attribute)
    names = {node.id for node in ast.walk(owner) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    names |= {node.attr for node in ast.walk(owner) if isinstance(node, ast.Attribute)}
    unread = [option.name for option in part.options if option.parameter not in names]
    assert not unread, f"{part.target} takes {unread} and does nothing with them"
