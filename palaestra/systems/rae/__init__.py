"""SPIRAL (arXiv 2506.24119) trains language models by self-play in zero-sum games. The roles of a game have different
expected returns, so a common baseline favors one role. Role-conditioned advantage estimation (RAE) keeps a moving
average of the returns for each role of each game over the whole run and subtracts it. It needs no groups and no critic.
Here the average is updated before it is subtracted, in the order of the paper's two lines; `order: compare_first`
follows the authors' code. There each worker has its own averages; here there is one set. The recipe plays Kuhn poker
with a network policy; the paper's language models and reasoning benchmarks are not here. This file is the estimator.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import total_return
from palaestra.algebra.segments import reverse_scan
from palaestra.data import Batch, Key, StepTable
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart
from palaestra.errors import InvalidData
from palaestra.registry import Columns, register

Decay = Annotated[float, pydantic.Field(ge=0, lt=1)]


@register("advantage", "rae", reads=("game?",), writes=("advantage",), source="arXiv 2506.24119")
class RoleAdvantage(StatefulPart):
    """The return of a role in an episode, minus the moving mean of its returns so far.

        b ← alpha · b + (1 − alpha) · R,   then   A = R − b          for each episode in turn, per game and role; b₀ = 0

    A thus equals alpha · (R − the previous b). This is unbiased, since the previous b does not depend on this episode.
    It divides by no deviation and needs no peers. But b lags behind a policy that improves, by 1 / (1 − alpha)
    episodes.

    Args:
        alpha: in [0, 1), the weight of the old baseline. Higher: less noise, more lag; with 0 and "update_first" every
            advantage is 0. Usual: 0.95.
        order: "update_first" as published; "compare_first", A = R − the previous b, as the authors' code does.
        step: "episode" moves the baseline once for each episode, in the order of their names: the first sample of every
            group, then the second, and so on. "batch" moves it once for each iteration, by the mean of its returns, so
            that all its episodes have the same baseline.
        by: columns whose values have a baseline each. ("game",) is one for all roles of a game, ("agent",) one for all
            games. A table without the column `game` is of one game.
        returns: columns whose rewards a return sums; ("trajectory",) gives the return of the whole team.

    Raises: InvalidData, if only some rows have a `game`.
    Differs from the authors' code: the default `order` follows the paper's two lines, not their code; each of their
        workers has its own baselines.
    """

    def __init__(
        self,
        *,
        alpha: Decay = 0.95,
        order: Literal["update_first", "compare_first"] = "update_first",
        step: Literal["episode", "batch"] = "episode",
        by: Columns = ("game", "agent"),
        returns: Columns = ("trajectory", "agent"),
    ) -> None:
        self.alpha, self.order, self.step, self.by, self.returns = alpha, order, step, by, returns
        self.baselines: dict[tuple[str, ...], float] = {}

    def __call__(self, table: StepTable, iteration: Iteration) -> Float[Tensor, " rows"]:
        """Advantages (rows,), 0 on rows of weight 0. Also updates the baselines."""
        by = tuple(name for name in self.by if name != "game" or _games(table))
        counts, role = table.row_weight > 0, table.key(*by)
        returns = total_return(table, by=self.returns).double()
        one = table.key(*dict.fromkeys(("trajectory", *by, *self.returns)))
        row = _first_rows(one, counts)
        row = row[_in_order(table, row, role)]
        value, chain = returns[row], role.codes[row]
        last = torch.ones(len(row), dtype=torch.bool)
        last[:-1] = chain[1:] != chain[:-1]
        names = _names(table, row[last], by)
        start = torch.tensor([self.baselines.get(name, 0.0) for name in names], dtype=torch.float64)
        before, after = self._moved(value, last, start)
        for name, baseline in zip(names, after[last].tolist(), strict=True):
            self.baselines[name] = baseline
        baseline = torch.zeros(one.size, dtype=torch.float64)
        baseline[one.codes[row]] = before if self.order == "compare_first" else after
        return torch.where(counts, returns - baseline[one.codes], 0.0).float()

    def _moved(self, value: Tensor, last: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """The baseline before and after each return. The returns of a set are next to each other, in time order."""
        which = torch.cat([last.new_zeros(1), last[:-1]]).cumsum(0)[: len(value)]
        if self.step == "batch":
            count = torch.bincount(which, minlength=len(start)).clamp_min(1)
            mean = torch.zeros_like(start).index_add_(0, which, value) / count
            return start[which], (self.alpha * start + (1 - self.alpha) * mean)[which]
        first = torch.ones_like(last)
        first[1:] = last[:-1]
        moved = (1 - self.alpha) * value + torch.where(first, self.alpha * start[which], 0.0)
        keep = torch.where(first, 0.0, torch.full_like(value, self.alpha))
        after = reverse_scan(moved.flip(0), keep.flip(0)).flip(0)
        before = torch.where(first, start[which], torch.cat([start[:1], after[:-1]])[: len(value)])
        return before, after

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        return {
            f"advantage/baseline/{'/'.join(name) or 'all'}": self.baselines[name] for name in sorted(self.baselines)
        }

    def state_dict(self) -> dict[str, Any]:
        return {"baselines": [[list(name), value] for name, value in sorted(self.baselines.items())]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.baselines = {tuple(name): float(value) for name, value in state["baselines"]}


def _first_rows(one: Key, counts: Tensor) -> Tensor:
    """The first row that counts of each set."""
    rows = torch.full((one.size,), -1)
    rows[one.codes[counts]] = counts.nonzero()[:, 0]
    return rows[rows >= 0]


def _in_order(table: StepTable, row: Tensor, role: Key) -> Tensor:
    """The rows by role, then by the names of trajectory and agent, so that the order of rows in the table does not
    matter.
    """
    order = torch.arange(len(row))
    for name in ("agent", "trajectory"):
        labels = table.labels(name)
        rank = torch.empty(len(labels), dtype=torch.int64)
        rank[sorted(range(len(labels)), key=[_natural(label) for label in labels].__getitem__)] = torch.arange(
            len(labels)
        )
        order = order[torch.argsort(rank[table[name][row[order]]], stable=True)]
    return order[torch.argsort(role.codes[row][order], stable=True)]


def _natural(label: Any) -> tuple[tuple[int, str], ...]:
    """The sort key of a trajectory's name, group/sample: by sample, then by group, so that neighbors play different
    tasks.
    """
    return tuple((len(piece) if piece.isdigit() else 0, piece) for piece in reversed(str(label).split("/")))


def _names(table: StepTable, rows: Tensor, by: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The labels of these rows' sets, which are the same in every iteration."""
    columns = []
    for name in by:
        numbers = table[name][rows].tolist()
        try:
            labels = table.labels(name)
        except KeyError:  # a column of numbers
            columns.append([str(number) for number in numbers])
        else:
            columns.append([str(labels[code]) for code in numbers])
    return list(zip(*columns, strict=True)) if columns else [()] * len(rows)


def _games(table: StepTable) -> bool:
    """Whether rows have a game. Raises: InvalidData, if only some have one."""
    if "game" not in table:
        return False
    nameless = int(((table["game"] < 0) & (table.row_weight > 0)).sum())
    if nameless:
        raise InvalidData(
            where="advantage: rae, column `game`",
            what=f"{nameless} of {len(table)} rows have no game, but others have one.",
            remedy='Let the environment give `info={"game": …}` in every episode, or in none.',
        )
    return True
