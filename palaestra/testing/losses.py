"""`check_loss`: users check with it that their own loss or regularizer keeps the rules of losses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from palaestra.algebra import coefficients
from palaestra.data import TokenBatch
from palaestra.errors import ContractError, MissingColumn
from palaestra.registry import Part, registration
from palaestra.registry.column_names import is_output
from palaestra.registry.options import Aggregation

LEAVES = ("logprob", "entropy", "value")  # the columns with gradient
STEP = 1e-6  # of the finite difference
TOLERANCE = 1e-5


def check_loss(
    loss: Callable[..., Any],
    batch: TokenBatch,
    *,
    how: Aggregation = "token-mean",
    exact_gradient: bool = True,
    **options: Any,
) -> None:
    """Call a loss on a batch and refuse it if it breaks a rule. Everything is computed in float64.

        check_loss(my_loss, batch, clip=0.3)

    1. It gives a loss (tokens,) and metrics (tokens,), all finite. Metrics carry no gradient.
    2. The gradient is finite.
    3. If the advantage changes the gradient at all, an advantage of 0 gives no gradient. A loss that is registered
       with `every_token=True` is exempt, since it moves the policy whatever the advantage is.
    4. Masked tokens (weight 0, and so value_weight 0) change neither value nor gradient, whatever their columns hold.
    5. Cutting the batch between trajectories (between groups, for a loss of that scope) changes neither value nor
       gradient, if each cut gets the coefficients of the whole batch and the frozen mini-batch. A loss whose scope is
       the mini-batch is not cut.
    6. The gradient agrees with finite differences.
    7. It reads only columns that its registration names in `reads`.

    Args:
        batch: whole trajectories, with every column that the loss reads.
        how: aggregation of the losses per token.
        exact_gradient: False for a loss whose gradient leaves out a factor on purpose. Rule 6 is then not checked.
        options: of the loss, checked as in a recipe.

    Raises: ContractError, naming the rule; RecipeError, for a wrong option.
    """
    check = _Check(functools.partial(loss, **options) if options else loss, how)
    batch = _wide(batch)
    share = coefficients(batch, how=how, constant=8.0)
    check.shapes(batch)
    total, gradient = check.gradient(batch, share)
    if not all(bool(g.isfinite().all()) for g in gradient):
        check.broken("2", "the gradient is not finite")
    _check_advantage(check, batch, share, gradient)
    _check_masked(check, batch, share, total, gradient)
    _check_cut(check, batch, share, total, gradient)
    if exact_gradient:
        _check_difference(check, batch, share, gradient)


class _Check:
    """Runs one loss and checks its results."""

    def __init__(self, loss: Callable[[TokenBatch], Any], how: Aggregation) -> None:
        self.loss, self.how = loss, how
        declared = registration(loss)
        options = getattr(loss, "keywords", {})  # options may be bound by functools.partial
        self.reads = None if declared is None else declared.reads_with(_options(declared, options))
        self.scope = "row" if declared is None else declared.scope_with(_options(declared, options))
        self.frozen_minibatch = declared is not None and declared.frozen_minibatch
        self.pulls = declared is not None and declared.every_token
        self.name = declared.name if declared is not None else getattr(loss, "__name__", repr(loss))

    def broken(self, rule: str, what: str) -> NoReturn:
        raise ContractError(
            where=f"loss: {self.name}, rule {rule}",
            what=f"{what}.",
            remedy="`help(palaestra.testing.check_loss)` lists the rules.",
        )

    def shapes(self, batch: TokenBatch) -> None:
        if self.reads is not None:
            names = {name.removesuffix("?") for name in self.reads}
            unnamed = {name: None for name in batch.columns if name not in names}
            try:
                self.loss(batch.replace(**unnamed))
            except MissingColumn as error:
                self.broken("7", f"{error.what.rstrip('.')}, because `reads` does not name it")
        values, metrics = self.loss(batch.replace(**_leaves(batch)))
        for name, found in {"the loss": values, **metrics}.items():
            if not isinstance(found, Tensor) or found.shape != (len(batch),):
                self.broken("1", f"{name} is {getattr(found, 'shape', type(found).__name__)}, not ({len(batch)},)")
            if not bool(found[batch["weight"] > 0].isfinite().all()):
                self.broken("1", f"{name} is not finite")
        if any(metric.requires_grad for metric in metrics.values()):
            self.broken("1", "a metric carries gradient")

    def total(self, batch: TokenBatch, share: Tensor) -> Tensor:
        values: Tensor = self.loss(batch)[0]
        return (share * batch["weight"] * values).sum()

    def gradient(self, batch: TokenBatch, share: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The total loss and its gradient by every leaf. The gradient is 0 for a leaf that the loss does not read."""
        leaves = _leaves(batch)
        total = self.total(batch.replace(**leaves), share)
        if not total.requires_grad:
            return total.detach(), [torch.zeros(len(batch), dtype=torch.float64) for _ in LEAVES]
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return total.detach(), list(found)


