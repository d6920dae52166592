"""Optimizers: AdamW and Muon, with warm-up and decay of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic
import torch
import transformers
from jaxtyping import Float
from torch import Tensor, nn

from palaestra.data.protocols import Optimizer
from palaestra.errors import CheckpointError, ContractError, InvalidData, RecipeError
from palaestra.models.sharding import load_optimizer, spread_like, whole
from palaestra.registry import Columns, NonNegative, Positive, PositiveInt, register

Beta = Annotated[float, pydantic.Field(ge=0, lt=1)]


@register("optimizer", "adamw", ignores_if={"decay=constant": ("total_steps",)}, source="arXiv 1711.05101")
class AdamW(Optimizer):
    """Adam with decoupled weight decay. Parameters of one dimension, such as biases and norms, do not decay.

    Args:
        parameters: the parameters to train.
        lr: highest learning rate. Higher: faster, until training diverges. Usual: 1e-6 (large models) to 3e-4 (small).
        betas: decay rates of the running mean and the running square. Usual: (0.9, 0.999); (0.9, 0.95) forgets old
            gradients sooner.
        eps: added to the root of the running square.
        weight_decay: per unit of learning rate. Usual: 0–0.1.
        warmup: number of steps in which the rate rises linearly from lr / warmup.
        decay: of the rate after warm-up. "linear" and "cosine" need `total_steps`, at which the rate is 0.
        total_steps: optimizer steps of the whole run: iterations × epochs × mini-batches. Used only with a decay.
        clip: largest norm of the whole gradient; None: no limit. Usual: 0.5–1.

    Raises: RecipeError, for a decay without `total_steps`, or if `total_steps` is not larger than `warmup`.
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
        """Update the parameters. Returns the norm of the gradient before clipping.

        If the norm is not finite, the parameters do not change and `skipped` grows by 1.
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
        """The state for a resumed run."""
        return {"adam": self.inner.state_dict(), "steps": self.steps, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state.

        Raises: CheckpointError, if it belongs to other parameters.
        """
        ordered = [p for group in self.inner.param_groups for p in group["params"]]
        saved = state["adam"]["state"]
        count = sum(len(group["params"]) for group in state["adam"]["param_groups"])
        wrong = [i for i, one in saved.items() if i >= len(ordered) or one["exp_avg"].shape != ordered[i].shape]
        if count != len(ordered) or wrong:
            raise CheckpointError(
                where="optimizer: adamw",
                what=f"the saved state is for {count} other parameters; this policy has {len(ordered)}.",
                remedy="Resume with the recipe that wrote the checkpoint, or start a new run from its weights.",
            )
        load_optimizer(self.inner, state["adam"])
        self.steps, self.skipped = state["steps"], state["skipped"]


