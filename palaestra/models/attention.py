"""Attention: the kernel that a model takes, the lengths of a batch, and what bounds the length of a session."""

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


def context_of(config: Any) -> tuple[int, str]:
    """The most ids of a session whose keys and values are kept, and why a model that reads more has no more.

    "longrope" rotates all positions otherwise once a sequence is longer than the original context. What is kept would
    then be wrong. Attention in chunks is that of one chunk.

    Args:
        config: of the text part of a model. If it declares no context length, that is 1024.

    Returns: the number, and a reason; "" if it is the context length of the model.
    """
    context = int(getattr(config, "max_position_embeddings", None) or 1024)
    found = [(context, "")]
    rotation = getattr(config, "rope_parameters", None) or {}
    if rotation.get("rope_type") == "longrope":
        original = int(rotation.get("original_max_position_embeddings") or context)
        found.append((original, "its rotation (longrope) changes there for all positions"))
    if chunk := getattr(config, "attention_chunk_size", None):
        found.append((int(chunk), "its attention reads chunks of that length"))
    return min(found)
