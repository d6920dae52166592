"""Briefs: what a user wants, what it knows, and how it behaves; and what every user can do.

Knows facts by name. Knows nothing of databases, rules or who is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

STOP = "###STOP###"  # ends a dialogue, as in tau-bench (arXiv 2406.12045)


class Said(NamedTuple):
    """One turn of a user. `over`: with it the dialogue ends."""

    text: str
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One thing that a user wants.

    Attributes:
        name: what it is, as the world calls it; told as the fact `request`.
        text: "i want to cancel an order.", in the wordings that there are.
        facts: what is needed for it, by name; told when it is asked for.
        names: words of which one must stand in what the user is asked to confirm; empty: the name.
        settled: words of which one tells the user that this is settled, one way or the other.
        change: the fact that the user gives another value, once, instead of the first confirmation.
    """

    name: str
    text: tuple[str, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    settled: tuple[str, ...] = ("done",)
    change: tuple[str, str] | None = None

    @property
    def wanted(self) -> dict[str, str]:
        """The facts as they are in the end."""
        return {**self.facts, **dict([self.change] if self.change else [])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """A user's part in one dialogue.

    Attributes:
        wishes: in the order in which they come up.
        about: facts of the user, for all wishes.
        hears: by fact, the words that ask for it.
        vague: the user opens without saying what it wants.
        open: the user says everything it knows when it comes up; else only what it was asked, one fact a turn.
        patience: useless turns until the user gives up; None: it never does.
        misspeaks: facts with a wrong value that is said first and corrected in the next turn.
        wording: which of the phrasings this user prefers.
        asides: by number of the turn, from 0, something that stands behind what the user says.
    """

    wishes: tuple[Wish, ...]
    about: Mapping[str, str] = field(default_factory=dict)
    hears: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vague: bool = False
    open: bool = False
    patience: int | None = None
    misspeaks: Mapping[str, str] = field(default_factory=dict)
    wording: int = 0
    asides: Mapping[int, str] = field(default_factory=dict)

    def scenario(self) -> str:
        """The brief in words, for a chat model that plays the user."""
        lines = [f"About you: {_listed(self.about)}."] if self.about else []
        for number, wish in enumerate(self.wishes, start=1):
            lines.append(f"Wish {number}: {wish.text[0]} {_listed(wish.facts)}".strip())
            if wish.change:
                slot, value = wish.change
                lines.append(f"  When you are first asked to confirm this, change your mind: {slot} {value} instead.")
        if self.patience is not None:
            lines.append(f"After {self.patience} turns that bring nothing, give up.")
        return "\n".join(lines)


class User(Protocol):
    """Who talks to the agent. `told`: facts said so far that belong to the present wish, with their latest values."""

    told: Mapping[str, str]

    def begin(self, brief: Brief) -> Said: ...
    def reply(self, text: str) -> Said: ...
    def snapshot(self) -> Any: ...
    def restore(self, state: Any) -> None: ...


class WaitingUser(Protocol):
    """A user that has to be waited for, such as a model behind an endpoint."""

    told: Mapping[str, str]

    async def begin(self, brief: Brief) -> Said: ...
    async def reply(self, text: str) -> Said: ...
    async def close(self) -> None: ...
    def snapshot(self) -> Any: ...
    def restore(self, state: Any) -> None: ...


def _listed(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())
