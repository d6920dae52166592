"""The environment `navdist`:

1. It keeps the contract of environments, for small and large grids and for fixed ones.
2. All free cells are connected; the target is out of sight at the start and at most 75 % of the turns away.
3. The expert walks a shortest way, from any cell.
4. The verified score is 1 for a step that comes nearer or brings the target into sight, else 0; it does not depend on
   the reward. The random score is a coin toss that is the same for the same way.
5. The target is shown within `sight` moves and not beyond.
6. Walking the same cells leads to the same state key; another way to the same cell does not.
7. Walls and unreadable moves cost a turn; after `max_turns` the episode is truncated.
8. Random play succeeds sometimes; two random walks rarely have states in common.
"""

from __future__ import annotations

import random

import pytest

from palaestra.data import Action, Task
from palaestra.errors import ContractError, RecipeError
from palaestra.systems.srgpo.navdist import ACTIONS, Navdist, build
from palaestra.testing import check_environment

WALKER = "walker"


def start(seed=0, **options):
    env = Navdist(**options)
    return env, env.reset(Task(env="navdist", seed=seed))


def act(env, *texts):
    for text in texts:
        result = env.step({WALKER: Action(text=text)})
    return result


def walk(env, result, seed):
    """A random walk to its end, which yields the result of each step when it is made."""
    draw = random.Random(seed)
    while result.observations:
        result = act(env, draw.choice(result.observations[WALKER].legal))
        yield result


@pytest.mark.parametrize("options", [{}, {"size": 5, "max_turns": 9}, {"size": 16, "sight": 5}, {"fields": 4}])
def test_contract(options):  # rule 1
    check_environment(Navdist(**options), make=lambda: Navdist(**options))
    check_environment(Navdist(process="random", **options), make=lambda: Navdist(process="random", **options))


def test_options_are_checked():
    for options in ({"size": 4}, {"process": "sometimes"}, {"sight": 0}):
        with pytest.raises(RecipeError, match=next(iter(options))):
            Navdist(**options)
    with pytest.raises(ContractError, match="before `reset`"):
        act(Navdist(), "north")


def test_fields_can_be_solved():  # rule 2
    for seed in range(100):
        field = build(8, 15, 3, seed)
        assert not field.sees(field.start, 3)
        assert 3 < field.distance[field.start] <= 15
        assert 51 <= len(field.distance) <= 64


@pytest.mark.parametrize("seed", range(10))
def test_the_expert_walks_a_shortest_way(seed):  # rule 3
    env, result = start(seed, max_turns=60)
    for _ in range(8):
        if result.observations:
            result = act(env, random.Random(seed).choice(ACTIONS))
    while result.observations:
        result = env.step({WALKER: env.expert(WALKER)})
        assert result.info["process"] == {WALKER: 1.0}
    assert result.info["success"] and result.rewards == {WALKER: 1.0}


def test_scores_are_verified():  # rule 4
    for seed in range(20):
        env, result = start(seed)
        field, before = build(8, 15, 3, seed), None
        for step in walk(env, result, seed):
            here = env.state.here
            before = before or field.start
            good = field.distance[here] < field.distance[before] or field.sees(here, 3) > field.sees(before, 3)
            assert step.info["process"] == {WALKER: float(good)}
            before = here


def test_coins_repeat_with_the_way():  # rule 4
    def coins(seed, way):
        env, _ = start(seed, process="random", max_turns=200)
        return [act(env, move).info["process"][WALKER] for move in way]

    ways = [[random.Random(i).choice(ACTIONS) for _ in range(100)] for i in range(4)]
    thrown = [coins(8, way) for way in ways]
    assert thrown == [coins(8, way) for way in ways]
    assert all(35 < sum(throws) < 65 for throws in thrown)
    agreeing = sum(a == b for a, b in zip(thrown[0], thrown[1], strict=True))
    assert 30 < agreeing < 70


def test_the_target_is_seen_from_nearby():  # rule 5
    for seed in range(20):
        env, result = start(seed)
        field = build(8, 15, 3, seed)
        for step in walk(env, result, seed):
            for seen in step.observations.values():
                near = field.sees(env.state.here, 3)
                assert ("not in sight" not in seen.text) == near == bool(seen.vector[-14:].any())


def test_states_are_what_was_walked():  # rule 6
    keys = {}
    for number in range(40):
        env, result = start(3)
        for step in walk(env, result, number):
            for seen in step.observations.values():
                walked = env.state.walked
                keys.setdefault(seen.state_key, set()).add((walked[-1], frozenset(walked)))
    assert all(len(situations) == 1 for situations in keys.values())
    assert len({one for situations in keys.values() for one in situations}) == len(keys)


def test_states_rarely_meet():  # rule 8
    met, steps = 0, 0
    for seed in range(40):
        env = Navdist()
        walks = []
        for number in range(2):
            result = env.reset(Task(env="navdist", seed=seed))
            walks.append([s.observations[WALKER].state_key for s in walk(env, result, number) if s.observations][3:])
        met += len(set(walks[0]) & set(walks[1]))
        steps += len(walks[0])
    assert met / steps < 0.1


def test_walls_and_ends():  # rule 7
    env, result = start(0, max_turns=3)
    here = result.observations[WALKER]
    wall = next(move for move in ACTIONS if move not in here.legal) if len(here.legal) < 4 else "up"
    after = act(env, wall)
    assert after.observations[WALKER].state_key == here.state_key
    assert bool(after.info.get("invalid")) == (wall == "up")
    assert act(env, "nonsense").info["invalid"] == {WALKER: True}
    result = act(env, "nonsense")
    assert result.truncated == {WALKER} and result.info["success"] is False and not result.observations


def test_random_play_wins_sometimes():  # rule 8
    env = Navdist()
    wins = sum(
        [*walk(env, env.reset(task), place)][-1].info["success"]
        for place, task in enumerate(env.tasks("train", 300, 0))
    )
    assert 3 < wins < 90
