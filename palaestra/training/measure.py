"""Metrics of one iteration's episodes, under the field's names."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palaestra.data import Step, StopReason, Trajectory
from palaestra.data.table import token_count
from palaestra.evaluation.panels import info_means
from palaestra.training.batch import Batch
from palaestra.training.credit import signal_metrics
from palaestra.training.teamwork import team_metrics


def measure(batch: Batch, policies: Mapping[str, Any], roles: Sequence[str] = ()) -> dict[str, float]:
    """Rewards, turns, tokens, stop reasons, signal; per agent where there are several.

    Args:
        roles: that ought to act.

    Results are those of episodes that are over: where an iteration ends none, they are left out.
    """
    played = batch.played
    not_failed = [t for t in played if t.stop is not StopReason.ERROR]
    over = [t for t in not_failed if t.stop is not StopReason.SUSPENDED]
    metrics = {
        "invalid/mean": float(np.mean([s.info.get("invalid", 0.0) for t in not_failed for s in generated(t)] or [0.0])),
        "episodes/failed": float(len(played) - len(not_failed)),
        "rollout/finished": float(len(over)),
        "rollout/suspended": float(len(not_failed) - len(over)),
        "rollout/longest": float(max(sum(map(token_count, generated(t))) for t in played)),
    }
    metrics |= _results(over)
    stops = Counter(t.stop.value for t in played)
    metrics |= {f"stop/{reason}": count / len(played) for reason, count in sorted(stops.items())}
    failures = Counter(t.error.boundary for t in played if t.error)
    metrics |= {f"stop/error/{boundary}": count / len(played) for boundary, count in sorted(failures.items())}
    metrics |= signal_metrics(batch.table)
    metrics["selection/kept"] = float((batch.table.row_weight > 0).float().mean())
    metrics |= _weights(batch)
    metrics |= {f"info/{name}/mean": value for name, value in info_means(over).items()}
    metrics |= _tools(over) | _calls(played)
    return metrics | team_metrics(over, roles) | _versions(not_failed, policies)


def generated(trajectory: Trajectory) -> list[Step]:
    """The steps of this iteration: all but those of an earlier one, where it was suspended, and a branch's copies."""
    return [step for step in trajectory.steps if step.marks.fresh in (None, 1.0) and not step.marks.copied]


def spent(played: Sequence[Trajectory]) -> tuple[int, int]:
    """Environment steps and generated tokens of this iteration, failed episodes included."""
    steps = [step for trajectory in played for step in generated(trajectory)]
    return len(steps), sum(len(step.action.tokens) for step in steps)


def _weights(batch: Batch) -> dict[str, float]:
    """Of the tokens that count, also rejected ones: the largest weight, and how many equal ones would average as well,
    as a share of them."""
    counted = batch.table["weight"][batch.table["counts"] > 0].double()
    if not bool((counted > 0).any()):
        return {}
    return {
        "weights/max": float(counted.max()),
        "weights/effective": float(counted.sum() ** 2 / counted.square().sum() / len(counted)),
    }


def _results(over: Sequence[Trajectory]) -> dict[str, float]:
    if not over:
        return {}
    returns = [sum(t.returns.values()) for t in over]
    metrics = {
        "reward/mean": float(np.mean(returns)),
        "reward/std": float(np.std(returns)),
        "turns/mean": float(np.mean([len(t.steps) for t in over])),
        "tokens/mean": float(np.mean([sum(len(s.action.tokens) for s in t.steps) for t in over])),
    }
    read = [length for t in over for length in prompt_lengths(t)]
    if any(read):
        metrics["prompt/mean"] = float(np.mean(read))
    outcomes = [t.outcome for t in over if t.outcome is not None]
    return metrics | ({"outcome/mean": float(np.mean(outcomes))} if outcomes else {})


def _calls(played: Sequence[Trajectory]) -> dict[str, float]:
    """Tool calls that were made in this iteration, where the environment tells of any; copies are not made again."""
    infos = [s.info["tool_call"] for t in played for s in generated(t) if "tool_call" in s.info]
    return {"tools/calls": float(sum(infos))} if infos else {}


def _tools(over: Sequence[Trajectory]) -> dict[str, float]:
    """Where the environment tells of tool calls: calls an episode and the share of them that failed, by result."""
    metrics: dict[str, float] = {}
    for name, episodes in (
        ("solved", [t for t in over if t.outcome == 1]),
        ("failed", [t for t in over if t.outcome == 0]),
    ):
        infos = [[s.info for s in t.steps if "tool_call" in s.info] for t in episodes]
        calls = sum(info["tool_call"] for of_steps in infos for info in of_steps)
        errors = sum(info.get("tool_error", 0.0) for of_steps in infos for info in of_steps)
        if any(infos):
            metrics[f"tools/{name}/calls"] = calls / len(episodes)
        if calls:
            metrics[f"tools/{name}/errors"] = errors / calls
    return metrics


def prompt_lengths(trajectory: Trajectory) -> list[int]:
    """Tokens that a policy had before it at each step: all of its segment so far; 0 for policies without tokens."""
    length: dict[tuple[str, int], int] = defaultdict(int)
    lengths = []
    for step in trajectory.steps:
        place = (step.agent, step.segment)
        lengths.append(length[place] + len(step.prompt))
        length[place] = lengths[-1] + len(step.action.tokens) if len(step.prompt) else 0
    return lengths


def _versions(not_failed: Sequence[Trajectory], policies: Mapping[str, Any]) -> dict[str, float]:
    """How many versions behind the trained weights the sampled steps were."""
    lags = [
        policies[step.policy].version - step.version
        for trajectory in not_failed
        for step in generated(trajectory)
        if step.policy in policies and policies[step.policy].trainable
    ]
    return {"staleness/max": float(max(lags))} if lags else {}
