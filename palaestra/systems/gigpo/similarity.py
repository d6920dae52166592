"""Clusters of similar texts, as a key of peers."""

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
    """Cluster the rows of each set of `by` whose observations have similar texts (column `state_text`).

        ratio(a, b) = 2 · matching characters / (characters of a + of b)          (difflib)

    Texts are processed by turn, then by the names of trajectory and agent. Each text joins the first cluster of its set
    whose first text has a ratio ≥ threshold to it, or starts a new cluster. So the result depends on time but not on
    the order of rows. Equal texts are compared once.

    Args:
        threshold: in (0, 1). Higher: texts may differ less. Usual: 0.9–0.95.

    Returns: a key; a row without a text is alone in its cluster.
    Raises: MissingColumn, without texts; InvalidData, for a column of other values.
    """
    table.key(TEXT)
    sets, texts, labels = table.key(*by).codes.tolist(), table[TEXT].tolist(), table.labels(TEXT)
    strange = next((label for label in labels if not isinstance(label, str)), None)
    if strange is not None:
        raise InvalidData(
            where=f"column `{TEXT}`",
            what=f"similarity compares texts, but the column contains {strange!r}.",
            remedy="Remove `similarity`: then states are compared by equal keys.",
        )
    openings: dict[int, list[int]] = defaultdict(list)  # set → first texts of its clusters
    joined: dict[tuple[int, int], int] = {}  # set and text → first text of its cluster
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
    """The first text of the first similar cluster, else the text itself, which then starts a cluster."""
    matcher = SequenceMatcher(None)
    matcher.set_seq2(labels[text])  # difflib caches its analysis of the second text
    for opening in openings:
        matcher.set_seq1(labels[opening])
        bounds = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)  # from cheap to exact
        if all(bound() >= threshold for bound in bounds):
            return opening
    openings.append(text)
    return text
