"""The division of a data set into training rows and held-out rows, for environments that bring their own data."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from palaestra.data import derive


def division(contents: Sequence[Hashable], held_out: float) -> tuple[list[int], list[int]]:
    """The indices of the training rows and of the held-out rows. They are the same in every process.

    Rows of equal content are on the same side. If one of the two would be empty, both are all rows. Then tasks of
    different splits differ in their seeds only.

    Args:
        contents: what tells a row from others.
        held_out: share of the different contents that is not trained on.
    """
    count = len(contents)
    first = {content: place for place, content in reversed(list(enumerate(contents)))}
    held = round(len(first) * held_out)
    if not 0 < held < len(first):
        return list(range(count)), list(range(count))
    shuffled = sorted(first.values(), key=lambda place: derive(place, "rows", "held out"))
    kept_out = set(shuffled[:held])
    places = range(count)
    return (
        [place for place in places if first[contents[place]] not in kept_out],
        [place for place in places if first[contents[place]] in kept_out],
    )
