"""Orthogonal steps for matrices, Adam for the rest: what optimizers of the Muon family share.

Knows parameters, their names and their gradients. Knows no loss and no attention.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from palaestra.errors import CheckpointError, ContractError, InvalidData
from palaestra.optim.rate import Rate, bounded_gradient

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # steep at 0: small singular values grow fastest
ROUNDS = 5
MATCH = 0.2  # root mean square of an entry of the step, about that of Adam


def orthogonalized(matrix: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """All singular values brought near 1, five rounds of Newton–Schulz, float32.

        X = M / ‖M‖,   X ← a X + (b X Xᵀ + c (X Xᵀ)²) X,   (a, b, c) = (3.4445, −4.7750, 2.0315)

    Raises: InvalidData, for what is no matrix.
    """
    if matrix.ndim != 2:
        raise InvalidData(
            where="optimizer: muon",
            what=f"a parameter of shape {tuple(matrix.shape)} is no matrix and has no singular values.",
            remedy="Vectors belong to AdamW; name their module in `apart`.",
        )
    a, b, c = NEWTON_SCHULZ
    x = matrix.float()
    tall = x.shape[0] > x.shape[1]
    x = (x.T if tall else x) / x.norm().clamp_min(1e-12)
    for _ in range(ROUNDS):
        square = x @ x.T
        x = a * x + (b * square + c * (square @ square)) @ x
    out: Tensor = x.T if tall else x
    return out


def matrices_of(module: nn.Module, *, apart: Collection[str]) -> list[nn.Parameter]:
    """Hidden weight matrices in the module's order: no embeddings, no output heads, nothing that `apart` names."""
    outside = {id(p) for layer in module.modules() if isinstance(layer, nn.Embedding) for p in layer.parameters()}
    for model in module.modules():
        head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None  # type: ignore[no-untyped-call]
        outside |= {id(p) for p in head.parameters()} if head is not None else set()
    return [
        p
        for name, p in module.named_parameters()
        if p.requires_grad and p.ndim == 2 and id(p) not in outside and not set(name.split(".")) & set(apart)
    ]


class MatrixSteps:
    """Moves matrices by orthogonalized momentum and everything else by AdamW.

        M ← momentum · M + G,   W ← W − lr · (0.2 · sqrt(max(n, m)) · orthogonalized(M) + weight_decay · W)

    Args:
        module: what is trained. matrices: those of its parameters that get orthogonal steps.
        clip: largest norm of the whole gradient; None leaves it.
        owner: name of the optimizer, for messages.
    """

    def __init__(
        self,
        module: nn.Module,
        matrices: list[nn.Parameter],
        *,
        rate: Rate,
        momentum: float,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
        clip: float | None,
    ) -> None:
        mine = {id(p) for p in matrices}
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.matrices = matrices
        rest = [p for p in self.parameters if id(p) not in mine]
        groups = [
            {"params": [p for p in rest if p.ndim > 1], "weight_decay": weight_decay},
            {"params": [p for p in rest if p.ndim <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        self.adam = torch.optim.AdamW(groups, lr=rate.highest, betas=betas, eps=eps, fused=True) if groups else None
        self.rate, self.momentum, self.weight_decay, self.clip = rate, momentum, weight_decay, clip
        self.moved = [torch.zeros_like(p) for p in matrices]
        self.steps = self.skipped = 0

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self.rate.at(self.steps)

    def zero(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> float:
        """Move the parameters. Returns the gradient's norm before clipping; one that is not finite moves nothing."""
        size = bounded_gradient(self.parameters, self.clip)
        if not math.isfinite(size):
            self.skipped += 1
            return size
        rate = self.lr
        with torch.no_grad():
            for parameter, momentum in zip(self.matrices, self.moved, strict=True):
                self._move(parameter, momentum, rate)
        if self.adam is not None:
            for group in self.adam.param_groups:
                group["lr"] = rate
            self.adam.step()
        self.steps += 1
        return size

    def _move(self, parameter: nn.Parameter, momentum: Tensor, rate: float) -> None:
        if parameter.grad is None:
            return
        momentum.mul_(self.momentum).add_(parameter.grad)
        step = orthogonalized(momentum) * (MATCH * math.sqrt(max(parameter.shape)))
        parameter.mul_(1 - rate * self.weight_decay).sub_(step.to(parameter.dtype), alpha=rate)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs."""
        adam = None if self.adam is None else self.adam.state_dict()
        return {"momentum": self.moved, "adam": adam, "steps": self.steps, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken. Raises: CheckpointError, if it belongs to other parameters."""
        shapes = [tuple(p.shape) for p in self.matrices]
        if [tuple(m.shape) for m in state["momentum"]] != shapes or (state["adam"] is None) != (self.adam is None):
            raise CheckpointError(
                where=f"optimizer: {self.rate.owner}",
                what=f"the saved state is of {len(state['momentum'])} other matrices; this policy has {len(shapes)}.",
                remedy="Resume with the recipe that wrote the checkpoint, or start a new run from its weights.",
            )
        for own, saved in zip(self.moved, state["momentum"], strict=True):
            own.copy_(saved)
        if self.adam is not None:
            self.adam.load_state_dict(state["adam"])
        self.steps, self.skipped = state["steps"], state["skipped"]


def refuse_no_matrices(matrices: Collection[nn.Parameter], *, owner: str) -> None:
    """Raises: ContractError, if there is nothing for orthogonal steps."""
    if not matrices:
        raise ContractError(
            where=f"optimizer: {owner}",
            what="the policy has no weight matrix beside its embeddings and heads: nothing to orthogonalize.",
            remedy="Use adamw, or leave fewer modules out by `apart`.",
        )
