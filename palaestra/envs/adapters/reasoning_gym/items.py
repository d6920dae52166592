"""Items of Reasoning Gym: makes a question, its answer and its scorer from a seed."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import json
import random
from collections.abc import Mapping
from typing import Any

from palaestra.data import derive
from palaestra.envs.adapters.reasoning_gym.answers import harmless
from palaestra.envs.kit.randomness import Randomness
from palaestra.errors import ContractError, RecipeError, UnknownName, missing_extra, nearest

PLACE = "environment reasoning_gym"
OWN = ("seed", "size")  # options of every dataset that recipes cannot set
POOL = 16  # items that wrong answers are taken from
TRIES = 60  # the most items that are drawn until one is in the wanted half
EXAMPLES = ("example_answer", "example_correct_answer", "possible_answer")  # keys, if several answers are right
KEPT = 512  # items in the cache


@functools.cache
def package() -> Any:
    """The package. Raises: MissingExtra."""
    try:
        importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise missing_extra("reasoning-gym", extra="envs", needed_for=PLACE) from error
    return importlib.import_module("reasoning_gym.factory")


def names() -> tuple[str, ...]:
    """The names of all datasets of the package but `composite`, which mixes them."""
    return tuple(sorted(name for name in package().DATASETS if name != "composite"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What an item is made of: a dataset, its options, and a level of its curriculum or None."""

    dataset: str
    options: str  # as JSON
    level: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A question with its scorer. `answer` gets the full score; it is None if the package gives no such answer."""

    kind: Kind
    question: str
    answer: str | None
    entry: Mapping[str, Any]
    dataset: Any

    def score(self, answer: str) -> float:
        """The package's score of an answer, 0 to 1. It is 0 if the answer is not safe to score or the scorer fails."""
        if not harmless(self.kind.dataset, answer):
            return 0.0
        with Randomness(0).lent():
            try:
                return float(min(max(self.dataset.score_answer(answer, dict(self.entry)), 0.0), 1.0))
            except Exception:  # scorers expect well-formed answers
                return 0.0


@functools.lru_cache(maxsize=KEPT)
def item(kind: Kind, seed: int, half: int | None) -> Item:
    """The item of a seed. A seed gives a sequence of items, from which one is taken.

    Args:
        half: 0 or 1: take the first item whose question is in this half of all questions, so that training and
            evaluation share no question. None: take the first item.

    Raises: ContractError, if none of the first 60 items is in this half.
    """
    for number in range(TRIES):
        own = derive(seed, "item", number) % 2**31
        with Randomness(own).lent():
            dataset = _dataset(kind, own)
            entry = dataset[0]
        question = str(entry["question"]).strip()
        if half is None or hashlib.sha256(question.encode()).digest()[0] % 2 == half:
            return Item(kind=kind, question=question, answer=_answer(entry), entry=entry, dataset=dataset)
    raise ContractError(
        where=f"{PLACE}, dataset {kind.dataset}",
        what=f"none of {TRIES} questions is in the half of all questions that this split plays.",
        remedy="Give the dataset wider or harder options, so that it has more questions.",
    )


@functools.lru_cache(maxsize=64)
def other_answers(kind: Kind) -> tuple[str, ...]:
    """The different answers of a few items of this kind."""
    found = [item(kind, seed, None).answer for seed in range(POOL)]
    return tuple(sorted({answer for answer in found if answer is not None}))


def choices(of: Item, seed: int, count: int) -> list[str]:
    """The right answer and at most `count` answers to other questions, in an order that the seed decides."""
    assert of.answer is not None
    draw = random.Random(derive(seed, "choices"))
    others = [answer for answer in other_answers(of.kind) if answer != of.answer]
    listed = [of.answer, *draw.sample(others, min(count, len(others)))]
    draw.shuffle(listed)
    return listed


def levels(dataset: str) -> int:
    """The number of levels of a dataset's curriculum; 0 if it has none."""
    if dataset not in package().CURRICULA:
        return 0
    attributes = package().create_curriculum(dataset).attributes.values()
    return max((len(attribute.levels) for attribute in attributes), default=0)


def check(kind: Kind) -> None:
    """Check that items of this kind can be made, by making one.

    Raises: UnknownName, for the dataset; RecipeError, for its options or its level.
    """
    where = f"{PLACE}, dataset {kind.dataset}"
    if kind.dataset not in names():
        raise UnknownName(
            where=PLACE,
            what=f"Reasoning Gym has no dataset `{kind.dataset}`.",
            options=nearest(kind.dataset, names()),
            remedy="Set `dataset` to a name of Reasoning Gym.",
        )
    known = [field.name for field in dataclasses.fields(package().DATASETS[kind.dataset][1]) if field.name not in OWN]
    for option in json.loads(kind.options):
        if option not in known:
            raise RecipeError(
                where=where,
                what=f"the dataset has no option `{option}`.",
                options=nearest(option, known),
                remedy=f"Its options are: {', '.join(known) or 'none'}. `seed` and `size` come from the tasks.",
            )
    there = levels(kind.dataset)
    if kind.level is not None and kind.level >= there:
        raise RecipeError(
            where=where,
            what=f"it has no level {kind.level}: its curriculum has {there or 'no'} levels.",
            remedy=f"Set `levels` between 0 and {there - 1}." if there else "Leave `levels` out.",
        )
    try:
        item(kind, 0, None)
    except Exception as error:
        raise RecipeError(
            where=where,
            what=f"it makes no items with the options {kind.options}: {str(error).strip() or type(error).__name__}.",
            remedy="Correct the options of the dataset.",
        ) from error


def _dataset(kind: Kind, seed: int) -> Any:
    options = json.loads(kind.options)
    if kind.level is not None:
        coaching = importlib.import_module("reasoning_gym.coaching.base_curriculum")
        curriculum = package().create_curriculum(kind.dataset)
        curriculum.set_global_level(kind.level)
        only = coaching.DefaultCurriculumContext(mode=coaching.RangeAttributeMode.UPPER_BOUND)  # not the levels below
        made = curriculum.generate_configuration(options, context=only)
        options = {f.name: getattr(made, f.name) for f in dataclasses.fields(made)} | options
    return package().create_dataset(kind.dataset, **options | {"seed": seed, "size": 1})


def _answer(entry: Mapping[str, Any]) -> str | None:
    found = entry["answer"]
    for name in EXAMPLES:
        if found is None:
            found = entry["metadata"].get(name)
    if found is None or isinstance(found, str):
        return found
    return json.dumps(found)
