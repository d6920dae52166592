"""What must hold of `household`:

1. It keeps the contract of environments, for all views, rewards, experts and vocabularies, with noise.
2. The sighted expert reaches every goal on a shortest way, also after acts of others. Random play rarely reaches one.
3. The searching expert reaches every goal too, and uses only what was seen.
4. Every goal is as its name says, is not reached at the start, and needs its appliance.
5. The options change houses and goals as documented. Splits differ.
6. Each view shows the contents that it should, and the texts stay short. A brief one repeats neither task nor places.
   Listed commands are the possible ones.
7. Vocabularies are other words for the same episodes. In none of them, two things have the same name.
8. A share `slip` of the commands that use the hands does nothing, and it is the same ones in the same task.
9. Impossible options are refused.

test_household_rules has the effects of commands and the rewards.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import replace

import numpy as np
import pytest

from palaestra.data import Task
from palaestra.envs.worlds.household.house import GOALS, KINDS, SUITED, WITH_DOORS, State, stage, stages
from palaestra.envs.worlds.household.plan import search_then_plan, shortest
from palaestra.envs.worlds.household.rules import IDLE, Command, conceivable, possible
from palaestra.envs.worlds.household.rules import act as do
from palaestra.envs.worlds.household.words import PHRASES, WORDS, vocabulary
from palaestra.envs.worlds.household.world import Household
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.envs.household_kitchen import PLAYER, act, done, kitchen, play, state_of
from tests.messages import told

SMALL = {"rooms": 1, "places": (4, 5), "things": (2, 3)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"view": "here", "rooms": 3, "expert": "searching", "vocabulary": "formal"},
        {"view": "full", "reward": "dense", "idle": False, "vocabulary": "mixed"},
        {**SMALL, "slip": 0.5, "vocabulary": "casual", "max_turns": 9},
        {"view": "here", "brief": True, "show_commands": True, "idle": False},
    ],
)
def test_contract(options):  # rule 1
    check_environment(Household(**options), make=lambda: Household(**options))


# ---- experts and random play ------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"rooms": 3, "places": (12, 15), "things": (8, 12)}, SMALL])
def test_the_expert_reaches_every_goal(options):  # rule 2
    env = Household(**options, max_turns=16)
    for task in env.tasks("eval", 67, 0):
        results = play(env, task)
        assert results[-1].info["success"] and results[-1].rewards == {PLAYER: 1.0}
        assert len(results) - 1 == env.difficulty(task)
        assert all(result.info["process"] == {PLAYER: 1.0} for result in results[1:])


def distance(house, state):
    """Length of a shortest way, by breadth-first search over all commands."""
    reached, ahead = {_key(state)}, deque([(state, 0)])
    while ahead:
        state, steps = ahead.popleft()
        if stage(house, state) == len(stages(house.goal)):
            return steps
        for command in possible(house, state):
            after = do(house, state, command)
            if command.verb not in (*IDLE, "close") and _key(after) not in reached:
                reached.add(_key(after))
                ahead.append((after, steps + 1))
    raise AssertionError("the goal cannot be reached")


def _key(state):
    return state.room, state.at, state.where, state.open, state.marks, state.looked


@pytest.mark.parametrize("goal", GOALS)
def test_the_way_is_shortest(goal):  # rule 2, also after others' acts
    env, draw = Household(**SMALL | {"things": (2, 2)}, goals=(goal,)), random.Random(0)
    for task in env.tasks("train", 4, 1):
        result, acts = env.reset(task), draw.choice([0, 5, 12])
        for _ in range(acts):
            result = act(env, draw.choice(result.observations[PLAYER].legal)) if result.observations else result
        house, state = env.state.scene.house, state_of(env)
        assert len(shortest(house, state)) == distance(house, state)


def test_the_expert_mends_what_others_did():  # rule 2
    for options in ({}, {"expert": "searching", "view": "here", "rooms": 3}):
        env, draw, mended = Household(**options, max_turns=90), random.Random(1), 0
        for task in env.tasks("train", 20, 5):
            result = env.reset(task)
            for _ in range(25):
                result = act(env, draw.choice(result.observations[PLAYER].legal)) if result.observations else result
            while result.observations:
                result = act(env, env.expert(PLAYER).text)
            mended += result.info["success"]
        assert mended == 20


def test_random_play_rarely_reaches_it():  # rule 2
    draw = random.Random(0)
    env = Household(max_turns=20)
    won = [
        play(env, task, lambda seen: draw.choice(seen.legal))[-1].info["success"] for task in env.tasks("train", 100, 0)
    ]
    assert sum(won) < 20


@pytest.mark.parametrize("view", ["remembered", "here"])
def test_the_searching_expert(view):  # rule 3
    env, sighted = Household(expert="searching", view=view, rooms=3), 0
    for task in env.tasks("eval", 40, 0):
        results = play(env, task)
        assert results[-1].info["success"]
        sighted += len(results) - 1 == env.difficulty(task)
    assert sighted < 20  # in most tasks it has to search


def test_searching_uses_what_was_seen():  # rule 3: the places of unseen things make no difference
    env = kitchen(expert="searching")
    house, state = env.state.scene.house, state_of(env)
    for place in (1, 2, 4, 5):
        assert search_then_plan(house, replace(state, where=(place, 3))) == Command("go", place=0)
    assert [act(env, env.expert(PLAYER).text) and state_of(env).at for _ in range(2)] == [0, 1]
    assert env.expert(PLAYER).text == "open microwave 1"


def test_searching_takes_what_is_wanted_on_sight():  # rule 3: also while it does not know where to bring it
    env = kitchen(("put", "mug", "bed"), expert="searching", view="here")
    act(env, "go to fridge 1", "open fridge 1")
    assert env.expert(PLAYER).text == "take mug 1 from fridge 1"


# ---- houses and dials -------------------------------------------------------------------------------------
def test_goals():  # rule 4
    found = Counter()
    env = Household(rooms=3)
    for task in env.tasks("train", 150, 0):
        env.reset(task)
        house, state = env.state.scene.house, state_of(env)
        goal = house.goal
        found[goal.name] += 1
        assert stage(house, state) == 0
        assert sum(kind == goal.kind for kind, _ in house.things) >= (2 if goal.name == "two" else 1)
        assert goal.kind in SUITED.get(goal.name, KINDS) and len({*house.things}) == len(house.things)
        assert house.places[house.lamp].kind not in WITH_DOORS
        assert {place.kind for place in house.places} >= {"sink", "microwave", "fridge"}
        assert goal.place in {"", *(place.kind for place in house.places)}
    assert set(found) == set(GOALS) and min(found.values()) > 12


def test_dials():  # rule 5
    env = Household(rooms=2, places=(7, 9), things=(3, 5), goals=("heat",))
    sizes = set()
    for task in env.tasks("train", 60, 0):
        env.reset(task)
        house = env.state.scene.house
        assert house.rooms == ("kitchen", "bedroom") and house.goal.name == "heat"
        assert {place.room for place in house.places} == {0, 1}
        sizes.add((len(house.places), len(house.things)))
    assert sizes == {(places, things) for places in (7, 8, 9) for things in (3, 4, 5)}
    seeds = [{task.seed for task in env.tasks(split, 300, 0)} for split in ("train", "eval")]
    assert not seeds[0] & seeds[1]


def test_views():  # rule 6
    env = kitchen(view="full")
    text = env._observe(env.state.scene, env.state.state).text
    assert text == (
        "you start. task: put mug in drawer. you are in kitchen. you carry nothing. kitchen: sink 1 empty, "
        "microwave 1 closed empty, fridge 1 closed mug 1, counter 1 lamp book 1, drawer 1 closed empty. "
        "bedroom: bed 1 empty."
    )
    env = kitchen()
    act(env, "go to counter 1")
    text = act(env, "go to bedroom").observations[PLAYER].text
    assert text == (
        "done. task: put mug in drawer. you are in bedroom. you carry nothing. kitchen: sink 1 ?, "
        "microwave 1 closed ?, fridge 1 closed ?, counter 1 lamp book 1, drawer 1 closed ?. bedroom: bed 1 ?."
    )
    fresh = kitchen().state
    assert "bedroom: ?." in kitchen()._observe(fresh.scene, fresh.state).text
    env = kitchen(view="here")
    assert "counter 1 lamp book 1" in act(env, "go to counter 1").observations[PLAYER].text
    assert act(env, "go to sink 1").observations[PLAYER].text == (
        "done. task: put mug in drawer. you are in kitchen at sink 1. you carry nothing. kitchen: sink 1 empty, "
        "microwave 1 closed ?, fridge 1 closed ?, counter 1 ?, drawer 1 closed ?. doors: bedroom."
    )
    env, draw = Household(rooms=3, places=(15, 15), things=(10, 10)), random.Random(0)
    for task in env.tasks("train", 10, 0):
        results = play(env, task, lambda seen: draw.choice(seen.legal))
        assert all(len(result.observations[PLAYER].text.split()) <= 100 for result in results[:-1])


def test_brief_texts():  # rule 6
    env = kitchen(view="here", brief=True)
    first = env._observe(env.state.scene, env.state.state).text
    assert "task: put mug in drawer." in first and "fridge 1 closed ?, counter 1 ?, drawer 1 closed ?." in first
    told = [
        ("go to fridge 1", "done. here: fridge 1 closed ?. you carry nothing."),
        ("open fridge 1", "done. here: fridge 1 mug 1. you carry nothing."),
        ("take mug 1 from fridge 1", "done. here: fridge 1 empty. you carry mug 1."),
        ("cool mug 1 with fridge 1", "done. here: fridge 1 empty. you carry mug 1 cool."),
        ("fly to the moon", "nothing happens. here: fridge 1 empty. you carry mug 1 cool."),
        ("go to bedroom", "done. here: bedroom: bed 1 ?. you carry mug 1 cool."),
    ]
    for command, text in told:
        assert act(env, command).observations[PLAYER].text == text
    assert "first message" in env.instruction(PLAYER) and "every message" in kitchen().instruction(PLAYER)


def test_listed_commands():  # rule 6
    env = kitchen(show_commands=True)
    assert "Commands:" in kitchen().instruction(PLAYER) and "Commands:" not in env.instruction(PLAYER)
    for command in ("go to fridge 1", "open fridge 1", "take mug 1 from fridge 1"):
        seen = act(env, command).observations[PLAYER]
        assert seen.text.endswith(f" commands: {', '.join(seen.legal)}.")
    assert "cool mug 1 with fridge 1" in seen.text


def test_the_state_key_tells_what_is_known():  # rule 6
    env = kitchen(max_turns=50)
    key = env._observe(env.state.scene, env.state.state).state_key
    assert act(env, "look").observations[PLAYER].state_key == key
    went = act(env, "go to counter 1").observations[PLAYER].state_key
    assert act(env, "go to sink 1", "go to counter 1").observations[PLAYER].state_key != went != key


# ---- variants ---------------------------------------------------------------------------------------------
def test_vocabularies():  # rule 7
    names = [name for row in WORDS.values() for name in row]
    assert len(set(names)) == len(names) and all(len(set(row)) == 3 for row in PHRASES.values())
    plain = Household()
    tasks = plain.tasks("train", 15, 0)
    for name in ("casual", "formal", "mixed"):
        other = Household(vocabulary=name)
        for task in tasks:
            first, second = play(plain, task), play(other, task)
            keys = [[r.observations[PLAYER].state_key for r in results[:-1]] for results in (first, second)]
            assert keys[0] == keys[1] and second[-1].info["success"]
            assert first[0].observations[PLAYER].text != second[0].observations[PLAYER].text
    assert len({vocabulary("mixed", seed).phrases["take"] for seed in range(30)}) == 3


def test_every_command_reads_back():  # rule 7
    for name in ("plain", "casual", "formal", "mixed"):
        env = Household(vocabulary=name, rooms=3)
        for task in env.tasks("train", 8, 3):
            env.reset(task)
            scene = env.state.scene
            for command in conceivable(scene.house):
                assert scene.wording.read(scene.wording.write(command)) == command


def test_slips():  # rule 8
    slipped = []
    for seed in range(120):
        env = Household(slip=0.3)
        env.reset(Task(env="household", seed=seed))
        env = placed_again(env)
        slipped.append(not done(act(env, "open fridge 1")))
        assert done(act(env, "go to counter 1", "look"))
    assert 0.18 < np.mean(slipped) < 0.42
    env, again = Household(slip=0.3, max_turns=80), Household(slip=0.3, max_turns=80)
    ends = [play(env, task) for task in env.tasks("eval", 40, 0)]
    assert all(results[-1].info["success"] for results in ends)
    assert [len(results) for results in ends] == [len(play(again, task)) for task in env.tasks("eval", 40, 0)]


def placed_again(env):
    """The same episode again, with the agent at the fridge."""
    now = env.state
    fridge = now.scene.house.appliance("cool")
    env.restore(replace(now, state=replace(now.state, at=fridge)))
    return env


def test_options_are_checked():  # rule 9
    with pytest.raises(RecipeError, match=r"`places` is 9 to 7(.|\n)*Write `places: \[7, 9\]`"):
        Household(places=(9, 7))
    with told(RecipeError, "`places`"):
        Household(places=(5, 9), rooms=3)
    with told(RecipeError, '"two"'):
        Household(things=(1, 4))
    with pytest.raises(RecipeError, match="`goals` is empty"):
        Household(goals=())
    with told(RecipeError, "`slip: 1`"):
        Household(slip=1.0)
    with pytest.raises(RecipeError, match="rooms"):
        Household(rooms=4)
    with pytest.raises(ContractError, match="before `reset`"):
        act(Household(), "look")
    assert Household(things=(1, 1), goals=("put",))


def test_states_are_values():
    env = kitchen()
    assert isinstance(state_of(env), State) and hash(state_of(env)) == hash(replace(state_of(env)))
