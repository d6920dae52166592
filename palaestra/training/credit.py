"""The pipeline of credit: one estimator, then filters, then columns per response token; and what signal there is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from palaestra.algebra import Credit, standardize, total_return
from palaestra.columns import is_computed
from palaestra.data import StepTable
from palaestra.errors import ContractError, RecipeError
from palaestra.registry import registration

Estimator = Callable[..., Any]


def assign_credit(parts: Sequence[Estimator], table: StepTable) -> StepTable:
    """Run one estimator and then filters, as `advantage: [gigpo, whiten]` says.

    Args:
        parts: callables; the first takes the table, each later one the table, with the estimator's further columns,
            and the advantage so far.

    Returns: the table with the column `advantage` (tokens,), the further columns of the estimator and, from a critic,
        `value_target` and `value_weight` (tokens,): 1 where a target counts, which is on all tokens at token level, on
        the first token of each row at row level, and nowhere where an agent has no critic.
    Raises: RecipeError, for no estimator at the head or a second one behind it; ContractError, for a result
        of the wrong shape or one that is not finite, and for a column that is there already or that training computes.
    """
    first, *filters = _checked(parts)
    given = first(table)
    credit = given if isinstance(given, Credit) else Credit(given)
    advantage = _sound(credit.advantage, table, first)
    _check_columns(credit.columns, table, first)
    table = table.replace(**credit.columns)
    for part in filters:
        advantage = _sound(part(table, advantage), table, part)
    columns = {"advantage": table.per_token(advantage).float()}
    if credit.target is not None:
        columns["value_target"], columns["value_weight"] = _targets(credit.target, table)
    return table.replace(**columns)


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


def _targets(target: Tensor, table: StepTable) -> tuple[Tensor, Tensor]:
    """Targets and their weights per token; those of rows stand on the row's first token."""
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


def _check_columns(columns: Mapping[str, Any], table: StepTable, part: Estimator) -> None:
    made = registration(part)
    promised = set() if made is None else {*(made.writes or ())} - {"advantage", "value_target", "value_weight"}
    for name in sorted(promised - {*columns}):
        raise ContractError(
            where=f"advantage: {_name(part)}",
            what=f"it names the column `{name}` in `writes` and gave {', '.join(sorted(columns)) or 'no column'}.",
            remedy=f"Return `Credit(advantage, columns={{{name!r}: …}})`.",
        )
    for name, column in columns.items():
        where = f"advantage: {_name(part)}, column `{name}`"
        if name in table or is_computed(name):
            raise ContractError(
                where=where,
                what="the table has it already." if name in table else "it is the name of what training computes.",
                remedy="Give the column another name, and name it in `writes`.",
            )
        if not isinstance(column, Tensor) or column.ndim == 0 or len(column) not in (len(table), table.tokens):
            found = tuple(column.shape) if isinstance(column, Tensor) else type(column).__name__
            raise ContractError(
                where=where,
                what=f"it is {found} for {len(table)} rows and {table.tokens} tokens.",
                remedy="Give a tensor of one value for each row or each response token.",
            )
        if column.is_floating_point() and not bool(column.isfinite().all()):
            raise ContractError(where=where, what="a value of it is not finite.")