Decay = Literal["constant", "linear", "cosine"]
Count = Annotated[int, pydantic.Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A learning rate with warm-up and decay.

    Attributes:
        highest: the rate after warm-up.
        warmup: number of steps in which the rate rises linearly from highest / warmup.
        decay: after warm-up. "linear" and "cosine" need `total_steps`, at which the rate is 0.
        owner: name of the optimizer, for errors.

    Raises: RecipeError, for a decay without `total_steps`, or if `total_steps` is not larger than `warmup`.
    """

    highest: float
    warmup: int
    decay: Decay
    total_steps: int | None
    owner: str

    def __post_init__(self) -> None:
        if self.decay != "constant" and (self.total_steps is None or self.total_steps <= self.warmup):
            raise RecipeError(
                where=f"optimizer: {self.owner}",
                what=f"`decay: {self.decay}` cannot have total_steps {self.total_steps} and warmup {self.warmup}.",
                remedy="Set `total_steps` to iterations × epochs × minibatches, and `warmup` below it.",
            )

    def at(self, steps: int) -> float:
        """The rate after this number of steps."""
        rate = self.highest * min(1.0, (steps + 1) / max(self.warmup, 1))
        if self.total_steps is None or self.decay == "constant" or steps < self.warmup:
            return rate
        done = min(1.0, (steps - self.warmup) / (self.total_steps - self.warmup))
        return rate * (1 - done if self.decay == "linear" else (1 + math.cos(math.pi * done)) / 2)


def bounded_gradient(parameters: Sequence[Tensor], largest: float | None) -> float:
    """Scale all gradients down to a norm of at most `largest`. Returns the norm before.

    If `largest` is None or the norm is not finite, nothing is scaled.
    """
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    size = float(whole(norm))
    if largest is not None and math.isfinite(size):
        torch.nn.utils.clip_grads_with_norm_(parameters, largest, norm)
    return size


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # the polynomial is steep at 0, so small singular values grow fastest
ROUNDS = 5
MATCH = 0.2  # root mean square of the entries of a step, about the same as with Adam


def orthogonalized(matrix: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """Bring all singular values near 1 by five rounds of Newton–Schulz, in float32.

        X = M / ‖M‖,   X ← a X + (b X Xᵀ + c (X Xᵀ)²) X,   (a, b, c) = (3.4445, −4.7750, 2.0315)

    Raises: InvalidData, if the tensor is not a matrix.
    """
    if matrix.ndim != 2:
        raise InvalidData(
            where="optimizer: muon",
            what=f"a parameter has the shape {tuple(matrix.shape)}, and only a matrix has singular values.",
            remedy="Name its module in `apart`, so that AdamW trains it.",
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
    """The weight matrices of a module, without embeddings, output heads and the modules that `apart` names."""
    outside = {id(p) for layer in module.modules() if isinstance(layer, nn.Embedding) for p in layer.parameters()}
    for model in module.modules():
        head = model.get_output_embeddings() if isinstance(model, transformers.PreTrainedModel) else None  # type: ignore[no-untyped-call]
        outside |= {id(p) for p in head.parameters()} if head is not None else set()
    return [
        p
        for name, p in module.named_parameters()
        if p.requires_grad and p.ndim == 2 and id(p) not in outside and not set(name.split(".")) & set(apart)
    ]


class MatrixSteps(Optimizer):
    """Updates matrices by orthogonalized momentum, and all other parameters by AdamW.

        M ← momentum · M + G,   W ← W − lr · (0.2 · sqrt(max(n, m)) · orthogonalized(M) + weight_decay · W)

    Args:
        module: the module to train.
        matrices: those of its parameters that get orthogonalized steps.
        clip: largest norm of the whole gradient; None: no limit.
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
        """Update the parameters, unless the gradient's norm is not finite. Returns the norm before clipping."""
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
        """The state for a resumed run."""
        adam = None if self.adam is None else self.adam.state_dict()
        return {"momentum": self.moved, "adam": adam, "steps": self.steps, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. Raises: CheckpointError, if it belongs to other parameters."""
        shapes = [tuple(p.shape) for p in self.matrices]
        if [tuple(m.shape) for m in state["momentum"]] != shapes or (state["adam"] is None) != (self.adam is None):
            raise CheckpointError(
                where=f"optimizer: {self.rate.owner}",
                what=f"the saved state is for {len(state['momentum'])} other matrices; this policy has {len(shapes)}.",
                remedy="Resume with the recipe that wrote the checkpoint, or start a new run from its weights.",
            )
        for own, saved in zip(self.moved, state["momentum"], strict=True):
            own.copy_(spread_like(saved, own))
        if self.adam is not None:
            load_optimizer(self.adam, state["adam"])
        self.steps, self.skipped = state["steps"], state["skipped"]


def refuse_no_matrices(matrices: Collection[nn.Parameter], *, owner: str) -> None:
    """Raises: ContractError, if there is no matrix to train with orthogonalized steps."""
    if not matrices:
        raise ContractError(
            where=f"optimizer: {owner}",
            what="the policy has no weight matrix beside its embeddings and heads, so nothing can be orthogonalized.",
            remedy="Use adamw, or name fewer modules in `apart`.",
        )


@register(
    "optimizer", "muon", ignores_if={"decay=constant": ("total_steps",)}, source="arXiv 2502.16982; arXiv 2507.20534"
)
def muon(
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
) -> MatrixSteps:
    """Train matrices by orthogonalized momentum, and vectors, embeddings and output heads by AdamW.

        M ← momentum · M + G,   O = 0.2 · sqrt(max(n, m)) · M with all singular values near 1 (Newton–Schulz)
        W ← W − lr · (O + weight_decay · W)

    The entries of O are about as large as those of a step of Adam, so both use the same learning rate.

    Args:
        module: the module to train.
        lr: highest learning rate, for AdamW too. Higher: faster, until training diverges. Usual: 2e-4; 1e-3 for small
            models.
        momentum: in [0, 1). Higher: smoother steps, which change direction more slowly. Usual: 0.95.
        weight_decay: per unit of learning rate, for matrices and embeddings. Usual: 0.1; 0 for short fine-tuning.
        betas, eps: of AdamW, for the other parameters.
        warmup, decay, total_steps, clip: as in `adamw`.
        apart: names of modules whose matrices AdamW trains, such as the heads of policies and critics.

    Returns: the optimizer.
    Raises: RecipeError, for a decay without `total_steps`; ContractError, if no matrix is left.
    Differs from the authors' code: Newton–Schulz runs in float32, not in bfloat16. So does it from `torch.optim.Muon`,
        whose steps are the same up to about 1 %.
    """
    rate = Rate(highest=lr, warmup=warmup, decay=decay, total_steps=total_steps, owner="muon")
    matrices = matrices_of(module, apart=apart)
    refuse_no_matrices(matrices, owner="muon")
    return MatrixSteps(
        module, matrices, rate=rate, momentum=momentum, weight_decay=weight_decay, betas=betas, eps=eps, clip=clip
    )
