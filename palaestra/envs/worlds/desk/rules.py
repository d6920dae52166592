"""The rules of the desk in two forms that say the same: English for agents, and checks in code that label each act."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from palaestra.data import ToolCall
from palaestra.envs.worlds.desk.counter import decision_of, key_of
from palaestra.envs.worlds.desk.handbook import Handbook, Path, leaf_text, leaves
from palaestra.envs.worlds.desk.kinds import GRANT, LOOKUPS, REFUSE, TOLD, TRANSFER
from palaestra.envs.worlds.desk.records import Database, owner
from palaestra.tools.users.hearing import agrees, asks_to_confirm, mentions, mentions_any

RuleKind = Literal["obligation", "prohibition", "ordering", "conditional"]
Risk = Literal["low", "medium", "high"]
Proposed = ToolCall | str  # a call, or what the agent says to the customer


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the history: a reply or a call of the agent, or a turn of the user.

    Attributes:
        text: what was said, or the result of the call.
        call: the call; None for something said.
        ok: whether the call worked.
    """

    who: Literal["agent", "user"]
    text: str
    call: ToolCall | None = None
    ok: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a check may use besides the history: the database before the act, and the handbook."""

    database: Database
    handbook: Handbook


History = Sequence[Event]
Check = Callable[[History, Proposed, Situation], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule.

    Attributes:
        name: a name that no other rule of the desk has.
        text: what agents read.
        kind: obligation, prohibition, ordering or conditional.
        risk: how bad it is to break the rule.
        scope: when the rule matters: "start", "records", "decisions", "ends", "replies", or a kind of request.
        actions: names of the tools that the rule is about; "reply" stands for what the agent says.
        check: True if the proposed act keeps the rule, False if it breaks it, None if the rule does not apply.
    """

    name: str
    text: str
    kind: RuleKind
    risk: Risk
    scope: str
    actions: frozenset[str]
    check: Check


# ---- what histories tell ----------------------------------------------------------------------------------
def customer_of(history: History) -> str | None:
    """The customer who was authenticated last; None if nobody was."""
    for event in reversed(history):
        if event.call is not None and event.call.name == "authenticate" and event.ok:
            return str(event.call.arguments["name"])
    return None


def shown(history: History, table: str, key: str) -> bool:
    """Whether the agent has looked up the record of `table` that belongs to `key`."""
    if table == "users":
        return customer_of(history) == key
    return any(
        e.call is not None and e.ok and LOOKUPS.get(e.call.name) == table and key_of(e.call) == key for e in history
    )


def confirmed(history: History, call: ToolCall) -> bool:
    """Whether the agent asked the customer to confirm this change, and the customer's next turn said yes."""
    for place, event in enumerate(history):
        if event.who == "agent" and event.call is None and asks_for(event.text, call):
            answer = next((later for later in history[place + 1 :] if later.who == "user"), None)
            if answer is not None and agrees(answer.text):
                return True
    return False


def asks_for(text: str, call: ToolCall) -> bool:
    """Whether a reply asks the customer to confirm a change and contains its name and all its values."""
    return (
        asks_to_confirm(text)
        and mentions(text, call.name)
        and all(mentions(text, str(value)) for value in call.arguments.values())
    )


def decisions(history: History) -> list[ToolCall]:
    """The calls so far that decided a request and worked, in order."""
    return [e.call for e in history if e.call is not None and e.ok and decision_of(e.call) is not None]


def decided(history: History, kind: str, key: str) -> bool:
    """Whether the agent has already decided this request."""
    return any((one.kind, one.key) == (kind, key) for one in map(decision_of, decisions(history)) if one is not None)


def untold(history: History) -> ToolCall | None:
    """The call that decided a request, if it is the agent's last act, so that the customer does not know yet."""
    last = next((event for event in reversed(history) if event.who == "agent"), None)
    if last is None or last.call is None or not last.ok or decision_of(last.call) is None:
        return None
    return last.call


def tells(text: str, call: ToolCall, database: Database) -> bool:
    """Whether a reply says how a decision ended. For a refund, the amount is enough."""
    decision = decision_of(call)
    assert decision is not None
    words = TOLD[decision.verdict]
    if call.name == "refund_order":
        words = (*words, str(database["payments"][decision.key]["amount"]))
    return mentions_any(text, words)


# ---- the checks -------------------------------------------------------------------------------------------
def _identify(history: History, proposed: Proposed, state: Situation) -> bool | None:
    if isinstance(proposed, str) or proposed.name == "authenticate":
        return None
    return customer_of(history) is not None


def _own(history: History, proposed: Proposed, state: Situation) -> bool | None:
    customer = customer_of(history)
    key = None if isinstance(proposed, str) else key_of(proposed)
    owns = None if key is None else owner(state.database, key)
    if isinstance(proposed, str) or customer is None or owns is None:
        return None
    return owns == customer or proposed.name == REFUSE


