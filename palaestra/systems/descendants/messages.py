"""Messages: find which acts each act was shown, and sum the rewards of an act's descendants."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from palaestra.data.keys import compact
from palaestra.data.table import StepTable
from palaestra.errors import InvalidData


class Readings(NamedTuple):
    """Pairs of rows: act `reader` was shown the message of act `source`. Each pair once, readers in ascending order."""

    reader: Int[Tensor, " pairs"]
    source: Int[Tensor, " pairs"]


def readings_of(table: StepTable, *, own: bool, replies: bool, where: str) -> Readings:
    """Find which acts each act was shown, from the columns of the table.

    Args:
        table: columns trajectory, agent, turn; reads, the turns whose messages a row was shown; parent, the turn of the
            act that called, used on rows without `reads`; invocation.
        own: an act was also shown the act before it in its own conversation.
        replies: the caller's next act was also shown the last act of the call.
        where: name of the caller, for error messages.

    Raises: InvalidData, for a turn that is not an earlier act of the trajectory, or that two acts share.
    """
    place = _Places(table, where)
    reader, turn = _told(table, place.acts)
    pairs = [(reader, place.find(reader, turn))]
    conversation = ("trajectory", "agent", *(("invocation",) if "invocation" in table else ()))
    order, last = table.timeline(*conversation)
    if own:
        later = ~last[:-1]
        pairs.append((order[1:][later], order[:-1][later]))
    if replies and "parent" in table:
        pairs.append(_replies(table, order[last], conversation, place))
    readers, sources = (torch.cat([pair[side] for pair in pairs]) for side in (0, 1))
    both = place.acts[readers] & place.acts[sources]
    found = torch.unique(readers[both] * max(len(table), 1) + sources[both])
    return Readings(torch.div(found, max(len(table), 1), rounding_mode="floor"), found % max(len(table), 1))


def descendant_return(
    table: StepTable, readings: Readings, *, gamma: float, reward: Tensor | None = None
) -> Float[Tensor, " rows"]:
    """D_k = r_k + Σ gamma^hops(k, d) · r_d over the acts d that were shown k's message, directly or through others.

    Each act counts once, over the fewest hops. Where every act was shown at most one other, D_k is r_k + gamma · Σ D
    over its readers, and in a chain it is `reward_to_go`.

    Args:
        reward: (rows,), used in place of the reward column.
    """
    rewards = (table["reward"] if reward is None else reward).double() * (table.row_weight > 0)
    single = len(readings.reader) < 2 or bool((readings.reader[1:] != readings.reader[:-1]).all())
    total = (_forest if single else _network)(rewards, readings, gamma)
    return torch.where(table.row_weight > 0, total, 0.0).float()


def _forest(rewards: Tensor, readings: Readings, gamma: float) -> Float[Tensor, " rows"]:
    """Sum by doubling: after n rounds all acts within 2ⁿ hops are counted; log₂(depth) vector operations."""
    total, factor = rewards.clone(), gamma
    above = torch.full((len(rewards),), -1)
    above[readings.reader] = readings.source
    while bool((above >= 0).any()):
        live = above >= 0
        total = total.index_add(0, above[live], factor * total[live])
        above = torch.where(live, above[above], -1)
        factor = factor * factor
    return total


def _network(rewards: Tensor, readings: Readings, gamma: float) -> Float[Tensor, " rows"]:
    """Sum hop by hop, each pair (act, descendant) once: as many vector operations as the longest path has hops."""
    rows, total, factor = len(rewards), rewards.clone(), 1.0
    start = torch.searchsorted(readings.reader, torch.arange(rows + 1))
    count = torch.diff(start)
    above, below = readings.source, readings.reader
    seen = above.new_zeros(0)
    while len(above):
        factor *= gamma
        total.index_add_(0, above, factor * rewards[below])
        seen = torch.cat([seen, above * rows + below])
        many = count[above]
        first = torch.repeat_interleave(start[above] - (many.cumsum(0) - many), many)
        above, below = readings.source[first + torch.arange(len(first))], torch.repeat_interleave(below, many)
        fresh = torch.unique(above * rows + below)
        fresh = fresh[~torch.isin(fresh, seen)]
        above, below = torch.div(fresh, rows, rounding_mode="floor"), fresh % rows
    return total


def _told(table: StepTable, acts: Tensor) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Rows, and the turns that each was shown: from `reads`, or else from `parent`."""
    readers, turns = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0, dtype=torch.int64)]
    silent = acts
    if "reads" in table:
        labels = [tuple(label) for label in table.labels("reads")]
        width = torch.tensor([*(len(label) for label in labels), 0])
        flat = torch.tensor([int(turn) for label in labels for turn in label], dtype=torch.int64)
        rows = (acts & (table["reads"] >= 0)).nonzero()[:, 0]
        many, begin = width[table["reads"][rows]], (width.cumsum(0) - width)[table["reads"][rows]]
        readers.append(torch.repeat_interleave(rows, many))
        offset = torch.repeat_interleave(begin - (many.cumsum(0) - many), many)
        turns.append(flat[offset + torch.arange(len(offset))])
        silent = silent & (table["reads"] < 0)
    if "parent" in table:
        rows = (silent & (table["parent"] >= 0)).nonzero()[:, 0]
        readers.append(rows)
        turns.append(_turns_of_parents(table)[rows])
    return torch.cat(readers), torch.cat(turns)


