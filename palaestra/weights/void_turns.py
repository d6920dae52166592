"""Mask episodes with a void turn: one that neither acts nor answers.

Knows responses and why their generation ended. Knows nothing of rewards or advantages. It masks after advantages were
made, so that an episode without a result still counts in its group's mean.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import FinishReason, Key, Step, StepTable, segment_sum
from palaestra.data.protocols import Look
from palaestra.data.segments import compact
from palaestra.registry import register


@register("weights", "void_turn_filter", source="arXiv 2509.22601; 2509.02479")
class VoidTurnFilter:
    """w = 0 on all rows of a trajectory that has a void turn, else 1.

    A turn is void if its text is blank, if its generation was cut off by a limit, or, with `unread`, if the
    environment could not read it (column `invalid`). Acts of network policies have no text and are never blank.

    Args:
        unread: count turns that the environment could not read. Usual: true.

    Called with a table it returns float32 (rows,).
    """

    def __init__(self, *, unread: bool = True) -> None:
        self._unread, self._share = unread, 0.0

    def __call__(self, table: StepTable, look: Look) -> Float[Tensor, " rows"]:
        void = torch.tensor([_is_void(row.step) for row in look.rows])
        if self._unread and "invalid" in table:
            void = void | (table["invalid"] > 0)
        return self.mask(void, table["trajectory"])

    def mask(self, void: Tensor, trajectory: Tensor) -> Float[Tensor, " rows"]:
        """0 on the rows of trajectories (codes) with a void turn."""
        whole = Key(*compact(trajectory))
        masked = segment_sum(void, by=whole) > 0
        self._share = float(masked.double().mean())
        return (~masked)[whole.codes].float()

    def learn(self, table: StepTable, look: Look) -> dict[str, float]:
        """Share of trajectories that were masked."""
        return {"filter/void_turn": self._share}

    def state_dict(self) -> dict[str, Any]:
        """Nothing to remember."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to read."""


def _is_void(step: Step) -> bool:
    blank = step.action.text is not None and not step.action.text.strip()
    return blank or step.action.finish in (FinishReason.LENGTH, FinishReason.CONTEXT)
