"""What must hold for `gymnasium`:

(1) it keeps the environment contract, as text and as vectors;
(2) sizes are known before reset; vectors are one-hot for discrete spaces and flat for all others;
(3) actions are indices, digits and names; any other word is marked, moves nothing and takes a turn;
(4) ends, rewards and observations are Gymnasium's own;
(5) there is a success only if there is a goal, and always a score;
(6) the expert finds a shortest way if the table is deterministic; otherwise there is no expert;
(7) splits share no seed;
(8) the texts are true: the taxi moves to its open sides, and holes of FrozenLake end the episode;
(9) unknown ids are answered with similar names; actions without bounds, observations without a fixed shape and missing
    packages are refused;
(10) the vector environment observes what single ones observe, resets by itself, and starts from its seed;
(11) a snapshot can be restored more than once; state keys exist for discrete observations only;
(12) actions of a Box are vectors or their numbers as text, clipped to the bounds; others are marked.
"""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from palaestra.data import Action, StepResult, Task, derive
from palaestra.data.abilities import has
from palaestra.envs.adapters.gymnasium.world import AGENT, SEEDS, GymnasiumEnvironment, vector_environment
from palaestra.errors import InvalidData, MissingExtra, RecipeError, UnknownName
from palaestra.testing import check_environment
from tests.messages import told

DRY = {"is_slippery": False}


def act(environment: GymnasiumEnvironment, value: object) -> StepResult:
    return environment.step({AGENT: Action(value=value)})


def task(seed: int = 0) -> Task:
    return Task(env="gymnasium", seed=seed)


@pytest.mark.parametrize(
    ("id", "options"),
    [
        ("FrozenLake-v1", {}),
        ("Taxi-v4", {}),
        ("CliffWalking-v1", {}),
        ("Blackjack-v1", {}),
        ("CartPole-v1", {}),
        ("Pendulum-v1", {}),
    ],
)
def test_contract(id, options):  # rule 1
    check_environment(GymnasiumEnvironment(id=id, options=options, max_turns=40))


@pytest.mark.parametrize(
    ("id", "vector_size", "action_count"),
    [("FrozenLake-v1", 16, 4), ("Taxi-v4", 500, 6), ("Blackjack-v1", 32 + 11 + 2, 2), ("CartPole-v1", 4, 2)],
)
def test_sizes(id, vector_size, action_count):  # rule 2
    environment = GymnasiumEnvironment(id=id)
    assert (environment.vector_size, environment.action_count) == (vector_size, action_count)
    seen = environment.reset(task()).observations[AGENT]
    assert seen.vector.dtype == np.float32 and seen.vector.shape == (vector_size,)
    assert len(seen.legal) == action_count
    if id != "CartPole-v1":
        assert set(seen.vector) == {0.0, 1.0}


def test_readable_actions():  # rule 3
    for value in (1, "1", "down", " DOWN ", np.int64(1), np.array([1])):
        environment = GymnasiumEnvironment(id="FrozenLake-v1", options=DRY)
        environment.reset(task())
        result = act(environment, value)
        assert "invalid" not in result.info and result.observations[AGENT].state_key == "4"


def test_unreadable_actions():  # rule 3
    environment = GymnasiumEnvironment(id="FrozenLake-v1", options=DRY, max_turns=8)
    before = environment.reset(task()).observations[AGENT]
    for value in ("swim", "", None, 4, -1, 1.0, np.zeros(2)):
        result = act(environment, value)
        assert result.info["invalid"] == {AGENT: True} and result.rewards == {AGENT: 0.0}
        assert result.observations[AGENT].text == before.text
    assert act(environment, "swim").truncated == {AGENT}


