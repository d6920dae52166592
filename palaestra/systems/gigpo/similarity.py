"""Similarity: texts that are nearly the same, as one key.

Knows texts of observations and time. Knows nothing of what the texts say.
"""

from __future__ import annotations

from collections import defaultdict
from difflib import SequenceMatcher

import torch

from palaestra.algebra.draws import IDENTITY
from palaestra.data.keys import Key, compact
from palaestra.data.table import StepTable
from palaestra.errors import InvalidData

TEXT = "state_text"


def similar_texts(table: StepTable, *, by: tuple[str, ...], threshold: float) -> Key:
    """Rows of one set of `by` whose observations' texts (column `state_text`) are alike.

        ratio(a, b) = 2 · matching characters / (characters of a + of b)          (difflib)

    Texts come one after the other: by turn, then by the names of trajectory and agent. Each joins the first
    cluster of its set whose opening text has a ratio ≥ threshold to it, or opens one. So the order of rows does
    not matter, but time does: whatever was seen first speaks for its cluster. Equal texts are compared once.

    Args:
        threshold: in (0, 1). Higher: only trifles may differ. Usual: 0.9–0.95.

    Returns: a key; a row without text is unlike any other.
    Raises: MissingColumn, without texts; InvalidData, for a column of something else.
    """
    table.key(TEXT)
    sets, texts, labels = table.key(*by).codes.tolist(), table[TEXT].tolist(), table.labels(TEXT)
    strange = next((label for label in labels if not isinstance(label, str)), None)
    if strange is not None:
        raise InvalidData(
            where=f"column `{TEXT}`",
            what=f"similarity compares texts, and it holds {strange!r}.",
            remedy="Leave `similarity` out: keys that are no texts are equal or not.",
        )
    openings: dict[int, list[int]] = defaultdict(list)  # set → texts that opened a cluster
    joined: dict[tuple[int, int], int] = {}  # set and text → the text that opened its cluster
    weight = table.row_weight.tolist()
    for row in _in_time(table):
        place = (sets[row], texts[row])
        if place not in joined and texts[row] >= 0 and weight[row] > 0:
            joined[place] = _opening(texts[row], openings[sets[row]], labels, threshold)
    alone = len(labels)
    codes = [joined.get(place, alone + row) for row, place in enumerate(zip(sets, texts, strict=True))]
    own, size = compact(torch.tensor(codes, dtype=torch.int64))
    return table.key(*by) & Key(own, size, (TEXT,))


def _in_time(table: StepTable) -> list[int]:
    names = [[str(name) for name in table.labels(column)] for column in IDENTITY]
    turn, trajectory, agent = (table[column].tolist() for column in ("turn", "trajectory", "agent"))
    return sorted(range(len(table)), key=lambda r: (turn[r], names[0][trajectory[r]], names[1][agent[r]]))


def _opening(text: int, openings: list[int], labels: list[str], threshold: float) -> int:
    """The first opening text that is alike, else the text itself, which then opens a cluster."""
    matcher = SequenceMatcher(None)
    matcher.set_seq2(labels[text])  # what difflib remembers between comparisons
    for opening in openings:
        matcher.set_seq1(labels[opening])
        bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)  # from cheap to exact
        if all(bound() >= threshold for bound in bounds):
            return opening
    openings.append(text)
    return text
