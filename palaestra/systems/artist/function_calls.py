"""Rewards for function calling: the final state, and the calls themselves."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.parts.tool_calls import at_the_end, refuse
from palaestra.registry import NonNegative, register

WHERE = "reward: function_calls"
PAIRS = {"state": ("state_matched", "state_total"), "calls": ("calls_matched", "calls_total")}


@register(
    "reward",
    "function_calls",
    reads=tuple(column for pair in PAIRS.values() for column in pair),
    reads_if={"format": ("format",)},
    writes=("reward", "state_reward", "calls_reward", "format_reward"),
    source="arXiv 2505.01441",
)
def function_calls(
    table: StepTable, *, state: NonNegative = 0.5, calls: NonNegative = 0.5, format: NonNegative = 0.0
) -> dict[str, Float[Tensor, " rows"]]:
    """Pay at the end of a trajectory for the fields of the final state and for the calls that match the wanted ones.

        R = state · state_matched / state_total + calls · calls_matched / calls_total + format · f

    Args:
        table: columns state_matched, state_total, calls_matched, calls_total and, for a positive `format`, format; the
            values on a trajectory's last row count.
        state: ≥ 0, weight of matching fields. Usual: 0.5.
        calls: ≥ 0, weight of matching calls. Higher: another way to the same state earns less than the intended calls.
            Usual: 0.5.
        format: ≥ 0, weight of the environment's `format`, 1 for a well-formed episode. Usual: 0 to 1.

    Returns: reward, in place of the environment's, and its parts state_reward, calls_reward and, for a positive
        `format`, format_reward, each float32 (rows,).
    Raises: MissingColumn, without one of the columns; InvalidData, for a total of 0 or more matches than the total.
    """
    parts = {}
    for name, weight in (("state", state), ("calls", calls)):
        matched, total = (table[column].double() for column in PAIRS[name])
        refuse(
            table,
            ~((total > 0) & (matched >= 0) & (matched <= total)),
            lambda row, of=(matched, total), kind=name: f"{of[0][row]:g} of {of[1][row]:g} in `{kind}` match.",  # type: ignore[misc]
            where=WHERE,
            remedy="Give totals ≥ 1 and matches from 0 to the total; leave out tasks without a wanted state or call.",
        )
        parts[f"{name}_reward"] = at_the_end(table, weight * matched / total.clamp_min(1))
    if format:
        parts["format_reward"] = at_the_end(table, format * table["format"].double())
    return {"reward": sum(parts.values()), **parts}  # type: ignore[dict-item]
