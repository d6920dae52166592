"""What must hold of the desk's rules, in words and in code:

1. Every rule has a text, a check, a kind and a risk; names are unique; all four kinds occur.
2. For every rule, one script breaks it and gets exactly its label, and one keeps it.
3. The English of the handbook says what its trees say: another program reads it and decides on random records.
4. A tree of depth d has 2^d leaves and 2^d - 1 conditions; every leaf is reached by a task; last conditions matter;
   every tree grants something; the same number gives the same handbook.
5. A confirmation counts only for exactly the change that was named, and only with a yes right after it.
6. A rule that does not apply to an act gives None and no label.
"""

from __future__ import annotations

import random
import re
from collections import Counter as Tally

import pytest

from palaestra.data import Action, Task, ToolCall
from palaestra.envs.worlds.desk.counter import names_of
from palaestra.envs.worlds.desk.goals import draw_goal
from palaestra.envs.worlds.desk.handbook import draw_handbook, leaves
from palaestra.envs.worlds.desk.kinds import GRANT, KINDS, REFUSE, TRANSFER
from palaestra.envs.worlds.desk.records import draw_database, place_of
from palaestra.envs.worlds.desk.rules import Event, Situation, broken, confirmed, general_rules, handbook_rules
from palaestra.envs.worlds.desk.world import Desk

AGENT = "agent"
VERDICTS = {"do it": GRANT, "refuse it": REFUSE, "transfer it": TRANSFER}
GENERAL = ("identify", "own", "look", "confirm", "once", "report", "secret")


def all_rules(depth=2, tables=6, handbook=0):
    return (*general_rules(names_of(tables)), *handbook_rules(draw_handbook(handbook, depth, tables)))


def serve(env, *texts):
    for text in texts:
        result = env.step({AGENT: Action(text=text)})
    return result


def world(**options):
    return Desk(**options)._world


def goal_where(fits, **options):
    """An environment at the start of the first task that fits, and its goal."""
    for seed in range(3000):
        goal = draw_goal(seed, world(**options))
        if fits(goal):
            env = Desk(**options)
            env.reset(Task(env="desk", seed=seed))
            return env, goal
    raise AssertionError("no such task")


def test_every_rule_has_both_forms():  # rule 1
    rules = all_rules()
    assert len({rule.name for rule in rules}) == len(rules) == len(GENERAL) + 10 * 4
    assert {rule.kind for rule in rules} == {"obligation", "prohibition", "ordering", "conditional"}
    assert {rule.risk for rule in rules} == {"low", "medium", "high"}
    for rule in rules:
        assert rule.text.endswith(".") and callable(rule.check) and rule.actions
        assert rule.actions <= {*names_of(6), "reply"}


# ---- one script for each rule -----------------------------------------------------------------------------
PLAIN = {"tables": 2, "kinds": ("wrap_order",), "vague": 0.0, "foreign": 0.0, "handbook": 0}


def start():
    """A desk at the start of a dialogue about wrapping an order, which is allowed, its goal, and words for scripts."""
    env, goal = goal_where(lambda goal: goal.calls[0].name == "wrap_order", **PLAIN)
    words = {
        "name": goal.customer,
        "code": goal.brief.about["code"],
        "order": goal.brief.wishes[0].facts["order"],
        "other": next(key for key, order in goal.database["orders"].items() if order["user"] != goal.customer),
    }
    return env, goal, words


WAY = ("authenticate {name} {code}", "get_order {order}", "confirm wrap_order {order}", "wrap_order {order}")
SCRIPTS = {
    "identify": (["get_order {order}"], ["authenticate {name} {code}", "get_order {order}"]),
    "own": ([WAY[0], "get_order {other}"], [WAY[0], "refuse wrap_order {other}"]),
    "look": ([WAY[0], WAY[2], WAY[3]], list(WAY)),
    "confirm": ([WAY[0], WAY[1], WAY[3]], list(WAY)),
    "report": ([*WAY, "ask name"], [*WAY, "tell done"]),
    "once": ([*WAY, "tell it is done", "wrap_order {order}"], list(WAY)),
    "secret": (["tell {code}"], ["tell {name}"]),
}  # fmt: skip


