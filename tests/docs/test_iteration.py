"""The page of one iteration is true: (1) it names at most 20 files and 15 types; (2) each function is in the file that
it names; (3) the drawing has the page's functions, files and types; (4) an iteration calls the
functions in the page's order; (5) what goes in and comes out is of the page's types, and so is what goes along each
arrow; (6) the page is short, and its questions stand at its end, without answers.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from site_pages.flow import ARROWS, CODE, DRAWING, PAGE, PLACES, Stop, drawing, stops

from palaestra import data
from palaestra.data import protocols
from palaestra.recipe import load
from palaestra.training.loop import Trainer
from palaestra.training.start import train
from tests.docs.pages import ROOT
from tests.training.conftest import ECHO

TEXT = PAGE.read_text(encoding="utf-8")
STOPS = {stop.function: stop for stop in stops(TEXT)}
PLACE = re.compile(r"`([A-Za-z_.]+)`\s+\(`(palaestra/[\w/]+\.py)`\)")
MOST_FILES, MOST_TYPES = 20, 15


@cache
def classes() -> set[str]:
    """The names of all classes of the package."""
    files = [path for path in (ROOT / "palaestra").rglob("*.py") if not path.name.startswith("test_")]
    return {name for file in files for name in re.findall(r"^class (\w+)", file.read_text(encoding="utf-8"), re.M)}


def types_of(text: str) -> set[str]:
    """The classes of the package that stand in code type, but for those before a method, as in `Trainer.run`."""
    words = {word for code in CODE.findall(text) for word in re.findall(r"(?<![\w.])([A-Z]\w*)(?![\w.])", code)}
    return words & classes()


def files() -> set[str]:
    return set(re.findall(r"palaestra/[\w/]+\.py", TEXT))


@cache
def defined(file: str) -> set[str]:
    """The functions, classes and methods of a module: `prepare`, `Trainer`, `Trainer.iterate`."""
    found = set()
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            members = [n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {node.name, *(f"{node.name}.{member}" for member in members)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


# ---- the page ---------------------------------------------------------------------------------------------
def test_1_how_many() -> None:
    types = types_of(TEXT)
    print(f"{len(files())} files, {len(types)} types, {len(STOPS)} functions")
    assert len(files()) <= MOST_FILES, sorted(files())
    assert len(types) <= MOST_TYPES, sorted(types)


def test_2_places_exist() -> None:
    places = {(stop.function, stop.file) for stop in STOPS.values()} | {*PLACE.findall(TEXT)}
    assert len(STOPS) > 20
    assert not [place for place in places if place[0] not in defined(place[1])]
    named = {code for code in CODE.findall(TEXT) if re.fullmatch(r"[A-Z]\w+\.\w+", code)}
    assert named <= {function for function, _ in places}


def test_3_the_drawing() -> None:
    assert f"({DRAWING.name})" in TEXT
    assert all(
        escape(f"{stop.step} · {stop.file.removeprefix('palaestra/')}") in drawing(TEXT) for stop in STOPS.values()
    )
    assert {*PLACES} == {*STOPS} == {end for start, end, _ in ARROWS} | {start for start, _, _ in ARROWS}


def test_3_types_on_the_arrows() -> None:
    on_arrows = [(start, end, word) for start, end, what in ARROWS for word in what.split(", ") if word[0].isupper()]
    assert {word for _, _, word in on_arrows} == types_of(TEXT)
    for start, end, word in on_arrows:
        assert word in types_of(STOPS[start].gives) | types_of(STOPS[end].takes), (start, end, word)


def test_6_short() -> None:
    steps = re.findall(r"^(\d+)\. \*\*", TEXT.partition("## Twelve steps")[2], re.MULTILINE)
    assert steps == [str(number) for number in range(1, 13)]
    assert TEXT.count("\n") < 160


def test_6_questions() -> None:
    last = TEXT.rpartition("\n## ")[2]
    questions = re.findall(r"^\d\. (.*)$", last, re.MULTILINE)
    assert len(questions) == 6 and all(question.endswith("?") for question in questions)
    for word in ("reward", "estimator", "loss", "rollout strategy", "`logprob_old`", "failed episode"):
        assert sum(word in question for question in questions) == 1


# ---- an iteration -----------------------------------------------------------------------------------------
class Followed:
    """The page's functions as an iteration calls them.

    Attributes:
        order: in which they are called first.
        called_with: types in the arguments. returned: types in the results.
        heard: types that other functions of the page have returned to them. told: types that they have called others
            with.
    """

    def __init__(self, followed: Mapping[str, Stop], types: Mapping[str, type]) -> None:
        self._names = {(stop.file, stop.function): stop.function for stop in followed.values()}
        self._types, self.order = types, list[str]()
        self.called_with, self.returned, self.heard, self.told = (defaultdict[str, set[str]](set) for _ in range(4))

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        """What `sys.setprofile` calls."""
        name = self._name(frame)
        if name is None or event not in ("call", "return"):
            return
        caller = self._caller(frame)
        if event == "call":
            if name not in self.order:
                self.order.append(name)
            code = frame.f_code
            arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            found = self._types_in([frame.f_locals.get(name) for name in arguments if name != "self"])
            self.called_with[name] |= found
            self.told[caller] |= found
        else:
            found = self._types_in(result)
            self.returned[name] |= found
            self.heard[caller] |= found

    def _name(self, frame: FrameType) -> str | None:
        file = Path(frame.f_code.co_filename)
        if not file.is_relative_to(ROOT):
            return None
        return self._names.get((file.relative_to(ROOT).as_posix(), frame.f_code.co_qualname))

    def _caller(self, frame: FrameType) -> str:
        """The function of the page that has called this one, by way of others perhaps."""
        above = frame.f_back
        while above is not None:
            name = self._name(above)
            if name is not None:
                return name
            above = above.f_back
        return ""

    def _types_in(self, value: Any, depth: int = 3) -> set[str]:
        """The page's types in a value, in containers and in the fields of what is in it."""
        found = {name for name, kind in self._types.items() if isinstance(value, kind)}
        if depth and not found:
            found |= {name for part in parts(value) for name in self._types_in(part, depth - 1)}
        return found


