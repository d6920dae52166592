"""The brief of a simulated user (what it wants, what it knows, how it behaves), and the protocol of users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

STOP = "###STOP###"  # ends a dialogue, as in tau-bench (arXiv 2406.12045)


class Said(NamedTuple):
    """One turn of a user. `over`: the dialogue ends with it."""

    text: str
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One thing that a user wants.

    Attributes:
        name: name of the wish in the world. The user tells it as the fact `request`.
        text: phrasings of the wish, such as "i want to cancel an order.".
        facts: values that the wish needs, by name. The user tells them when it is asked.
        names: words for the wish. The user confirms only a text that contains one of them. Empty: the name.
        settled: words that tell the user that the wish is settled, whether it was granted or refused.
        change: a fact and its new value, which the user gives once, instead of its first confirmation.
    """

    name: str
    text: tuple[str, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    settled: tuple[str, ...] = ("done",)
    change: tuple[str, str] | None = None

    @property
    def wanted(self) -> dict[str, str]:
        """The facts with the values that the user wants in the end."""
        return {**self.facts, **dict([self.change] if self.change else [])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """What a user wants, knows and does in one dialogue.

    Attributes:
        wishes: wishes in the order in which the user brings them up.
        about: facts about the user, for all wishes.
        hears: fact → words that ask for it.
        vague: the user opens without saying what it wants.
        open: the user tells all its facts together with a wish. False: one fact a turn, and only when it is asked.
        patience: useless turns in a row after which the user gives up. None: it never does.
        misspeaks: fact → a wrong value that the user says first and corrects in its next turn.
        wording: number of the phrasing that this user takes.
        asides: number of a turn, from 0 → a text that is added to what the user says.
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
        """The brief as a text, for a chat model that plays the user."""
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
    """A user who talks to the agent. `told`: the facts said so far for the present wish, with their latest values."""

    told: Mapping[str, str]

    def begin(self, brief: Brief) -> Said: ...
    def reply(self, text: str) -> Said: ...
    def snapshot(self) -> Any: ...
    def restore(self, state: Any) -> None: ...


class WaitingUser(Protocol):
    """A user whose turns are awaited, such as a model behind an endpoint."""

    told: Mapping[str, str]

    async def begin(self, brief: Brief) -> Said: ...
    async def reply(self, text: str) -> Said: ...
    async def close(self) -> None: ...
    def snapshot(self) -> Any: ...
    def restore(self, state: Any) -> None: ...


def _listed(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())