@pytest.mark.parametrize("name", GENERAL)
def test_scripts_break_exactly_one_rule(name):  # rule 2
    breaking, keeping = SCRIPTS[name]
    env, _, words = start()
    if name == "once":  # a second wish keeps the customer there
        env, goal = goal_where(
            lambda goal: [call.name for call in goal.calls] == ["wrap_order"] * 2, **PLAIN, requests=(2, 2)
        )
        words = {"name": goal.customer, "code": goal.brief.about["code"], "order": goal.brief.wishes[0].facts["order"]}
    beginning = env.snapshot()
    for text in breaking[:-1]:
        assert serve(env, text.format(**words)).info["violations"] == []
    last = serve(env, breaking[-1].format(**words))
    assert last.info["violations"] == [name] == last.info["broken"]
    assert last.info["violation"] == {AGENT: 1.0}
    env.restore(beginning)
    for text in keeping:
        result = serve(env, text.format(**words))
        assert result.info["violations"] == [] and result.info["violation"] == {AGENT: 0.0}


@pytest.mark.parametrize("depth", [1, 2])
def test_every_leaf_is_broken_by_every_other_verdict(depth):  # rule 2
    handbook = draw_handbook(3, depth, 6)
    options = {"tables": 6, "depth": depth, "handbook": 3, "vague": 0.0, "foreign": 0.0, "changes_mind": 0.0}
    seen = set()
    for kind, tree in handbook.trees.items():
        for number, (path, verdict) in enumerate(leaves(tree), start=1):
            env, goal = goal_where(
                lambda goal, kind=kind, path=path: handbook.path(goal.database, kind, _key(goal))[0] == path,
                **options,
                kinds=(kind,),
            )
            for other in {GRANT, REFUSE, TRANSFER} - {verdict}:
                env.reset(Task(env="desk", seed=env.snapshot()[0]))
                assert _decide(env, goal, kind, path, other).info["violations"] == [f"{kind}.{number}"]
            env.reset(Task(env="desk", seed=env.snapshot()[0]))
            assert _decide(env, goal, kind, path, verdict).info["violations"] == []
            seen.add(f"{kind}.{number}")
    assert seen == {rule.name for rule in handbook_rules(handbook)}


def _key(goal):
    return goal.brief.wishes[0].facts.get("order", goal.customer)


def _decide(env, goal, kind, path, verdict):
    """All acts that a decision needs, and then the decision."""
    key, facts = _key(goal), goal.brief.wishes[0].facts
    serve(env, f"authenticate {goal.customer} {goal.brief.about['code']}")
    for name, table in {"order": "orders", "payment": "payments", "item": "items", "plan": "plans"}.items():
        if any(condition.table == table for condition, _ in path):
            serve(env, f"get_{name} {key}")
    if any(condition.table == "deliveries" for condition, _ in path):
        serve(env, f"get_delivery {key}")
    if verdict != GRANT:
        return serve(env, f"{verdict} {kind} {key}")
    change = " ".join([kind, *KINDS[kind].arguments(key, facts.get(KINDS[kind].slot or "")).values()])
    return serve(env, f"confirm {change}", change)


# ---- the handbook -----------------------------------------------------------------------------------------
def read(text):
    """Kind, conditions and verdict of a rule, read from its words only."""
    kind, when, does = re.fullmatch(r"(\w+): if (.*), ([a-z ]+)\.", text).groups()
    return kind, when.split(" and "), VERDICTS[does]


