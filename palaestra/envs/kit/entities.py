"""Entities: which names of a list a text has."""

from __future__ import annotations

import re
from collections.abc import Iterable

from palaestra.errors import InvalidData


def named_share(text: str, entities: Iterable[str]) -> float:
    """Entities that the text has, as a share of all, in [0, 1].

    Names are compared without case and with any run of spaces as one, as whole words; a name that is given twice
    counts once.

    Raises: InvalidData, without any entity.
    """
    wanted = {_plain(entity) for entity in entities} - {""}
    if not wanted:
        raise InvalidData(
            where="named_share(…)",
            what="there is no entity to look for, so no share of them.",
            remedy="Give the entities that the task was made of; a task without any has no partial credit.",
        )
    said = _plain(text)
    return sum(bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said)) for name in wanted) / len(wanted)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
