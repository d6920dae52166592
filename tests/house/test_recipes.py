"""Recipes of the package: (1) every complete recipe loads, every overlay over some setup, and every setup alone or
below some overlay; (2) every part is in one of these recipes; (3) overlays and recipes of a system name only parts of
its own folder, of `parts/` and of rooms that know no system; (4) a system's recipe trains with every part that its
description names, so that it is the method and no ablation of it. (5) Each rule can fail.

One test holds rules 1 to 4, because loading all recipes takes half a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from palaestra.catalogue import systems
from palaestra.errors import PalaestraError
from palaestra.recipe import Recipe, load
from palaestra.recipe.sources import read_layers
from palaestra.registry import index
from tests.house.source_text import SYSTEMS, of_systems, overlays, recipes, shown
from tests.registered import declared

Pair = tuple[str, str]  # slot and name of a part

WITHOUT_RECIPE: Mapping[Pair, str] = {  # may only shrink
    ("environment", "echo"): "a fake of palaestra.testing",
    ("environment", "trl_class"): "an adapter: what it plays is a file of one's own",
    ("environment", "verifiers"): "an adapter: what it plays is a package of one's own",
    ("environment", "openenv"): "an adapter: what it plays is a file or a server of one's own",
    ("policy", "human"): "a person at the terminal; `palaestra play` takes it by name",
    ("policy", "random"): "`palaestra eval --policy random`",
    ("policy", "endpoint"): "a model behind an endpoint, which cannot be trained; `benchmarks/zero_shot.py` takes it",
    ("engine", "vllm"): "a server that somebody has started; docs/engines.md",
    ("engine", "sglang"): "a server that somebody has started; docs/engines.md",
    ("reward", "group_function"): "a function of one's own, which sees all replies to a question",
    ("parser", "number"): "for programs of one's own whose agents answer with numbers",
    ("weights", "ones"): "the neutral element: a recipe says nothing",
    ("selection", "all"): "the neutral element: a recipe says nothing",
    ("loss", "behavior_cloning"): "what a warm start minimizes",
}
INSIDE_OPTIONS = {"verifier"}  # slots whose parts are named in options of an environment, and never by a recipe's key
# What the description of a system names beside the parts of its recipe: a reward for another world.
ELSEWHERE = {"artist": ("reward", "function_calls"), "mars": ("reward", "game_shaping")}

Loaded = dict[Path, Recipe]
OWNERS = {
    (slot, name): target.split(".")[2].partition(":")[0]
    for slot, names in index().items()
    for name, target in names.items()
    if target.startswith("palaestra.systems.")
}


# ---- loading ----------------------------------------------------------------------------------------------
def first_that_loads(choices: Iterable[tuple[Path, ...]]) -> Recipe | str:
    """The recipe of the first layers that fit each other; where none do, the last reason."""
    reason = "there is nothing to load it with"
    for layers in choices:
        try:
            return load([str(layer) for layer in layers])
        except PalaestraError as error:
            reason = str(error)
    return reason


def near(path: Path, others: Iterable[Path]) -> list[Path]:
    """`others`, first those of the same folder, as a setup of a system is made for its overlay, or of its recipe."""
    beside = path.parent / "recipe.yaml"
    named = beside.read_text(encoding="utf-8") if beside.exists() else ""
    return sorted(others, key=lambda other: (other.parent != path.parent, other.name not in named))


def load_all() -> tuple[Loaded, dict[Path, str]]:
    """Every recipe file of the package as a whole recipe, and the reasons of those that do not load."""
    known = overlays()
    whole = [path for path in recipes() if path.parent.name != "setups"]
    whole += [path for path in of_systems() if path.name == "recipe.yaml"]
    setups = [*recipes("setups"), *(path for path in of_systems() if path not in known and path not in whole)]
    assert whole and known and setups
    made: dict[Path, Recipe | str] = {}
    for path in whole:
        made[path] = first_that_loads([(path,)])
    for overlay in known:
        made[overlay] = first_that_loads((setup, overlay) for setup in near(overlay, setups))
    for setup in setups:
        made[setup] = first_that_loads([(setup,), *((setup, overlay) for overlay in near(setup, known))])
    loaded = {path: recipe for path, recipe in made.items() if isinstance(recipe, Recipe)}
    return loaded, {path: reason for path, reason in made.items() if isinstance(reason, str)}


def pairs_of(recipe: Recipe) -> set[Pair]:
    return {(part.part.slot, part.part.name) for part in recipe.parts}


# ---- what is asked of them --------------------------------------------------------------------------------
def unused(parts: Iterable[Pair], recipes: Iterable[Recipe]) -> list[str]:
    """Rule 2: parts that no recipe uses and that nothing excuses."""
    used = {pair for recipe in recipes for pair in pairs_of(recipe)}
    return sorted(f"{slot}: {name}" for slot, name in {*parts} - used - {*WITHOUT_RECIPE})


def foreign(path: Path, recipe: Recipe) -> set[Pair]:
    """Rule 3: parts of other systems that a file itself names."""
    written = str([layer.plain() for layer in read_layers(path)])
    named = {pair for pair in pairs_of(recipe) if f"'{pair[1]}'" in written}
    return {pair for pair in named if OWNERS.get(pair, path.parent.name) != path.parent.name}


def left_out(named: Mapping[str, Iterable[str]], recipe: Recipe, system: str) -> set[Pair]:
    """Rule 4: parts of a description that its recipe does without."""
    wanted = {(slot, name) for slot, names in named.items() if slot != "rollout" for name in names}
    return wanted - pairs_of(recipe) - {ELSEWHERE.get(system, ("", ""))}


def test_1_to_4_recipes() -> None:
    loaded, reasons = load_all()
    assert not {shown(path): reason for path, reason in reasons.items()}  # rule 1
    known = {(part.slot, part.name) for part in declared() if part.slot not in INSIDE_OPTIONS}
    assert not unused(known, loaded.values())
    used = {pair for recipe in loaded.values() for pair in pairs_of(recipe)}
    assert set(WITHOUT_RECIPE) <= known - used, "take them off the list"
    others = {shown(path): foreign(path, loaded[path]) for path in of_systems()}
    assert not {path: pairs for path, pairs in others.items() if pairs}, "move them to palaestra/parts"
    complete = [(each, loaded[SYSTEMS / each.folder / "recipe.yaml"]) for each in systems() if each.recipe]
    less = {each.name: left_out(each.parts, recipe, each.name) for each, recipe in complete}
    assert not {name: pairs for name, pairs in less.items() if pairs}, "the recipe is an ablation of its system"


def test_5_the_rules_can_fail(tmp_path: Path) -> None:
    setup, overlay = (
        next(path for path in recipes("setups") if path.name == "rooms-tiny.yaml"),
        tmp_path / "method.yaml",
    )
    overlay.write_text("advantage: gigpoo\n")
    assert "gigpoo" in str(first_that_loads([(setup, overlay)]))
    overlay.write_text("advantage: gigpo\n")
    recipe = first_that_loads([(setup, overlay)])
    assert isinstance(recipe, Recipe)
    assert unused([("advantage", "gigpo"), ("advantage", "center"), ("selection", "all")], [recipe]) == [
        "advantage: center"
    ]
    assert foreign(overlay, recipe) == {("advantage", "gigpo")}
    assert left_out({"advantage": ["gigpo", "center"]}, recipe, "gigpo") == {("advantage", "center")}
