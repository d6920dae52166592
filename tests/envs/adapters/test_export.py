"""Exports: (1) Gymnasium's and PettingZoo's own checkers pass on environments with vectors and with texts; (2) a seed
decides the task, splits share none, and a task can be given; (3) rewards, masks and ends are the environment's; (4) in
AEC only the agents that are to act get a turn, and in Parallel the actions of others are ignored; (5) environments
that cannot be exported are refused; (6) an export that is played through our own adapters is the same game.
"""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from palaestra.data import Action, Task
from palaestra.envs.adapters.exports.gymnasium import as_gymnasium
from palaestra.envs.adapters.exports.pettingzoo import as_aec, as_parallel
from palaestra.envs.probes.rooms import Rooms
from palaestra.errors import ContractError, RecipeError, UnknownName
from tests.extras import skip_without
from tests.messages import told

skip_without("pettingzoo")
OPTIONAL = {"openspiel": "pyspiel", "textarena": "textarena"}


@pytest.mark.parametrize(
    "name", ["rooms", "babyai", "hopsearch", "toolcalc", "tickets", "twenty_questions", "counting"]
)
def test_gymnasium_accepts_it(name: str) -> None:  # rule 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they concern rendering and unbounded boxes
        check_env(as_gymnasium(name), skip_render_check=True)


TEXTS = {"see": "text", "act": "text"}