def _turns_of_parents(table: StepTable) -> Int[Tensor, " rows"]:
    labels = table.labels("parent")
    strange = [label for label in labels if not isinstance(label, int | np.integer)]
    if strange:
        raise InvalidData(
            where="column `parent`",
            what=f"it contains {strange[0]!r}, not the turn of an act.",
            remedy="Give the turn of the act that called, and None for an act that was not called.",
        )
    return torch.tensor([*(int(label) for label in labels), -1])[table["parent"]]


def _replies(table: StepTable, ends: Tensor, conversation: tuple[str, ...], place: _Places) -> tuple[Tensor, Tensor]:
    """The next act of the calling conversation (the reader), and the last act of each call."""
    caller_turn = _turns_of_parents(table)
    ends = ends[place.acts[ends] & (caller_turn[ends] >= 0)]
    caller = place.find(ends, caller_turn[ends])
    codes, span = table.key(*conversation).codes, int(table["turn"].max()) + 2 if len(table) else 1
    when = torch.where(place.acts, codes * span + table["turn"], -1)
    order = torch.argsort(when)
    next_place = torch.searchsorted(when[order], codes[caller] * span + table["turn"][ends], right=True)
    there = next_place < len(order)
    reader = order[next_place.clamp_max(max(len(order) - 1, 0))]
    there &= codes[reader] == codes[caller]
    return reader[there], ends[there]


class _Places:
    """Finds the row of a turn. Rows of weight 0 that repeat another act are padding; an opponent's are acts."""

    def __init__(self, table: StepTable, where: str) -> None:
        self._table, self._where = table, where
        self._span = int(table["turn"].max()) + 2 if len(table) else 1
        key, padding = table["trajectory"] * self._span + table["turn"], table.row_weight == 0
        self._order = torch.argsort(2 * key + padding, stable=True)
        self._key = key[self._order]
        self.acts = ~padding
        unit, size = compact(key)
        real = torch.zeros(size, dtype=torch.int64).index_add_(0, unit, (~padding).long())
        self._shared = real[unit] > 1
        first = torch.ones(len(key), dtype=torch.bool)
        first[1:] = self._key[1:] != self._key[:-1]
        self.acts[self._order[first]] = True

    def find(self, reader: Tensor, turn: Tensor) -> Int[Tensor, " pairs"]:
        """The rows of these turns in the readers' trajectories. Raises: InvalidData."""
        wanted = self._table["trajectory"][reader] * self._span + turn
        at = torch.searchsorted(self._key, wanted).clamp_max(max(len(self._key) - 1, 0))
        lost = (self._key[at] != wanted) | (turn >= self._table["turn"][reader]) | (turn < 0)
        row = self._order[at]
        self._refuse(lost, reader, turn, "which is not an earlier act of its trajectory")
        self._refuse(self._shared[row], reader, turn, "which two acts share")
        return row

    def _refuse(self, wrong: Tensor, reader: Tensor, turn: Tensor, what: str) -> None:
        if not bool(wrong.any()):
            return
        first = int(wrong.nonzero()[0])
        row = int(reader[first])
        name = self._table.labels("trajectory")[int(self._table["trajectory"][row])]
        raise InvalidData(
            where=f"{self._where}, trajectory {name}, turn {int(self._table['turn'][row])}",
            what=f"it was shown turn {int(turn[first])}, {what}.",
            remedy="Let the program give `parent` or `reads` as turns of earlier acts; each act has its own turn.",
        )


__all__ = ["Readings", "descendant_return", "readings_of"]
