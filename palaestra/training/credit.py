"""The pipeline: one estimator, then filters, then one number per response token; and whether there is a signal.

Knows that an estimator reads a table and a filter a table and an advantage. Knows no method's name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Estimate, standardize, total_return
from palaestra.data import StepTable
from palaestra.errors import ContractError, RecipeError
from palaestra.registry import registration

Estimator = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSignal:
    """One agent's share of the signal, over its rows.

    Attributes:
        mean, std: of its advantages.
        shift: (mean of its returns − mean of all) / deviation of all, returns centered in their group.
        variance_ratio: variance of its returns / variance of all, centered likewise. Under a baseline
            for all agents its mean square advantage is variance_ratio + shift².
        own_shift, own_variance_ratio: the same of what each agent earned itself in the trajectory; what counts with
            an estimator whose `returns` are [trajectory, agent].
    """

    mean: float
    std: float
    shift: float
    variance_ratio: float
    own_shift: float
    own_variance_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Whether an estimator produced something to learn from.

    Attributes:
        nonzero: share of rows (of those that weigh) with an advantage other than 0.
        mean, std: of the advantage over these rows.
        agents: per agent's name.
    """

    nonzero: float
    mean: float
    std: float
    agents: dict[str, AgentSignal]

    @property
    def empty(self) -> bool:
        """Whether every advantage is 0: an update would move nothing."""
        return self.nonzero == 0.0

    def metrics(self) -> dict[str, float]:
        """For the log: `advantage/nonzero`, …, and with several agents `agent/<name>/advantage/mean`, …"""
        out = {"advantage/nonzero": self.nonzero, "advantage/mean": self.mean, "advantage/std": self.std}
        for name, agent in self.agents.items() if len(self.agents) > 1 else ():
            prefix = f"agent/{name}"
            out |= {f"{prefix}/advantage/mean": agent.mean, f"{prefix}/advantage/std": agent.std}
            out |= {f"{prefix}/return/shift": agent.shift, f"{prefix}/return/variance_ratio": agent.variance_ratio}
            out[f"{prefix}/return/own_shift"] = agent.own_shift
            out[f"{prefix}/return/own_variance_ratio"] = agent.own_variance_ratio
        return out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Credit:
    """What an update needs of the estimators.

    Attributes:
        advantage: (tokens,).
        target: (tokens,) where the critic's values should move; None without a critic.
        target_weight: (tokens,) 1 where `target` counts: all tokens at token level, the first token of
            each row at row level; 0 elsewhere, as where an agent has no critic.
        signal: the report.
    """

    advantage: Float[Tensor, " tokens"]
    target: Float[Tensor, " tokens"] | None
    target_weight: Float[Tensor, " tokens"] | None
    signal: Signal


def chain(parts: Sequence[Estimator], table: StepTable) -> Credit:
    """Run one estimator and then filters, as `advantage: [gigpo, whiten]` says.

    Args:
        parts: callables; the first takes the table, each later one the table and the advantage so far.

    Returns: advantages per token, targets of the critic where there are any, and a report.
    Raises: RecipeError, for no estimator at the head or a second one behind it; ContractError, for a result
        of the wrong shape or one that is not finite.
    """
    first, *filters = _checked(parts)
    found = first(table)
    advantage, target = found if isinstance(found, Estimate) else (found, None)
    advantage = _sound(advantage, table, first)
    for part in filters:
        advantage = _sound(part(table, advantage), table, part)
    target, weight = _targets(target, table)
    return Credit(
        advantage=table.per_token(advantage).float(),
        target=target,
        target_weight=weight,
        signal=report(advantage, table),
    )


def report(advantage: Float[Tensor, " units"], table: StepTable) -> Signal:
    """The signal of an advantage (rows,) or (tokens,); a row's is the mean over its tokens."""
    row = _per_row(advantage, table)
    counts = table.weight > 0
    peers = table.key("group")
    shared = standardize(total_return(table), by=peers).double()
    earned = standardize(total_return(table, by=("trajectory", "agent")), by=peers).double()
    agents = {}
    for code, name in enumerate(table.labels("agent")):
        own = counts & (table["agent"] == code)
        if not bool(own.any()):
            continue
        mean, std = _moments(row[own])
        shift, ratio = _against(shared[own], shared[counts])
        own_shift, own_ratio = _against(earned[own], earned[counts])
        agents[str(name)] = AgentSignal(
            mean=mean, std=std, shift=shift, variance_ratio=ratio, own_shift=own_shift, own_variance_ratio=own_ratio
        )
    mean, std = _moments(row[counts])
    nonzero = float((row[counts] != 0).double().sum()) / max(int(counts.sum()), 1)
    return Signal(nonzero=nonzero, mean=mean, std=std, agents=agents)


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


def _per_row(advantage: Tensor, table: StepTable) -> Tensor:
    if len(advantage) == len(table):
        return advantage.double()
    total = torch.zeros(len(table), dtype=torch.float64).index_add_(0, table.token_row, advantage.double())
    return total / table["token_count"]


def _targets(target: Tensor | None, table: StepTable) -> tuple[Tensor | None, Tensor | None]:
    """Targets and their weights per token; those of rows stand on the row's first token."""
    if target is None:
        return None, None
    if len(target) == table.tokens:
        return target.nan_to_num(), target.isfinite().float()
    first = table["token_count"].cumsum(0) - table["token_count"]
    spread, weight = torch.zeros(table.tokens), torch.zeros(table.tokens)
    spread[first], weight[first] = target.nan_to_num(), target.isfinite().float()
    return spread, weight


# ---- what parts must be and give --------------------------------------------------------------------------
def _checked(parts: Sequence[Estimator]) -> Sequence[Estimator]:
    kinds = ["filter" if len(_data(part)) > 1 else "estimator" for part in parts]
    names = [_name(part) for part in parts]
    place = f"advantage: [{', '.join(names)}]"
    if not parts or kinds[0] == "filter":
        raise RecipeError(
            where=place,
            what="a list of advantages must begin with an estimator.",
            remedy="Put an estimator such as grpo or gigpo first; filters such as whiten follow it.",
        )
    if "estimator" in kinds[1:]:
        second = names[kinds.index("estimator", 1)]
        raise RecipeError(
            where=place,
            what=f"`{names[0]}` and `{second}` are both estimators; a list takes one, then filters.",
            remedy=f"Leave one out. Filters read the advantage so far; `{second}` does not.",
        )
    return parts


def _data(part: Estimator) -> tuple[str, ...]:
    """Names of the positional parameters: what the part reads."""
    made = registration(part)
    if made is not None:
        return tuple(made.data)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in inspect.signature(part).parameters.values() if p.kind in positional)


def _name(part: Estimator) -> str:
    made = registration(part)
    inner = part.func if isinstance(part, functools.partial) else part
    return str(made.name if made is not None else getattr(inner, "__name__", type(inner).__name__))


def _sound(advantage: Any, table: StepTable, part: Estimator) -> Tensor:
    if not isinstance(advantage, Tensor) or advantage.shape not in ((len(table),), (table.tokens,)):
        found = tuple(advantage.shape) if isinstance(advantage, Tensor) else type(advantage).__name__
        raise ContractError(
            where=f"advantage: {_name(part)}",
            what=f"it gave {found} for {len(table)} rows and {table.tokens} tokens.",
            remedy="Return one number per row, (rows,), or per response token, (tokens,).",
        )
    if not bool(advantage.isfinite().all()):
        bad = int((~advantage.isfinite()).sum())
        raise ContractError(
            where=f"advantage: {_name(part)}", what=f"{bad} of {len(advantage)} advantages are not finite."
        )
    return advantage
