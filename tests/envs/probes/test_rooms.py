"""What must hold of `rooms`:

1. It keeps the contract of environments, for small and large houses and for fixed mazes.
2. The shortest solution of a house of 12 rooms takes 6 to 11 turns. The expert plays a shortest one from any state.
3. Random play succeeds in less than 20 % of the mazes.
4. The key is taken where it lies, the door opens only with the key, and only the goal is rewarded.
5. An act that is impossible or cannot be read changes nothing but takes a turn. Only the second kind is marked.
6. After `max_turns` the episode is truncated, never terminated.
7. The state key is room and inventory. After a walk in a circle it is the same, and it differs between mazes.
8. The text is short and tells room, exits, key and goal. The vector tells the same.
9. With `mazes=k`, training and evaluation share k mazes.
10. `process` is 1 exactly for steps of a shortest solution.
11. In the porch only east leads on. Its turns are added, and the house behind it is the one without a porch.
12. In the corridor every readable action leads on. The expert's choice differs between tasks.
13. A task's difficulty is the length of its shortest solution.
14. With `reward: milestones` key, door and goal pay 1 each, and steps tell the maximum.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from palaestra.data import Action, Task
from palaestra.envs.probes.rooms import ACTIONS, NAMES, Key, Rooms, State, build, solve
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment

PLAYER = "player"


def maze(seed=0):
    return build(12, 6, 11, seed)


def start(seed=0, **options):
    env = Rooms(**options)
    return env, env.reset(Task(env="rooms", seed=seed))


def act(env, *texts):
    for text in texts:
        result = env.step({PLAYER: Action(text=text)})
    return result


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rooms": 3},
        {"rooms": 25, "max_turns": 30},
        {"mazes": 4},
        {"show_actions": True},
        {"prefix": 3},
        {"corridor": 2},
    ],
)
def test_contract(options):  # rule 1
    check_environment(Rooms(**options), make=lambda: Rooms(**options))


def test_options_are_checked():
    with pytest.raises(RecipeError, match="rooms"):
        Rooms(rooms=2)


def test_solutions_take_six_to_eleven_turns():  # rule 2
    lengths = {maze(seed).length for seed in range(200)}
    assert lengths == {6, 7, 8, 9, 10, 11}
    for seed in range(50):
        one = maze(seed)
        assert len(solve(one, State(room=one.start, key=Key.LYING))) == one.length


@pytest.mark.parametrize("seed", range(10))
def test_the_expert_wins_from_where_chance_led(seed):  # rule 2
    env, result = start(seed, max_turns=60)
    draw = random.Random(seed)
    for _ in range(10):
        if result.observations:
            result = act(env, draw.choice(ACTIONS))
    while result.observations:
        result = env.step({PLAYER: env.expert(PLAYER)})
    assert result.info["success"]
    assert result.rewards == {PLAYER: 1.0}


def test_random_play_rarely_wins():  # rule 3
    env, draw, wins = Rooms(), random.Random(0), 0
    for task in env.tasks("train", 300, 0):
        result = env.reset(task)
        while result.observations:
            result = act(env, draw.choice(result.observations[PLAYER].legal))
        wins += result.info["success"]
    assert 0 < wins < 60


def test_the_goal_has_one_locked_way():  # rule 4
    for seed in range(50):
        one = maze(seed)
        ways = [(room, beyond) for room, exits in enumerate(one.exits) for beyond in exits.values()]
        assert sum(beyond == one.goal for _, beyond in ways) == 1
        assert all((beyond, room) in ways for room, beyond in ways)
        door = next(room for room, beyond in ways if beyond == one.goal)
        for key in (Key.LYING, Key.CARRIED):
            legal = one.legal(State(room=door, key=key))
            assert ("open door" in legal) == (key is Key.CARRIED)
            assert not any(one.next(State(room=door, key=key), action).room == one.goal for action in legal)


def test_rewards_come_at_the_goal_only():  # rule 4
    env, result = start(3)
    rewards = []
    while result.observations:
        result = env.step({PLAYER: env.expert(PLAYER)})
        rewards.append(result.rewards[PLAYER])
    assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
    assert result.terminated == {PLAYER}
    assert result.truncated == frozenset()


@pytest.mark.parametrize(
    ("action", "said", "marked"),
    [
        ("take key", "no key here", False),
        ("open door", "cannot open", False),
        ("dance", "not understood", True),
        ("", "not understood", True),
        (17, "not understood", True),
        (-1, "not understood", True),
        (np.zeros(3), "not understood", True),
        ("wait", "nothing happens", False),
    ],
)
def test_idle_actions_cost_the_turn(action, said, marked):  # rule 5
    env, before = start(0)
    after = env.step({PLAYER: Action(value=action)})
    seen, now = before.observations[PLAYER], after.observations[PLAYER]
    assert now.state_key == seen.state_key
    assert now.text == seen.text.replace("you start", said)
    assert bool(after.info.get("invalid")) == marked


def test_walls_are_named():  # rule 5
    env, result = start(0)
    way = next(action for action in ACTIONS[:4] if action not in result.observations[PLAYER].legal)
    text = act(env, way).observations[PLAYER].text
    assert text.startswith((f"no way {way[3:]}", f"{way[3:]} is locked"))


def test_indices_are_actions():
    for index, action in enumerate(ACTIONS):
        env, _ = start(2)
        by_index = env.step({PLAYER: Action(value=np.int64(index))}).observations[PLAYER].text
        env, _ = start(2)
        assert act(env, f" {action.upper()} ").observations[PLAYER].text == by_index


def test_it_is_cut_off_after_max_turns():  # rule 6
    env, _ = start(0, max_turns=5)
    assert act(env, *["wait"] * 4).observations
    result = act(env, "wait")
    assert (result.observations, result.terminated, result.truncated) == ({}, frozenset(), {PLAYER})
    assert result.info["success"] is False
    assert result.last[PLAYER].text.startswith("nothing happens")


def test_circles_lead_back_to_the_same_key():  # rule 7
    env, result = start(0)
    first = result.observations[PLAYER]
    there = next(action for action in first.legal if action.startswith("go"))
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}[there[3:]]
    assert act(env, there).observations[PLAYER].state_key != first.state_key
    assert act(env, f"go {back}").observations[PLAYER].state_key == first.state_key


def test_keys_tell_the_inventory_and_the_maze():  # rule 7
    keys = set()
    for seed in (0, 1):
        env, result = start(seed)
        while result.observations:
            keys.add(result.observations[PLAYER].state_key.rpartition("/")[2])
            result = env.step({PLAYER: env.expert(PLAYER)})
    assert keys == {"lying", "carried", "used"}
    assert start(0)[1].observations[PLAYER].state_key.split("/")[0] != start(1)[1].observations[PLAYER].state_key


def test_texts_are_short_and_complete():  # rule 8
    env = Rooms()
    for task in env.tasks("train", 50, 1):
        result = env.reset(task)
        text = result.observations[PLAYER].text
        assert "goal " in text
        assert "exits " in text
        assert "key in " in text or "key here" in text
        while result.observations:
            assert 8 <= len(result.observations[PLAYER].text.split()) <= 30
            result = env.step({PLAYER: env.expert(PLAYER)})


def test_the_vector_says_what_the_text_says():  # rule 8
    env, said = Rooms(), {}
    for task in env.tasks("train", 30, 2):
        result = env.reset(task)
        while result.observations:
            seen = result.observations[PLAYER]
            situation = seen.text.partition(". ")[2]  # without the result of the last action
            said.setdefault(seen.vector.tobytes(), set()).add(situation)
            ways = sum(word in situation for word in ("north", "east", "south", "west"))
            assert seen.vector.sum() == 4 + ways  # room, room of the key, goal, where the key is
            result = env.step({PLAYER: env.expert(PLAYER)})
    assert all(len(texts) == 1 for texts in said.values())


def test_rooms_keep_their_places():
    for seed in range(20):
        for room, exits in enumerate(maze(seed).exits):
            for direction, beyond in exits.items():
                assert beyond - room == {"north": -4, "south": 4, "east": 1, "west": -1}[direction]
    assert len(set(NAMES)) == 25


def test_fixed_mazes_recur_in_every_split():  # rule 9
    env = Rooms(mazes=4)
    worlds = {
        split: {env.reset(task).observations[PLAYER].text for task in env.tasks(split, 40, 0)}
        for split in ("train", "eval")
    }
    assert worlds["train"] == worlds["eval"]
    assert len(worlds["train"]) == 4


def test_step_before_reset_is_refused():
    with pytest.raises(ContractError, match="before `reset`"):
        act(Rooms(), "go north")


@pytest.mark.parametrize("seed", range(10))
def test_steps_of_shortest_solutions(seed):  # rule 10
    env, result = start(seed)
    one, draw = maze(seed), random.Random(seed)
    state = State(room=one.start, key=Key.LYING)
    while result.observations:
        action = draw.choice([*ACTIONS, "wait", "fly"])
        after = one.next(state, action) or state
        result = act(env, action)
        good = len(solve(one, after)) < len(solve(one, state))
        assert result.info["process"] == {PLAYER: float(good)}
        state = after


def test_the_porch_has_one_way():  # rule 11
    plain, first = start(0)
    env, result = start(0, prefix=3)
    keys = [result.observations[PLAYER].state_key]
    for _ in range(3):
        assert result.observations[PLAYER].legal == ["go east"]
        stuck = act(env, "go west")
        assert stuck.observations[PLAYER].state_key == keys[-1]
        assert stuck.info["process"] == {PLAYER: 0.0}
        result = act(env, "go east")
        assert result.info["process"] == {PLAYER: 1.0}
        keys.append(result.observations[PLAYER].state_key)
    assert len(set(keys)) == 4
    inside, house = result.observations[PLAYER], first.observations[PLAYER]
    assert inside.text.partition(". ")[2] == house.text.partition(". ")[2]
    assert inside.state_key == house.state_key
    assert inside.vector.tolist() == [*house.vector, 0, 0, 0]
    assert env.expert(PLAYER).value == plain.expert(PLAYER).value


def test_turns_outside_come_on_top():  # rule 11
    env, _ = start(0, prefix=1, corridor=1, max_turns=4)
    act(env, "go east", "take key")
    assert act(env, *["wait"] * 3).observations
    assert act(env, "wait").truncated == {PLAYER}


def test_the_corridor_leads_on():  # rule 12
    for action in (*ACTIONS, "wait"):
        env, result = start(0, corridor=2)
        assert result.observations[PLAYER].legal == list(ACTIONS)
        assert "corridor 2" in act(env, action).observations[PLAYER].text
        assert act(env, "fly").info["invalid"] == {PLAYER: True}
        assert "exits" in act(env, action).observations[PLAYER].text
    chosen = [[start(seed, corridor=1)[0].expert(PLAYER).text for _ in range(2)] for seed in range(40)]
    assert all(first == again for first, again in chosen)
    assert {first for first, _ in chosen} == set(ACTIONS)


def test_a_house_with_an_approach_is_another_task():  # rule 11
    assert Rooms(prefix=3).tasks("eval", 1, 0)[0].content_hash != Rooms().tasks("eval", 1, 0)[0].content_hash


def test_difficulty_is_the_shortest_solution():  # rule 13
    for options in ({}, {"prefix": 2, "corridor": 1}, {"mazes": 4}):
        env = Rooms(**options)
        for task in env.tasks("train", 20, 0):
            result, turns = env.reset(task), 0
            while result.observations:
                result, turns = env.step({PLAYER: env.expert(PLAYER)}), turns + 1
            assert turns == env.difficulty(task)


def test_milestones_are_paid():  # rule 14
    (plain, _), (env, result) = start(0), start(0, reward="milestones")
    paid = []
    while result.observations:
        action = env.expert(PLAYER)
        plain.step({PLAYER: action})
        result = env.step({PLAYER: action})
        paid += [result.rewards[PLAYER]]
        assert result.info["maximum"] == {PLAYER: 3.0}
    assert sum(paid) == 3 and paid.count(1.0) == 3 and paid[-1] == 1.0
    assert "maximum" not in start(0)[1].info
