"""Attention: the kernel that a model takes, and the lengths of a batch, for code that measures attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from palaestra.errors import RecipeError

lengths: ContextVar[Sequence[int] | None] = ContextVar("palaestra_lengths", default=None)


@contextmanager
def reading(sample_lengths: Sequence[int]) -> Iterator[None]:
    """Set the lengths of the samples in a forward pass, so that padding is not measured."""
    token = lengths.set(sample_lengths)
    try:
        yield
    finally:
        lengths.reset(token)


def take_kernel(model: Any, name: str, *, where: str) -> None:
    """Let a model of transformers compute attention by the kernel of this name, such as `sdpa` or `flash_attention_2`.

    Args:
        where: the recipe's key, for errors.

    Raises: RecipeError, if the model has no such kernel, or a package of the kernel is not installed.
    """
    if not model._can_set_attn_implementation():
        raise RecipeError(
            where=where,
            what=f"{type(model).__name__} has one kernel alone, and transformers cannot give it another.",
            remedy="Leave the key out.",
        )
    try:
        model.set_attn_implementation(name)
    except (ImportError, ValueError, OSError, RuntimeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise RecipeError(
            where=where,
            what=f"{type(model).__name__} cannot take `{name}` here: {first}",
            remedy="Leave the key out: the model then takes `sdpa`, or `eager` if it has no other.",
        ) from error
