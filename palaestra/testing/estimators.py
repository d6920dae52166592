"""check_estimator: what every advantage estimator must hold, as code that users run on their own.

Knows tables and numbers. Knows no estimator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from palaestra.data import Estimate, StepTable
from palaestra.errors import ContractError

TOLERANCE = 1e-4  # of |difference| / (1 + |value|), for sums in another order


def check_estimator(
    estimator: Callable[[StepTable], Any], table: StepTable, order: Sequence[int] | Tensor | None = None
) -> None:
    """Refuse an estimator that breaks a rule on this table.

    1. It gives float32 of shape (rows,) or (tokens,), or an Estimate of two such tensors.
    2. Advantages are finite; so are targets, or NaN where no critic speaks.
    3. The same table gives the same numbers, and the table stays as it was.
    4. The order of rows does not matter: only the column `turn` says what came first.
    5. Rows of weight 0 change nothing for the others and get 0.
    6. An estimator that compares peers (uses "group") gives 0 everywhere when no reward was given at all, nor any
       step reward in `process`. A judge's flags (it reads "good") are a signal of their own.

    Args:
        order: a permutation of the rows; None reverses them.

    Raises: ContractError, naming the rule.
    """
    check = _Check(estimator)
    reward = table["reward"].clone()
    first = check.run(table)
    check.same(first, check.run(table), table, "3", "a second call with the same table gives other numbers")
    if not torch.equal(reward, table["reward"]):
        check.broken("3", "it changed the rewards of the table it was given")
    permutation = torch.arange(len(table)).flip(0) if order is None else torch.as_tensor(list(order))
    shuffled = check.run(table.take(permutation))
    check.same(_taken(first, table, permutation), shuffled, table, "4", "another order of rows gives other numbers")
    _check_padding(check, first, table)
    declared = getattr(estimator, "part", None)
    if declared is not None and "group" in declared.uses and "good" not in declared.reads:
        none = {name: torch.zeros(len(table)) for name in ("reward", "process") if name in table}
        nothing = check.run(table.replace(**none))
        if bool((nothing[0] != 0).any()):
            check.broken("6", "without any reward some advantages are not 0")


class _Check:
    """Runs one estimator and judges what comes."""

    def __init__(self, estimator: Callable[[StepTable], Any]) -> None:
        self.estimator = estimator
        declared = getattr(estimator, "part", None)
        self.name = declared.name if declared is not None else getattr(estimator, "__name__", repr(estimator))

    def broken(self, rule: str, what: str) -> NoReturn:
        raise ContractError(
            where=f"advantage: {self.name}, rule {rule}",
            what=f"{what}.",
            remedy="`help(palaestra.testing.check_estimator)` lists the rules.",
        )

    def run(self, table: StepTable) -> list[Tensor]:
        """Advantage, and target if there is one."""
        found = self.estimator(table)
        parts = list(found) if isinstance(found, Estimate) else [found]
        for part in parts:
            if not isinstance(part, Tensor) or part.dtype != torch.float32:
                self.broken("1", f"it gave {getattr(part, 'dtype', type(part).__name__)}, not a float32 tensor")
            if part.shape not in ((len(table),), (table.tokens,)) or part.shape != parts[0].shape:
                self.broken("1", f"shape {tuple(part.shape)} for {len(table)} rows and {table.tokens} tokens")
        if not bool(parts[0].isfinite().all()) or bool(torch.cat(parts).isinf().any()):
            self.broken("2", "an advantage or target is not finite")
        return parts

    def same(self, one: list[Tensor], other: list[Tensor], table: StepTable, rule: str, what: str) -> None:
        for a, b in zip(one, other, strict=True):
            both_missing = a.isnan() & b.isnan()
            gap = torch.where(both_missing, 0.0, (a - b).abs() / (1 + a.abs()))
            if not bool((gap <= TOLERANCE).all()):  # NaN on one side only is a difference too
                unit = int((~(gap <= TOLERANCE)).nonzero()[0, 0])
                self.broken(rule, f"{what}: {float(a[unit]):.6g}, then {float(b[unit]):.6g} at unit {unit}")


def _check_padding(check: _Check, first: list[Tensor], table: StepTable) -> None:
    """Add rows of weight 0 that look like others but carry wild rewards and no values (rule 5)."""
    size = len(table)
    extra = torch.arange(0, size, 2)
    index = torch.cat([extra, torch.arange(size)])
    padding = torch.arange(len(index)) < len(extra)
    both = table.take(index)
    wild: dict[str, Tensor] = {
        "weight": torch.where(padding, 0.0, both.weight),
        "reward": torch.where(padding, 1e3, both["reward"]),
    }
    for name in ("value", "value_end"):
        if name in both:
            wild[name] = torch.where(padding, torch.nan, both[name])
    padded = both.replace(**wild)
    found = check.run(padded)
    rows = torch.arange(len(extra), len(index))
    check.same(first, _taken(found, padded, rows), table, "5", "rows of weight 0 change the others")
    if bool((_taken(found, padded, torch.arange(len(extra)))[0] != 0).any()):
        check.broken("5", "a row of weight 0 has an advantage")


def _taken(parts: list[Tensor], table: StepTable, rows: Tensor) -> list[Tensor]:
    """What belongs to these rows, in their order."""
    if len(parts[0]) == len(table):
        return [part[rows] for part in parts]
    pieces = torch.arange(table.tokens).split(table["token_count"].tolist())
    index = torch.cat([pieces[row] for row in rows.tolist()])
    return [part[index] for part in parts]
