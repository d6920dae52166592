"""Rules of an episode, each pinned by one scripted test of the same number.

1.  Every act becomes a step, in order, with its reward.
2.  An episode that the environment ends is `completed` and its last step is terminated.
3.  The turn limit ends an episode before the next act; its last step is truncated and what it would have
    seen next is kept.
4.  The token limit of an episode stops it with `max_tokens`.
5.  Wall time stops it with `timeout`.
6.  An environment that raises fails its episode only, with boundary `environment`.
7.  A reward that is not finite does the same.
8.  A step that hangs fails its episode after `step_seconds`, in threads and in processes; others go on, in the
    same process too; so does a crash of the process, and a full pipe locks nothing.
9.  A program's own mistake has boundary `part`.
10. Results come in the order of the plays and do not depend on how many are in flight or where
    environments run.
11. Unreadable actions are marked.
12. A policy that fails has boundary `engine`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence

import pytest

from palaestra.data import Action, Play, RunSetup, StepResult, StopReason, Trajectory
from palaestra.rollout.programs import play
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.testing import EchoEnvironment, ScriptedPolicy


def echo(turn: int, observation: object) -> str:
    return observation.text.split()[1]  # type: ignore[attr-defined]


def make_setup(policy: object = None, program: object = play, **options: object) -> RunSetup:
    return RunSetup(
        environment_name="echo",
        make_environment=functools.partial(EchoEnvironment, **options),
        roles={"*": Role(policy=policy or ScriptedPolicy(echo))},
        program=program,
        environment_options=options,
    )


def plays(count: int) -> list[Play]:
    tasks = EchoEnvironment().tasks("train", count, seed=1)
    return [Play(task=task, group=f"{i:03d}", sample=0, seed=i) for i, task in enumerate(tasks)]


def run(on: RunSetup, count: int = 1, **settings: object) -> list[Trajectory]:
    runner = EpisodeRunner(on, RolloutSettings(**settings))
    try:
        return runner.collect(plays(count))
    finally:
        runner.close()


def test_1_every_act_is_a_step() -> None:
    (trajectory,) = run(make_setup(turns=3))
    assert [step.turn for step in trajectory.steps] == [0, 1, 2]
    assert [step.reward for step in trajectory.steps] == pytest.approx([1 / 3] * 3)
    assert trajectory.returns["player"] == pytest.approx(1.0)


def test_2_completed() -> None:
    (trajectory,) = run(make_setup(turns=2))
    assert trajectory.stop is StopReason.COMPLETED
    assert [step.terminated for step in trajectory.steps] == [False, True]
    assert trajectory.outcome == 1.0


def test_3_turn_limit() -> None:
    (trajectory,) = run(make_setup(turns=9), max_turns=4)
    assert trajectory.stop is StopReason.MAX_TURNS
    assert len(trajectory.steps) == 4
    assert trajectory.steps[-1].truncated and not trajectory.steps[-1].terminated
    assert trajectory.last["player"].text is not None


def test_4_token_limit(tiny: object) -> None:
    (trajectory,) = run(make_setup(tiny, turns=50), max_tokens=10, response_tokens=3)
    assert trajectory.stop is StopReason.MAX_TOKENS
    assert 10 <= sum(len(step.action.tokens) for step in trajectory.steps) < 13


def test_5_wall_time() -> None:
    (trajectory,) = run(make_setup(turns=3, hang_at=1, hang_seconds=0.5), max_seconds=0.2, workers=1)
    assert trajectory.stop is StopReason.TIMEOUT
    assert trajectory.steps[-1].truncated


def test_6_environment_raises() -> None:
    played = run(make_setup(turns=2, raise_at=1, every=2), count=12)
    failed = [t for t in played if t.stop is StopReason.ERROR]
    assert 0 < len(failed) < 12
    assert all(t.error is not None and t.error.boundary == "environment" for t in failed)
    assert "ValueError: the echo is broken" in failed[0].error.message  # type: ignore[union-attr]
    assert all(t.outcome == 1.0 for t in played if t not in failed)


def test_7_reward_not_finite() -> None:
    (trajectory,) = run(make_setup(turns=2, nan_at=0))
    assert trajectory.stop is StopReason.ERROR
    assert "the reward is nan" in trajectory.error.message  # type: ignore[union-attr]
    assert "agent player" in trajectory.error.message  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_8_step_hangs(kind: str) -> None:
    on = make_setup(turns=2, hang_at=1, every=4, hang_seconds=3.0)
    played = run(on, count=12, workers=2, worker_kind=kind, step_seconds=0.5, in_flight=2)
    hung = [t for t in played if t.stop is StopReason.ERROR]
    assert 0 < len(hung) < 12
    assert any("it did not return within 0.5 s (rollout.step_seconds)" in t.error.message for t in hung)  # type: ignore[union-attr]


def test_8_others_in_the_process_go_on() -> None:
    on = make_setup(turns=3, hang_at=1, every=4, hang_seconds=60.0)
    played = run(on, count=12, workers=1, worker_kind="process", step_seconds=0.5)
    hung = [t for t in played if t.task.seed // 2 % 4 == 0]
    assert 0 < len(hung) < 12
    assert all(t.stop is StopReason.ERROR and "it did not return" in t.error.message for t in hung)  # type: ignore[union-attr]
    assert all(t.outcome == 1.0 and len(t.steps) == 3 for t in played if t not in hung)


class Crashing:
    """Takes its process with it where the echo environment would raise."""

    def __init__(self, **options: int) -> None:
        self.echo = EchoEnvironment(**options)
        self.agents, self.reset, self.close = self.echo.agents, self.echo.reset, self.echo.close

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        try:
            return self.echo.step(actions)
        except ValueError:
            os._exit(1)


def test_8_a_crash_is_of_one_episode() -> None:
    on = make_setup()
    on.make_environment = functools.partial(Crashing, turns=2, raise_at=1, every=4)
    played = run(on, count=12, workers=1, worker_kind="process")
    crashed = [t for t in played if t.task.seed // 2 % 4 == 0]
    assert 0 < len(crashed) < 12
    assert all(t.error is not None and "its worker process died" in t.error.message for t in crashed)
    assert all(t.outcome == 1.0 for t in played if t not in crashed)


def test_8_many_long_messages_lock_nothing() -> None:
    played = run(make_setup(turns=2, padding=2000), count=100, workers=1, worker_kind="process")
    assert all(t.outcome == 1.0 for t in played)


def test_9_program_fails() -> None:
    async def wrong(episode: object) -> None:
        raise KeyError("nobody")

    (trajectory,) = run(make_setup(program=wrong))
    assert trajectory.error is not None and trajectory.error.boundary == "part"
    assert "program wrong" in trajectory.error.message


def summary(played: Sequence[Trajectory]) -> list[object]:
    return [(t.id, [(s.action.text, s.reward) for s in t.steps], t.outcome) for t in played]


@pytest.mark.parametrize("settings", [{"in_flight": 1}, {"workers": 2}, {"workers": 2, "worker_kind": "process"}])
def test_10_order_does_not_matter(settings: dict[str, object], tiny: object) -> None:
    reference = run(make_setup(tiny, turns=3), count=8, response_tokens=2)
    assert summary(run(make_setup(tiny, turns=3), count=8, response_tokens=2, **settings)) == summary(reference)


def test_11_unreadable_actions_are_marked() -> None:
    (trajectory,) = run(make_setup(ScriptedPolicy(["??", "red"])))
    assert trajectory.steps[0].info["invalid"] == 1.0


def test_12_policy_fails() -> None:
    def broken(turn: int, observation: object) -> str:
        raise RuntimeError("no weights")

    (trajectory,) = run(make_setup(ScriptedPolicy(broken)))
    assert trajectory.error is not None and trajectory.error.boundary == "engine"
    assert "RuntimeError: no weights" in trajectory.error.message
