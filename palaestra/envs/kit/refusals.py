"""Refusals: options with which an environment could not work, told by one line before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from palaestra.errors import RecipeError


@dataclass(frozen=True, slots=True)
class Refusals:
    """Refuses options of an environment; each method raises a RecipeError for the first that is wrong.

        refuse = Refusals("environment: household")
        refuse.when_reversed(places=places, things=things)
        refuse.when_empty(GOALS, goals=goals)
        refuse.when_certain("nothing could ever be done", slip=slip)
        refuse.when(places[0] < rooms, f"{places[0]} places are too few for {rooms} rooms.", "Raise `places`.")

    Args:
        where: what a message begins with.
    """

    where: str

    def when(self, wrong: object, what: str, remedy: str) -> None:
        """Refuse if something is wrong: `what` is the fault with the values found, `remedy` the way out."""
        if wrong:
            raise RecipeError(where=self.where, what=what, remedy=remedy)

    def when_reversed(self, **ranges: tuple[float, float] | None) -> None:
        """Refuse a range, fewest and most, whose first number is larger than the second. None: no range was given."""
        for name, ends in ranges.items():
            if ends is not None:
                self.when(
                    ends[0] > ends[1],
                    f"`{name}` is {ends[0]} to {ends[1]}: the first number is larger than the second.",
                    f"Write `{name}: [{ends[1]}, {ends[0]}]`.",
                )

    def when_empty(self, choices: Collection[str], **lists: Collection[str]) -> None:
        """Refuse an empty list. `choices`: what it can name."""
        for name, chosen in lists.items():
            self.when(not chosen, f"`{name}` is empty.", f"Name some of: {', '.join(choices)}.")

    def when_repeated(self, **lists: Sequence[str]) -> None:
        """Refuse a list that names something twice."""
        for name, chosen in lists.items():
            twice = next((one for one in chosen if chosen.count(one) > 1), None)
            self.when(twice is not None, f"`{name}` names {twice} twice.", "Name each once.")

    def when_certain(self, then: str, **probabilities: float) -> None:
        """Refuse a probability of 1. `then`: what it would do, as in `nothing could ever be done`."""
        for name, probability in probabilities.items():
            self.when(probability == 1, f"with `{name}: 1` {then}.", f"Set `{name}` below 1.")
