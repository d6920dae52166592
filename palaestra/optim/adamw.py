"""AdamW with warm-up, decay and a bound on the gradient.

Knows parameters and their gradients. Knows no loss and no model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any

import pydantic
import torch
from torch import Tensor

from palaestra.errors import CheckpointError
from palaestra.optim.rate import Count, Decay, Rate, bounded_gradient
from palaestra.registry import NonNegative, Positive, PositiveInt, register

Beta = Annotated[float, pydantic.Field(ge=0, lt=1)]


@register("optimizer", "adamw", source="arXiv 1711.05101")
class AdamW:
    """Adam with weight decay apart from the gradient; decay spares biases and norms (one dimension).

    Args:
        parameters: what is trained.
        lr: highest learning rate. Higher: faster, until it diverges. Usual: 1e-6 large models, 3e-4 small ones.
        betas: of the running mean and square. Usual: (0.9, 0.999); (0.9, 0.95) forgets old gradients sooner.
        eps: added to the root of the square.
        weight_decay: per unit of learning rate. Usual: 0–0.1.
        warmup: steps in which the rate rises evenly from lr / warmup.
        decay: after warm-up; "linear" and "cosine" reach 0 at `total_steps`, which they need.
        clip: largest norm of the whole gradient; None leaves it. Usual: 0.5–1.

    Raises: RecipeError, for a decay without `total_steps` or a warm-up that is not shorter.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        lr: Positive,
        betas: tuple[Beta, Beta] = (0.9, 0.999),
        eps: Positive = 1e-8,
        weight_decay: NonNegative = 0.0,
        warmup: Count = 0,
        decay: Decay = "constant",
        total_steps: PositiveInt | None = None,
        clip: Positive | None = 1.0,
    ) -> None:
        self.rate = Rate(highest=lr, warmup=warmup, decay=decay, total_steps=total_steps, owner="adamw")
        self.parameters = [p for p in parameters if p.requires_grad]
        matrices = [p for p in self.parameters if p.ndim > 1]
        vectors = [p for p in self.parameters if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.inner = torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=betas, eps=eps, fused=True)
        self.clip = clip
        self.steps = 0
        self.skipped = 0

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self.rate.at(self.steps)

    def zero(self) -> None:
        """Forget the gradients."""
        self.inner.zero_grad(set_to_none=True)

    def step(self) -> float:
        """Move the parameters. Returns the gradient's norm before clipping.

        A norm that is not finite is returned as it is, nothing moves, and `skipped` grows.
        """
        size = bounded_gradient(self.parameters, self.clip)
        if not math.isfinite(size):
            self.skipped += 1
            return size
        for group in self.inner.param_groups:
            group["lr"] = self.lr
        self.inner.step()
        self.steps += 1
        return size

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs."""
        return {"adam": self.inner.state_dict(), "steps": self.steps, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises: CheckpointError, if it belongs to other parameters.
        """
        ordered = [p for group in self.inner.param_groups for p in group["params"]]
        saved = state["adam"]["state"]
        count = sum(len(group["params"]) for group in state["adam"]["param_groups"])
        wrong = [i for i, one in saved.items() if i >= len(ordered) or one["exp_avg"].shape != ordered[i].shape]
        if count != len(ordered) or wrong:
            raise CheckpointError(
                where="optimizer: adamw",
                what=f"the saved state is of {count} other parameters; this policy has {len(ordered)}.",
                remedy="Resume with the recipe that wrote the checkpoint, or start a new run from its weights.",
            )
        self.inner.load_state_dict(state["adam"])
        self.steps, self.skipped = state["steps"], state["skipped"]
