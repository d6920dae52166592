"""The policy-gradient learner, which updates every trained policy by its loss, regularizers and optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from palaestra.data import Batch, Iteration, RunSetup, derive
from palaestra.data.protocols import Learner, Optimizer, complete
from palaestra.errors import PalaestraError, RecipeError
from palaestra.models.precision import is_low
from palaestra.models.sharding import is_spread, whole
from palaestra.registry import register
from palaestra.registry.bound import BoundPart
from palaestra.training.master_weights import MasterWeights
from palaestra.training.settings import RunSettings
from palaestra.training.updates import Updater

EXPLODED = 100.0  # times as large as before: weights after which a policy is nothing that was learned


@register("learner", "policy_gradient", reads=("weight", "counts"))
class PolicyGradient(Learner):
    """Update every trained policy by its loss and its regularizers. Each policy has its own optimizer.

    The recipe names them: `loss`, `regularizers`, `aggregate`, `optimizer`, `training.epochs`, `training.minibatches`
    and the keys of the same names in `policies`. With several policies, metrics carry the policy's name. An estimator
    runs if one of these parts reads its columns.
    """

    def __init__(self) -> None:
        self.updaters: dict[str, Updater] = {}
        self._due: list[str] = []
        self._sizes: dict[str, float] = {}  # the norm of each policy's weights after its last updates
        self._marks: dict[str, list[int]] = {}  # `weight_marks` of each policy after its last updates

    @staticmethod
    def runs(settings: RunSettings, policy: str) -> Sequence[BoundPart]:
        """The loss and the regularizers of this policy."""
        own = settings.policies[policy]
        return [own.loss or settings.loss, *(settings.regularizers if own.regularizers is None else own.regularizers)]

    def start(self, setup: RunSetup, policies: Mapping[str, Any]) -> None:
        """Make an optimizer for each policy. Raises: RecipeError, for one without log-probabilities of tokens."""
        for name, policy in policies.items():
            if "logprob" not in policy.outputs:
                raise RecipeError(
                    where=f"policies.{name}.policy: {setup.settings.policies[name].policy.name}",
                    what="its acts have no tokens, and the learner `policy_gradient` needs their log-probabilities.",
                    remedy="Set `learner` to one that is written for this kind of policy.",
                )
        self._settings: RunSettings = setup.settings
        self._ranks = setup.ranks
        self.updaters = {name: self._updater(name, policy) for name, policy in policies.items()}

    def _updater(self, name: str, policy: Any) -> Updater:
        settings, own = self._settings, self._settings.policies[name]
        loss, *regularizers = self.runs(settings, name)
        return Updater(
            policy=policy,
            optimizer=make_optimizer(own.optimizer or settings.optimizer, policy.module),
            loss=loss,
            regularizers=regularizers,
            how=settings.aggregate.how,
            constant=settings.aggregate.constant,
            epochs=own.epochs or settings.training.epochs,
            minibatches=own.minibatches or settings.training.minibatches,
            token_budget=settings.training.tokens_at_once,
            several=settings.several_updates,
            stop_kl=settings.training.stop_kl,
            agent_gradients=settings.training.agent_gradients,
            ranks=self._ranks,
        )

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """The updates of one iteration, for the policies that are due (`policies.….every`)."""
        metrics: dict[str, float] = {}
        self._due = self._settings.due(iteration.number, self.updaters)
        self.made = 0
        for name in self._due:
            updater = self.updaters[name]
            size = self._sizes.get(name) or weight_norm(updater.policy.module)
            marks = self._marks.get(name) or weight_marks(updater.policy.module)
            of_policy = updater.update(batch, iteration, seed=derive(self._settings.seed, "update", iteration.number))
            self.made = max(self.made, updater.made)
            if updater.made:
                self._sizes[name] = weight_norm(updater.policy.module)
                refuse_exploded(f"policy {name}", size, self._sizes[name], rate="optimizer.…lr")
                self._marks[name] = weight_marks(updater.policy.module)
                if not self._ranks.sum_numbers({"changed": float(marks != self._marks[name] or not marks)})["changed"]:
                    of_policy["policy/unchanged"] = 1.0
            if of_policy:
                updater.policy.weights_changed(updater.policy.version + 1)
            if len(self.updaters) > 1:
                of_policy = {f"policy/{name}/{key.removeprefix('policy/')}": of_policy[key] for key in of_policy}
            metrics |= of_policy
        return metrics

    @property
    def ready(self) -> bool:  # type: ignore[override]
        """Whether a policy was due in the last iteration."""
        return bool(self._due)

    def has_signal(self, batch: Batch, iteration: Iteration) -> bool:
        """Whether a token that counts, of a trained policy, has an advantage other than 0.

        Regularizers give no signal, since a run that only they change does not learn its task. A loss that learns
        without advantages always has a signal.
        """
        learns_without = any(updater.loss.part.every_token for updater in self.updaters.values())
        if learns_without or "advantage" not in batch.table:
            return True
        moves = (batch.table["counts"] > 0) & (batch.table["advantage"] != 0)
        acted = [iteration.samples(name) for name in self.updaters if iteration.acted(name)]
        return any(bool(moves[torch.from_numpy(samples.token_index)].any()) for samples in acted)

    def state_dict(self) -> dict[str, Any]:
        """By policy, the optimizer's state, and the number of updates in a row without a finite gradient."""
        return {
            name: {"optimizer": updater.optimizer.state_dict(), "spoiled": updater.spoiled}
            for name, updater in self.updaters.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        for name, updater in self.updaters.items():
            updater.optimizer.load_state_dict(state[name]["optimizer"])
            updater.spoiled = int(state[name]["spoiled"])


def weight_norm(module: Any) -> float:
    """The root of the sum of squares of the weights that are trained; of spread weights, of all their slices."""
    norms = [p.detach().float().norm() for p in module.parameters() if p.requires_grad]
    return float(torch.stack([whole(norm).double() for norm in norms]).norm()) if norms else 0.0


def weight_marks(module: Any) -> list[int]:
    """A number for each weight that is trained, the sum of its bits. A weight that changes has another one.

    Of spread weights it is that of this process's slice. With weights of low precision the list is empty: small steps
    change only their float32 copies.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    if any(is_low(p) for p in trained):
        return []
    held = [p.detach().to_local() if is_spread(p) else p.detach() for p in trained]  # type: ignore[attr-defined]
    sums = [p.view(torch.int64 if p.itemsize == 8 else torch.int32).sum(dtype=torch.int64) for p in held]
    return torch.stack(sums).tolist() if sums else []


def refuse_exploded(where: str, before: float, after: float, *, rate: str) -> None:
    """Refuse updates of one iteration, or of a warm start, that have made the weights of a model many times larger.

    Args:
        where: the model. before, after: norms of its weights. rate: the setting that is its learning rate.

    Raises: PalaestraError.
    """
    if math.isfinite(after) and (before == 0 or after <= EXPLODED * before):
        return
    raise PalaestraError(
        where=where,
        what=f"the updates changed the norm of its weights from {before:.3g} to {after:.3g}.",
        remedy=f"Lower the learning rate (`{rate}`). No checkpoint has these weights.",
    )


def make_optimizer(optimizer: BoundPart, module: Any) -> Any:
    """Make a policy's optimizer, from the module if its first parameter is called `module`, else from the weights.

    For weights of low precision it has float32 copies.
    """

    def make(module: Any) -> Any:
        made = optimizer(module if "module" in optimizer.part.data else list(module.parameters()))
        return complete(made, Optimizer, where=f"optimizer: {optimizer.name}")

    low = any(p.requires_grad and is_low(p) for p in module.parameters())
    return MasterWeights(module, make) if low else make(module)