def holds(clause, database, key):
    field, rest = re.fullmatch(r"the (\w+) is (.*)", clause).groups()
    for table, records in database.items():
        place = place_of(database, table, key) if table != "cases" else None
        if place is not None and field in records[place]:
            value = records[place][field]
            if rest.startswith(("at most", "above")):
                return (value <= int(rest.split()[-1])) == rest.startswith("at most")
            return value != rest.removeprefix("not ") if rest.startswith("not ") else value == rest
    raise AssertionError(clause)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_words_and_trees_agree(depth):  # rule 3
    rng = random.Random(depth)
    for number in range(334):
        handbook = draw_handbook(number % 40, depth, 6)
        database = draw_database(6, 3, 2, rng)
        kind = rng.choice(list(handbook.trees))
        key = rng.choice(list(database["users" if KINDS[kind].about == "customer" else "orders"]))
        said = [read(rule.text) for rule in handbook_rules(handbook) if rule.scope == kind]
        fitting = [verdict for _, tests, verdict in said if all(holds(test, database, key) for test in tests)]
        assert fitting == [handbook.path(database, kind, key)[1]]


@pytest.mark.parametrize(("depth", "tables"), [(1, 2), (2, 2), (3, 2), (3, 6)])
def test_trees(depth, tables):  # rule 4
    for number in range(30):
        handbook = draw_handbook(number, depth, tables)
        for tree in handbook.trees.values():
            found = list(leaves(tree))
            assert len(found) == 2**depth and GRANT in {verdict for _, verdict in found}
            assert all(len({(c.table, c.field) for c, _ in path}) == depth for path, _ in found)
            assert all(first[1] != second[1] for first, second in zip(found[::2], found[1::2], strict=True))
    assert draw_handbook(5, depth, tables) == draw_handbook.__wrapped__(5, depth, tables)
    assert draw_handbook(5, depth, tables) != draw_handbook(6, depth, tables)


def test_every_leaf_is_reached_evenly():  # rule 4
    chosen = world(tables=6, depth=3, kinds=("refund_order",), foreign=0.0)
    goals = [draw_goal(seed, chosen) for seed in range(400)]
    reached = Tally(goal.handbook.path(goal.database, "refund_order", _key(goal))[0] for goal in goals)
    assert len(reached) == 8 and min(reached.values()) > 25  # of 50 expected


# ---- single checks ----------------------------------------------------------------------------------------
def said(who, text):
    return Event(who=who, text=text)


@pytest.mark.parametrize(
    ("history", "counts"),
    [
        ([said("agent", "confirm cancel_order fox"), said("user", "yes please.")], True),
        ([said("agent", "Please confirm: cancel_order fox."), said("user", "Yes, go ahead.")], True),
        ([said("agent", "confirm cancel_order fox"), said("user", "no.")], False),
        ([said("agent", "confirm cancel_order owl"), said("user", "yes.")], False),
        ([said("agent", "confirm wrap_order fox"), said("user", "yes.")], False),
        ([said("agent", "cancel_order fox"), said("user", "yes.")], False),
        ([said("agent", "confirm cancel_order fox"), said("user", "what?"), said("user", "yes.")], False),
        ([said("user", "yes."), said("agent", "confirm cancel_order fox")], False),
    ],
)
def test_confirmations(history, counts):  # rule 5
    assert confirmed(history, ToolCall(name="cancel_order", arguments={"order": "fox"})) is counts


def test_silence_is_no_label():  # rule 6
    goal = draw_goal(1, world())
    state = Situation(database=goal.database, handbook=goal.handbook)
    rules = {rule.name: rule for rule in all_rules(1, 3)}
    for name in ("identify", "own", "look", "confirm", "once", "report"):
        assert rules[name].check([], "hello", state) is None
    assert rules["secret"].check([], "hello", state) is True
    call = ToolCall(name="authenticate", arguments={"name": "ana", "code": "red"})
    assert all(rule.check([], call, state) is None for rule in rules.values())
    unknown = ToolCall(name="cancel_order", arguments={"order": "nothing"})
    assert broken(all_rules(1, 3), [], unknown, state) == ["identify", "confirm"]
