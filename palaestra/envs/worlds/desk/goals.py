"""Goals: the task of a seed, with a database, what the user wants, the right calls, and what the agent must say."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from palaestra.data import ToolCall, derive
from palaestra.envs.worlds.desk.attacks import Attack, draw_attack
from palaestra.envs.worlds.desk.counter import after, call_for
from palaestra.envs.worlds.desk.handbook import Handbook, Tree, draw_handbook
from palaestra.envs.worlds.desk.kinds import GRANT, HEARS, KINDS, REFUSE, TOLD, Decision, Kind
from palaestra.envs.worlds.desk.records import ITEMS, Database, Value, allowed, draw_database, place_of
from palaestra.envs.worlds.desk.requests import said
from palaestra.envs.worlds.desk.scoring import database_hash
from palaestra.tools.users.brief import Brief, Wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One task.

    Attributes:
        database: the database at the start. It is never changed.
        handbook: the handbook that holds.
        customer: name of the customer who talks.
        brief: what the user wants, knows and does.
        calls: the right decisions, in order.
        outputs: texts that the agent must say.
        gold: hash of the database after the right calls.
        attack: what somebody tries to make the agent do; None: there is no attack.
    """

    database: Database
    handbook: Handbook
    customer: str
    brief: Brief
    calls: tuple[ToolCall, ...]
    outputs: tuple[str, ...]
    gold: str
    attack: Attack | None = None


def draw_goal(seed: int, world: Mapping[str, Any], *, open: bool = False) -> Goal:
    """The goal of a seed.

    Args:
        world: the options of `Desk` that decide the tasks, by name.
        open: the user tells all its facts at once.
    """
    rng = random.Random(derive(seed, "desk"))
    number = derive(seed, "desk handbook") if world["handbook"] is None else world["handbook"]
    handbook = draw_handbook(number, world["depth"], world["tables"])
    database = draw_database(world["tables"], world["customers"], world["orders"], rng, world["variety"])
    customer = rng.choice(list(database["users"]))
    least, most = world["requests"]
    wishes, decisions, outputs = [], [], []
    fixed: set[tuple[str, str, str]] = set()  # table, key and field that an earlier request relies on
    for kind, key in _requests(rng.randint(least, most), world, database, customer, rng):
        own = key == customer or database["orders"].get(key, {}).get("user") == customer
        if own and kind.name in handbook.trees:
            _satisfy(handbook.trees[kind.name], database, key, fixed, rng)
        wish, decision, output = _wish(kind, key, own=own, handbook=handbook, database=database, world=world, rng=rng)
        if world.get("request", "names") != "names":
            wish = replace(wish, text=(said(kind.name, world["request"], seed),))
        wishes.append(wish)
        decisions += [] if decision is None else [decision]
        outputs += [] if output is None else [output]
    attack = draw_attack(seed, world, database, customer)
    place = 0 if attack is not None and attack.template in ("role", "worded") else 1  # turn of the attack
    aside = {} if attack is None or attack.channel != "user" else {place: attack.text}
    brief = Brief(
        wishes=tuple(wishes),
        about={"name": customer, "code": str(database["users"][customer]["code"])},
        hears=HEARS,
        vague=rng.random() < world["vague"],
        open=open,
        patience=world["patience"],
        misspeaks=_misspoken(wishes, database, customer, world, rng),
        wording=rng.randrange(world["wordings"]),
        asides=aside,
    )
    kinds = tuple(world["kinds"])
    gold = database_hash(after(database, decisions, kinds))
    return Goal(
        database=database,
        handbook=handbook,
        customer=customer,
        brief=brief,
        calls=tuple(decisions),
        outputs=tuple(outputs),
        gold=gold,
        attack=attack,
    )


