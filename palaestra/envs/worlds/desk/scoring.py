"""Scoring as in tau-bench (arXiv 2406.12045): the final database and what the agent said decide, and nothing else.

Knows nested values and texts. Knows no table, tool or rule.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from palaestra.errors import InvalidData


def canonical(value: Any) -> Hashable:
    """Nested tuples: entries of dicts and sets in order of their names, lists in the order that they have."""
    if isinstance(value, Mapping):
        return tuple((key, canonical(value[key])) for key in sorted(value, key=repr))
    if isinstance(value, set | frozenset):
        return tuple(sorted((canonical(inner) for inner in value), key=repr))
    if isinstance(value, list | tuple):
        return tuple(canonical(inner) for inner in value)
    return value  # type: ignore[no-any-return]


def database_hash(database: Any) -> str:
    """SHA-256 of the canonical form: equal for databases that hold the same."""
    return hashlib.sha256(repr(canonical(database)).encode()).hexdigest()


def said(outputs: Iterable[str], replies: Iterable[str]) -> bool:
    """Whether each required text stands in some reply, whatever its case.

    Commas are dropped from the replies, so that "1,234" counts as "1234", and not from the required texts: one that
    has a comma is never found. Replies are those of the agent to the user; calls of tools do not count.
    """
    heard = [reply.lower().replace(",", "") for reply in replies]
    return all(any(output.lower() in reply for reply in heard) for output in outputs)


def score(database: Any, *, gold: str, outputs: Sequence[str], replies: Iterable[str]) -> bool:
    """Whether a task was done: the database is as the right calls leave it, and all that was to be said was said.

    Args:
        gold: hash of the database after the right calls. outputs: what must be said; none: only the database counts.

    Raises: InvalidData, without a gold hash.
    """
    if not gold:
        raise InvalidData(
            where="score(…)",
            what="there is no hash of the right database, so nothing to compare with.",
            remedy="Execute the right calls on a copy of the first database and give its `database_hash`.",
        )
    return database_hash(database) == gold and said(outputs, replies)
