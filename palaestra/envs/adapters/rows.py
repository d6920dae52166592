"""Rows of data sets that other libraries' environments bring along: which are trained on and which are held out.

Knows places in a list. Knows nothing of what the rows hold.
"""

from __future__ import annotations

from palaestra.data import derive


def division(count: int, held_out: float) -> tuple[list[int], list[int]]:
    """Places of the rows to train on and of the others, the same in every process.

    Where one part would be empty, both are all rows: then tasks differ in their seed only.
    """
    held = round(count * held_out)
    if not 0 < held < count:
        return list(range(count)), list(range(count))
    shuffled = sorted(range(count), key=lambda place: derive(place, "rows", "held out"))
    return sorted(shuffled[held:]), sorted(shuffled[:held])
