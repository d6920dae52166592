"""What must hold of the desk's scoring, which is that of tau-bench and of MUA-RL (arXiv 2508.18669):

1. Equal databases have one hash, in whatever order dicts and sets were filled; lists keep their order.
2. Required texts are found in replies without regard to case; commas are removed from replies, but not from required
   texts. Calls of tools and their results do not count.
3. Success needs the right database and all required texts; without required texts, the database decides.
4. An empty gold hash is refused.
5. In a group in which all fail or all succeed, advantages are 0.
6. In episodes, the right database without the text gives 0, the text without the database gives 0, and both give 1; the
   turn limit ends a dialogue with a user that never stops, and its state counts.
"""

from __future__ import annotations

import pytest
import torch

from palaestra.data import Action, StepTable
from palaestra.envs.worlds.desk.counter import after
from palaestra.envs.worlds.desk.scoring import canonical, database_hash, said, score
from palaestra.envs.worlds.desk.world import Desk
from palaestra.errors import InvalidData
from palaestra.parts.estimators import grpo
from tests.messages import told

AGENT = "agent"


def test_hashes():  # rule 1
    one = {"orders": {"fox": {"status": "new", "tags": {"a", "b"}}}, "users": {}}
    same = {"users": {}, "orders": {"fox": {"tags": {"b", "a"}, "status": "new"}}}
    assert canonical(one) == canonical(same) and database_hash(one) == database_hash(same)
    assert len(database_hash(one)) == 64
    assert database_hash({"log": [1, 2]}) != database_hash({"log": [2, 1]})
    assert database_hash({"a": 1}) != database_hash({"a": "1"}) != database_hash({"a": None})
    assert database_hash({1: "x", "1": "y"}) == database_hash({"1": "y", 1: "x"})


@pytest.mark.parametrize(
    ("outputs", "replies", "found"),
    [
        ([], [], True),
        (["Pending"], ["It is PENDING."], True),
        (["1234"], ["you get 1,234 back"], True),
        (["1,234"], ["you get 1,234 back"], False),  # required texts are given without commas
        (["10", "20"], ["first 10", "then 20"], True),
        (["10", "20"], ["first 10"], False),
    ],
)
def test_required_texts(outputs, replies, found):  # rule 2
    assert said(outputs, replies) is found


def test_both_are_needed():  # rule 3
    right, wrong = {"a": 1}, {"a": 2}
    gold = database_hash(right)
    assert score(right, gold=gold, outputs=["40"], replies=["it is 40."])
    assert not score(right, gold=gold, outputs=["40"], replies=["it is done."])
    assert not score(wrong, gold=gold, outputs=["40"], replies=["it is 40."])
    assert score(right, gold=gold, outputs=[], replies=[])


def test_a_missing_hash_is_refused():  # rule 4
    with told(InvalidData, "`gold`"):
        score({}, gold="", outputs=[], replies=[])


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_groups_that_agree_teach_nothing(reward):  # rule 5
    table = StepTable(
        group=["g"] * 8,
        trajectory=[str(n) for n in range(8)],
        agent=["agent"] * 8,
        turn=[0] * 8,
        reward=[reward] * 8,
    )
    assert torch.equal(grpo(table, scale="std"), torch.zeros(8))


def refunds(**options):
    """A desk at the start of a refund that is granted, and what the customer says."""
    env = Desk(tables=3, kinds=("refund_order",), vague=0.0, foreign=0.0, **options)
    for task in env.tasks("train", 50, 0):
        env.reset(task)
        goal = env.snapshot()[1]
        if goal.calls[0].name == "refund_order":
            return env, goal, goal.brief.wishes[0].facts["order"]
    raise AssertionError


def serve(env, *texts):
    for text in texts:
        result = env.step({AGENT: Action(text=text)})
    return result


def test_episodes():  # rule 6
    env, goal, order = refunds()
    beginning, amount = env.snapshot(), goal.outputs[0]
    assert after(goal.database, list(goal.calls), ("refund_order",))["payments"][order]["refunded"] == "yes"
    end = serve(env, f"refund_order {order}", f"tell {amount}")
    assert end.info["success"] and end.rewards == {AGENT: 1.0} and not end.info["under_rules"]
    env.restore(beginning)
    end = serve(env, f"refund_order {order}", "tell done")
    assert not end.info["success"] and end.rewards == {AGENT: 0.0} and end.terminated
    env.restore(beginning)
    assert not serve(env, f"tell {amount}").info["success"]
    env.restore(beginning)
    other = next(key for key in goal.database["orders"] if key != order)
    assert not serve(env, f"refund_order {order}", f"refund_order {other}", f"tell {amount}").info["success"]


def test_a_user_that_never_stops():  # rule 6
    env, _, order = refunds(max_turns=4)
    asked = serve(env, "ask name", "ask name", "ask name", "ask name")
    assert asked.truncated == {AGENT} and not asked.info["success"]
    env, goal, order = refunds(max_turns=3)
    end = serve(env, f"refund_order {order}", "ask name", f"confirm {goal.outputs[0]}")
    assert end.truncated == {AGENT} and end.info["success"] and end.rewards == {AGENT: 1.0}
