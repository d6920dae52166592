"""Mask episodes that repeat themselves over and over.

Knows response tokens. Knows nothing of rewards or advantages. It masks after advantages were made, so that a
repetitive episode still counts in its group's mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.data.protocols import Look
from palaestra.registry import PositiveInt, register

Times = Annotated[int, pydantic.Field(ge=2)]


@register("weights", "repetition_filter", source="arXiv 2509.22601, public code")
class RepetitionFilter:
    """w = 0 on all rows of a trajectory in which some run of `length` response tokens occurs `times` times, else 1.

    Runs lie inside one response and may overlap: one token 29 times over is a run of 20 ten times.

    Args:
        length: > 0, tokens of a run. Lower: more is called repetitive. Usual: 20.
        times: ≥ 2. Lower: more is called repetitive. Usual: 10.

    Called with a table it returns float32 (rows,).
    """

    def __init__(self, *, length: PositiveInt = 20, times: Times = 10) -> None:
        self._length, self._times, self._share = length, times, 0.0

    def __call__(self, table: StepTable, look: Look) -> Float[Tensor, " rows"]:
        whole = {row.trajectory.id: row.trajectory for row in look.rows}
        most = {name: self.most([step.action.tokens for step in one.steps]) for name, one in whole.items()}
        self._share = sum(count >= self._times for count in most.values()) / max(len(most), 1)
        return self.mask(torch.tensor([most[row.trajectory.id] for row in look.rows]))

    def most(self, responses: Sequence[np.ndarray]) -> int:
        """How often the commonest run occurs in these responses."""
        runs: Counter[bytes] = Counter()
        for response in responses:
            tokens = np.asarray(response, np.int32)
            runs.update(tokens[at : at + self._length].tobytes() for at in range(len(tokens) - self._length + 1))
        return max(runs.values(), default=0)

    def mask(self, most: Tensor) -> Float[Tensor, " rows"]:
        """0 on rows whose trajectory's commonest run occurs too often."""
        return (most < self._times).float()

    def learn(self, table: StepTable, look: Look) -> dict[str, float]:
        """Share of trajectories that were masked."""
        return {"filter/repetition": self._share}

    def state_dict(self) -> dict[str, Any]:
        """Nothing to remember."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to read."""