def _requests(
    count: int, world: Mapping[str, Any], database: Database, customer: str, rng: random.Random
) -> list[tuple[Kind, str]]:
    """Draw kinds of requests and the keys of their records. Each order and each plan occurs at most once."""
    own = [key for key, order in database["orders"].items() if order["user"] == customer]
    others = [key for key, order in database["orders"].items() if order["user"] != customer]
    rng.shuffle(own)
    found, planned = [], False
    for _ in range(count):
        names = [n for n in world["kinds"] if not (KINDS[n].about == "customer" and planned)]
        kind = KINDS[rng.choice(names)]
        foreign = rng.random() < world["foreign"]
        if kind.about == "customer":
            planned = True
            found.append((kind, customer))
        elif foreign and kind.changes and others:
            found.append((kind, others.pop(rng.randrange(len(others)))))
        else:
            found.append((kind, own.pop()))
    return found


def _satisfy(tree: Tree, database: Database, key: str, fixed: set[tuple[str, str, str]], rng: random.Random) -> None:
    """Draw a leaf of the tree and change the records of the request so that this leaf applies.

    Each answer to a condition is equally likely, unless `fixed` has its field. The fields of the path are added to
    `fixed`.
    """
    while tree.condition is not None:
        condition = tree.condition
        place = place_of(database, condition.table, key)
        assert place is not None
        record = database[condition.table][place]
        answer = condition.holds(record[condition.field])
        if (condition.table, place, condition.field) not in fixed:
            answer = rng.random() < 0.5
            record[condition.field] = rng.choice(condition.values(answer))
        fixed.add((condition.table, place, condition.field))
        following = tree.yes if answer else tree.no
        assert following is not None
        tree = following


def _wish(
    kind: Kind,
    key: str,
    *,
    own: bool,
    handbook: Handbook,
    database: Database,
    world: Mapping[str, Any],
    rng: random.Random,
) -> tuple[Wish, ToolCall | None, str | None]:
    """Draw a wish of the user, with the right decision about it and the text that the agent must say, if any."""
    facts = {} if kind.about == "customer" else {"order": key}
    change, chosen = None, None
    if kind.slot is not None:
        now = str(database["orders" if kind.slot == "item" else kind.table][key].get(kind.slot, ""))
        first, second = rng.sample([value for value in _choices(kind) if value != now], 2)
        facts[kind.slot] = chosen = first
        if rng.random() < world["changes_mind"]:
            change, chosen = (kind.slot, second), second
    verdict = handbook.path(database, kind.name, key)[1] if own else REFUSE
    call, output = None, None
    settled = [word for words in TOLD.values() for word in words]
    if kind.changes:
        call = call_for(Decision(kind=kind.name, key=key, verdict=verdict), chosen)
    if kind.answer is not None:
        answer = str(database[kind.table][key][kind.answer])
        settled.append(answer)
        output = answer if verdict == GRANT else None
    spoken = kind.name.replace("_", " ")
    wish = Wish(
        name=kind.name,
        text=kind.text,
        facts=facts,
        names=(kind.name, spoken, spoken.split()[0]),
        settled=tuple(settled),
        change=change,
    )
    return wish, call, output


def _choices(kind: Kind) -> tuple[str, ...]:
    assert kind.slot is not None
    found: tuple[Value, ...] = ITEMS if kind.slot == "item" else allowed(kind.table, kind.slot)
    return tuple(str(value) for value in found)


def _misspoken(
    wishes: list[Wish], database: Database, customer: str, world: Mapping[str, Any], rng: random.Random
) -> dict[str, str]:
    """Facts that the user first says wrongly, with the wrong values: the code or an order of somebody else."""
    found = {}
    for fact, values in (
        ("code", [str(user["code"]) for name, user in database["users"].items() if name != customer]),
        ("order", [key for key, order in database["orders"].items() if order["user"] != customer]),
    ):
        wanted = [wish.facts.get(fact) for wish in wishes]
        values = [value for value in values if value not in wanted]
        if values and rng.random() < world["misspeaks"]:
            found[fact] = rng.choice(values)
    return found
