"""Users without a model: one answers what it is asked by fixed rules, one reads out turns that were written before.

They go by what the agent says, and do not check what was really done.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palaestra.errors import ContractError
from palaestra.tools.users.brief import STOP, Brief, Said, Wish
from palaestra.tools.users.hearing import asked, asks_to_confirm, mentions, mentions_any, statements

REQUEST = "request"  # the fact that tells which wish it is
PHRASES: Mapping[str, tuple[str, ...]] = {
    "fact": ("my {fact} is {value}.", "it is {value}.", "{value}.", "the {fact} would be {value}."),
    "yes": ("yes.", "yes please.", "yes, go ahead.", "yes, do that."),
    "no": ("no, that is not what i want.", "no, not that.", "no.", "no, you got me wrong."),
    "vague": ("hello, i need help.", "hi there.", "i have a problem.", "hello, can you help me?"),
    "changed": (
        "no, i changed my mind: {fact} {value} instead.",
        "no, better {fact} {value}.",
        "no wait, {fact} {value} please.",
        "no, now i prefer {fact} {value}.",
    ),
    "sorry": (
        "sorry, i misspoke: {fact} {value}.",
        "i meant {fact} {value}.",
        "correction: {fact} {value}.",
        "no, {fact} {value}, sorry.",
    ),
    "unknown": ("i do not know.", "i cannot say.", "no idea.", "that i do not know."),
    "lost": ("what do you mean?", "i do not understand.", "sorry?", "pardon?"),
    "thanks": ("thank you.", "thanks, that is all.", "great, bye.", "thank you, bye."),
    "enough": ("i have had enough.", "this takes too long.", "forget it.", "i give up."),
}
WORDINGS = len(PHRASES["fact"])


@dataclass(slots=True, kw_only=True)
class _Dialogue:
    """The state of a dialogue."""

    brief: Brief
    place: int = 0  # index of the present wish
    facts: dict[str, str] = field(default_factory=dict)  # of the present wish, with their present values
    told: dict[str, str] = field(default_factory=dict)
    wrong: str | None = None  # the fact that was said wrongly in the last turn
    misspoken: set[str] = field(default_factory=set)
    changed: bool = False
    useless: int = 0
    turn: int = 0
    over: bool = False

    @property
    def wish(self) -> Wish:
        return self.brief.wishes[self.place]


class ScriptedUser:
    """Answers what it is asked, one fact a turn, says yes to what it wants, and goes on when a wish is settled.

    A reply of the agent is read as the first of these that fits: a request to confirm; news that the present wish is
    settled; a question for facts, of which the user tells the first that it has not told yet. Anything else is not
    understood. `told` keeps the facts of a wish until the next wish, and the facts about the user for good.
    """

    def __init__(self) -> None:
        self._now: _Dialogue | None = None

    @property
    def told(self) -> Mapping[str, str]:
        """Facts said so far, with their latest values. A wrong value stays until it is corrected."""
        return self._speaking().told

    @property
    def place(self) -> int:
        """Number of wishes that are settled, as far as the user was told."""
        now = self._speaking()
        return now.place + int(now.over)

    @property
    def correcting(self) -> bool:
        """Whether the next turn corrects a wrong value."""
        return self._speaking().wrong is not None

    def begin(self, brief: Brief) -> Said:
        """Begin a dialogue. Returns its first turn. Raises: ContractError, for a brief without a wish."""
        if not brief.wishes:
            raise ContractError(
                where="ScriptedUser.begin", what="the brief has no wish.", remedy="Add at least one Wish to it."
            )
        now = self._now = _Dialogue(brief=brief, facts=dict(brief.wishes[0].facts))
        return self._say(now, self._opening(now, vague=brief.vague))

    def reply(self, text: str) -> Said:
        """The answer to the agent. It ends the dialogue if the last wish is settled or the patience is used up."""
        now = self._speaking()
        if now.over:
            remedy = "Call `begin` for a new dialogue."
            raise ContractError(where="ScriptedUser.reply", what="the dialogue is over.", remedy=remedy)
        fixed, now.wrong = now.wrong, None
        if fixed is not None:
            now.told[fixed] = self._knows(now)[fixed]
        useful, answer = self._answer(now, text)
        if fixed is not None and not now.over and fixed in now.told:
            first = self._phrase(now, "sorry", fact=fixed, value=now.told[fixed])
            answer = first if not useful else f"{first} {answer}"
            useful = True
        now.useless = 0 if useful else now.useless + 1
        if now.brief.patience is not None and now.useless >= now.brief.patience and not now.over:
            now.over, answer = True, f"{self._phrase(now, 'enough')} {STOP}"
        return self._say(now, answer)

    def snapshot(self) -> Any:
        return copy.deepcopy(self._now)

    def restore(self, state: Any) -> None:
        self._now = copy.deepcopy(state)

    # ---- answering ----------------------------------------------------------------------------------------
    def _speaking(self) -> _Dialogue:
        if self._now is None:
            raise ContractError(
                where="ScriptedUser", what="`begin` was not called.", remedy="Call `begin(brief)` first."
            )
        return self._now

    def _answer(self, now: _Dialogue, text: str) -> tuple[bool, str]:
        """Whether the reply was useful, and the answer to it."""
        if asks_to_confirm(text):
            return self._confirm(now, text)
        if mentions_any(statements(text), now.wish.settled):
            return True, self._go_on(now)
        wanted = asked(text, now.brief.hears)
        if not wanted:
            return False, self._phrase(now, "lost")
        known = self._knows(now)
        fresh = [fact for fact in wanted if fact in known and fact not in now.told]
        again = [fact for fact in wanted if fact in known]
        if not again:
            return False, self._phrase(now, "unknown")
        return bool(fresh), self._tell(now, (fresh or again)[0])

    def _confirm(self, now: _Dialogue, text: str) -> tuple[bool, str]:
        names = now.wish.names or (now.wish.name,)
        right = mentions_any(text, names) and all(mentions(text, value) for value in now.facts.values())
        if not right:
            return False, self._phrase(now, "no")
        change = now.wish.change
        if change is not None and not now.changed:
            now.changed = True
            fact, value = change
            now.facts[fact] = now.told[fact] = value
            return True, self._phrase(now, "changed", fact=fact, value=value)
        now.told.update(now.facts, **{REQUEST: now.wish.name})  # a yes confirms all facts
        return True, self._phrase(now, "yes")

    def _go_on(self, now: _Dialogue) -> str:
        if now.place + 1 == len(now.brief.wishes):
            now.over = True
            return f"{self._phrase(now, 'thanks')} {STOP}"
        now.place += 1
        now.facts, now.changed = dict(now.wish.facts), False
        now.told = {fact: value for fact, value in now.told.items() if fact in now.brief.about}
        return self._opening(now, vague=False)

    def _opening(self, now: _Dialogue, *, vague: bool) -> str:
        if vague:
            return self._phrase(now, "vague")
        now.told[REQUEST] = now.wish.name
        said = [now.wish.text[now.brief.wording % len(now.wish.text)]]
        for fact, value in self._knows(now).items() if now.brief.open else ():
            if fact not in now.told:
                now.told[fact] = value
                said.append(PHRASES["fact"][0].format(fact=fact, value=value))
        return " ".join(said)

    def _tell(self, now: _Dialogue, fact: str) -> str:
        if fact == REQUEST:
            now.told[REQUEST] = now.wish.name
            return now.wish.text[now.brief.wording % len(now.wish.text)]
        value = self._knows(now)[fact]
        if fact in now.brief.misspeaks and fact not in now.misspoken:
            now.misspoken.add(fact)
            now.wrong, value = fact, now.brief.misspeaks[fact]
        now.told[fact] = value
        return self._phrase(now, "fact", fact=fact, value=value)

    def _knows(self, now: _Dialogue) -> dict[str, str]:
        return {**now.brief.about, REQUEST: now.wish.name, **now.facts}

    def _phrase(self, now: _Dialogue, kind: str, **words: str) -> str:
        return PHRASES[kind][now.brief.wording % WORDINGS].format(**words)

    def _say(self, now: _Dialogue, text: str) -> Said:
        aside = now.brief.asides.get(now.turn)
        now.turn += 1
        return Said(f"{text} {aside}" if aside and not now.over else text, now.over)


@dataclass(frozen=True, slots=True)
class Line:
    """One turn that was written before, and the facts that it tells."""

    text: str
    told: Mapping[str, str]


class StaticUser:
    """Reads out turns that were written before, whatever the agent says, and ends after the last one."""

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self._lines, self._place = tuple(lines), 0

    @property
    def told(self) -> Mapping[str, str]:
        return self._lines[self._place].told

    def begin(self, brief: Brief) -> Said:
        """The first line. Raises: ContractError, if there is no line."""
        if not self._lines:
            raise ContractError(where="StaticUser.begin", what="it has no line.", remedy="Give it at least one Line.")
        self._place = 0
        return Said(self._lines[0].text, len(self._lines) == 1)

    def reply(self, text: str) -> Said:
        """The next line."""
        self._place += 1
        return Said(self._lines[self._place].text, self._place == len(self._lines) - 1)

    def snapshot(self) -> Any:
        return self._lines, self._place

    def restore(self, state: Any) -> None:
        self._lines, self._place = state