def _wide(batch: TokenBatch) -> TokenBatch:
    """The batch in float64, with zeros for each of LEAVES that it lacks."""
    filled = {name: column.detach().double() for name, column in batch.columns.items()}
    for name in LEAVES:
        filled.setdefault(name, torch.zeros(len(batch), dtype=torch.float64))
    if "value_weight" in filled:
        filled["value_weight"] = filled["value_weight"] * (filled["weight"] > 0)
    return batch.replace(scope="minibatch", **filled)


def _leaves(batch: TokenBatch) -> dict[str, Tensor]:
    return {name: batch[name].clone().requires_grad_() for name in LEAVES}


def _options(declared: Part, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a part, with defaults filled in."""
    return declared.check(given, where=f"{declared.slot}: {declared.name}")


def _close(one: Tensor, other: Tensor) -> bool:
    return bool(torch.isclose(one, other, rtol=TOLERANCE, atol=TOLERANCE).all())


def _check_advantage(check: _Check, batch: TokenBatch, share: Tensor, gradient: list[Tensor]) -> None:
    if check.pulls:
        return
    twice = check.gradient(batch.replace(advantage=2 * batch["advantage"]), share)[1]
    if all(map(_close, gradient, twice)):
        return
    none = check.gradient(batch.replace(advantage=torch.zeros_like(batch["advantage"])), share)[1]
    if any(bool((g != 0).any()) for g in none):
        check.broken("3", "an advantage of 0 gives a gradient")


def _check_masked(check: _Check, batch: TokenBatch, share: Tensor, total: Tensor, gradient: list[Tensor]) -> None:
    masked = batch["weight"] == 0
    wild = {"logprob": -9.0, "advantage": 7.0, "entropy": 5.0, "value": 3.0}
    changed = {name: torch.where(masked, number, batch[name]) for name, number in wild.items()}
    missing = [name for name in batch.columns if is_output(name) or name == "value_target"]
    changed |= {name: torch.where(masked, torch.nan, batch[name]) for name in missing}
    other, found = check.gradient(batch.replace(**changed), share)
    if not _close(total, other) or not all(map(_close, gradient, found)):
        what = f"other numbers on masked tokens change the result from {float(total):.6g} to {float(other):.6g}"
        check.broken("4", what + '; mask first, as in `torch.where(batch["weight"] > 0, …, 0.0)`')
    if any(bool((g[masked] != 0).any()) for g in gradient):
        check.broken("4", "a masked token has a gradient")


def _check_cut(check: _Check, batch: TokenBatch, share: Tensor, total: Tensor, gradient: list[Tensor]) -> None:
    if check.scope == "minibatch":
        return
    unit = batch.unit("group" if check.scope in ("pair", "group") else "trajectory", where="check_loss")
    even = unit % 2 == 0
    halves = [half for half in (even.nonzero()[:, 0], (~even).nonzero()[:, 0]) if len(half)]
    minibatch = batch if check.frozen_minibatch else None
    cuts = [batch.take(half).replace(scope=check.scope, minibatch=minibatch) for half in halves]
    results = [check.gradient(cut, share[half]) for cut, half in zip(cuts, halves, strict=True)]
    together = [torch.zeros_like(g) for g in gradient]
    for half, (_, found) in zip(halves, results, strict=True):
        for leaf, own in zip(together, found, strict=True):
            leaf[half] = own
    other = torch.stack([part for part, _ in results]).sum()
    if not _close(total, other) or not all(map(_close, gradient, together)):
        check.broken("5", f"two micro-batches give {float(other):.6g}, the whole batch gives {float(total):.6g}")


def _check_difference(check: _Check, batch: TokenBatch, share: Tensor, gradient: list[Tensor]) -> None:
    """Rule 6: compare the gradient with a finite difference along one fixed direction over all leaves."""
    angle = torch.arange(len(batch), dtype=torch.float64)
    directions = [torch.sin(angle + offset) for offset in range(len(LEAVES))]

    def moved(size: float) -> Tensor:
        leaves = {n: batch[n] + size * d for n, d in zip(LEAVES, directions, strict=True)}
        return check.total(batch.replace(**leaves), share).detach()

    slope = (moved(STEP) - moved(-STEP)) / (2 * STEP)
    expected = torch.stack([(g * d).sum() for g, d in zip(gradient, directions, strict=True)]).sum()
    if not bool(torch.isclose(slope, expected, rtol=1e-3, atol=1e-6)):
        check.broken("6", f"the gradient gives a slope of {float(expected):.6g}, differences give {float(slope):.6g}")
