"""Repositories: small packages whose functions call each other, with one wrong line."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palaestra.data import derive
from palaestra.envs.worlds.code.chains import Chain, Vocabulary, told, written
from palaestra.envs.worlds.code.problems import TRIES, Sizes, Test, outcome
from palaestra.errors import RecipeError

FILES = {
    False: ("prices", "stock", "orders", "taxes", "ships", "rooms", "games", "songs"),
    True: ("fruits", "parks", "boats", "lamps", "roads", "clubs", "farms", "bells"),
}
NAMES = {
    False: ("scale", "shift", "grow", "trim", "blend", "fold", "lift", "turn", "pack", "rate", "mark", "move"),
    True: ("mold", "carve", "paint", "spin", "bend", "press", "weave", "stir", "melt", "wrap", "bind", "cast"),
}
EACH = 2  # functions in a file
INPUTS = range(-5, 13)
Files = tuple[tuple[str, str], ...]  # path, text
Values = Mapping[str, Mapping[int, Any]]  # function → input → value


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a package. It applies its chain to `x`, or to the value that another function gives for `x`."""

    module: str
    name: str
    chain: Chain
    inner: str = ""  # the function that is called first
    inner_module: str = ""

    def body(self, chain: Chain | None = None) -> str:
        """The line with its `return`, with another chain in place of its own if one is given."""
        return f"    return {written(chain or self.chain, f'{self.inner}(x)' if self.inner else 'x')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A package with a fault.

    Attributes:
        faulty, right: the files with the fault, and without it.
        place: file and number of the wrong line.
        choices: (file, line number) → the right line and wrong ones, in random order.
        visible, hidden: tests that the agent may run, and tests that decide the reward.
    """

    faulty: Files
    right: Files
    place: tuple[str, int]
    choices: Mapping[tuple[str, int], tuple[str, ...]]
    visible: tuple[Test, ...]
    hidden: tuple[Test, ...]


def line_of(files: Files, place: tuple[str, int]) -> str:
    """The line at a place; "" if there is no such line."""
    lines = dict(files).get(place[0], "").splitlines()
    return lines[place[1] - 1] if place[1] <= len(lines) else ""


@functools.lru_cache(maxsize=2048)
def build_repository(sizes: Sizes, count: tuple[int, int], paraphrased: bool, seed: int) -> Repository:
    """The repository of a seed.

    Args:
        count: fewest and most files.

    Raises: RecipeError, if no repository is found in which each function has enough mutants.
    """
    draw = random.Random(derive(seed, "repository"))
    vocabulary = replace(sizes.vocabulary, kinds=("number",))
    for _ in range(TRIES):
        functions = _functions(vocabulary, sizes.depth, draw.randint(*count), paraphrased, draw)
        right = _values(functions, {})
        if any(isinstance(value, tuple) for row in right.values() for value in row.values()):
            continue
        wrong = {one.name: _mutants(one, right, vocabulary, sizes.mutants, draw) for one in functions}
        faulted = draw.choice(functions)
        if any(len(found) < sizes.mutants for found in wrong.values()):
            continue
        bug = {faulted.name: wrong[faulted.name][0][0]}
        gives = [row for _, row in wrong[faulted.name]]
        hidden, visible = _tests(functions, faulted, gives, right, _values(functions, bug), sizes, draw)
        files = _files(functions, paraphrased, {})
        places = {one.name: _place(files, one) for one in functions}
        return Repository(
            faulty=_files(functions, paraphrased, bug),
            right=files,
            place=places[faulted.name],
            choices={places[one.name]: _choices(one, [c for c, _ in wrong[one.name]], draw) for one in functions},
            visible=tuple(visible),
            hidden=tuple(hidden),
        )
    raise RecipeError(
        where="environment: code",
        what=f"no package was found in which each function has {sizes.mutants} mutants.",
        remedy="Raise `operators` or `constants`, or lower `mutants`.",
    )


def _functions(
    vocabulary: Vocabulary, depth: tuple[int, int], count: int, paraphrased: bool, draw: random.Random
) -> list[Function]:
    # Indices are drawn and not words, so that both wordings have the same package.
    modules = [FILES[paraphrased][place] for place in draw.sample(range(len(FILES[False])), count)]
    names = [NAMES[paraphrased][place] for place in draw.sample(range(len(NAMES[False])), count * EACH)]
    found: list[Function] = []
    for place, name in enumerate(names):
        module = modules[place // EACH]
        chain = vocabulary.draw("number", draw.randint(*depth), draw)
        earlier = [one for one in found if one.module != module]
        inner = draw.choice(earlier) if earlier and draw.random() < 0.5 else None
        found.append(Function(module, name, chain, inner.name if inner else "", inner.module if inner else ""))
    return found


def _values(functions: Sequence[Function], faults: Mapping[str, Chain]) -> Values:
    """The values of each function. `faults` replaces the chains of some. A function comes after the one it calls."""
    found: dict[str, dict[int, Any]] = {}
    for one in functions:
        inner = found.get(one.inner) or {x: x for x in INPUTS}
        found[one.name] = _through(faults.get(one.name, one.chain), inner)
    return found


def _through(chain: Chain, inner: Mapping[int, Any]) -> dict[int, Any]:
    text = written(chain)
    return {x: value if isinstance(value, tuple) else outcome(text, value) for x, value in inner.items()}


def _mutants(
    one: Function, values: Values, vocabulary: Vocabulary, count: int, draw: random.Random
) -> list[tuple[Chain, dict[int, Any]]]:
    """Chains that give other values than the right one, and these values. No two are written alike."""
    inner = values.get(one.inner) or {x: x for x in INPUTS}
    found: dict[str, tuple[Chain, dict[int, Any]]] = {}
    for chain in vocabulary.mutants(one.chain, draw):
        gives = _through(chain, inner)
        if gives != values[one.name] and not any(isinstance(value, tuple) for value in gives.values()):
            found.setdefault(written(chain), (chain, gives))
        if len(found) == count:
            break
    return list(found.values())


def _tests(
    functions: Sequence[Function],
    faulted: Function,
    wrong: Sequence[Mapping[int, Any]],
    right: Values,
    faulty: Values,
    sizes: Sizes,
    draw: random.Random,
) -> tuple[list[Test], list[Test]]:
    """Hidden and visible tests.

    Hidden ones test all functions, and every mutant of the faulty function fails one of them. One visible test fails
    because of the fault.
    """

    def test(one: Function, x: int) -> Test:
        easy = faulty[one.name][x] == right[one.name][x]
        found = Test(x=x, want=right[one.name][x], function=one.name, module=one.module)
        return replace(found, kind="trivial") if easy else found

    def telling(gives: Mapping[int, Any]) -> Test:
        return test(faulted, draw.choice([x for x in INPUTS if gives[x] != right[faulted.name][x]]))

    hidden: list[Test] = []
    for gives in wrong:
        if all(gives[one.x] == one.want for one in hidden):
            hidden.append(telling(gives))
    for number in range(max(sizes.hidden, len(functions))):
        hidden.append(test(functions[number % len(functions)], draw.choice(INPUTS)))
    others = [one for one in functions if one is not faulted]
    shown = [test(one, draw.choice(INPUTS)) for one in draw.sample(others, min(sizes.examples - 1, len(others)))]
    visible = [telling(faulty[faulted.name]), *(_spoiled(one, sizes, draw) for one in shown)]
    draw.shuffle(visible)
    return list({one.call: one for one in hidden}.values()), visible


def _spoiled(one: Test, sizes: Sizes, draw: random.Random) -> Test:
    return replace(one, want=one.want + 1, kind="wrong") if draw.random() < sizes.wrong else one


# ---- files ------------------------------------------------------------------------------------------------
def _files(functions: Sequence[Function], paraphrased: bool, faults: Mapping[str, Chain]) -> Files:
    texts: dict[str, list[str]] = {}
    for module in dict.fromkeys(one.module for one in functions):
        own = [one for one in functions if one.module == module]
        imports = sorted({f"from {one.inner_module} import {one.inner}" for one in own if one.inner})
        lines = [*imports, ""] if imports else []
        for number, one in enumerate(own):
            first = f"{one.inner}, then " if one.inner else ""
            comment = f"    # {first}{told(one.chain, paraphrased=paraphrased)}"
            lines += ([""] if number else []) + [f"def {one.name}(x):", comment, one.body(faults.get(one.name))]
        texts[f"{module}.py"] = lines
    return tuple((path, "\n".join(lines) + "\n") for path, lines in texts.items())


def _place(files: Files, one: Function) -> tuple[str, int]:
    path = f"{one.module}.py"
    return path, dict(files)[path].splitlines().index(f"def {one.name}(x):") + 3


def _choices(one: Function, wrong: Sequence[Chain], draw: random.Random) -> tuple[str, ...]:
    lines = [one.body(), *map(one.body, wrong)]
    draw.shuffle(lines)
    return tuple(lines)
