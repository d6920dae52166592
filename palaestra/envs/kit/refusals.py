"""Refuse options that an environment cannot work with, before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from palaestra.errors import RecipeError


@dataclass(frozen=True, slots=True)
class Refusals:
    """Checks options of an environment. Each method raises a RecipeError for the first option that is wrong.

        refuse = Refusals("environment: household")
        refuse.when_reversed(places=places, things=things)
        refuse.when_empty(GOALS, goals=goals)
        refuse.when_certain("nothing could ever be done", slip=slip)
        refuse.when(places[0] < rooms, f"{places[0]} places are too few for {rooms} rooms.", "Raise `places`.")

    Args:
        where: first line of the error message.
    """

    where: str

    def when(self, wrong: object, what: str, remedy: str) -> None:
        """Refuse if `wrong` is true. `what`: the fault, with the values found. `remedy`: what to do."""
        if wrong:
            raise RecipeError(where=self.where, what=what, remedy=remedy)

    def when_reversed(self, **ranges: tuple[float, float] | None) -> None:
        """Refuse a range whose first number is larger than its second. None stands for no range and is not refused."""
        for name, ends in ranges.items():
            if ends is not None:
                self.when(
                    ends[0] > ends[1],
                    f"`{name}` is {ends[0]} to {ends[1]}: the first number is larger than the second.",
                    f"Write `{name}: [{ends[1]}, {ends[0]}]`.",
                )

    def when_empty(self, choices: Collection[str], **lists: Collection[str]) -> None:
        """Refuse an empty list. `choices`: the names that it can have."""
        for name, chosen in lists.items():
            self.when(not chosen, f"`{name}` is empty.", f"Name some of: {', '.join(choices)}.")

    def when_repeated(self, **lists: Sequence[str]) -> None:
        """Refuse a list that names something twice."""
        for name, chosen in lists.items():
            twice = next((one for one in chosen if chosen.count(one) > 1), None)
            self.when(twice is not None, f"`{name}` names {twice} twice.", "Name each once.")

    def when_certain(self, then: str, **probabilities: float) -> None:
        """Refuse a probability of 1. `then`: its consequence, such as `nothing could ever be done`."""
        for name, probability in probabilities.items():
            self.when(probability == 1, f"with `{name}: 1` {then}.", f"Set `{name}` below 1.")
