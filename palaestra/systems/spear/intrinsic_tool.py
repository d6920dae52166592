"""The reward `intrinsic_tool`: a bonus for tool calls that fades, so that a policy tries tools early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import Batch, Key, StepTable
from palaestra.data.iteration import Iteration
from palaestra.data.keys import compact
from palaestra.data.protocols import StatefulPart
from palaestra.errors import MissingColumn
from palaestra.registry import NonNegative, Positive, PositiveInt, declared, register
from palaestra.systems.spear.schedules import fall

if TYPE_CHECKING:
    from palaestra.training.settings import RunSettings


@register(
    "reward",
    "intrinsic_tool",
    ignores_if={"schedule=constant": ("horizon",), "schedule=none": ("rate", "cap", "horizon", "column")},
    reads=("invalid?", "replayed?"),
    reads_if={"column=tool_call": ("tool_call?",)},
    writes=("reward", "intrinsic"),
    source="arXiv 2509.22601, public code",
)
class IntrinsicTool(StatefulPart):
    """Pay each turn that calls a tool, less and less as training goes on, in successful and failed episodes.

        R ← R + min(cap, rate · turns with a tool call) · f(s)
        f(s) = (1 + cos(π s / horizon)) / 2 in iteration s up to the horizon, then 0     (cosine)

    The bonus is on the turns that call a tool, in time order, until the cap is reached.

    Args:
        rate: ≥ 0, the bonus of a turn. Higher: the policy uses tools sooner, and also calls them for the bonus alone.
            0: no bonus. Usual: 0.1.
        cap: > 0, the largest bonus of an episode. Usual: 1, the reward of a success.
        horizon: iterations until the bonus is 0. Usual: 100–200.
        schedule: "cosine" fades, "constant" does not, "none" never pays.
        column: numbers above 0 mark the turns that called a tool. Acts that could not be read (`invalid`) never count.

    Called with a table (columns trajectory, turn, reward and that column, each (rows,)), it returns the columns reward
    and intrinsic (rows,); `outcome` does not change. Rows of weight 0 get no bonus.

    Metrics: intrinsic/factor, f(s); intrinsic/mean and intrinsic/tool_turns, the mean bonus and the mean number of
        turns with a tool call, over the fresh episodes that the selection keeps.
    Raises: MissingColumn, if the table has no such column.
    """

    def __init__(
        self,
        *,
        rate: NonNegative = 0.1,
        cap: Positive = 1.0,
        horizon: PositiveInt = 200,
        schedule: Literal["none", "constant", "cosine"] = "cosine",
        column: str = "tool_call",
    ) -> None:
        self._rate, self._cap, self._horizon = rate, cap, horizon
        self._schedule, self._column = schedule, column

    @staticmethod
    def fits(options: Mapping[str, Any], settings: RunSettings, source: Any) -> None:
        """Raises: MissingColumn, if neither the environment nor another part declares the column, and no role calls
        tools.
        """
        column, others = options.get("column"), (settings.program, *settings.strategy, *settings.reward)
        provided = [declared(source, "provides"), *(declared(other.part.target, "provides") for other in others)]
        calls = column == "tool_call" and any(role.tools.use for role in settings.agents.values())
        known = provided[0] is not None and not any(column in columns for columns in provided if columns)
        if known and not calls and column is not None:  # None: it is never paid
            raise _missing(column)

    def factor(self, step: int) -> float:
        """f of an iteration."""
        match self._schedule:
            case "none":
                return 0.0
            case "constant":
                return 1.0
            case _:
                return fall(step, self._horizon)

    def __call__(self, table: StepTable, iteration: Iteration) -> dict[str, Tensor]:
        factor = self.factor(iteration.number)
        if not factor * self._rate:
            return {"reward": table["reward"], "intrinsic": torch.zeros(len(table))}
        bonus = factor * self._earned(table)
        return {"reward": (table["reward"].double() + bonus).float(), "intrinsic": bonus.float()}

    def _earned(self, table: StepTable) -> Float[Tensor, " rows"]:
        """The amount that each row adds to min(cap, rate · calls so far), before the schedule: float64 (rows,)."""
        calls = self._calls(table)
        before = _before(calls, table)
        return (self._rate * (before + calls)).clamp_max(self._cap) - (self._rate * before).clamp_max(self._cap)

    def _calls(self, table: StepTable) -> Float[Tensor, " rows"]:
        """1 on rows that called a tool; 0 on padding and on acts that could not be read."""
        if self._column not in table:
            raise _missing(self._column)
        called = (table[self._column] > 0) & (table.row_weight > 0)
        return (called & (table["invalid"] == 0) if "invalid" in table else called).double()

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """The mean bonus of fresh episodes, and how many of their turns called a tool on average."""
        table = batch.table
        fresh = table.row_weight > 0
        if "replayed" in table:
            fresh = fresh & (table["replayed"] == 0)
        episodes = max(compact(table["trajectory"][fresh])[1], 1)
        found = {
            "intrinsic/factor": self.factor(iteration.number),
            "intrinsic/mean": float(table["intrinsic"][fresh].double().sum()) / episodes,
        }
        if self._column in table:
            found["intrinsic/tool_turns"] = float(self._calls(table)[fresh].sum()) / episodes
        return found


def _missing(column: str) -> MissingColumn:
    return MissingColumn(
        where="reward: intrinsic_tool",
        what=f"the table has no column `{column}`, which marks the turns that called a tool.",
        remedy=f'Let the environment give `info["{column}"] = {{agent: 1.0}}`, or set `column`.',
    )


def _before(values: Tensor, table: StepTable) -> Tensor:
    """The sum of `values` over the earlier rows of the row's trajectory."""
    order, _ = table.timeline("trajectory")
    codes: Key = table.key("trajectory")
    ordered, chain = values[order], codes.codes[order]
    running = ordered.cumsum(0) - ordered
    start = torch.full((codes.size,), torch.inf, dtype=torch.float64)
    start = start.scatter_reduce(0, chain, running, "amin")  # sums never decrease: a chain's smallest is its first
    out = torch.empty_like(running)
    out[order] = running - start[chain]
    return out
