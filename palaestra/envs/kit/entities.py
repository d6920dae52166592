"""Measure which share of a list of names occurs in a text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from palaestra.errors import InvalidData


def named_share(text: str, entities: Iterable[str]) -> float:
    """The share of the entities that occur in the text, in [0, 1].

    Only whole words count. Case and extra spaces make no difference. An entity that is listed twice counts once.

    Raises: InvalidData, if there is no entity.
    """
    wanted = {_plain(entity) for entity in entities} - {""}
    if not wanted:
        raise InvalidData(
            where="named_share(…)",
            what="there is no entity to look for.",
            remedy="Give at least one entity. A task without entities can give no partial credit.",
        )
    said = _plain(text)
    return sum(bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said)) for name in wanted) / len(wanted)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
