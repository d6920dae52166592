"""Scoring as in tau-bench (arXiv 2406.12045): only the final database and the agent's replies count."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from palaestra.errors import InvalidData


def canonical(value: Any) -> Hashable:
    """The value as nested tuples. Entries of dicts and sets are sorted, and lists keep their order."""
    if isinstance(value, Mapping):
        return tuple((key, canonical(value[key])) for key in sorted(value, key=repr))
    if isinstance(value, set | frozenset):
        return tuple(sorted((canonical(inner) for inner in value), key=repr))
    if isinstance(value, list | tuple):
        return tuple(canonical(inner) for inner in value)
    return value  # type: ignore[no-any-return]


def database_hash(database: Any) -> str:
    """SHA-256 of the canonical form. Equal databases have equal hashes."""
    return hashlib.sha256(repr(canonical(database)).encode()).hexdigest()


def said(outputs: Iterable[str], replies: Iterable[str]) -> bool:
    """Whether each required text occurs in a reply. Case is ignored.

    Commas are removed from the replies, so that "1,234" counts as "1234". They are not removed from the required texts,
    so a text with a comma is never found.

    Args:
        outputs: the required texts.
        replies: what the agent said to the user, without calls of tools.
    """
    heard = [reply.lower().replace(",", "") for reply in replies]
    return all(any(output.lower() in reply for reply in heard) for output in outputs)


def score(database: Any, *, gold: str, outputs: Sequence[str], replies: Iterable[str]) -> bool:
    """Whether a task is solved: the database equals the one after the right calls, and all required texts were said.

    Args:
        gold: hash of the database after the right calls.
        outputs: the required texts. Without any, only the database counts.
        replies: what the agent said to the user.

    Raises: InvalidData, if `gold` is empty.
    """
    if not gold:
        raise InvalidData(
            where="score(…)",
            what="`gold` is empty, so there is nothing to compare the database with.",
            remedy="Make the right calls on a copy of the first database and give its `database_hash`.",
        )
    return database_hash(database) == gold and said(outputs, replies)
