"""What must hold of the rules of `household`:

1. A possible command does what it says, and any other command does nothing. The legal commands are the possible ones.
2. A text that cannot be read is marked, costs a turn and changes nothing else.
3. The stages are those of the goal. The sparse reward is 1 at the goal. The dense reward is +1 for each new stage, −0.5
   for an act that does nothing, and +3 at the goal.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from palaestra.data import Action
from palaestra.envs.worlds.household.house import Goal
from palaestra.envs.worlds.household.rules import act as do
from palaestra.envs.worlds.household.rules import conceivable, possible
from palaestra.envs.worlds.household.world import Household
from tests.envs.household_kitchen import PLAYER, act, done, kitchen, placed, state_of


# ---- commands ---------------------------------------------------------------------------------------------
def test_commands():  # rule 1
    env = kitchen(max_turns=100)
    assert done(act(env, "go to fridge 1")) and state_of(env).at == 2
    assert done(act(env, "open fridge 1")) and done(act(env, "take mug 1 from fridge 1"))
    assert state_of(env).held == 0
    for how, appliance, marks in (
        ("cool", "fridge", {"cool"}),
        ("heat", "microwave", {"hot"}),
        ("clean", "sink", {"hot", "clean"}),
        ("go", "", {"hot", "clean"}),
        ("cool", "fridge", {"cool", "clean"}),
    ):
        text = f"{how} mug 1 with {appliance} 1" if appliance else "go to bedroom"
        if state_of(env).room:
            act(env, "go to kitchen")
        act(env, f"go to {appliance} 1")
        assert done(act(env, text))
        assert {mark for _, mark in state_of(env).marks} == marks
    assert "you carry mug 1 clean cool." in env._observe(env.state.scene, env.state.state).text
    assert done(act(env, "close fridge 1"))
    assert not done(act(env, "put mug 1 in fridge 1"))
    assert done(act(env, "go to bedroom")) and state_of(env).at == -1
    assert not done(act(env, "go to counter 1"))
    assert done(act(env, "go to bed 1")) and done(act(env, "put mug 1 in bed 1"))
    assert state_of(env).where == (5, 3) and state_of(env).held == -1
    assert act(env, "examine mug 1").observations[PLAYER].text.startswith("mug 1 is clean and cool.")
    assert act(env, "examine bed 1").observations[PLAYER].text.startswith("bed 1 is open.")


@pytest.mark.parametrize(
    "text",
    [
        *("take mug 1 from fridge 1", "open fridge 1", "close fridge 1", "put mug 1 in counter 1", "go to kitchen"),
        *("use lamp", "examine mug 1", "examine fridge 1", "clean mug 1 with sink 1", "heat mug 1 with fridge 1"),
        *("put book 1 in counter 1", "go to bed 1"),
    ],
)
def test_impossible(text):  # rule 1
    env = kitchen(reward="dense")
    before = state_of(env)
    result = act(env, text)
    assert result.observations[PLAYER].text.startswith("nothing happens.")
    assert not done(result) and "invalid" not in result.info and result.rewards == {PLAYER: -0.5}
    assert replace(state_of(env), turn=0, said=before.said, failed=False) == before


def test_hands_hold_one_thing_and_doors_hide():  # rule 1
    env = kitchen(max_turns=100)
    act(env, "go to counter 1", "take book 1 from counter 1", "go to fridge 1")
    assert not done(act(env, "take mug 1 from fridge 1")) and not done(act(env, "put book 1 in fridge 1"))
    act(env, "open fridge 1")
    assert not done(act(env, "take mug 1 from fridge 1"))
    assert not done(act(env, "cool book 1 with fridge 1"))  # books cannot be cooled
    assert done(act(env, "put book 1 in fridge 1")) and done(act(env, "take mug 1 from fridge 1"))
    assert done(act(env, "cool mug 1 with fridge 1")) and not done(act(env, "cool mug 1 with fridge 1"))


def test_legal_is_what_is_possible():  # rule 1
    env, draw = Household(max_turns=40), random.Random(2)
    for task in env.tasks("train", 5, 0):
        result = env.reset(task)
        for _ in range(12):
            if result.observations:
                scene, state = env.state.scene, env.state.state
                can = {one for one in conceivable(scene.house) if not do(scene.house, state, one).failed}
                assert can == set(possible(scene.house, state))
                result = act(env, draw.choice(result.observations[PLAYER].legal))


@pytest.mark.parametrize(
    "text", ["", "??", "go", "go to attic", "take mug 9 from sink 1", "take mug from sink 1", "wait"]
)
def test_unreadable(text):  # rule 2
    env = kitchen()
    before = state_of(env)
    result = act(env, text)
    assert result.info["invalid"] == {PLAYER: True} and not done(result)
    assert result.observations[PLAYER].text.startswith("nothing happens.")
    assert replace(state_of(env), turn=0, said=before.said, failed=False) == before


def test_reading_is_lenient():  # rule 2
    env = kitchen()
    assert done(act(env, "  Go to  FRIDGE 1. "))
    assert env.step({PLAYER: Action(value=3)}).info["invalid"] == {PLAYER: True}
    env = Household(idle=False)
    env.reset(env.tasks("train", 1, 0)[0])
    assert act(env, "look").info["invalid"] == {PLAYER: True}


# ---- stages and rewards -----------------------------------------------------------------------------------
WAYS = {
    ("put", "mug", "drawer"): "go to drawer 1; open drawer 1; put mug 1 in drawer 1*",
    ("put", "mug", "bed"): "go to bedroom; go to bed 1; put mug 1 in bed 1*",
    ("clean", "mug", "bed"): "go to sink 1; clean mug 1 with sink 1+; go to bedroom; go to bed 1; put mug 1 in bed 1*",
    ("heat", "mug", "sink"): "go to microwave 1; heat mug 1 with microwave 1+; go to sink 1; put mug 1 in sink 1*",
    ("cool", "mug", "counter"): "cool mug 1 with fridge 1+; go to counter 1; put mug 1 in counter 1*",
    ("look", "mug", ""): "go to counter 1; use lamp*",
}


@pytest.mark.parametrize("reward", ["sparse", "dense"])
@pytest.mark.parametrize("goal", WAYS)
def test_rewards_by_hand(goal, reward):  # rule 3; "+" marks a new stage, "*" the goal
    env = kitchen(goal, reward=reward)
    total = {"sparse": (0.0, 0.0, 1.0), "dense": (0.0, 1.0, 4.0)}[reward]
    way = f"go to fridge 1; open fridge 1; take mug 1 from fridge 1+; {WAYS[goal]}".split("; ")
    assert env.expert(PLAYER).text == way[0]
    seen = 0
    for text in way:
        due = total[2 if text.endswith("*") else int(text.endswith("+"))]
        result = act(env, text.rstrip("+*"))
        seen += text[-1] in "+*"
        assert result.rewards == {PLAYER: due} and result.info["stage"] == {PLAYER: float(seen)}
    assert result.terminated == {PLAYER} and result.info["success"]
    assert result.info["subgoal"] == {PLAYER: ""}


def test_stages_are_paid_once():  # rule 3
    env = kitchen(("clean", "mug", "bed"), reward="dense", max_turns=50)
    act(env, "go to fridge 1", "open fridge 1")
    rewards = [
        act(env, text).rewards[PLAYER]
        for text in ("take mug 1 from fridge 1", "put mug 1 in fridge 1", "take mug 1 from fridge 1", "take it")
    ]
    assert rewards == [1.0, 0.0, 0.0, -0.5]
    result = act(env, "put mug 1 in fridge 1")
    assert result.info["stage"] == {PLAYER: 0.0} and result.info["subgoal"] == {PLAYER: "take"}
    result = act(env, "take mug 1 from fridge 1")
    assert result.info["subgoal"] == {PLAYER: "clean"}
    result = act(env, "go to sink 1", "clean mug 1 with sink 1")
    assert result.rewards == {PLAYER: 1.0} and result.info["subgoal"] == {PLAYER: "put"}


def test_two_things():  # rule 3
    env = placed(Household(reward="dense"), Goal("two", "mug", "counter"), (("mug", 1), ("mug", 2)), (0, 0))
    results = []
    for number in (1, 2):
        texts = ("go to sink 1", f"take mug {number} from sink 1", "go to counter 1", f"put mug {number} in counter 1")
        results += [act(env, text) for text in texts]
    assert [result.rewards[PLAYER] for result in results] == [0, 1, 0, 1, 0, 1, 0, 4]
    assert [result.info["stage"][PLAYER] for result in results] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert [result.info["success"] for result in results] == [False] * 7 + [True]


def test_the_turn_limit():  # rule 3
    env = kitchen(max_turns=2)
    end = act(env, "look", "look")
    assert not end.observations and end.truncated == {PLAYER} and end.last[PLAYER].text and not end.info["success"]