def parts(value: Any) -> Iterator[Any]:
    """What is in a container, or in the fields of a dataclass."""
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from (getattr(value, field.name, None) for field in dataclasses.fields(value))


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """One iteration of the small recipe of tests/training."""
    here = tmp_path_factory.mktemp("followed") / "run"
    kinds = {name: getattr(protocols if hasattr(protocols, name) else data, name) for name in types_of(TEXT)}
    record, plain = Followed(STOPS, kinds), Trainer.iterate

    def iterate(self: Trainer) -> dict[str, float]:
        before = sys.getprofile()
        sys.setprofile(record)
        try:
            return plain(self)
        finally:
            sys.setprofile(before)

    recipe = load([ECHO], [f"run={here}", "training.iterations=1", "rollout.tasks=2", "evaluation.tasks=2"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "iterate", iterate)
        train(recipe.settings, recipe=recipe.to_json(), quiet=True)
    return record


def test_4_the_order_is_that_of_the_page(followed: Followed) -> None:
    assert followed.order == [*STOPS]


@pytest.mark.parametrize("name", [*STOPS])
def test_5_types_of_a_function(followed: Followed, name: str) -> None:
    arguments, _, heard = STOPS[name].takes.partition(";")
    results, _, told = STOPS[name].gives.partition(";")
    assert types_of(arguments) <= followed.called_with[name]
    assert types_of(heard) <= followed.heard[name]
    assert types_of(results) <= followed.returned[name]
    assert types_of(told) <= followed.told[name]


@pytest.mark.parametrize(("start", "end", "what"), ARROWS)
def test_5_what_goes_along_an_arrow(followed: Followed, start: str, end: str, what: str) -> None:
    for word in {*what.split(", ")} & types_of(TEXT):
        assert word in followed.returned[start] or word in followed.called_with[end]