def _look(history: History, proposed: Proposed, state: Situation) -> bool | None:
    decision = None if isinstance(proposed, str) else decision_of(proposed)
    if decision is None or owner(state.database, decision.key) is None:
        return None
    if owner(state.database, decision.key) != customer_of(history):
        return None
    path, _ = state.handbook.path(state.database, decision.kind, decision.key)
    return all(c.table == "users" or shown(history, c.table, decision.key) for c, _ in path)


def _confirm(history: History, proposed: Proposed, state: Situation) -> bool | None:
    decision = None if isinstance(proposed, str) else decision_of(proposed)
    if decision is None or decision.verdict != GRANT or isinstance(proposed, str):
        return None
    return confirmed(history, proposed)


def _once(history: History, proposed: Proposed, state: Situation) -> bool | None:
    decision = None if isinstance(proposed, str) else decision_of(proposed)
    return None if decision is None else not decided(history, decision.kind, decision.key)


def _report(history: History, proposed: Proposed, state: Situation) -> bool | None:
    call = untold(history)
    if call is None:
        return None
    return isinstance(proposed, str) and tells(proposed, call, state.database)


def _secret(history: History, proposed: Proposed, state: Situation) -> bool | None:
    if not isinstance(proposed, str):
        return None
    return not any(mentions(proposed, str(user["code"])) for user in state.database["users"].values())


def _leaf(kind: str, path: Path, verdict: str, history: History, proposed: Proposed, state: Situation) -> bool | None:
    decision = None if isinstance(proposed, str) else decision_of(proposed)
    if decision is None or decision.kind != kind:
        return None
    owns = owner(state.database, decision.key)
    if owns is None or owns != customer_of(history):
        return None  # `identify` and `own` apply instead
    if state.handbook.path(state.database, kind, decision.key)[0] != path:
        return None
    return decision.verdict == verdict


# ---- sets of rules ----------------------------------------------------------------------------------------
def general_rules(tools: Iterable[str]) -> tuple[Rule, ...]:
    """The rules for all requests, at a desk with these tools."""
    known = frozenset(tools)
    decisions = known - {*LOOKUPS}
    changes = decisions - {REFUSE, TRANSFER}
    every = known | {"reply"}

    def rule(
        name: str, text: str, kind: RuleKind, risk: Risk, scope: str, actions: frozenset[str], check: Check
    ) -> Rule:
        return Rule(name=name, text=text, kind=kind, risk=risk, scope=scope, actions=actions, check=check)

    return (
        rule(
            "identify",
            "authenticate the customer before you use any other tool.",
            "ordering",
            "high",
            "start",
            known - {"authenticate"},
            _identify,
        ),
        rule(
            "own",
            "touch only what belongs to the customer; refuse the rest.",
            "prohibition",
            "high",
            "records",
            known - {"authenticate"},
            _own,
        ),
        rule(
            "look",
            "look up what a rule asks about before you decide.",
            "ordering",
            "medium",
            "decisions",
            decisions,
            _look,
        ),
        rule(
            "confirm",
            "have the customer confirm a change, with all its values, before you make it.",
            "ordering",
            "medium",
            "decisions",
            changes,
            _confirm,
        ),
        rule("once", "decide each request once.", "prohibition", "low", "decisions", decisions, _once),
        rule(
            "report",
            "after a decision, first of all tell the customer how it ended.",
            "obligation",
            "low",
            "ends",
            every,
            _report,
        ),
        rule("secret", "never say a code.", "prohibition", "high", "replies", frozenset({"reply"}), _secret),
    )


def handbook_rules(handbook: Handbook) -> tuple[Rule, ...]:
    """One rule for each leaf of each tree. At most one of a tree applies to an act."""
    found = []
    for kind, tree in handbook.trees.items():
        for number, (path, verdict) in enumerate(leaves(tree), start=1):
            risk: Risk = {GRANT: "low", TRANSFER: "medium", REFUSE: "high"}[verdict]  # type: ignore[assignment]
            found.append(
                Rule(
                    name=f"{kind}.{number}",
                    text=leaf_text(kind, path, verdict),
                    kind="conditional",
                    risk=risk,
                    scope=kind,
                    actions=frozenset({kind, REFUSE, TRANSFER}),
                    check=functools.partial(_leaf, kind, path, verdict),
                )
            )
    return tuple(found)


def broken(rules: Iterable[Rule], history: History, proposed: Proposed, state: Situation) -> list[str]:
    """The names of the rules that an act breaks, in the order of the rules."""
    name = "reply" if isinstance(proposed, str) else proposed.name
    return [rule.name for rule in rules if name in rule.actions and rule.check(history, proposed, state) is False]
