"""What SPEAR and Dr.BoT leave out of the loss: void turns, repetitions, unreadable responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import segment_sum
from palaestra.data import FinishReason, Key, Step, StepTable, Trajectory
from palaestra.data.iteration import Iteration
from palaestra.data.keys import compact
from palaestra.registry import PositiveInt, register

Times = Annotated[int, pydantic.Field(ge=2)]


@register("weights", "repetition_filter", writes=("weight", "counts"), source="arXiv 2509.22601, public code")
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

    def __call__(self, table: StepTable, iteration: Iteration) -> Float[Tensor, " rows"]:
        whole = {row.trajectory.id: row.trajectory for row in iteration.rows}
        most = {name: self.most([step.action.tokens for step in one.steps]) for name, one in whole.items()}
        self._share = sum(count >= self._times for count in most.values()) / max(len(most), 1)
        return self.mask(torch.tensor([most[row.trajectory.id] for row in iteration.rows]))

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

    def learn(self, table: StepTable, iteration: Iteration) -> dict[str, float]:
        """Share of trajectories that were masked."""
        return {"filter/repetition": self._share}

    def state_dict(self) -> dict[str, Any]:
        """Nothing to remember."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to read."""


Share = Annotated[float, pydantic.Field(ge=0, lt=1)]
UNKNOWN = "\ufffd"  # what decoders write for bytes that are no character


@register("weights", "unreadable_filter", writes=("weight", "counts"), source="arXiv 2509.22601, public code")
class UnreadableFilter:
    """w = 0 on all rows of a trajectory with too many unreadable characters, else 1.

    Unreadable are characters that cannot be printed, but for line ends and tabs, and the mark for broken bytes.

    Args:
        most: in [0, 1), share of a trajectory's characters that may be unreadable. Higher: fewer are masked. Usual: 0.

    Called with a table it returns float32 (rows,). Acts without text are readable.
    """

    def __init__(self, *, most: Share = 0.0) -> None:
        self._most, self._share = most, 0.0

    def __call__(self, table: StepTable, iteration: Iteration) -> Float[Tensor, " rows"]:
        whole = {row.trajectory.id: row.trajectory for row in iteration.rows}
        shares = {name: unreadable_share(trajectory) for name, trajectory in whole.items()}
        self._share = sum(share > self._most for share in shares.values()) / max(len(shares), 1)
        return self.mask(torch.tensor([shares[row.trajectory.id] for row in iteration.rows]))

    def mask(self, share: Tensor) -> Float[Tensor, " rows"]:
        """0 on rows whose trajectory has a larger share of unreadable characters than may be."""
        return (share <= self._most).float()

    def learn(self, table: StepTable, iteration: Iteration) -> dict[str, float]:
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


@register("weights", "void_turn_filter", writes=("weight", "counts"), source="arXiv 2509.22601; 2509.02479")
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

    def __call__(self, table: StepTable, iteration: Iteration) -> Float[Tensor, " rows"]:
        void = torch.tensor([_is_void(row.step) for row in iteration.rows])
        if self._unread and "invalid" in table:
            void = void | (table["invalid"] > 0)
        return self.mask(void, table["trajectory"])

    def mask(self, void: Tensor, trajectory: Tensor) -> Float[Tensor, " rows"]:
        """0 on the rows of trajectories (codes) with a void turn."""
        whole = Key(*compact(trajectory))
        masked = segment_sum(void, by=whole) > 0
        self._share = float(masked.double().mean())
        return (~masked)[whole.codes].float()

    def learn(self, table: StepTable, iteration: Iteration) -> dict[str, float]:
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