@pytest.mark.parametrize(
    ("name", "options", "spaces"),
    [
        *((name, {}, {}) for name in ("relay", "flow", "secrets", "errands", "rooms", "openspiel", "textarena")),
        *((name, {}, TEXTS) for name in ("relay", "rooms", "openspiel")),
        ("relay", {}, {"see": "text"}),
        ("textarena", {"game": "KuhnPoker-v0"}, {}),
        ("textarena", {"game": "TowerOfHanoi-v0"}, {}),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else value,
)
def test_pettingzoo_accepts_it(name: str, options: dict[str, Any], spaces: dict[str, Any]) -> None:  # rule 1
    from pettingzoo.test import api_test, parallel_api_test

    if name in OPTIONAL:
        skip_without(OPTIONAL[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        api_test(as_aec(name, options=options, **spaces), num_cycles=30, verbose_progress=False)
        parallel_api_test(as_parallel(name, options=options, **spaces), num_cycles=30)


def test_texts_are_texts() -> None:  # rule 1
    env = as_parallel("rooms", **TEXTS)  # type: ignore[arg-type]
    seen = env.reset(seed=5)[0]["player"]
    assert isinstance(seen, str) and seen == str(seen) == pickle.loads(pickle.dumps(seen))
    assert seen.dtype == env.observation_space("player").dtype and env.observation_space("player").contains(seen)


def test_seeds_name_tasks() -> None:  # rule 2
    env, inner = as_gymnasium("rooms"), Rooms()
    first, told = env.reset(seed=5)
    own = inner.tasks("train", 1, 5)[0]
    assert told["task"] == own.content_hash and told["text"] == inner.reset(own).observations["player"].text
    again, _ = env.reset()
    assert not np.array_equal(first, again) and np.array_equal(first, env.reset(seed=5)[0])
    held_out = as_gymnasium("rooms", split="eval")
    assert held_out.reset(seed=5)[1]["task"] != told["task"]
    chosen = inner.tasks("eval", 3, 1)[2]
    assert env.reset(options={"task": chosen})[1]["task"] == chosen.content_hash


def test_rewards_masks_and_ends() -> None:  # rule 3
    made = gymnasium.make("palaestra.envs.adapters.exports.gymnasium:palaestra/World-v0", environment="rooms")
    inner = Rooms()
    task = inner.tasks("train", 1, 3)[0]
    inner.reset(task)
    _, told = made.reset(seed=3)
    total, over = 0.0, False
    while not over:
        assert told["action_mask"].dtype == np.int8 and 0 < told["action_mask"].sum() <= made.action_space.n
        action = inner.expert("player")
        index = next(i for i in range(made.action_space.n) if inner_same(inner, i, action))
        inner.step({"player": action})
        _, reward, over, cut, told = made.step(index)
        total += reward
        assert not cut
    assert total == 1.0 and told["success"] is True
    with pytest.raises(ContractError, match="after the end"):
        made.unwrapped.step(0)
    short = as_gymnasium("rooms", options={"max_turns": 1}, see="text", act="text")
    short.reset(seed=3)
    text, reward, over, cut, told = short.step("look around")
    assert (reward, over, cut) == (0.0, False, True) and isinstance(text, str) and told["invalid"] == {"player": True}


def inner_same(inner: Any, index: int, action: Action) -> bool:
    """Whether the index has the same effect as the action."""
    state = inner.snapshot()
    by_index = inner.step({"player": Action(value=index)})
    inner.restore(state)
    by_text = inner.step({"player": action})
    inner.restore(state)
    return not by_index.info.get("invalid") and _shown(by_index) == _shown(by_text)


def _shown(result: Any) -> Any:
    return [(seen.text) for seen in result.observations.values()], dict(result.rewards)


class Mixed:
    """Two agents act at once at first. Then the first is done, and only the second acts."""

    agents = ("a", "b")

    def reset(self, task: Task) -> Any:
        self.turn = 0
        return self.result({"a", "b"})

    def step(self, actions: Any) -> Any:
        self.turn += 1
        self.heard = {agent: action.value for agent, action in actions.items()}
        rewards = {agent: float(self.turn) for agent in actions}
        return self.result({"b"} if self.turn < 3 else set(), rewards)

    def result(self, asked: set[str], rewards: Any = None) -> Any:
        from palaestra.data import Observation, StepResult

        seen = {agent: Observation(text=f"{agent} at {self.turn}", legal=["yes", "no"]) for agent in sorted(asked)}
        over = {1: frozenset({"a"}), 3: frozenset({"b"})}.get(self.turn, frozenset())
        return StepResult(observations=seen, rewards=rewards or {}, terminated=over)

    def close(self) -> None:
        pass


def test_who_is_asked() -> None:  # rule 4
    inner = Mixed()
    env = as_aec(inner)
    env.reset(seed=0)
    asked = []
    for agent in env.agent_iter():
        seen, reward, over, cut, told = env.last()
        asked.append((agent, seen, reward, over))
        env.step(None if over or cut else "yes")
    assert asked == [
        ("a", "a at 0", 0.0, False),
        ("b", "b at 0", 0.0, False),
        ("a", "a at 0", 1.0, True),
        ("b", "b at 1", 1.0, False),
        ("b", "b at 2", 2.0, False),
        ("b", "b at 2", 3.0, True),
    ]
    together = as_parallel(inner)
    seen, told = together.reset(seed=0)
    assert seen == {"a": "a at 0", "b": "b at 0"} and told["a"]["legal"] == ["yes", "no"]
    seen, _rewards, over, cut, told = together.step({"a": "yes", "b": "no"})
    assert inner.heard == {"a": "yes", "b": "no"} and over == {"a": True, "b": False} and together.agents == ["b"]


def test_what_cannot_be_exported() -> None:  # rule 5
    with told(UnknownName, "2 agents"):
        as_gymnasium("relay")
    with told(RecipeError, "no vectors"):
        as_parallel(Mixed(), see="vector")
    with told(RecipeError, "no numbered actions"):
        as_parallel(Mixed(), act="index")
    with pytest.raises(UnknownName):
        as_gymnasium("rooom")


def test_there_and_back(tmp_path: Any) -> None:  # rule 6
    from palaestra.envs.adapters.pettingzoo.world import PettingZoo

    file = tmp_path / "back.py"
    file.write_text(
        "from palaestra.envs.adapters.exports.pettingzoo import as_parallel\n"
        "def tag():\n    return as_parallel('pettingzoo', options={'env': 'mpe2.simple_tag_v3'})\n"
    )
    skip_without("mpe2")
    there = PettingZoo(env="mpe2.simple_tag_v3")
    back = PettingZoo(env=f"{file}:tag")
    assert back.agents == there.agents and back.action_count == there.action_count
    task = there.tasks("train", 1, 4)[0]
    seen = back.reset(Task(env="pettingzoo", seed=4)).observations
    assert np.allclose(seen["agent_0"].vector, there.reset(task).observations["agent_0"].vector)
    move = {agent: Action(value=1) for agent in there.agents}
    assert dict(back.step(move).rewards) == dict(there.step(move).rewards)
