"""Metrics of one iteration's episodes, under the field's names. Knows trajectories, tables and credit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palaestra.data import StopReason, Trajectory
from palaestra.training.experience import Experience


def measure(played: Sequence[Trajectory], experience: Experience, policies: Mapping[str, Any]) -> dict[str, float]:
    """Rewards, turns, tokens, stop reasons, signal; per agent where there are several."""
    whole = [t for t in played if t.stop is not StopReason.ERROR]
    returns = [sum(t.returns.values()) for t in whole]
    metrics = {
        "reward/mean": float(np.mean(returns)),
        "reward/std": float(np.std(returns)),
        "turns/mean": float(np.mean([len(t.steps) for t in whole])),
        "tokens/mean": float(np.mean([sum(len(s.action.tokens) for s in t.steps) for t in whole])),
        "invalid/mean": float(np.mean([s.info.get("invalid", 0.0) for t in whole for s in t.steps])),
        "episodes/failed": float(len(played) - len(whole)),
    }
    outcomes = [t.outcome for t in whole if t.outcome is not None]
    if outcomes:
        metrics["outcome/mean"] = float(np.mean(outcomes))
    stops = Counter(t.stop.value for t in played)
    metrics |= {f"stop/{reason}": count / len(played) for reason, count in sorted(stops.items())}
    failures = Counter(t.error.boundary for t in played if t.error)
    metrics |= {f"stop/error/{boundary}": count / len(played) for boundary, count in sorted(failures.items())}
    assert experience.credit is not None
    metrics |= experience.credit.signal.metrics()
    metrics["selection/kept"] = float((experience.table.weight > 0).float().mean())
    return metrics | _agents(whole) | _versions(whole, policies)


def _agents(whole: Sequence[Trajectory]) -> dict[str, float]:
    returns: dict[str, list[float]] = defaultdict(list)
    calls: dict[str, list[int]] = defaultdict(list)
    for trajectory in whole:
        for agent in {step.agent for step in trajectory.steps}:
            returns[agent].append(trajectory.returns.get(agent, 0.0))
            calls[agent].append(sum(step.agent == agent for step in trajectory.steps))
    if len(returns) < 2:
        return {}
    metrics = {f"agent/{agent}/reward/mean": float(np.mean(values)) for agent, values in sorted(returns.items())}
    return metrics | {f"agent/{agent}/turns/mean": float(np.mean(values)) for agent, values in sorted(calls.items())}


def _versions(whole: Sequence[Trajectory], policies: Mapping[str, Any]) -> dict[str, float]:
    """How many versions behind the trained weights the sampled steps were."""
    lags = [
        policies[step.policy].version - step.version
        for trajectory in whole
        for step in trajectory.steps
        if step.policy in policies and policies[step.policy].trainable
    ]
    return {"staleness/max": float(max(lags))} if lags else {}
