"""The filters of SPEAR and Dr.BoT: they mask trajectories with void turns, repetitions or unreadable text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_sum
from palaestra.data import FinishReason, Iteration, Key, Step, StepTable, Trajectory
from palaestra.data.keys import compact
from palaestra.registry import PositiveInt, register

Times = Annotated[int, pydantic.Field(ge=2)]
Share = Annotated[float, pydantic.Field(ge=0, lt=1)]
UNKNOWN = "\ufffd"  # decoders write it for bytes that are no character


# ---- repetitions ------------------------------------------------------------------------------------------
@register("weights", "repetition_filter", reads=(), writes=("weight", "counts"), source="arXiv 2509.22601, public code")
def repetition_filter(
    table: StepTable, iteration: Iteration, *, length: PositiveInt = 20, times: Times = 10
) -> Float[Tensor, " rows"]:
    """w = 0 on all rows of a trajectory in which some run of `length` response tokens occurs `times` times, else 1.

    Runs lie inside one response and may overlap: 29 equal tokens hold a run of 20 ten times.

    Args:
        length: > 0, tokens of a run. Lower: more trajectories are masked. Usual: 20.
        times: ≥ 2. Lower: more trajectories are masked. Usual: 10.

    Returns: float32 (rows,).
    Metrics: filter/repetition, the share of trajectories that are masked.
    """
    trajectories = {row.trajectory.id: row.trajectory for row in iteration.rows}
    most = {
        name: commonest_run([step.action.tokens for step in trajectory.steps], length=length)
        for name, trajectory in trajectories.items()
    }
    masked = sum(count >= times for count in most.values())
    iteration.metrics["filter/repetition"] = masked / max(len(most), 1)
    return mask_repetitive(torch.tensor([most[row.trajectory.id] for row in iteration.rows]), times=times)


def commonest_run(responses: Sequence[np.ndarray], *, length: int) -> int:
    """The number of times that the most common run of `length` tokens occurs in these responses."""
    runs: Counter[bytes] = Counter()
    for response in responses:
        tokens = np.asarray(response, np.int32)
        runs.update(tokens[at : at + length].tobytes() for at in range(len(tokens) - length + 1))
    return max(runs.values(), default=0)


def mask_repetitive(most: Tensor, *, times: int) -> Float[Tensor, " rows"]:
    """0 on rows of trajectories whose most common run occurs at least `times` times, else 1."""
    return (most < times).float()


# ---- unreadable text --------------------------------------------------------------------------------------
@register("weights", "unreadable_filter", reads=(), writes=("weight", "counts"), source="arXiv 2509.22601, public code")
def unreadable_filter(table: StepTable, iteration: Iteration, *, most: Share = 0.0) -> Float[Tensor, " rows"]:
    """w = 0 on all rows of a trajectory with too many unreadable characters, else 1.

    A character is unreadable if it cannot be printed and is no line end or tab, or if it marks broken bytes.

    Args:
        most: in [0, 1), the largest share of a trajectory's characters that may be unreadable. Higher: fewer are
            masked. Usual: 0.

    Returns: float32 (rows,). Acts without text are readable.
    Metrics: filter/unreadable, the share of trajectories that are masked.
    """
    trajectories = {row.trajectory.id: row.trajectory for row in iteration.rows}
    shares = {name: unreadable_share(trajectory) for name, trajectory in trajectories.items()}
    iteration.metrics["filter/unreadable"] = sum(share > most for share in shares.values()) / max(len(shares), 1)
    return mask_unreadable(torch.tensor([shares[row.trajectory.id] for row in iteration.rows]), most=most)


def unreadable_share(trajectory: Trajectory) -> float:
    """The share of unreadable characters in the texts of all actions."""
    text = "".join(step.action.text or "" for step in trajectory.steps)
    bad = sum(one == UNKNOWN or not (one.isprintable() or one in "\n\r\t") for one in text)
    return bad / max(len(text), 1)


def mask_unreadable(share: Tensor, *, most: float) -> Float[Tensor, " rows"]:
    """0 on rows of trajectories with a larger share of unreadable characters than `most`, else 1."""
    return (share <= most).float()


# ---- void turns -------------------------------------------------------------------------------------------
@register(
    "weights",
    "void_turn_filter",
    reads=(),
    reads_if={"unread": ("invalid?",)},
    writes=("weight", "counts"),
    source="arXiv 2509.22601; 2509.02479",
)
def void_turn_filter(table: StepTable, iteration: Iteration, *, unread: bool = True) -> Float[Tensor, " rows"]:
    """w = 0 on all rows of a trajectory that has a void turn, else 1.

    A turn is void if its text is blank, if a limit ended its generation, or, with `unread`, if the environment could
    not read it (column `invalid`). Acts of network policies have no text and are never blank.

    Args:
        unread: count turns that the environment could not read. Usual: true.

    Returns: float32 (rows,).
    Metrics: filter/void_turn, the share of trajectories that are masked.
    """
    void = torch.tensor([_is_void(row.step) for row in iteration.rows])
    if unread and "invalid" in table:
        void = void | (table["invalid"] > 0)
    codes, size = compact(table["trajectory"])
    weight = mask_void(void, codes)
    masked = torch.ones(size).index_copy_(0, codes, 1 - weight)
    iteration.metrics["filter/void_turn"] = float(masked.double().mean())
    return weight


def mask_void(void: Tensor, trajectory: Tensor) -> Float[Tensor, " rows"]:
    """0 on the rows of trajectories (given as codes) with a void turn, else 1."""
    codes = Key(*compact(trajectory))
    return (segment_sum(void, by=codes) == 0)[codes.codes].float()


def _is_void(step: Step) -> bool:
    blank = step.action.text is not None and not step.action.text.strip()
    return blank or step.action.finish in (FinishReason.LENGTH, FinishReason.CONTEXT)
