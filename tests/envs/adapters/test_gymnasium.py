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
(12) actions of a Box are vectors or their numbers as text, clipped to the bounds; others are marked;
(13) texts stay texts, alone and inside of Dict, Tuple and Sequence; such observations have no vector;
(14) actions of Text, Dict and MultiDiscrete are written as texts; what the space lacks is marked;
(15) an action mask, in `info` or beside the observation, becomes `legal`; what it forbids is marked, and played or not;
(16) `info` is kept, under another name where Palaestra has the name itself; the success that it tells counts;
(17) a reward of several numbers needs `objectives`: refused at the start where it is declared, else at the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from palaestra.data import Action, StepResult, Task, derive
from palaestra.data.abilities import has
from palaestra.envs.adapters.gymnasium.world import AGENT, SEEDS, GymnasiumEnvironment, vector_environment
from palaestra.errors import ContractError, InvalidData, MissingExtra, RecipeError, UnknownName
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
    assert len(seen.legal) == action_count if id != "Taxi-v4" else 0 < len(seen.legal) < action_count  # it has a mask
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
        with told(RecipeError, "a Box without bounds"):
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


# ---- environments of one's own ----------------------------------------------------------------------------
class Told(gymnasium.Env):
    """Shows `first`, and gives what it was made for at every step. It ends after three."""

    def __init__(self, seen, acts, first, reward=1.0, infos=({}, {}, {}, {}), declared=None):
        self.observation_space, self.action_space = seen, acts
        self.first, self.gain, self.infos, self.played = first, reward, infos, []
        if declared is not None:
            self.reward_space = declared

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.played = []
        return self.first, self.infos[0]

    def step(self, action):
        self.played.append(action)
        return self.first, self.gain, len(self.played) == 3, False, self.infos[len(self.played)]


Make = Callable[..., GymnasiumEnvironment]


@pytest.fixture
def make() -> Iterator[Make]:
    def made(seen: Any, acts: Any, first: Any, *, own: dict[str, Any] | None = None, **options: Any) -> Any:
        gymnasium.registry.pop("Told-v0", None)
        gymnasium.register("Told-v0", entry_point=Told, kwargs={"seen": seen, "acts": acts, "first": first, **options})
        return GymnasiumEnvironment(id="Told-v0", **(own or {}))

    yield made
    gymnasium.registry.pop("Told-v0", None)


TWO, HINT = spaces.Discrete(2), spaces.Text(40)


@pytest.mark.parametrize(
    ("space", "value", "text"),
    [
        (HINT, "The door 2 is open!", "The door 2 is open!"),
        (spaces.Dict(hint=HINT, left=spaces.Discrete(4)), {"hint": "go on", "left": 3}, "hint: go on\nleft: 3"),
        (spaces.Tuple((HINT, spaces.Box(0, 1, (2,)))), ("go on", np.float32([0.5, 1])), "go on\n0.50 1.00"),
        (spaces.Sequence(HINT), ("one", "two"), "one\ntwo"),
        (spaces.Dict(a=spaces.Dict(b=HINT, c=HINT)), {"a": {"b": "x", "c": "y"}}, "a:\nb: x\nc: y"),
    ],
)
def test_texts_stay_texts(make: Make, space, value, text):  # rule 13
    environment = make(space, TWO, value)
    assert environment.vector_size is None and environment.action_count == 2
    seen = environment.reset(environment.tasks("train", 1, 0)[0]).observations[AGENT]
    assert seen.text == text and seen.vector is None and seen.legal == ("0", "1")
    check_environment(environment)


def test_actions_of_other_spaces(make: Make):  # rule 14
    pair = spaces.Dict(to=spaces.Text(20), times=spaces.Discrete(3))
    narrow, large = spaces.Text(9, charset="ab "), spaces.MultiDiscrete([100, 50])
    for space, fine, wrong in (
        (spaces.Text(20), {"go north!": "go north!"}, ("", "x" * 21, None, 3)),
        (narrow, {"ab ba": "ab ba", '"ab"': "ab"}, ("abc",)),
        (pair, {'{"to": "Ann, hi", "times": 2}': {"to": "Ann, hi", "times": 2}}, ('{"to": "Ann"}', "Ann", "{")),
        (spaces.Tuple((spaces.Text(9), TWO)), {'["hi", 1]': ("hi", 1)}, ('["hi"]', '["hi", 2]')),
        (spaces.MultiDiscrete([2, 3]), {"1 2": [1, 2], 5: [1, 2], "0, 1": [0, 1]}, ("2 0", 6, "1 2 0")),
        (large, {"99 49": [99, 49]}, ("100 0", 7, "1.5 2")),
        (spaces.MultiBinary(3), {"1 0 1": [1, 0, 1]}, ("1 0", "2 0 0")),
    ):
        environment = make(HINT, space, "go")
        assert has(environment, "vector") == (environment.action_count is not None)
        for answer, meant in fine.items():
            environment.reset(environment.tasks("train", 1, 0)[0])
            assert "invalid" not in act(environment, answer).info
            (played,) = environment._environment.unwrapped.played
            assert np.array_equal(played, meant) if isinstance(meant, list) else played == meant
        for answer in wrong:
            environment.reset(environment.tasks("train", 1, 0)[0])
            assert act(environment, answer).info["invalid"] == {AGENT: True}
            assert not environment._environment.unwrapped.played
    assert "a text of at most 20 characters" in make(HINT, spaces.Text(20), "go").instruction(AGENT)