def test_endings_are_gymnasiums_own():  # rule 4
    plain = gymnasium.make("CartPole-v1", max_episode_steps=30)
    environment = GymnasiumEnvironment(id="CartPole-v1", max_turns=30)
    kinds = set()
    for seed in range(20):
        first, _ = plain.reset(seed=seed)
        assert np.array_equal(environment.reset(task(seed)).observations[AGENT].vector, first)
        over = False
        for turn in range(30):
            action = (turn // 2 + seed) % 2
            there, reward, terminated, truncated, _ = plain.step(action)
            result = act(environment, action)
            assert result.rewards == {AGENT: reward}
            truncated = truncated and not terminated  # by the contract, no episode is both
            assert (AGENT in result.terminated, AGENT in result.truncated) == (terminated, truncated)
            over = terminated or truncated
            assert bool(result.observations) != over
            if over:
                kinds.add((terminated, truncated))
                break
            assert np.array_equal(result.observations[AGENT].vector, there)
        assert over
    assert kinds == {(True, False), (False, True)}


class Fickle(gymnasium.Env):
    """Truncates its episodes after two steps. Action 8 terminates them, which can happen in the same step."""

    observation_space = gymnasium.spaces.Discrete(3, start=5)
    action_space = gymnasium.spaces.Discrete(2, start=7)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return 5, {}

    def step(self, action):
        assert action in (7, 8)
        self.count += 1
        return 5 + self.count, 0.5, action == 8, self.count == 2, {}


def test_environments_that_cut_themselves_off():  # rules 2, 4
    gymnasium.register("Fickle-v0", entry_point=Fickle)
    try:
        environment = GymnasiumEnvironment(id="Fickle-v0")
        assert environment.reset(task()).observations[AGENT].vector.tolist() == [1.0, 0.0, 0.0]
        assert act(environment, 0).observations[AGENT].vector.tolist() == [0.0, 1.0, 0.0]
        last = act(environment, 0)
        assert last.truncated == {AGENT} and not last.terminated and last.info == {"score": 1.0}
        environment.reset(task())
        act(environment, "0")
        last = act(environment, "1")
        assert last.terminated == {AGENT} and not last.truncated
    finally:
        del gymnasium.registry["Fickle-v0"]


def test_success_and_score():  # rule 5
    pole = GymnasiumEnvironment(id="CartPole-v1")
    pole.reset(task())
    result = act(pole, 0)
    while result.observations:
        result = act(pole, 0)
    assert "success" not in result.info and result.info["score"] == sum(1.0 for _ in range(pole._turn))
    lake = GymnasiumEnvironment(id="FrozenLake-v1", options=DRY)
    lake.reset(task())
    for word in ("right", "down"):  # into the hole at row 1 column 1
        result = act(lake, word)
    assert result.terminated == {AGENT} and result.info["success"] is False
    asked = GymnasiumEnvironment(id="CartPole-v1", goal=True)
    asked.reset(task())
    result = act(asked, 0)
    while result.observations:
        result = act(asked, 0)
    assert result.info["success"] is True


@pytest.mark.parametrize(("id", "options", "turns"), [("FrozenLake-v1", DRY, 6), ("CliffWalking-v1", {}, 13)])
def test_expert_is_shortest(id, options, turns):  # rule 6
    environment = GymnasiumEnvironment(id=id, options=options)
    result, count = environment.reset(task()), 0
    while result.observations:
        result, count = environment.step({AGENT: environment.expert(AGENT)}), count + 1
    assert count == turns and result.info["success"] is True


def test_expert_drives_the_taxi():  # rule 6
    environment = GymnasiumEnvironment(id="Taxi-v4")
    for each in environment.tasks("eval", 5, 0):
        result = environment.reset(each)
        while result.observations:
            result = environment.step({AGENT: environment.expert(AGENT)})
        assert result.info["success"] is True and result.info["score"] > 0


@pytest.mark.parametrize("id", ["FrozenLake-v1", "CartPole-v1", "Blackjack-v1"])
def test_no_expert(id):  # rule 6
    assert not has(GymnasiumEnvironment(id=id), "expert")


def test_splits_share_no_seed():  # rule 7
    environment = GymnasiumEnvironment(id="CartPole-v1")
    seeds = [{each.seed for each in environment.tasks(split, 2000, 0)} for split in ("train", "eval", "test", "mine")]
    assert all(not one & other for one in seeds for other in seeds if one is not other)
    assert environment.tasks("eval", 9, 1) == environment.tasks("eval", 9, 1)
    assert all(len({seed % 4 for seed in each}) == 1 for each in seeds) and max(map(max, seeds)) < 2**31


def test_what_the_taxi_is_told_is_so():  # rule 8
    environment = GymnasiumEnvironment(id="Taxi-v4", max_turns=5000)
    draw, seen = np.random.default_rng(0), environment.reset(task()).observations[AGENT]
    checked = 0
    for _ in range(1500):
        word = str(draw.choice(("south", "north", "east", "west")))
        told = word in seen.text.splitlines()[1].removeprefix("open: ").split(", ")
        place = seen.text.splitlines()[0]
        seen = act(environment, word).observations[AGENT]
        assert (seen.text.splitlines()[0] != place) == told
        checked += not told
    assert checked > 100


def test_what_the_skater_is_told_is_so():  # rule 8
    environment = GymnasiumEnvironment(id="FrozenLake-v1", options=DRY, max_turns=100_000)
    draw, result, met = np.random.default_rng(0), environment.reset(task()), set()
    for _ in range(1500):
        text = result.observations[AGENT].text
        sides = dict(side.split(": ") for side in text.splitlines()[2].split(", "))
        word = str(draw.choice(list(sides)))
        result = act(environment, word)
        met.add(sides[word])
        assert (AGENT in result.terminated) == (sides[word] in ("hole", "goal"))
        assert result.rewards[AGENT] == (sides[word] == "goal")
        if not result.observations:
            result = environment.reset(task())
        elif sides[word] == "edge":
            assert result.observations[AGENT].text == text
    assert met == {"ice", "hole", "goal", "edge"}


def test_refusals():  # rule 9
    with pytest.raises(UnknownName, match="CartPole-v1"):
        GymnasiumEnvironment(id="CartPol-v1")
    with pytest.raises(UnknownName, match="Taxi-v4"):
        GymnasiumEnvironment(id="Taxi-v99")
    gymnasium.register("Endless-v0", entry_point=Endless)
    try:
        with told(RecipeError, "neither Discrete"):
            GymnasiumEnvironment(id="Endless-v0")
    finally:
        del gymnasium.registry["Endless-v0"]
    with pytest.raises(RecipeError, match="no vector"):
        GymnasiumEnvironment(id="minigrid:MiniGrid-Empty-5x5-v0")
    with pytest.raises(RecipeError, match="refused the options"):
        GymnasiumEnvironment(id="CartPole-v1", options={"wheels": 4})
    with pytest.raises(MissingExtra, match="no_such_package"):
        GymnasiumEnvironment(id="no_such_package:Thing-v0")
    lake = GymnasiumEnvironment(id="FrozenLake-v1")
    with told(InvalidData, "Taxi-v4"):
        lake.reset(GymnasiumEnvironment(id="Taxi-v4").tasks("eval", 1, 0)[0])


@pytest.mark.parametrize("id", ["CartPole-v1", "FrozenLake-v1"])
def test_vector_environment(id):  # rule 10
    both = [vector_environment({"id": id, "max_turns": 20}, 3, 5) for _ in range(2)]
    first, again = (environments.reset()[0] for environments in both)
    single = GymnasiumEnvironment(id=id)
    assert first.dtype == np.float32 and first.shape == (3, single.vector_size)
    assert np.array_equal(first, again)
    ended = 0
    for turn in range(60):
        actions = np.full(3, turn % 2)
        there, rewards, terminated, truncated, info = both[0].step(actions)
        same = both[1].step(actions)
        assert np.array_equal(there, same[0]) and np.array_equal(rewards, same[1])
        over = terminated | truncated
        ended += int(over.sum())
        if over.any():
            assert np.array_equal(info["_final_obs"], over)
            assert all(last.shape == (single.vector_size,) for last in info["final_obs"][over])
    assert ended >= 3


def test_vector_environment_starts_from_its_seed():  # rule 10
    environments = vector_environment({"id": "CartPole-v1"}, 2, 7)
    single = gymnasium.make("CartPole-v1")
    for index in range(2):  # the second start after seeding: `reset()` without a seed continues the random stream
        single.reset(seed=derive(7, index) % (4 * SEEDS))
        expected, _ = single.reset()
        if index == 0:
            firsts = environments.reset()[0]
        assert np.array_equal(firsts[index], expected)


def test_vector_environment_checks_its_options():  # rule 10
    with pytest.raises(RecipeError, match="max_turns"):
        vector_environment({"id": "CartPole-v1", "max_turn": 3}, 2, 0)


def test_snapshots_and_state_keys():  # rule 11
    environment = GymnasiumEnvironment(id="FrozenLake-v1")
    environment.reset(task(3))
    act(environment, "right")
    state, runs = environment.snapshot(), []
    for _ in range(2):
        environment.restore(state)
        result, keys = act(environment, "down"), []
        while result.observations:
            keys.append(result.observations[AGENT].state_key)
            result = act(environment, "down")
        runs.append((keys, result.info))
    assert runs[0] == runs[1]
    assert GymnasiumEnvironment(id="CartPole-v1").reset(task()).observations[AGENT].state_key is None


class Endless(gymnasium.Env):
    """Its actions are a Box without bounds."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))


def test_boxes():  # rule 12
    environment = GymnasiumEnvironment(id="Pendulum-v1")
    assert (environment.vector_size, environment.action_count) == (3, None) and has(environment, "box")
    assert not has(GymnasiumEnvironment(id="CartPole-v1"), "box")
    assert [end.tolist() for end in environment.action_box] == [[-2.0], [2.0]]
    plain = gymnasium.make("Pendulum-v1")
    same = (0.5, [0.5], "0.5", np.float32([0.5])), (2.0, 7.0, "2,", np.float64([99]))
    for number, values in ((0.5, same[0]), (2.0, same[1])):
        plain.reset(seed=3)
        there, reward, *_ = plain.step(np.float32([number]))
        for value in values:
            seen = environment.reset(task(3)).observations[AGENT]
            assert seen.legal is None and len(seen.vector) == 3
            result = act(environment, value)
            assert np.array_equal(result.observations[AGENT].vector, there) and result.rewards == {AGENT: reward}
    before = environment.reset(task(3)).observations[AGENT].vector
    for value in ("left", "", None, "1 2", np.zeros(2), np.float32([np.nan])):
        result = act(environment, value)
        assert result.info["invalid"] == {AGENT: True} and np.array_equal(result.observations[AGENT].vector, before)
