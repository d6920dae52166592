"""PettingZoo: (1) the contract holds for real tasks and games of both interfaces; (2) with `parallel` all agents that
are left act at once, with `aec` only the next one; (3) rewards and ends are PettingZoo's, and agents may leave early;
(4) actions are indices, names or arrays; (5) a masked or unreadable answer is marked, and it is replaced or loses;
(6) success and outcome are right for each goal; (7) global states, images and vectors of one size work; (8) seeds
decide an episode, splits share no seed, and a restored snapshot goes on in the same way; (9) bad options are refused;
(10) texts are seen and written as texts, and only the action mask is left out of a Dict; (11) what the environment
tells of its agents is kept, and the success that it tells counts; (12) rewards of several numbers need `objectives`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, Task
from palaestra.data.abilities import has
from palaestra.envs.adapters.pettingzoo.world import PettingZoo
from palaestra.errors import ContractError, MissingExtra, PalaestraError, RecipeError, UnknownName
from palaestra.testing import check_environment
from tests.extras import skip_without
from tests.messages import told

skip_without("pettingzoo")
skip_without("mpe2")

SPREAD = {"env": "mpe2.simple_spread_v3", "options": {"N": 2, "max_cycles": 8}}
TICTACTOE = {"env": "classic/tictactoe-v3"}

LEAVING = '''
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import AgentSelector


class InTurn(AECEnv):
    """Three agents in turn; 1 leaves with 5 points, 0 stays; everybody is cut off after two rounds."""

    metadata = {"name": "leaving"}
    render_mode = None

    def __init__(self, first=2):
        self.possible_agents = ["a", "b", "c"]
        self.counts = {"a": first, "b": 2, "c": 2}

    def observation_space(self, agent):
        return spaces.Discrete(9)

    def action_space(self, agent):
        return spaces.Discrete(self.counts[agent], start=0)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.round, self.order = 0, AgentSelector(self.agents)
        self.agent_selection = self.order.next()

    def observe(self, agent):
        return self.round

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            return self._was_dead_step(action)
        self._clear_rewards()
        if action == 1:
            self.rewards[agent] = 5.0
            self.terminations[agent] = True
        last = agent == [name for name in self.agents][-1]
        if last:
            self.round += 1
        if last and self.round == 2:
            self.truncations = {name: not self.terminations[name] for name in self.agents}
        alive = [name for name in self.agents if not self.terminations[name]]
        if alive:
            place = self.possible_agents.index(agent)
            turned = self.possible_agents[place + 1:] + self.possible_agents[:place + 1]
            self.agent_selection = next(name for name in turned if name in alive)
        self._accumulate_rewards()
        self._deads_step_first()


class Together(ParallelEnv):
    """Agent a has 3 actions and leaves at once with action 2; b has 2 and stays for three steps."""

    metadata = {"name": "together"}

    def __init__(self):
        self.possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (2 if agent == "a" else 3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3 if agent == "a" else 2)

    def reset(self, seed=None, options=None):
        self.agents, self.time = ["a", "b"], 0
        return self.look(), {agent: {} for agent in self.agents}

    def look(self):
        return {agent: np.full(self.observation_space(agent).shape, self.time / 4, np.float32) for agent in self.agents}

    def step(self, actions):
        self.time += 1
        seen, acted = self.look(), list(self.agents)
        gone = {agent: agent == "a" and actions[agent] == 2 for agent in acted}
        cut = dict.fromkeys(acted, self.time == 3)
        self.agents = [agent for agent in acted if not gone[agent] and not cut[agent]]
        return seen, {agent: float(actions[agent]) for agent in acted}, gone, cut, {agent: {} for agent in acted}


class Bare:
    """No environment at all."""


class Odd(Together):
    def action_space(self, agent):
        return spaces.Sequence(spaces.Discrete(3))


class Talk(Together):
    """Agents see a text and a number beside a mask, and answer in words or by the number of a legal action."""

    def observation_space(self, agent):
        return spaces.Dict(observation=spaces.Text(40), goal=spaces.Discrete(9), action_mask=spaces.MultiBinary(3))

    def action_space(self, agent):
        return spaces.Discrete(3) if agent == "a" else spaces.Text(20)

    def look(self):
        fixed = {"goal": 7, "action_mask": [0, 1, 1]}
        return {agent: {"observation": f"Hello, {agent}!", **fixed} for agent in self.agents}

    def step(self, actions):
        self.heard, acted = dict(actions), list(self.agents)
        seen = self.look()
        self.agents = []
        rewards = {agent: np.array([1.0, -0.5]) for agent in acted}
        infos = {agent: {"is_success": agent == "a" or actions["b"] == "hi, Ann!", "level": 2.0} for agent in acted}
        return seen, rewards, dict.fromkeys(acted, True), dict.fromkeys(acted, False), infos


class Declared(Talk):
    def reward_space(self, agent):
        return spaces.Box(-1, 1, (2,))


def corner(env, agent):
    return 0
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "leaving.py"
    path.write_text(LEAVING)
    return path


def test_the_contract_holds(file: Path) -> None:  # rule 1
    for options in (
        SPREAD,
        SPREAD | {"api": "aec"},
        {"env": "mpe2.simple_spread_v3", "options": {"N": 2, "max_cycles": 6, "continuous_actions": True}},
        {"env": "mpe2.simple_tag_v3", "options": {"max_cycles": 6}},
        {"env": "mpe2.simple_speaker_listener_v4", "options": {"max_cycles": 6}},
        TICTACTOE,
        TICTACTOE | {"illegal": "lose"},
        {"env": "pettingzoo.classic.connect_four_v3", "max_turns": 9},
        {"env": "pettingzoo.classic.rps_v2", "options": {"max_cycles": 5}},
        {"env": f"{file}:InTurn"},
        {"env": f"{file}:Together", "expert": f"{file}:corner"},
    ):
        check_environment(PettingZoo(**options), make=lambda o=options: PettingZoo(**o), episodes=3)


def test_parallel_asks_all_and_aec_who_is_next() -> None:  # rule 2
    together, in_turn = PettingZoo(**SPREAD), PettingZoo(**SPREAD, api="aec")
    task = Task(env="pettingzoo", seed=4)
    assert list(together.reset(task).observations) == ["agent_0", "agent_1"]
    assert list(in_turn.reset(task).observations) == ["agent_0"]
    assert list(in_turn.step({"agent_0": Action(value=1)}).observations) == ["agent_1"]
    first, second = together.reset(task).observations["agent_0"], in_turn.reset(task).observations["agent_0"]
    assert np.array_equal(first.vector, second.vector)


def test_rewards_are_those_of_the_package() -> None:  # rule 3
    from mpe2 import simple_spread_v3

    env, own = PettingZoo(**SPREAD), simple_spread_v3.parallel_env(**SPREAD["options"])
    task = Task(env="pettingzoo", seed=12)
    env.reset(task)
    own.reset(seed=12)
    for turn in range(8):
        moves = {"agent_0": turn % 5, "agent_1": (turn + 2) % 5}
        result = env.step({agent: Action(value=move) for agent, move in moves.items()})
        seen, rewards, _, cut, _ = own.step(moves)
        assert dict(result.rewards) == pytest.approx(rewards)
        if all(cut.values()):
            break
        assert np.array_equal(result.observations["agent_1"].vector, seen["agent_1"])
    assert result.truncated == {"agent_0", "agent_1"} and not result.terminated and set(result.last) == result.truncated
    assert result.info["score"] == pytest.approx(sum(result.info["returns"].values()) / 2)


def test_agents_leave_in_turn(file: Path) -> None:  # rule 3
    env = PettingZoo(env=f"{file}:InTurn")
    result = env.reset(Task(env="pettingzoo", seed=0))
    order = []
    for move in (0, 1, 0, 0, 0):  # a stays, b leaves, c stays; then a, c are cut off
        (agent,) = result.observations
        order.append(agent)
        result = env.step({agent: Action(value=move)})
        if agent == "b":
            assert result.terminated == {"b"} and result.rewards["b"] == 5.0
    assert order == ["a", "b", "c", "a", "c"]
    assert result.truncated == {"a", "c"} and set(result.last) == {"a", "c"} and not result.observations
    assert result.info["returns"] == {"a": 0.0, "b": 5.0, "c": 0.0}


def test_agents_leave_together(file: Path) -> None:  # rule 3
    env = PettingZoo(env=f"{file}:Together")
    env.reset(Task(env="pettingzoo", seed=0))
    result = env.step({"a": Action(value=2), "b": Action(value=1)})
    assert (
        result.terminated == {"a"} and list(result.observations) == ["b"] and dict(result.rewards) == {"a": 2, "b": 1}
    )
    env.step({"b": Action(value=0)})
    result = env.step({"b": Action(value=1)})
    assert result.truncated == {"b"} and result.info["returns"] == {"a": 2.0, "b": 2.0}


def test_a_limit_of_turns_truncates() -> None:  # rule 3
    env = PettingZoo(**TICTACTOE, max_turns=2)
    env.reset(Task(env="pettingzoo", seed=0))
    env.step({"player_1": Action(value=0)})
    result = env.step({"player_2": Action(value=1)})
    assert result.truncated == {"player_1", "player_2"} == set(result.last)


def test_actions_are_indices_names_or_arrays() -> None:  # rule 4
    words = ("stay", "left", "right", "down", "up")
    env = PettingZoo(**SPREAD, names=words)
    task = Task(env="pettingzoo", seed=3)

    def after(value: Any) -> np.ndarray:
        seen = env.reset(task).observations["agent_0"]
        assert seen.text.endswith("actions: stay, left, right, down, up")
        result = env.step({"agent_0": Action(value=value), "agent_1": Action(value=0)})
        assert "invalid" not in result.info
        return result.observations["agent_0"].vector

    moved = after(2)
    assert moved[0] > 0 and all(np.array_equal(moved, after(same)) for same in ("right", " Right ", "2", np.array([2])))
    smooth = PettingZoo(env="mpe2.simple_spread_v3", options={"N": 2, "continuous_actions": True})
    smooth.reset(task)
    quiet = Action(text="0 0 0 0 0")
    result = smooth.step({"agent_0": Action(value=np.array([0, 0, 1, 0, 0.0])), "agent_1": quiet})
    assert result.observations["agent_0"].vector[0] == pytest.approx(moved[0])
    smooth.reset(task)
    assert smooth.step({"agent_0": Action(text="0, 0, 7, 0, 0"), "agent_1": quiet}).observations["agent_0"].vector[
        0
    ] == pytest.approx(moved[0])  # cut to the bounds
    smooth.reset(task)
    result = smooth.step({"agent_0": Action(text="0 0 1"), "agent_1": Action(text="nan 0 0 0 0")})
    assert result.info["invalid"] == {"agent_0": True, "agent_1": True}


def test_what_cannot_be_done_is_replaced() -> None:  # rule 5
    env = PettingZoo(**TICTACTOE)
    env.reset(Task(env="pettingzoo", seed=0))
    result = env.step({"player_1": Action(value=0)})
    assert result.observations["player_2"].legal == [1, 2, 3, 4, 5, 6, 7, 8]
    result = env.step({"player_2": Action(value=0)})
    assert result.info == {"illegal": {"player_2": 1.0}} and result.observations["player_1"].legal == [
        2,
        3,
        4,
        5,
        6,
        7,
        8,
    ]
    result = env.step({"player_1": Action(text="what")})
    assert result.info == {"invalid": {"player_1": True}} and result.observations["player_2"].legal == [
        3,
        4,
        5,
        6,
        7,
        8,
    ]


def test_what_cannot_be_done_loses() -> None:  # rule 5
    env = PettingZoo(**TICTACTOE, illegal="lose", penalty=2.0, goal="first")
    env.reset(Task(env="pettingzoo", seed=0))
    result = env.step({"player_1": Action(text="what")})
    assert dict(result.rewards) == {"player_1": -2.0} and result.terminated == {"player_1", "player_2"}
    assert result.info["success"] is False and result.info["returns"] == {"player_1": -2.0, "player_2": 0.0}


def test_success_and_outcome() -> None:  # rule 6
    env = PettingZoo(**TICTACTOE, goal="first")
    result = env.reset(Task(env="pettingzoo", seed=0))
    for move in (0, 3, 1, 4, 2):
        (agent,) = result.observations
        result = env.step({agent: Action(value=move)})
    assert dict(result.rewards) == {"player_1": 1.0, "player_2": -1.0}
    assert result.info == {"returns": {"player_1": 1.0, "player_2": -1.0}, "score": 1.0, "success": True}
    for goal_return, won in ((-1000.0, True), (0.0, False)):
        env = PettingZoo(**SPREAD, goal="return", goal_return=goal_return)
        result = env.reset(Task(env="pettingzoo", seed=0))
        while result.observations:
            result = env.step({agent: Action(value=0) for agent in result.observations})
        assert result.info["success"] is won


def test_states_images_and_sizes(file: Path) -> None:  # rule 7
    env = PettingZoo(env="mpe2.simple_speaker_listener_v4")
    seen = env.reset(Task(env="pettingzoo", seed=1)).observations
    assert {len(one.vector) for one in seen.values()} == {env.vector_size} == {11}
    assert not seen["speaker_0"].vector[3:].any() and seen["speaker_0"].legal == [0, 1, 2]
    assert env.global_state().dtype == np.float32 and env.global_state().shape == (14,)
    assert not has(PettingZoo(env=f"{file}:Together"), "global_state")
    assert PettingZoo(**TICTACTOE).reset(Task(env="pettingzoo", seed=1)).observations["player_1"].state_key
    skip_without("pygame")
    pong = PettingZoo(env="pettingzoo.butterfly.cooperative_pong_v6", max_turns=2)
    seen = pong.reset(Task(env="pettingzoo", seed=1)).observations["paddle_0"]
    assert seen.image.dtype == np.uint8 and seen.image.shape[-1] == 3 and pong.vector_size is None


def test_seeds_decide() -> None:  # rule 8
    env = PettingZoo(**SPREAD)
    train, held_out = env.tasks("train", 50, 0), env.tasks("eval", 50, 0)
    assert not {task.seed for task in train} & {task.seed for task in held_out}
    starts = [env.reset(task).observations["agent_0"].text for task in [*train[:5], train[0]]]
    assert len(set(starts)) == 5 and starts[0] == starts[5]
    env.step({"agent_0": Action(value=1), "agent_1": Action(value=1)})
    saved = env.snapshot()
    both = {"agent_0": Action(value=2), "agent_1": Action(value=3)}
    first = env.step(both).observations["agent_0"].text
    env.step(both)
    env.restore(saved)
    assert env.step(both).observations["agent_0"].text == first


def test_experts_of_ones_own(file: Path) -> None:
    env = PettingZoo(env=f"{file}:Together", expert=f"{file}:corner")
    env.reset(Task(env="pettingzoo", seed=0))
    assert env.expert("a").value == 0 and not has(PettingZoo(**SPREAD), "expert")


def test_bad_options_are_refused(file: Path) -> None:  # rule 9
    bad: list[tuple[dict[str, Any], type[PalaestraError], str]] = [
        ({"env": "mpe2.simple_sprad_v3"}, UnknownName, "`mpe2.simple_sprad_v3` is no name"),
        ({"env": "json"}, UnknownName, "the module makes no environment of the kind parallel"),
        (
            {"env": "pettingzoo.classic.tictactoe_v3", "api": "parallel"},
            UnknownName,
            "the module makes no environment of the kind parallel",
        ),
        ({"env": f"{file}:Gone"}, UnknownName, "cannot be loaded"),
        ({"env": f"{file}:Bare"}, RecipeError, "which is no environment of PettingZoo"),
        ({"env": f"{file}:Odd"}, RecipeError, "its action space is Sequence"),
        ({"env": f"{file}:InTurn", "api": "parallel"}, RecipeError, "has only `aec`"),
        ({**SPREAD, "options": {"agents": 2}}, RecipeError, "it refused its options"),
        ({**SPREAD, "names": ("a", "b")}, RecipeError, "`names` has 2 names, and the agent has 5 actions"),
        ({**SPREAD, "goal": "win"}, RecipeError, "cannot take `goal: 'win'`"),
    ]
    for options, kind, message in bad:
        with pytest.raises(kind) as raised:
            PettingZoo(**options)
        assert message in raised.value.what, raised.value.what
    if importlib.util.find_spec("Box2D"):
        return
    for absent in ("sisl/multiwalker-v9", "pettingzoo.sisl.multiwalker_v9"):
        with pytest.raises(MissingExtra) as missing:
            PettingZoo(env=absent)
        assert "Box2D" in missing.value.what


def test_texts_are_texts(file: Path) -> None:  # rule 10
    env = PettingZoo(env=f"{file}:Talk", objectives=(1.0, 1.0))
    seen = env.reset(Task(env="pettingzoo", seed=0)).observations
    assert seen["a"].text == "you are a. goal: 7\nobservation: Hello, a!" and seen["a"].vector is None
    assert seen["a"].legal == [1, 2] and seen["b"].legal is None and env.vector_size is None
    assert not has(env, "vector") and "a text of at most 20 characters" in env.instruction("b")
    result = env.step({"a": Action(text="2"), "b": Action(text="hi, Ann!")})
    assert env._inner.heard == {"a": 2, "b": "hi, Ann!"} and "invalid" not in result.info
    env.reset(Task(env="pettingzoo", seed=0))
    result = env.step({"a": Action(text="0"), "b": Action(text="x" * 21)})
    assert result.info["illegal"] == {"a": 1.0} and result.info["invalid"] == {"b": True}
    assert env._inner.heard["a"] == 1 and len(env._inner.heard["b"]) == 1


def test_what_is_told_is_kept(file: Path) -> None:  # rule 11
    for said, won in (("hi, Ann!", True), ("no", False)):
        env = PettingZoo(env=f"{file}:Talk", objectives=(1.0, 1.0))
        env.reset(Task(env="pettingzoo", seed=0))
        info = env.step({"a": Action(text="1"), "b": Action(text=said)}).info
        assert info["level"] == {"a": 2.0, "b": 2.0} and info["success"] is won and info["score"] == 0.5


def test_rewards_of_several_objectives(file: Path) -> None:  # rule 12
    both = {"a": Action(text="1"), "b": Action(text="hi")}
    with told(RecipeError, "(2,)"):
        PettingZoo(env=f"{file}:Declared")
    with told(RecipeError, "`objectives`"):
        PettingZoo(env=f"{file}:Declared", objectives=(1.0,))
    silent = PettingZoo(env=f"{file}:Talk")
    silent.reset(Task(env="pettingzoo", seed=0))
    with told(ContractError, "(2,)"):
        silent.step(both)
    weighed = PettingZoo(env=f"{file}:Declared", objectives=(0.5, 2.0))
    weighed.reset(Task(env="pettingzoo", seed=0))
    result = weighed.step(both)
    assert dict(result.rewards) == {"a": -0.5, "b": -0.5} and result.info["objectives"]["b"] == [1.0, -0.5]
