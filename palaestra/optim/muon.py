"""Muon: steps whose singular values are all alike, for the weight matrices of hidden layers.

Knows a module's parameters and their gradients. Knows no loss and no attention.
"""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
from torch import nn

from palaestra.optim.orthogonal import MatrixSteps, matrices_of, refuse_no_matrices
from palaestra.optim.rate import Count, Decay, Rate
from palaestra.registry import Columns, NonNegative, Positive, PositiveInt, register

Beta = Annotated[float, pydantic.Field(ge=0, lt=1)]


@register("optimizer", "muon", source="arXiv 2502.16982; arXiv 2507.20534")
class Muon:
    """Orthogonalized momentum for matrices, AdamW for vectors, embeddings and output heads.

        M ← momentum · M + G,   O = 0.2 · sqrt(max(n, m)) · M with all singular values near 1 (Newton–Schulz)
        W ← W − lr · (O + weight_decay · W)

    An entry of O is about as large as one of Adam's step, so that one learning rate serves both.

    Args:
        module: what is trained.
        lr: highest learning rate, as for AdamW. Higher: faster, until it diverges. Usual: 2e-4, small models 1e-3.
        momentum: in [0, 1). Higher: smoother, slower to turn. Usual: 0.95.
        weight_decay: per unit of learning rate, of matrices and embeddings. Usual: 0.1; 0 for short fine-tuning.
        betas, eps: of AdamW for the rest.
        warmup, decay, total_steps, clip: as in `adamw`.
        apart: names of modules whose matrices are left to AdamW: heads of policies and critics.

    Raises: RecipeError, for a decay without `total_steps`; ContractError, if no matrix is left.
    Differs from the authors' code: Newton–Schulz runs in float32, not in bfloat16.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        lr: Positive,
        momentum: Beta = 0.95,
        weight_decay: NonNegative = 0.1,
        betas: tuple[Beta, Beta] = (0.9, 0.999),
        eps: Positive = 1e-8,
        warmup: Count = 0,
        decay: Decay = "constant",
        total_steps: PositiveInt | None = None,
        clip: Positive | None = 1.0,
        apart: Columns = ("actor", "critic", "value"),
    ) -> None:
        rate = Rate(highest=lr, warmup=warmup, decay=decay, total_steps=total_steps, owner="muon")
        matrices = matrices_of(module, apart=apart)
        refuse_no_matrices(matrices, owner="muon")
        self.inner = MatrixSteps(
            module, matrices, rate=rate, momentum=momentum, weight_decay=weight_decay, betas=betas, eps=eps, clip=clip
        )

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self.inner.lr

    @property
    def skipped(self) -> int:
        """Steps that a gradient which was not finite has prevented."""
        return self.inner.skipped

    def zero(self) -> None:
        """Forget the gradients."""
        self.inner.zero()

    def step(self) -> float:
        """Move the parameters. Returns the gradient's norm before clipping; one that is not finite moves nothing."""
        return self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs."""
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken. Raises: CheckpointError, if it belongs to other parameters."""
        self.inner.load_state_dict(state)
