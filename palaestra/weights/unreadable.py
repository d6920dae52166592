"""Mask episodes whose text cannot be read.

Knows texts of actions. Knows nothing of rewards or advantages. It masks after advantages were made, so that such an
episode still counts in its group's mean.
"""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable, Trajectory
from palaestra.data.protocols import Look
from palaestra.registry import register

Share = Annotated[float, pydantic.Field(ge=0, lt=1)]
UNKNOWN = "\ufffd"  # what decoders write for bytes that are no character


@register("weights", "unreadable_filter", source="arXiv 2509.22601, public code")
class UnreadableFilter:
    """w = 0 on all rows of a trajectory with too many unreadable characters, else 1.

    Unreadable are characters that cannot be printed, but for line ends and tabs, and the mark for broken bytes.

    Args:
        most: in [0, 1), share of a trajectory's characters that may be unreadable. Higher: fewer are masked. Usual: 0.

    Called with a table it returns float32 (rows,). Acts without text are readable.
    """

    def __init__(self, *, most: Share = 0.0) -> None:
        self._most, self._share = most, 0.0

    def __call__(self, table: StepTable, look: Look) -> Float[Tensor, " rows"]:
        whole = {row.trajectory.id: row.trajectory for row in look.rows}
        shares = {name: unreadable_share(trajectory) for name, trajectory in whole.items()}
        self._share = sum(share > self._most for share in shares.values()) / max(len(shares), 1)
        return self.mask(torch.tensor([shares[row.trajectory.id] for row in look.rows]))

    def mask(self, share: Tensor) -> Float[Tensor, " rows"]:
        """0 on rows whose trajectory has a larger share of unreadable characters than may be."""
        return (share <= self._most).float()

    def learn(self, table: StepTable, look: Look) -> dict[str, float]:
        """Share of trajectories that were masked."""
        return {"filter/unreadable": self._share}

    def state_dict(self) -> dict[str, Any]:
        """Nothing to remember."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to read."""


def unreadable_share(trajectory: Trajectory) -> float:
    """Share of the characters of all actions that cannot be read."""
    text = "".join(step.action.text or "" for step in trajectory.steps)
    bad = sum(one == UNKNOWN or not (one.isprintable() or one in "\n\r\t") for one in text)
    return bad / max(len(text), 1)