def test_masks(make: Make):  # rule 15
    acts, mask = spaces.Discrete(3), np.array([1, 0, 1], np.int8)
    both = spaces.Dict(observation=spaces.Box(0, 1, (2,)), action_mask=spaces.MultiBinary(3))
    inside = make(both, acts, {"observation": np.zeros(2, np.float32), "action_mask": mask})
    beside = make(spaces.Box(0, 1, (2,)), acts, np.zeros(2, np.float32), infos=[{"action_mask": mask}] * 4)
    for environment in (inside, beside):
        seen = environment.reset(environment.tasks("train", 1, 0)[0]).observations[AGENT]
        assert seen.legal == [0, 2] and seen.text == "0.00 0.00\nlegal actions: 0, 2" and environment.vector_size == 2
        assert act(environment, 2).info == {"score": 1.0}
        assert act(environment, 1).info == {"score": 2.0, "illegal": {AGENT: 1.0}}
    skips = make(HINT, acts, "go", infos=[{"action_mask": mask}] * 4, own={"illegal": "skip"})
    skips.reset(skips.tasks("train", 1, 0)[0])
    assert act(skips, 1).info == {"score": 0.0, "illegal": {AGENT: 1.0}}
    grid = make(HINT, spaces.MultiDiscrete([2, 3]), "go", infos=[{"action_mask": ([1, 0], [0, 1, 1])}] * 4)
    assert grid.reset(grid.tasks("train", 1, 0)[0]).observations[AGENT].legal == [1, 2]
    wrong = make(HINT, acts, "go", infos=[{"action_mask": [1, 0]}] * 4)
    with told(ContractError, "does not have 3 numbers"):
        wrong.reset(wrong.tasks("train", 1, 0)[0])


def test_info_is_kept(make: Make, caplog: pytest.LogCaptureFixture):  # rule 16
    infos = [{}, {"is_success": False}, {"is_success": np.True_, "score": 7}, {"is_success": 1.0}]
    infos[1] |= {"level": np.int64(3), "far": float("nan"), "frame": np.zeros((40, 40)), "note": {"who": "Ann"}}
    environment = make(HINT, TWO, "go", infos=infos)
    environment.reset(environment.tasks("train", 1, 0)[0])
    first = {"level": 3, "far": "nan", "frame": "array (40, 40)", "note": {"who": "Ann"}}
    assert act(environment, 0).info == first | {"score": 1.0, "success": False}
    assert act(environment, 0).info == {"env_score": 7, "score": 2.0, "success": True}
    assert act(environment, 0).info == {"score": 3.0, "success": True}
    for name in ("`score`", "`far`", "`frame`"):
        assert any(name in line for line in caplog.messages)
    off = make(HINT, TWO, "go", infos=infos, own={"goal": False})
    off.reset(off.tasks("train", 1, 0)[0])
    assert "success" not in act(off, 0).info


def test_rewards_of_several_objectives(make: Make):  # rule 17
    two, pair = spaces.Box(-1, 1, (2,)), np.array([1.0, -0.5])
    with told(RecipeError, "(2,)"):
        make(HINT, TWO, "go", reward=pair, declared=two)
    with told(RecipeError, "`objectives`"):
        make(HINT, TWO, "go", reward=pair, declared=two, own={"objectives": (1.0, 1.0, 1.0)})
    silent = make(HINT, TWO, "go", reward=pair)
    silent.reset(silent.tasks("train", 1, 0)[0])
    with told(ContractError, "(2,)"):
        act(silent, 0)
    weighed = make(HINT, TWO, "go", reward=pair, declared=two, own={"objectives": (0.5, 2.0)})
    weighed.reset(weighed.tasks("train", 1, 0)[0])
    result = act(weighed, 0)
    assert result.rewards == {AGENT: -0.5} and result.info == {"score": -0.5, "objectives": [1.0, -0.5]}
    alone = make(HINT, TWO, "go", reward=np.array([2.0]))
    alone.reset(alone.tasks("train", 1, 0)[0])
    assert act(alone, 0).rewards == {AGENT: 2.0}
