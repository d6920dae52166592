"""How a case of this suite says which promise it tests, and how often it tried.

    from tests.attack.promises import Trials, promise

    @promise("A run needs no home folder that can be written", subject="surroundings",
             how="`palaestra train` with a HOME that is read-only")
    def test_home(tmp_path, trials: Trials) -> None:
        for number in range(trials.number(few=1, many=5)):
            assert ...
            trials.add()

`promise` marks a test function, or all cases of a parametrized one. Its text is a literal, which a test of the page
compares with the table. Many tests may name the same promise: use one
constant for them; their trials are added, and the promise held if all of them passed. A test that adds no trials counts
as one. A test that is skipped is listed with its reason, and is no trial. `make attack` makes the table of all
promises (tests/attack/table.py); without it, as in `make test`, `trials.number` gives the small number.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

# The subjects, in the order of the table, with their titles there.
SUBJECTS = {
    "runs": "Runs that are killed or stopped",
    "folders": "Run folders",
    "texts": "Texts of agents, tools and environments",
    "faults": "Faults of environments, policies and programs",
    "recipes": "Recipes and code of others",
    "sandboxes": "Sandboxes and tools",
    "servers": "Servers",
    "surroundings": "The machine",
}


def promise(text: str, *, how: str, subject: str) -> pytest.MarkDecorator:
    """The mark of a test that tries a promise.

    Args:
        text: the promise, one sentence without a full stop. how: how it is tried, one phrase. Both may use `code`, and
            have no line breaks and no `|`.
        subject: a key of SUBJECTS.
    """
    assert subject in SUBJECTS, subject
    assert not set("\n|") & {*text, *how}, "they become cells of a table"
    return pytest.mark.promise(text, how=how, subject=subject)


@dataclass
class Trials:
    """Counts the trials of one test. The fixture `trials` gives it.

    Attributes:
        many: whether this is `make attack`. seed: of `draw`, which is printed when the suite begins.
    """

    note: Callable[[str, object], None]
    many: bool
    seed: int
    draw: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    def number(self, *, few: int, many: int) -> int:
        """How many trials to make: `few` in `make test`, `many` in `make attack`."""
        return many if self.many else few

    def add(self, number: int = 1) -> None:
        """So many more trials were made, and held. Call it after the check."""
        self.note("trials", number)
