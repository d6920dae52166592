"""The division of a data set into training rows and held-out rows, for environments that bring their own data."""

from __future__ import annotations

from palaestra.data import derive


def division(count: int, held_out: float) -> tuple[list[int], list[int]]:
    """The indices of the training rows and of the held-out rows. They are the same in every process.

    If one of the two would be empty, both are all rows. Then tasks of different splits differ in their seeds only.

    Args:
        count: number of rows.
        held_out: share of the rows that is not trained on.
    """
    held = round(count * held_out)
    if not 0 < held < count:
        return list(range(count)), list(range(count))
    shuffled = sorted(range(count), key=lambda place: derive(place, "rows", "held out"))
    return sorted(shuffled[held:]), sorted(shuffled[:held])
