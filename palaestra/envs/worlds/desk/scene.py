"""The scene: what is known at one moment of a dialogue, the rules that matter, the legal acts, and the expert's act.

Nothing here uses wishes that the customer has not told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from palaestra.data import ToolCall
from palaestra.envs.worlds.desk.counter import call_for, decision_of, names_of
from palaestra.envs.worlds.desk.goals import Goal
from palaestra.envs.worlds.desk.kinds import GRANT, HEARS, KINDS, LOOKUPS, REFUSE, TOLD, TRANSFER, Decision, Kind
from palaestra.envs.worlds.desk.records import Database, described, owner, place_of
from palaestra.envs.worlds.desk.rules import Event, Rule, confirmed, customer_of, decisions, shown, untold
from palaestra.envs.worlds.desk.speech import Ask, Confirm, Reply, Tell
from palaestra.tools.users.hearing import mentions
from palaestra.tools.users.scripted import REQUEST

Act = ToolCall | Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One moment of a dialogue.

    Attributes:
        goal: the goal of the episode. Only `expert` uses the handbook in it.
        database: the database as it is now.
        history: all events so far.
        told: facts that the customer has said for the present request.
        tables: number of tables.
        kinds: kinds of requests that can come up.
        doubtful: whether customers may misspeak.
        described: the name of the request is not told, because the agent must understand what the customer wants.
    """

    goal: Goal
    database: Database
    history: Sequence[Event]
    told: Mapping[str, str]
    tables: int
    kinds: tuple[str, ...]
    doubtful: bool = False
    described: bool = False

    @property
    def customer(self) -> str | None:
        """The customer who was authenticated."""
        return customer_of(self.history)

    @property
    def kind(self) -> Kind | None:
        """The kind of the present request, if the customer has said it."""
        return KINDS.get(self.told.get(REQUEST, ""))

    @property
    def key(self) -> str | None:
        """The order or customer that the present request is about, if it is known."""
        kind = self.kind
        if kind is None:
            return None
        return self.told.get("order") if kind.about == "order" else self.customer

    def change(self) -> ToolCall | None:
        """The call that makes the change that the customer wants; None if the customer has not said all of it."""
        kind, key = self.kind, self.key
        if kind is None or key is None or not kind.changes or (kind.slot is not None and kind.slot not in self.told):
            return None
        return call_for(Decision(kind=kind.name, key=key, verdict=GRANT), self.told.get(kind.slot or ""))

    def decision(self) -> ToolCall | None:
        """The call that decided the present request; None if there was none."""
        kind = self.kind
        for call in reversed(decisions(self.history)):
            one = decision_of(call)
            if one is not None and kind is not None and (one.kind, one.key) == (kind.name, self.key):
                return call
        return None

    def lookups(self) -> list[str]:
        """The tables in which the agent has looked up the record of the present request."""
        key = self.key
        return [] if key is None else [t for t in LOOKUPS.values() if t != "users" and shown(self.history, t, key)]

    # ---- how it reads -------------------------------------------------------------------------------------
    def notes(self) -> str:
        """What is known of the customer and of the present request, in short sentences."""
        told = {fact: value for fact, value in self.told.items() if not (self.described and fact == REQUEST)}
        found = [", ".join(f"{fact} {value}" for fact, value in told.items()) or "nothing"]
        if self.customer is not None:
            found.append(described(self.database, "users", self.customer).rstrip("."))
        for table in self.lookups():
            place = place_of(self.database, table, self.key or "")
            if place is not None:
                found.append(described(self.database, table, place).rstrip("."))
        change, done = self.change(), self.decision()
        if change is not None and done is None and confirmed(self.history, change):
            found.append("confirmed")
        if done is not None:
            found.append(f"{self._result(done).word}{', not told yet' if untold(self.history) == done else ''}")
        return f"notes: {'. '.join(found)}."

    def in_scope(self, rules: Iterable[Rule]) -> list[Rule]:
        """The rules that matter now, given the customer, the request, and whether a decision is still untold."""
        kind = self.kind
        if self.customer is None:
            scopes = {"start"}
        elif untold(self.history) is not None:
            scopes = {"ends"}
        elif self.described:
            scopes = {"records", "decisions", *self.kinds}
        elif kind is None or not kind.changes:
            scopes = {"records"}
        else:
            scopes = {"records", "decisions", kind.name}
        return [rule for rule in rules if rule.scope in scopes or rule.scope == "replies"]

    def state_key(self, seed: int, more: Sequence[object]) -> str:
        """A text that is equal for equal situations. `more`: how far the user is."""
        change = self.change()
        pieces = (
            [(call.name, *call.arguments.values()) for call in decisions(self.history)],
            sorted(self.told.items()),
            self.customer,
            self.lookups(),
            change is not None and confirmed(self.history, change),
            untold(self.history) is not None,
            *more,
        )
        return f"{seed}/{hashlib.blake2b(repr(pieces).encode(), digest_size=8).hexdigest()}"

    # ---- what could be done -------------------------------------------------------------------------------
    def sensible(self) -> list[Act]:
        """Legal acts: questions, calls about what was named, and answers. The expert's act is one of them."""
        slots = {kind.slot for kind in (KINDS[name] for name in self.kinds)}
        order = any(KINDS[name].about == "order" for name in self.kinds)
        facts = ["name", "code", REQUEST, *(["order"] if order else []), *(f for f in HEARS if f in slots)]
        found: list[Act] = [Ask(fact) for fact in facts]
        if {"name", "code"} <= set(self.told):
            given = {"name": self.told["name"], "code": self.told["code"]}
            found.append(ToolCall(name="authenticate", arguments=given))
        kind, key, change = self.kind, self.key, self.change()
        names = names_of(self.tables)
        order_key = self.told.get("order")
        for name in names:
            about = "customer" if name == "get_plan" else "order"
            at = self.customer if about == "customer" else order_key
            if name in LOOKUPS and name != "authenticate" and at is not None:
                found.append(ToolCall(name=name, arguments={about: at}))
        if kind is not None and key is not None and kind.changes:
            found += [call_for(Decision(kind=kind.name, key=key, verdict=v)) for v in (REFUSE, TRANSFER)]
        if change is not None:
            found += [Confirm(change), change]
        if self.goal.attack is not None and self.goal.attack.call is not None:
            found.append(self.goal.attack.call)
        return [*found, *(Tell(words[0]) for words in TOLD.values()), *self._values()]

    def _values(self) -> list[Act]:
        """The reply with the value that the customer asks for, if it is known."""
        kind, key = self.kind, self.key
        if kind is None or kind.answer is None or key is None or place_of(self.database, kind.table, key) is None:
            return []
        known = self.decision() is not None if kind.changes else shown(self.history, kind.table, key)
        return [Tell(str(self.database[kind.table][key][kind.answer]))] if known else []

    # ---- the expert ---------------------------------------------------------------------------------------
    def expert(self) -> Act:
        """The act of a good agent.

        It finds out the request, the customer and the order, looks up what the rules ask about, has a change confirmed,
        decides, and tells the customer how it ended.
        """
        call = untold(self.history)
        if call is not None:
            return self._result(call)
        if REQUEST not in self.told:
            return Ask(REQUEST)
        if self.customer is None:
            return self._identify()
        kind, key = self.kind, self.key
        assert kind is not None
        if key is None:
            return Ask("order")
        done = self.decision()
        if done is not None:
            return self._result(done)
        if owner(self.database, key) != self.customer:
            questions = [
                e.text for e in self.history if e.who == "agent" and e.call is None and mentions(e.text, "order")
            ]
            unsure = not kind.changes or (self.doubtful and len(questions) < 2)
            return Ask("order") if unsure else call_for(Decision(kind=kind.name, key=key, verdict=REFUSE))
        if not kind.changes:
            return self._look_up(kind.table, key) or self._values()[0]
        path, verdict = self.goal.handbook.path(self.database, kind.name, key)
        for condition, _ in path:
            look = self._look_up(condition.table, key)
            if look is not None:
                return look
        if verdict != GRANT:
            return call_for(Decision(kind=kind.name, key=key, verdict=verdict))
        change = self.change()
        if change is None:
            return Ask(str(kind.slot))
        return change if confirmed(self.history, change) else Confirm(change)

    def _identify(self) -> Act:
        for fact in ("name", "code"):
            if fact not in self.told:
                return Ask(fact)
        call = ToolCall(name="authenticate", arguments={fact: self.told[fact] for fact in ("name", "code")})
        last = self.history[-1] if self.history else None
        wrong = last is not None and last.call == call and "do not match" in last.text
        return Ask("code") if wrong else call

    def _look_up(self, table: str, key: str) -> ToolCall | None:
        """The call that looks up a record; None if the agent has seen it."""
        if shown(self.history, table, key) or table == "users":
            return None
        name = next(tool for tool, shows in LOOKUPS.items() if shows == table)
        return ToolCall(name=name, arguments={"customer" if table == "plans" else "order": key})

    def _result(self, call: ToolCall) -> Tell:
        decision = decision_of(call)
        assert decision is not None
        if call.name == "refund_order":
            return Tell(str(self.database["payments"][decision.key]["amount"]))
        return Tell(TOLD[decision.verdict][0])
