"""One dialogue at the desk: it carries out the agent's acts, finds the rules that they break, and keeps the history."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from palaestra.data import ToolCall, derive
from palaestra.envs.kit.leniency import stripped
from palaestra.envs.worlds.desk.counter import Counter, call_text, tools_of
from palaestra.envs.worlds.desk.goals import Goal
from palaestra.envs.worlds.desk.kinds import LOOKUPS
from palaestra.envs.worlds.desk.records import copied
from palaestra.envs.worlds.desk.rules import Event, Proposed, Rule, Situation, broken, general_rules, handbook_rules
from palaestra.envs.worlds.desk.scene import Act, Scene
from palaestra.envs.worlds.desk.scoring import score
from palaestra.envs.worlds.desk.speech import Style, can_be_read, written
from palaestra.tools.toolbox import Toolbox
from palaestra.tools.users.brief import Said
from palaestra.tools.users.chat import ChatUser
from palaestra.tools.users.scripted import ScriptedUser, StaticUser

AnyUser = ScriptedUser | StaticUser | ChatUser


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """The options that all dialogues of a desk share.

    `style`: `replies`; `doubtful`: customers may misspeak; `described`: the agent must understand what they want.
    """

    tables: int
    kinds: tuple[str, ...]
    format: str
    style: Style
    failure: float
    doubtful: bool
    described: bool
    max_calls: int | None
    max_faults: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The result of an act.

    Attributes:
        heard: what the agent reads: the result of a call, or an error.
        reply: what the agent said to the user, who has still to answer; None: the user does not answer this act.
        violations: names of the rules that the act broke.
        called: whether the act was a call.
        failed: whether it was a call that did not work.
        readable: whether the act could be read.
        expert: whether the expert would have done the same.
    """

    heard: str = ""
    reply: str | None = None
    violations: tuple[str, ...] = ()
    called: bool = False
    failed: bool = False
    readable: bool = True
    expert: bool = False


@dataclass(slots=True, kw_only=True)
class Progress:
    """What changes in a dialogue, besides the database, the toolbox and the user.

    Attributes:
        broken: names of the rules that the agent has broken so far.
        attacked: whether the agent has seen an attack.
    """

    history: list[Event] = field(default_factory=list)
    turn: int = 0
    broken: tuple[str, ...] = ()
    attacked: bool = False


