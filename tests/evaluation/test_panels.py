"""What must hold for panels:

(1) success is counted over all episodes, with Wilson's interval; failed episodes are failures, and reported;
(2) an environment without outcomes has a return and no success;
(3) the return is the mean over agents, over the episodes that did not fail;
(4) turns, stop reasons, unreadable acts and boundaries are shares of what was played;
(5) an empty panel is refused;
(6) the lines that the command prints read as documented;
(7) numbers of the environment's last info are averaged over the episodes that give them; flags and texts are not.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from palaestra.data import Action, Observation, Step, StopReason, Trajectory
from palaestra.data.interaction import FinishReason
from palaestra.errors import InvalidData
from palaestra.evaluation.panels import (
    cut_line,
    failure_line,
    interval_line,
    result_line,
    share_cut,
    summarize,
    tasks_line,
)
from palaestra.evaluation.statistics import wilson_interval

Episodes = Callable[..., Trajectory]


def test_failed_episodes_are_failures(episode: Episodes) -> None:  # rule 1
    played = [episode(1.0)] * 6 + [episode(0.0)] * 2 + [episode(failed="engine"), episode(failed="environment")]
    found = summarize(played, name="rooms")
    assert (found.n, found.successes, found.failed) == (10, 6, 2)
    assert found.success == wilson_interval(6, 10)
    assert found.errors == {"engine": 1, "environment": 1}
    metrics = found.metrics()
    assert metrics["eval/rooms/success"] == 0.6
    assert metrics["eval/rooms/success_low"] == pytest.approx(0.3127, abs=1e-4)
    assert metrics["eval/rooms/success_high"] == pytest.approx(0.8318, abs=1e-4)
    assert metrics["eval/rooms/failed"] == 2
    assert metrics["eval/rooms/stop/error/engine"] == 0.1
    told = failure_line(found).splitlines()
    assert told[0] == "2 of 10 episodes failed (engine 1, environment 1) and count as failures. The first:"
    assert told[1] == f"  {found.fault}" and found.fault


def test_a_failure_after_the_goal_is_a_failure(episode: Episodes) -> None:  # rule 1
    spoiled = episode(failed="engine")
    spoiled.outcome = 1.0
    assert summarize([spoiled, episode(1.0)], name="rooms").successes == 1


def test_all_failed_is_no_success(episode: Episodes) -> None:  # rule 1
    found = summarize([episode(failed="tool")] * 3, name="rooms")
    assert found.successes == 0
    assert found.returns is None
    assert "eval/rooms/return" not in found.metrics()
    assert result_line(found) == "success 0.000 on 3 tasks of the split eval"


def test_a_score_counts_from_its_threshold(episode: Episodes) -> None:  # rule 1
    played = [episode(0.4), episode(0.5), episode(None)]
    assert summarize(played, name="x", success_at=0.5).successes == 1


def test_without_outcomes_there_is_a_return(episode: Episodes) -> None:  # rule 2
    found = summarize([episode(None, returns={"agent": r}) for r in (400.0, 500.0)] * 4, name="cartpole")
    assert found.success is None
    assert "eval/cartpole/success" not in found.metrics()
    assert found.metrics()["eval/cartpole/return"] == 450.0
    assert result_line(found, tasks=tasks_line(8, 8)) == "return 450.0 on 8 tasks, 8 of them also trained on"
    assert interval_line(found).startswith("return 450.0, 95 % interval 4")


def test_returns_of_a_team(episode: Episodes) -> None:  # rule 3
    played = [episode(1.0, returns={"a": 1.0, "b": 0.0}), episode(0.0, returns={"a": 0.0}), episode(failed="engine")]
    found = summarize(played, name="x")
    assert found.returns is not None
    assert found.returns.value == 0.25
    assert found.metrics()["eval/x/agent/a/return"] == 0.5
    assert found.metrics()["eval/x/agent/b/return"] == 0.0


def test_shares_of_what_was_played(episode: Episodes) -> None:  # rule 4
    played = [episode(1.0, turns=2), episode(0.0, turns=6, stop=StopReason.MAX_TURNS, invalid=3)]
    found = summarize(played, name="x")
    assert (found.turns, found.invalid) == (4.0, 3 / 8)
    assert found.stops == {"completed": 1, "max_turns": 1}
    assert found.metrics()["eval/x/stop/max_turns"] == 0.5


def test_an_empty_panel_is_refused() -> None:  # rule 5
    with pytest.raises(InvalidData, match="the panel is empty") as caught:
        summarize([], name="rooms")
    assert "evaluation.tasks" in caught.value.remedy


def test_lines(episode: Episodes) -> None:  # rule 6
    after = summarize([episode(1.0)] * 242 + [episode(0.0)] * 14, name="x")
    assert result_line(after, tasks=tasks_line(256, 0)) == "success 0.945 on 256 held-out tasks"
    assert interval_line(after) == "success 0.945, 95 % interval 0.910 to 0.967 (Wilson, 242 of 256)"
    assert failure_line(after) == ""


def test_it_is_deterministic(episode: Episodes) -> None:  # rule 4
    played = [episode(float(k % 3 == 0)) for k in range(40)]
    assert summarize(played, name="x") == summarize(played, name="x")


def test_told_numbers_are_averaged(episode: Episodes) -> None:  # rule 7
    played = [episode(1.0), episode(0.0), episode(0.0)]
    for trajectory, told in zip(played, ({"calls": 2}, {"calls": 5, "leak": 0.5}, {"unsafe": True}), strict=True):
        trajectory.info = {**trajectory.info, **told, "game": "chess"}
    metrics = summarize(played, name="x").metrics()
    assert (metrics["eval/x/info/calls"], metrics["eval/x/info/leak"]) == (3.5, 0.5)
    assert "eval/x/info/unsafe" not in metrics and "eval/x/info/game" not in metrics


def test_samples_of_tasks(episode: Episodes) -> None:
    """Several samples of each task: success is over all, intervals and pass@k are over tasks, failures count."""
    played = [episode(x) for x in (1.0, 1.0, 1.0, 0.0, 0.0, 0.0)] + [episode(1.0), episode(0.0), episode(failed="tool")]
    found = summarize(played, name="x", samples=3)
    assert (found.n, found.samples, found.episodes, found.successes, found.failed) == (3, 3, 9, 4, 1)
    assert found.success is not None and found.success.value == pytest.approx(4 / 9)
    assert {k: round(one.value, 6) for k, one in found.passes.items()} == {
        1: round(4 / 9, 6),
        2: round((1 + 0 + 2 / 3) / 3, 6),
        3: round(2 / 3, 6),
    }
    assert found.passes[1].value == found.success.value
    assert "Wilson, 4 of 9; 3 samples of each task" in interval_line(found)
    assert failure_line(found).startswith("1 of 9 episodes failed")
    assert sum(value for key, value in found.metrics().items() if "/stop/" in key and "error/" not in key) == 1.0
    with pytest.raises(InvalidData, match="9 episodes are not 2 of each task"):
        summarize(played, name="x", samples=2)


def test_cut_responses(episode: Episodes) -> None:
    played = [episode(1.0) for _ in range(4)]
    assert summarize(played, name="x").cut is None and "eval/x/cut" not in summarize(played, name="x").metrics()
    ends = [FinishReason.STOP, FinishReason.LENGTH, FinishReason.CONTEXT, FinishReason.STOP, FinishReason.CHOICE]
    steps = [Step(agent="a", turn=0, action=Action(text="x", finish=end), observation=Observation(text="?"))
             for end in ends]  # fmt: skip
    assert share_cut(steps) == 0.5 and share_cut(steps[-1:]) is None
    assert "50 % of the responses were cut" in cut_line(0.5) and not cut_line(0.19)
