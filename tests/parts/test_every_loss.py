"""What every loss and regularizer must hold, found by their registration: (1) the contract of `check_loss` on tokens,
(2) and with one token a row, as network policies give; (3) under every aggregation; (4) the checker itself refuses
a loss that breaks a rule; (5) where the batch is on another device than the CPU, loss, metrics and gradient are the
same numbers there; (6) a column of the user's own is filled in.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from palaestra.data import TokenBatch
from palaestra.errors import ContractError, MissingColumn
from palaestra.registry import Part
from palaestra.registry.options import Aggregation
from palaestra.testing import check_loss
from tests.fake_device import FakeDevice
from tests.parts.batches import batches, filled, quick, with_columns_of
from tests.registered import targets

PARTS = targets("loss", "regularizer")
EXTRA = {"ppo_clip": [{"dual": 3.0}, {"high": 0.5, "low": 0.0}], "value": [{"clip": 0.2}]}
# Losses, with these options, whose gradient leaves out a factor on purpose (rule 6).
INEXACT: dict[str, dict[str, Any]] = {"cispo": {}, "gspo": {"gradient": "token"}, "ppo_clip_kept": {}}
MODES = typing.get_args(Aggregation)


def variants(target: Any) -> list[Any]:
    """The part as it is, once for every other choice of every option, and with options of `EXTRA`."""
    hints = typing.get_type_hints(inspect.unwrap(target))
    chosen: list[dict[str, Any]] = [{}, *EXTRA.get(target.part.name, [])]
    for name, option in target.part.options.model_fields.items():
        if typing.get_origin(hints[name]) is typing.Literal:
            chosen += [{name: choice} for choice in typing.get_args(hints[name]) if choice != option.default]
    return [pytest.param(target, options, id=f"{target.part.name}-{options}") for options in chosen]


def exact(loss: Any, options: dict[str, Any]) -> bool:
    left_out = INEXACT.get(loss.part.name)
    return left_out is None or not left_out.items() <= options.items()


EVERY = [variant for target in PARTS for variant in variants(target)]


def test_losses_are_found() -> None:
    assert {o.part.slot for o in PARTS} == {"loss", "regularizer"} and len(EVERY) >= 12


@pytest.mark.parametrize(("loss", "options"), EVERY)
@quick
@given(batch=batches())
def test_tokens(loss: Any, options: dict[str, Any], batch: TokenBatch) -> None:  # rule 1
    check_loss(loss, with_columns_of(loss.part, batch), exact_gradient=exact(loss, options), **options)


@pytest.mark.parametrize(("loss", "options"), EVERY)
@quick
@given(batch=batches(one_token=True))
def test_one_token_a_row(loss: Any, options: dict[str, Any], batch: TokenBatch) -> None:  # rule 2
    check_loss(loss, with_columns_of(loss.part, batch), exact_gradient=exact(loss, options), **options)


@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("loss", PARTS, ids=lambda o: o.part.name)
def test_aggregations(loss: Any, how: Aggregation) -> None:  # rule 3
    batch = with_columns_of(loss.part, filled([[2, 1], [3], [1, 1, 2], [2, 2]], 7))
    check_loss(loss, batch, how=how, exact_gradient=exact(loss, {}))


@pytest.mark.parametrize("uses_mini", [False, True], ids=["alone", "in a mini-batch"])
@pytest.mark.parametrize(("loss", "options"), EVERY)
def test_another_device(loss: Any, options: dict[str, Any], uses_mini: bool) -> None:  # rule 5
    batch = with_columns_of(loss.part, filled([[2, 1], [3], [1, 1, 2], [2, 2]], 7))
    batch = batch.replace(minibatch=batch) if uses_mini else batch

    def found(device: str) -> list[Tensor]:
        leaves = [batch[name].detach().clone().requires_grad_() for name in ("logprob", "entropy", "value")]
        cut = batch.replace(**dict(zip(("logprob", "entropy", "value"), leaves, strict=True)))
        values, metrics = loss(cut.to(torch.device(device)), **options)
        assert all(one.device.type == torch.device(device).type for one in (values, *metrics.values()))
        values.sum().backward()
        return [values.detach().cpu(), *(one.cpu() for one in metrics.values()), *(one.grad for one in leaves)]

    with FakeDevice() as device:
        there = found(device)
    for one, other in zip(found("cpu"), there, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def _plain(batch: TokenBatch) -> Tensor:
    return -batch["advantage"] * torch.where(batch["weight"] > 0, batch["logprob"], 0.0)


class _NoGradient(torch.autograd.Function):
    """The identity forwards; twice the gradient backwards."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


BROKEN: dict[str, tuple[str, Callable[[TokenBatch], Any]]] = {
    "scalar": ("1", lambda b: (_plain(b).sum(), {})),
    "metric with gradient": ("1", lambda b: (_plain(b), {"m": b["logprob"]})),
    "infinite": ("1", lambda b: (_plain(b) / 0, {})),
    "infinite gradient": ("2", lambda b: (_plain(b) + (b["logprob"] - b["logprob"].detach()).abs().sqrt(), {})),
    "bias": ("3", lambda b: (-(b["advantage"] + 1) * torch.where(b["weight"] > 0, b["logprob"], 0.0), {})),
    "masked tokens leak": ("4", lambda b: (_plain(b) * (1 + b["logprob"].detach().mean()), {})),
    "own denominator": ("5", lambda b: (_plain(b) / (b["weight"] > 0).sum(), {})),
    "wrong gradient": ("6", lambda b: (_NoGradient.apply(_plain(b)), {})),
}


@pytest.mark.parametrize("name", BROKEN)
def test_checker_refuses(name: str) -> None:  # rule 4
    rule, loss = BROKEN[name]
    with pytest.raises(ContractError, match=f"rule {rule}"):
        check_loss(loss, filled([[2, 1], [3], [1, 1, 2], [2, 2]], 3))


def test_own_columns() -> None:  # rule 6
    def weighted(batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return -batch["surprise"] * batch["advantage"] * batch["logprob"], {}

    part = Part(slot="loss", name="weighted", target=weighted, reads=("advantage", "logprob", "surprise", "group"))
    batch = filled([[2, 1], [3], [1, 1, 2], [2, 2]], 7)
    with pytest.raises(MissingColumn, match="surprise"):
        check_loss(weighted, batch)
    check_loss(weighted, with_columns_of(part, batch))
