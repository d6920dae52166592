"""The optimizer `muon_clip`: Muon, which after each step bounds the attention logits of every head."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import pydantic
from torch import nn

from palaestra.data.protocols import Optimizer
from palaestra.parts.optimizers import Count, Decay, MatrixSteps, Rate, matrices_of, refuse_no_matrices
from palaestra.registry import Columns, NonNegative, Positive, PositiveInt, register
from palaestra.systems.kimi_rl.attention import AttentionMeter, bound_logits

Beta = Annotated[float, pydantic.Field(ge=0, lt=1)]


@register(
    "optimizer",
    "muon_clip",
    ignores_if={"decay=constant": ("total_steps",), "matrices=adamw": ("momentum", "apart")},
    uses=("transformer",),
    source="arXiv 2507.20534",
)
class MuonClip(Optimizer):
    """Step with `muon`, then shrink the heads whose attention logits are too large (QK-Clip).

        S_h = largest logit of head h over the step's batch,   gamma_h = min(1, tau / S_h)
        W_q, W_k ·= sqrt(gamma_h) for the rows of head h;   where heads share keys, W_q ·= gamma_h alone

    S is measured with the weights before the step; the change that the step makes to the logits is measured in the
    next.

    Args:
        module: what is trained; its language models are measured from now on (`AttentionMeter`).
        tau: > 0, the bound on the logits; infinity is `muon`. Lower: attention stays softer. Usual: 100.
        matrices: the optimizer of the matrices: "muon", or "adamw", which is AdamW with QK-Clip.
        lr: highest learning rate, as for `muon`. Higher: faster, until it diverges. Usual: 2e-4, small models 1e-3.
        momentum: in [0, 1), of the matrices. Higher: smoother, slower to turn. Usual: 0.95.
        weight_decay: per unit of learning rate, of matrices and embeddings. Usual: 0.1; 0 for short fine-tuning.
        betas, eps: of AdamW, for the other parameters.
        warmup, decay, total_steps, clip: as in `adamw`.
        apart: names of modules whose matrices AdamW trains: heads of policies and critics.

    Raises: RecipeError, for a decay without `total_steps`; ContractError, if there is no matrix to train, or if the
        attention cannot be bounded by its projections; InvalidData, for a logit that is not finite.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        lr: Positive,
        tau: Positive = 100.0,
        matrices: Literal["muon", "adamw"] = "muon",
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
        rate = Rate(highest=lr, warmup=warmup, decay=decay, total_steps=total_steps, owner="muon_clip")
        orthogonal = matrices_of(module, apart=apart) if matrices == "muon" else []
        if matrices == "muon":
            refuse_no_matrices(orthogonal, owner="muon_clip")
        self.inner = MatrixSteps(
            module, orthogonal, rate=rate, momentum=momentum, weight_decay=weight_decay, betas=betas, eps=eps, clip=clip
        )
        self.meter, self.tau = AttentionMeter(module), tau
        self.metrics: dict[str, float] = {}

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self.inner.lr

    @property
    def skipped(self) -> int:
        """How many steps were skipped because a gradient was not finite."""
        return self.inner.skipped

    def zero(self) -> None:
        """Set the gradients to zero and begin a new measurement, for a new batch."""
        self.inner.zero()
        self.meter.reset()

    def step(self) -> float:
        """Update the parameters, then shrink heads by the logits measured since `zero`. Returns the gradient's norm.

        A gradient that is not finite changes nothing. `metrics` then holds policy/attention_logit, the largest logit of
        all heads, and policy/clipped_heads, the share of heads that were shrunk.
        """
        size = self.inner.step()
        self.metrics = {}
        if not math.isfinite(size):
            return size
        largest = self.meter.largest()
        gammas = [bound_logits(layer, own, tau=self.tau) for layer, own in zip(self.meter.layers, largest, strict=True)]
        heads = sum(len(gamma) for gamma in gammas)
        self.metrics["policy/clipped_heads"] = sum(int((gamma < 1).sum()) for gamma in gammas) / heads
        top = max(float(own.max()) for own in largest)
        if math.isfinite(top):
            self.metrics["policy/attention_logit"] = top
        return size

    def state_dict(self) -> dict[str, Any]:
        """The state of the inner optimizer."""
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave. Raises: CheckpointError, if it belongs to other parameters."""
        self.inner.load_state_dict(state)
