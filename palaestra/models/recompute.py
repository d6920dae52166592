"""Recomputation: the backward pass computes the layers of a model again, so that their activations are not kept.

Memory then holds the input of each layer and the activations of one layer. It costs about a third more time.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer

from palaestra.models.products import are_fast, fast_products


def enable_recomputation(model: Any) -> bool:
    """Prepare a model for `recomputing`, by transformers' own means. Returns False, if its class cannot do it."""
    if not model.supports_gradient_checkpointing:
        return False
    model.activation_checkpointing_enable(
        activation_checkpointing_kwargs={"use_reentrant": False, "context_fn": _same_context}
    )
    return bool(_layers(model))


@contextmanager
def recomputing(model: Any) -> Iterator[None]:
    """Inside this block, layers of a prepared model keep their inputs alone. Others are not affected.

    transformers recomputes layers in training mode only. Their parts stay as they are, so dropout stays off. Outside,
    the model can generate with a cache.
    """
    layers = _layers(model)
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _layers(model: Any) -> list[GradientCheckpointingLayer]:
    return [
        part for part in model.modules() if isinstance(part, GradientCheckpointingLayer) and part.gradient_checkpointing
    ]


def _same_context() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts of the first pass and of the second one, which has the adapter and the packed row of the first."""
    values = [(var, value) for var, value in contextvars.copy_context().items() if var.name.startswith("palaestra_")]
    return nullcontext(), _with(values, fast=are_fast())


@contextmanager
def _with(values: list[tuple[contextvars.ContextVar[Any], Any]], *, fast: bool) -> Iterator[None]:
    tokens = [(var, var.set(value)) for var, value in values]
    try:
        with fast_products(fast):
            yield
    finally:
        for var, token in reversed(tokens):
            var.reset(token)
