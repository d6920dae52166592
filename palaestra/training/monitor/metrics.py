"""The numbers of an iteration: what its episodes, its table and its policies say of themselves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.algebra import standardize, total_return
from palaestra.boundary.cleaning import CHARACTERS, CUT, VALUES
from palaestra.data import Batch, Step, StepTable, StopReason, Trajectory
from palaestra.data.table import token_count
from palaestra.evaluation.panels import info_means, share_cut

REPLACED = {"replaced/characters": CHARACTERS, "replaced/cut": CUT, "replaced/values": VALUES}


def measure(
    batch: Batch, policies: Mapping[str, Any], roles: Sequence[str] = (), *, shaped: bool = False
) -> dict[str, float]:
    """Metrics of one iteration: rewards, turns, tokens, stop reasons and signal, and those of each of several agents.

    Results are means over the episodes that are over. They are left out if no episode is over. If nothing was played,
    they are of the episodes that the update learns from.

    Args:
        roles: the roles that should act.
        shaped: the recipe has reward parts, so that `reward/shaped`, the mean return that they make, is told as well.
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
    cut = share_cut(s for t in not_failed for s in generated(t))
    metrics |= _results(over) | ({} if cut is None else {"cut/mean": cut})
    stops = Counter(t.stop.value for t in played)
    metrics |= {f"stop/{reason}": count / len(played) for reason, count in sorted(stops.items())}
    failures = Counter(t.error.boundary for t in played if t.error)
    metrics |= {f"stop/error/{boundary}": count / len(played) for boundary, count in sorted(failures.items())}
    if batch.kept:
        metrics |= _of_table(batch, shaped)
    replaced = sum((t.replaced for t in played), Counter[str]())
    metrics |= {name: float(replaced[what]) for name, what in REPLACED.items() if replaced[what]}
    metrics |= {f"info/{name}/mean": value for name, value in info_means(over).items()}
    metrics |= _tools(over) | _calls(played)
    return metrics | team_metrics(over, roles) | _versions(not_failed, policies)


def _of_table(batch: Batch, shaped: bool) -> dict[str, float]:
    metrics = signal_metrics(batch.table) if "advantage" in batch.table else {}
    metrics["selection/kept"] = float((batch.table.row_weight > 0).float().mean())
    return metrics | _weights(batch) | ({"reward/shaped": _shaped(batch.table)} if shaped else {})


def _shaped(table: StepTable) -> float:
    """The mean over trajectories of the return after all reward parts, without padding."""
    order, last = table.timeline("trajectory")
    ends = order[last]
    return float(total_return(table)[ends[table.row_weight[ends] > 0]].mean())


def generated(trajectory: Trajectory) -> list[Step]:
    """The steps that this iteration generated, without those of an earlier iteration and those that a branch copied."""
    return [step for step in trajectory.steps if step.marks.fresh in (None, 1.0) and not step.marks.copied]


def spent(played: Sequence[Trajectory]) -> tuple[int, int]:
    """Environment steps and generated tokens of this iteration, failed episodes included."""
    steps = [step for trajectory in played for step in generated(trajectory)]
    return len(steps), sum(len(step.action.tokens) for step in steps)


def _weights(batch: Batch) -> dict[str, float]:
    """The largest weight of the tokens that count, and their effective sample size (Σw)² / Σw² as a share of them."""
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
    """The number of tool calls of this iteration, without copies; nothing if no step reports tool calls."""
    infos = [s.info["tool_call"] for t in played for s in generated(t) if "tool_call" in s.info]
    return {"tools/calls": float(sum(infos))} if infos else {}


def _tools(over: Sequence[Trajectory]) -> dict[str, float]:
    """Tool calls per episode and the share of calls that failed, separately for solved and failed episodes."""
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
    """The prompt length at each step: all tokens of its segment so far; 0 for policies without tokens."""
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


def signal_metrics(table: StepTable) -> dict[str, float]:
    """Metrics of the advantages, over rows of positive weight. They show whether there is anything to learn from.

        advantage/nonzero                      share of rows with an advantage other than 0
        advantage/mean, advantage/std          a row's advantage is the mean over its tokens

    With several agents, also for each of them:

        agent/<name>/advantage/mean, …/std     of its rows
        agent/<name>/return/shift              (mean of its returns − mean of all) / deviation of all, returns centered
                                               in their group
        agent/<name>/return/variance_ratio     variance of its returns / variance of all, centered likewise. Under a
                                               baseline for all agents its mean square advantage is this + shift²
        agent/<name>/return/own_shift, …/own_variance_ratio     the same for each agent's own rewards in the
                                               trajectory, which estimators with `returns: [trajectory, agent]` use
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
    """The distance of an agent's mean from the mean of all, in deviations of all; and the ratio of the variances."""
    mean, std = _moments(everyone)
    own_mean, own_std = _moments(own)
    scale = std or 1.0
    return (own_mean - mean) / scale, (own_std / scale) ** 2


def _moments(values: Tensor) -> tuple[float, float]:
    """Mean and population standard deviation; 0 and 0 without values."""
    if not len(values):
        return 0.0, 0.0
    return float(values.double().mean()), float(values.double().std(correction=0))


def team_metrics(played: Sequence[Trajectory], roles: Sequence[str] = ()) -> dict[str, float]:
    """Metrics of each role, over all episodes that did not fail, including those in which it did not act.

        agent/<role>/calls/mean     acts per episode           agent/<role>/active        share of episodes it acted in
        agent/<role>/tokens/mean    tokens per episode         agent/<role>/tokens/share  of all tokens of the team
        agent/<role>/invalid/mean   share of its acts that could not be read
        agent/<role>/reward/mean    its own rewards in an episode it acted in
        agent/<role>/turns/mean     acts in an episode it acted in

    Args:
        played: the episodes; steps of opponents are left out.
        roles: the roles that should act; one that never acts gets zeros. A single role gives no metrics.
    """
    not_failed = [t for t in played if t.stop is not StopReason.ERROR]
    acts: dict[str, list[list[Step]]] = {role: [[] for _ in not_failed] for role in roles}
    for place, trajectory in enumerate(not_failed):
        for step in trajectory.steps:
            if step.marks.row_weight in (None, 1.0):
                acts.setdefault(step.agent, [[] for _ in not_failed])[place].append(step)
    if len(acts) < 2 or not not_failed:
        return {}
    tokens = {
        role: sum(len(step.action.tokens) for steps in episodes for step in steps) for role, episodes in acts.items()
    }
    total = sum(tokens.values())
    metrics: dict[str, float] = {}
    for role, episodes in sorted(acts.items()):
        steps = [step for episode in episodes for step in episode]
        active = [place for place, episode in enumerate(episodes) if episode]
        numbers = {
            "calls/mean": len(steps) / len(not_failed),
            "active": len(active) / len(not_failed),
            "tokens/mean": tokens[role] / len(not_failed),
            "invalid/mean": float(np.mean([step.info.get("invalid", 0.0) for step in steps] or [0.0])),
        }
        if total:
            numbers["tokens/share"] = tokens[role] / total
        if active:
            numbers["reward/mean"] = float(np.mean([not_failed[place].returns.get(role, 0.0) for place in active]))
            numbers["turns/mean"] = len(steps) / len(active)
        metrics |= {f"agent/{role}/{name}": value for name, value in numbers.items()}
    return metrics
