"""The runner `windows`:

1.  Cut into windows, an episode of a fixed policy equals the one that is played in one go, step by step.
2.  No window has more than `window` acts; a response may exceed the window, but the next one does not begin.
3.  Finished episodes are replaced by the first of the new plays; no more are under way than there are plays.
4.  Each step is fresh in one iteration; its log-probabilities and version stay those of the weights that wrote it.
5.  Suspended episodes have no end, no outcome and no next prompt; a state of JSON values resumes them as well as
   memory.
6.  A language policy reads exactly the ids that it wrote, however their text would be tokenized.
7.  An episode fails if repeating its acts gives something else, and the error says that it changed.
8.  Evaluations and demonstrations are played to their end, without windows.
9.  Several agents, networks with memory and scripted experts continue too.
10. Without a window everything is played to its end.
11. Calls of sub-agents continue too, each in its own conversation.
12. A suspended episode keeps all that its play has: turn limit, instruction, roles and info; also in a state.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.data import Action, Observation, Play, RunSetup, StepResult, StopReason, Task, Trajectory
from palaestra.errors import RecipeError
from palaestra.policies.network import NetworkPolicy
from palaestra.policies.scripted import expert
from palaestra.rollout.programs import demonstrate
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.systems.t_ppo.counting import Counting
from palaestra.systems.t_ppo.windows import WindowRunner
from palaestra.testing import EchoEnvironment, TinyModel
from tests.rollout.test_vector import Countdown, make_setup, network, plain

SHORT = {"shortest": 3, "longest": 12}


def counting(policy: Any = None) -> RunSetup:
    made = policy or NetworkPolicy("main", RunSetup(seed=3, vector_size=Counting().vector_size, action_count=8))
    return make_setup(lambda: Counting(**SHORT), all=made)


def iteration(number: int, count: int, make: Any = None) -> list[Play]:
    tasks = (make or Counting(**SHORT)).tasks("train", count, number)
    return [Play(task=task, group=f"{number}-{i}", sample=0, seed=100 * number + i) for i, task in enumerate(tasks)]


def windows(on: RunSetup, window: int | None = 4, **settings: Any) -> WindowRunner:
    return WindowRunner(on, RolloutSettings(window=window, max_turns=600, **settings))


def ended(runner: WindowRunner, iterations: int, count: int = 6, make: Any = None) -> dict[str, Trajectory]:
    """The episodes that ended within some iterations."""
    played = [t for number in range(iterations) for t in runner.collect(iteration(number, count, make))]
    assert not [t.error for t in played if t.error]
    return {t.id: t for t in played if t.stop is not StopReason.SUSPENDED}


def fresh(trajectory: Trajectory) -> list[float]:
    return [step.marks.fresh for step in trajectory.steps]


def whole(
    on: RunSetup, ids: Mapping[str, Any], iterations: int, count: int = 6, **settings: Any
) -> dict[str, Trajectory]:
    """The same episodes, played in one go."""
    plays = [p for number in range(iterations) for p in iteration(number, count) if f"{p.group}/{p.sample}" in ids]
    runner = EpisodeRunner(on, RolloutSettings(**{"max_turns": 600, **settings}))
    return {t.id: t for t in runner.collect(plays)}


@pytest.mark.parametrize("limits", [{}, {"max_turns": 7}, {"max_tokens": 9}])
@pytest.mark.parametrize("window", [1, 4, 5])
def test_1_same_as_in_one_go(window: int, limits: dict[str, int]) -> None:
    on = counting()
    runner = WindowRunner(on, RolloutSettings(**{"window": window, "max_turns": 600, **limits}))
    found = ended(runner, 12)
    expected = whole(on, found, 12, **limits)
    assert len(found) > 5
    assert plain(found, without=("marks",)) == plain(expected, without=("marks",))
    assert {t.id: t.info for t in found.values()} == {t.id: t.info for t in expected.values()}
    if limits:
        assert any(t.last for t in found.values()), "some are truncated, and keep the next observation"


def test_2_and_3_windows_and_replacement() -> None:
    runner, count = windows(counting(), 4), 6
    before: set[str] = set()
    for number in range(6):
        plays = iteration(number, count)
        played = runner.collect(plays)
        assert [t.id for t in played[: len(before)]] == sorted(before, key=[t.id for t in played].index)
        assert before == {t.id for t in played[: len(before)]}  # rule 3: suspended ones come first
        new = [f"{p.group}/{p.sample}" for p in plays][: count - len(before)]
        assert [t.id for t in played[len(before) :]] == new and len(played) == count
        for t in played:
            assert 1 <= sum(fresh(t)) <= 4
            assert (t.stop is StopReason.SUSPENDED) == (not t.steps[-1].terminated)
            assert t.stop is not StopReason.SUSPENDED or sum(fresh(t)) == 4
        before = {t.id for t in played if t.stop is StopReason.SUSPENDED}
    assert not runner.collect(iteration(9, 2))[len(before) :], "there is no room for new ones"


def test_2_a_response_may_reach_beyond() -> None:
    tiny = TinyModel()
    runner = windows(make_setup(lambda: EchoEnvironment(turns=9), all=tiny), 4, response_tokens=3)
    for t in (t for n in range(3) for t in runner.collect(iteration(n, 4, EchoEnvironment()))):
        assert not t.error
        counts = [len(step.action.tokens) for step in t.steps if step.marks.fresh]
        assert sum(counts[:-1]) < 4


def test_4_every_step_is_fresh_once() -> None:
    policy = NetworkPolicy("main", RunSetup(seed=3, vector_size=Counting().vector_size, action_count=8))
    runner, times, record = windows(counting(policy), 3), Counter[Any](), dict[Any, Any]()
    for number in range(8):
        for t in runner.collect(iteration(number, 5)):
            assert fresh(t) == sorted(fresh(t)), "old steps first"
            for step in t.steps:
                key = (t.id, step.turn)
                times[key] += int(step.marks.fresh)
                said = (step.version, step.action.value, step.action.logprobs.tolist())
                assert record.setdefault(key, said) == said
                assert not step.marks.fresh or step.version == policy.version
        with torch.no_grad():  # an update
            for parameter in policy.module.parameters():
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
        policy.weights_changed(policy.version + 1)
    assert set(times.values()) == {1}
    assert len({version for version, *_ in record.values()}) == 8


@pytest.mark.parametrize("language", [False, True])
def test_5_resumed_from_json(language: bool) -> None:
    make = (lambda: EchoEnvironment(turns=5)) if language else (lambda: Counting(**SHORT))
    policy = TinyModel(value_head=True) if language else counting().role("writer").policy
    one, other = (windows(make_setup(make, all=policy), 4, response_tokens=3) for _ in range(2))
    for number in range(5):
        played = [runner.collect(iteration(number, 4, make())) for runner in (one, other)]
        assert plain(played[0]) == plain(played[1]) and not any(t.error for t in played[0])
        for t in (t for t in played[0] if t.stop is StopReason.SUSPENDED):
            assert t.outcome is None and not t.next_prompts and not t.last
            assert not any(step.terminated or step.truncated for step in t.steps)
        other = windows(make_setup(make, all=policy), 4, response_tokens=3)
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))


def test_6_exactly_the_ids_that_were_written() -> None:
    tiny, make = TinyModel(), lambda: EchoEnvironment(turns=6)
    on = make_setup(make, all=tiny)
    found = ended(windows(on, 5, response_tokens=3), 8, 4, make())
    plays = [p for n in range(8) for p in iteration(n, 4, make()) if f"{p.group}/{p.sample}" in found]
    expected = {t.id: t for t in EpisodeRunner(on, RolloutSettings(max_turns=600, response_tokens=3)).collect(plays)}
    assert len(found) > 5
    retokenized = 0
    for name, t in found.items():
        assert np.array_equal(t.sequence("player", 0), expected[name].sequence("player", 0))
        for step, other in zip(t.steps, expected[name].steps, strict=True):
            assert np.allclose(step.action.logprobs, other.action.logprobs, atol=1e-5)
            ids = tiny.renderer.action(step.action.text or "")
            retokenized += not np.array_equal(ids, step.action.tokens)
    assert retokenized > 10, "the texts alone do not determine the ids"


class Drifting(Counting):
    """Shows or pays something else when a task is played again."""

    played: Counter[str]
    fault: str

    def reset(self, task: Task) -> StepResult:
        type(self).played[task.content_hash] += 1
        self._again = type(self).played[task.content_hash] > 1
        return super().reset(task)

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        result = super().step(actions)
        if not self._again or not result.observations:
            return result
        seen = result.observations["writer"]
        given = {"text": seen.text, "vector": seen.vector, "legal": seen.legal, "state_key": seen.state_key}
        given |= {"text": {"text": "fog"}, "vector": {"vector": seen.vector + 1}}.get(self.fault, {})
        given |= {"state_key": "elsewhere"} if self.fault == "state_key" else {}
        if self.fault == "end":
            return StepResult(observations={}, terminated=frozenset({"writer"}))
        rewards = {"writer": 0.5 if self.fault == "reward" else 0.0}
        return StepResult(observations={"writer": Observation(**given)}, rewards=rewards)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("text", "the observation has another text"),
        ("vector", "the observation has another vector"),
        ("state_key", "the observation has another state_key"),
        ("reward", "the reward is 0.5 where it was 0"),
        ("end", "it ended after 1 of 4 recorded steps"),
    ],
)
def test_7_changed_prefixes_fail(fault: str, message: str) -> None:
    world = type("World", (Drifting,), {"played": Counter(), "fault": fault})
    runner = windows(make_setup(lambda: world(shortest=9, longest=12), all=counting().role("writer").policy), 4)
    first = runner.collect(iteration(0, 3, world(shortest=9, longest=12)))
    assert {t.stop for t in first} == {StopReason.SUSPENDED}
    second = runner.collect(iteration(1, 3, world(shortest=9, longest=12)))
    assert {t.stop for t in second} == {StopReason.ERROR}
    for t in second:
        assert t.error is not None and t.error.boundary == "environment"
        assert "a suspended episode changed when its acts were repeated" in t.error.message
        assert message in t.error.message
    assert {t.stop for t in runner.collect(iteration(2, 3))} == {StopReason.SUSPENDED}, "new episodes replace them"


def test_7_changed_prompts_fail() -> None:
    make, tiny = (lambda: EchoEnvironment(turns=6)), TinyModel()
    runner = windows(make_setup(make, all=tiny), 3, response_tokens=3)
    runner.collect(iteration(0, 2, make()))
    state = runner.state_dict()
    state["suspended"][0]["trajectory"]["steps"][0]["prompt"][-1] += 1
    runner.load_state_dict(state)
    changed, other = runner.collect(iteration(1, 2, make()))
    assert changed.error is not None and "repeated: the prompt has other tokens" in changed.error.message
    assert other.error is None


def test_8_whole_episodes() -> None:
    on = counting()
    runner = windows(on, 2)
    before = [t.id for t in runner.collect(iteration(0, 3))]
    for options in ({"temperature": 0.0}, {"program": demonstrate}):
        played = runner.collect(iteration(1, 3), **options)
        expected = EpisodeRunner(on, RolloutSettings(max_turns=600)).collect(iteration(1, 3), **options)
        assert plain(played) == plain(expected)
        assert all(step.marks.fresh is None for t in played for step in t.steps)
    assert [t.id for t in runner.collect(iteration(2, 3))] == before


def test_9_agents_of_all_kinds() -> None:
    make = lambda: Countdown(agents=("a", "b", "c"))  # noqa: E731
    roles = {"a": network(2, body="gru"), "b": network(2, "second"), "c": expert("c", RunSetup(seed=0))}
    on = make_setup(make, **roles)
    tasks = [Task(env="test", seed=i, params={"length": 3 + i}) for i in range(4)]
    plays = [Play(task=task, group=f"{i}", sample=0, seed=i) for i, task in enumerate(tasks)]
    runner, found = windows(on, 4), dict[str, Trajectory]()
    for _ in range(8):  # 4 acts per window and 3 per turn: some are suspended inside a turn
        found |= {t.id: t for t in runner.collect(plays) if t.stop is StopReason.COMPLETED and t.id not in found}
    expected = {t.id: t for t in EpisodeRunner(on, RolloutSettings(max_turns=600)).collect(plays)}
    assert found.keys() == expected.keys()
    for name, t in found.items():
        assert [(s.agent, s.action.value, s.reward) for s in t.steps] == [
            (s.agent, s.action.value, s.reward) for s in expected[name].steps
        ]


def test_10_no_window() -> None:
    on = counting()
    runner = windows(on, None)
    played = runner.collect(iteration(0, 4))
    expected = EpisodeRunner(on, RolloutSettings(max_turns=600)).collect(iteration(0, 4))
    assert all(set(fresh(t)) == {1.0} for t in played)
    assert plain(played, without=("marks",)) == plain(expected, without=("marks",))
    assert runner.state_dict() == {"suspended": []}
    runner.close()


async def calling(episode: Any) -> None:
    """Two calls at a time before each act."""
    result = await episode.reset()
    while result.observations:
        ((name, seen),) = result.observations.items()
        calls = [episode.invoke("sub", parent=episode.agents[name]) for _ in range(2)]
        await asyncio.gather(*(call.act(seen) for call in calls))
        await calls[0].act(seen)
        result = await episode.step({name: await episode.agents[name].act(seen)})


def test_11_calls() -> None:
    remembering = NetworkPolicy(
        "main", RunSetup(seed=3, vector_size=Counting().vector_size, action_count=8), body="gru"
    )
    on = make_setup(lambda: Counting(**SHORT), program=calling, all=remembering)
    found = ended(windows(on, 5), 20, 3)
    expected = whole(on, found, 20, 3)
    assert len(found) > 3
    assert plain(found, without=("marks",)) == plain(expected, without=("marks",))
    assert {step.segment // 4096 for t in found.values() for step in t.steps} >= {0, 1, 2, 3, 4}


def test_12_what_the_play_says() -> None:
    texts = ["be quick", *(f"be quick say {word}" for word in ("red", "blue"))]
    roles = {"player": TinyModel(texts=texts), "opponent": TinyModel(texts=texts, name="other", seed=1)}
    on = make_setup(lambda: EchoEnvironment(turns=9), **roles)
    given = {"turns": 5, "instruction": "be quick", "roles": {"player": "opponent"}, "info": {"level": 2}}
    plays = [dataclasses.replace(play, **given) for play in iteration(0, 3, EchoEnvironment())]
    state: Any = {"suspended": []}
    for _ in range(9):
        runner = windows(on, 4, response_tokens=3)
        runner.load_state_dict(json.loads(json.dumps(state)))
        played = runner.collect(plays)
        state = runner.state_dict()
        if not state["suspended"]:
            break
        assert [entry["trajectory"]["stop"] for entry in state["suspended"]] == ["suspended"] * 3
    expected = EpisodeRunner(on, RolloutSettings(max_turns=600, response_tokens=3)).collect(plays)
    assert {t.stop for t in played} == {StopReason.MAX_TURNS} and {len(t.steps) for t in played} == {5}
    assert {(s.policy, s.observation.instruction) for t in played for s in t.steps} == {("other", "be quick")}
    assert {t.info["level"] for t in played} == {2}
    assert [[s.action.tokens.tolist() for s in t.steps] for t in played] == [
        [s.action.tokens.tolist() for s in t.steps] for t in expected
    ]


def test_12_states_of_earlier_versions() -> None:
    one, other = windows(counting()), windows(counting())
    one.collect(iteration(0, 4))
    state = one.state_dict()
    old = [{"seed": entry["play"]["seed"], "trajectory": entry["trajectory"]} for entry in state["suspended"]]
    other.load_state_dict({"suspended": old})
    assert plain(other.collect(iteration(1, 4))) == plain(one.collect(iteration(1, 4)))


@pytest.mark.parametrize("window", [0, -3])
def test_a_window_holds_something(window: int) -> None:
    with pytest.raises((RecipeError, ValueError), match="window"):
        RolloutSettings(window=window)