class Dialogue:
    """One dialogue.

    Args:
        seed, goal: seed and goal of the task.
        user: a user for this dialogue only.
    """

    def __init__(self, seed: int, goal: Goal, manner: Manner, user: AnyUser) -> None:
        self.seed, self.goal, self.user = seed, goal, user
        self._manner = manner
        self._counter = Counter(copied(goal.database), manner.kinds)
        tools = tools_of(self._counter, manner.tables)
        self.toolbox = Toolbox(tools, format=manner.format, max_calls=manner.max_calls, max_faults=manner.max_faults)
        self.rules: tuple[Rule, ...] = (*general_rules(self.toolbox.tools), *handbook_rules(goal.handbook))
        self.now = Progress()

    # ---- what can be asked --------------------------------------------------------------------------------
    @property
    def scene(self) -> Scene:
        """What is known at this moment."""
        return Scene(
            goal=self.goal,
            database=self._counter.database,
            history=self.now.history,
            told=self.user.told,
            tables=self._manner.tables,
            kinds=self._manner.kinds,
            doubtful=self._manner.doubtful,
            described=self._manner.described,
        )

    @property
    def done(self) -> bool:
        """Whether the task would be a success if the dialogue ended now."""
        replies = (event.text for event in self.now.history if event.who == "agent" and event.call is None)
        return score(self._counter.database, gold=self.goal.gold, outputs=self.goal.outputs, replies=replies)

    @property
    def attack_succeeded(self) -> bool:
        """Whether the agent has done what the attack asks for."""
        attack = self.goal.attack
        return attack is not None and attack.succeeded(self.now.history)

    def written(self, act: Act) -> str:
        """An act as the agent writes it."""
        if isinstance(act, ToolCall):
            return call_text(self._manner.format, act.name, tuple(act.arguments.items()))
        return written(act, self._manner.style)

    # ---- what happens -------------------------------------------------------------------------------------
    def hear(self, answer: Said) -> None:
        """Record a turn of the user."""
        self.now.history.append(Event(who="user", text=answer.text))
        attack = self.goal.attack
        if attack is not None and attack.channel == "user" and attack.text in answer.text:
            self.now.attacked = True

    def act(self, text: Any, *, expert: str | None = None) -> Turn:
        """Carry out an act, a call or a reply.

        Args:
            text: what the agent wrote.
            expert: what the expert would write; None: the two are not compared.
        """
        self.now.turn += 1
        if not isinstance(text, str):
            return self._unread("write a text")
        parsed = self.toolbox.read(text)
        if not (parsed.fault or parsed.calls or can_be_read(parsed.said, self._manner.style)):
            parsed = self.toolbox.read(stripped(text))
        if parsed.fault is not None:
            return Turn(heard=f"error: {parsed.fault}", called=True, failed=True, readable=False)
        if len(parsed.calls) > 1:
            return self._unread("one call in each turn", called=True)
        same = expert is not None and " ".join(text.lower().split()) == " ".join(expert.lower().split())
        if parsed.calls:
            return self._call(parsed.calls[0], same=same)
        if not can_be_read(parsed.said, self._manner.style):
            return self._unread("cannot read that")
        labels = self._label(parsed.said)
        self.now.history.append(Event(who="agent", text=parsed.said))
        return Turn(reply=parsed.said, violations=labels, expert=same)

    def _call(self, call: ToolCall, *, same: bool) -> Turn:
        labels = self._label(call)
        if self._fails(call):
            self.now.history.append(Event(who="agent", text="busy", call=call, ok=False))
            return Turn(heard="error: busy, try again", violations=labels, called=True, failed=True, expert=same)
        result = self.toolbox.call(call)
        text = result.text
        attack = self.goal.attack
        if result.ok and call.name in LOOKUPS and attack is not None and attack.channel == "tool":
            text, self.now.attacked = f"{text} {attack.text}", True
        self.now.history.append(Event(who="agent", text=result.text, call=call, ok=result.ok))
        return Turn(heard=text, violations=labels, called=True, failed=not result.ok, expert=same)

    def _label(self, proposed: Proposed) -> tuple[str, ...]:
        state = Situation(database=self._counter.database, handbook=self.goal.handbook)
        found = tuple(broken(self.rules, self.now.history, proposed, state))
        self.now.broken += found
        return found

    def _unread(self, why: str, *, called: bool = False) -> Turn:
        self.toolbox.unread()
        return Turn(heard=f"error: {why}", called=called, failed=called, readable=False)

    def _fails(self, call: ToolCall) -> bool:
        """Whether this call fails, which depends only on the task, the turn and the call."""
        if self._manner.failure == 0:
            return False
        chance = derive(self.seed, "failure", self.now.turn, call.name, sorted(call.arguments.items()))
        return chance / 2**63 < self._manner.failure

    # ---- going back ---------------------------------------------------------------------------------------
    def snapshot(self) -> Any:
        """The state of the dialogue, for `restore`."""
        now = self.now
        progress = (tuple(now.history), now.turn, now.broken, now.attacked)
        return copied(self._counter.database), self.toolbox.snapshot(), self.user.snapshot(), progress

    def restore(self, state: Any) -> None:
        """Go back to a state of the same task."""
        database, totals, spoken, (history, turn, names, attacked) = state
        self._counter.database = copied(database)
        self.toolbox.restore(totals)
        self.user.restore(spoken)
        self.now = Progress(history=list(history), turn=turn, broken=names, attacked=attacked)
