"""Metrics of one iteration's episodes, under the field's names."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.algebra import standardize, total_return
from palaestra.data import Batch, Step, StepTable, StopReason, Trajectory
from palaestra.data.table import token_count
from palaestra.evaluation.panels import info_means
from palaestra.training.teamwork import team_metrics


def measure(batch: Batch, policies: Mapping[str, Any], roles: Sequence[str] = ()) -> dict[str, float]:
    """Rewards, turns, tokens, stop reasons, signal; per agent where there are several.

    Args:
        roles: that ought to act.

    Results are those of episodes that are over: where an iteration ends none, they are left out. Where nothing was
    played they are those of the episodes that are learned from.
    """
    played = batch.played or batch.kept
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
    if "advantage" in batch.table:
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


# ---- signal -----------------------------------------------------------------------------------------------
def signal_metrics(table: StepTable) -> dict[str, float]:
    """Whether there is something to learn from, of the rows that weigh.

        advantage/nonzero                      share of rows with an advantage other than 0
        advantage/mean, advantage/std          a row's advantage is the mean over its tokens

    And with several agents, for each of them:

        agent/<name>/advantage/mean, …/std     of its rows
        agent/<name>/return/shift              (mean of its returns − mean of all) / deviation of all, returns centered
                                               in their group
        agent/<name>/return/variance_ratio     variance of its returns / variance of all, centered likewise. Under a
                                               baseline for all agents its mean square advantage is this + shift²
        agent/<name>/return/own_shift, …/own_variance_ratio     the same of what each agent earned itself in the
                                               trajectory; what counts where an estimator's `returns` are [trajectory,
                                               agent]
    """
    total = torch.zeros(len(table), dtype=torch.float64).index_add_(0, table.token_row, table["advantage"].double())
    row, counts = total / table["token_count"], table.row_weight > 0
    mean, std = _moments(row[counts])
    nonzero = float((row[counts] != 0).double().sum()) / max(int(counts.sum()), 1)
    metrics = {"advantage/nonzero": nonzero, "advantage/mean": mean, "advantage/std": std}
    acted = {str(name): counts & (table["agent"] == code) for code, name in enumerate(table.labels("agent"))}
    acted = {name: rows for name, rows in acted.items() if bool(rows.any())}
    if len(acted) < 2:
        return metrics
    peers = table.key("group")
    shared = standardize(total_return(table), by=peers).double()
    earned = standardize(total_return(table, by=("trajectory", "agent")), by=peers).double()
    for name, rows in acted.items():
        of_agent = dict(zip(("advantage/mean", "advantage/std"), _moments(row[rows]), strict=True))
        names = ("return/shift", "return/variance_ratio", "return/own_shift", "return/own_variance_ratio")
        numbers = (*_against(shared[rows], shared[counts]), *_against(earned[rows], earned[counts]))
        of_agent |= dict(zip(names, numbers, strict=True))
        metrics |= {f"agent/{name}/{key}": value for key, value in of_agent.items()}
    return metrics


def _against(own: Tensor, everyone: Tensor) -> tuple[float, float]:
    """How far one's mean lies from that of all, in deviations of all; and the ratio of the variances."""
    mean, std = _moments(everyone)
    own_mean, own_std = _moments(own)
    scale = std or 1.0
    return (own_mean - mean) / scale, (own_std / scale) ** 2


def _moments(values: Tensor) -> tuple[float, float]:
    """Mean and population deviation; 0 and 0 of nothing."""
    if not len(values):
        return 0.0, 0.0
    return float(values.double().mean()), float(values.double().std(correction=0))
