"""Master weights: float32 copies of weights of low precision, which the optimizer changes.

A step is often smaller than half the distance of two bfloat16 numbers. It would be lost if it were added to the weights
themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from palaestra.data.protocols import Optimizer
from palaestra.errors import CheckpointError
from palaestra.models.precision import is_low
from palaestra.models.sharding import copied, spread_like


class MasterWeights(Optimizer):
    """An optimizer over float32 copies of a module's weights. After each step the weights are the rounded copies.

    Args:
        module: the module to train.
        make: makes the optimizer from a module.
    """

    def __init__(self, module: nn.Module, make: Callable[[nn.Module], Any]) -> None:
        masters = copied(module, lambda weight: weight.float() if is_low(weight) else weight)
        for parameter in masters.parameters():
            parameter.grad = None
        self.inner = make(masters)
        pairs = zip(module.parameters(), masters.parameters(), strict=True)
        self.pairs = [(own, master) for own, master in pairs if own.requires_grad]

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.inner.lr)

    @property
    def metrics(self) -> Mapping[str, float]:  # type: ignore[override]
        """Further numbers of the last step."""
        return self.inner.metrics  # type: ignore[no-any-return]

    def zero(self) -> None:
        """Forget the gradients."""
        self.inner.zero()
        for own, _ in self.pairs:
            own.grad = None

    def step(self) -> float:
        """Change the copies, then round them into the weights. Returns the norm of the gradient before clipping."""
        for own, master in self.pairs:
            master.grad = None if own.grad is None else own.grad.to(master.dtype)
            own.grad = None
        norm = float(self.inner.step())
        self._round()
        return norm

    def _round(self) -> None:
        with torch.no_grad():
            for own, master in self.pairs:
                own.copy_(master)

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer, and the copies."""
        return {"inner": self.inner.state_dict(), "masters": [master.detach() for _, master in self.pairs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. Raises: CheckpointError, if it belongs to other weights."""
        shapes = [tuple(master.shape) for _, master in self.pairs]
        if [tuple(saved.shape) for saved in state.get("masters", [])] != shapes:
            raise CheckpointError(
                where="optimizer",
                what="the saved state has no float32 copies of these weights.",
                remedy="Resume with the recipe and the `dtype` that wrote the checkpoint.",
            )
        with torch.no_grad():
            for (_, master), saved in zip(self.pairs, state["masters"], strict=True):
                master.copy_(spread_like(saved, master))
        self.inner.load_state_dict(state["inner"])
        self._round()
