"""Rewards for tool use: the answer, the format, and the share of calls that succeeded."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.parts.tool_calls import at_the_end, outcomes, refuse, tool_calls
from palaestra.registry import NonNegative, register

WHERE = "reward: tool_use"


@register(
    "reward",
    "tool_use",
    reads=("outcome", "format", "tool_call", "tool_error", "truncated?"),
    writes=("reward", "answer_reward", "format_reward", "tool_reward"),
    source="arXiv 2505.01441",
)
def tool_use(
    table: StepTable, *, answer: NonNegative = 2.0, format: NonNegative = 1.0, tool: NonNegative = 1.0
) -> dict[str, Float[Tensor, " rows"]]:
    """Pay at the end of a trajectory for a right answer, for good format and for calls that succeeded.

        R = answer · o + format · f + tool · (calls − errors) / calls        the last part is 0 without calls

    Args:
        table: columns outcome o, in [0, 1]; tool_call and tool_error, how many calls a step made and how many of them
            failed; format f, in [0, 1], whose value on the last row counts.
        answer: ≥ 0, weight of a right answer. Usual: 2.
        format: ≥ 0, weight of a well-formed episode. Usual: 1.
        tool: ≥ 0, weight of the share of calls that succeeded. Higher: fewer failing calls, and more calls that are not
            needed. Usual: 1.

    Returns: reward, in place of the environment's, and its parts answer_reward, format_reward and tool_reward, each
        float32 (rows,). `answer: 1, format: 0, tool: 0` is the reward `outcome`.
    Raises: MissingColumn, without one of the columns; InvalidData, for numbers out of range.
    """
    calls, errors = tool_calls(table, where=WHERE)
    shape = table["format"].double()
    refuse(
        table,
        ~((shape >= 0) & (shape <= 1)),
        lambda row: f"`format` is {float(shape[row]):g}, not in [0, 1].",
        where=WHERE,
        remedy="Let the environment give `format`: 1 for a well-formed episode, else 0.",
    )
    share = torch.where(calls > 0, (calls - errors) / calls.clamp_min(1), 0.0)
    parts = {
        "answer_reward": at_the_end(table, answer * outcomes(table, where=WHERE)),
        "format_reward": at_the_end(table, format * shape),
        "tool_reward": at_the_end(table, tool * share),
    }
    return {"reward": parts["answer_reward"] + parts["format_reward"] + parts["tool_reward"], **parts}
