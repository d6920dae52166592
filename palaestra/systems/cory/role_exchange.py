"""Role exchange: a policy gradient after which, every so many iterations, the policies of roles exchange weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from palaestra.bound import BoundPart
from palaestra.data import Batch, Iteration, RunSetup
from palaestra.data.protocols import Learner
from palaestra.errors import RecipeError, nearest
from palaestra.registry import PositiveInt, register
from palaestra.rollout.programs import roles_of
from palaestra.training.policy_gradient import PolicyGradient, make_optimizer
from palaestra.training.settings import RunSettings

WHERE = "learner: role_exchange"


@register("learner", "role_exchange", reads=("advantage", "weight", "counts"), source="arXiv 2410.06101")
class RoleExchange(Learner):
    """Improve every trained policy as `policy_gradient` does; after each `every`-th iteration exchange weights.

        weights of role i  ←  weights of role (i + 1) mod n          n roles, each played by a policy of its own

    With two roles they swap, and swap back. References go with the weights that they are of. The name of a policy stays
    with the role: prompts, contexts, sampling and learning rates are the role's, and so are the metrics.

    Args:
        roles: at least two, all different.
        every: iterations between exchanges. Higher: weights learn one side longer. Usual: 5.
        optimizers: "new" makes them anew at each exchange, and with them the schedules of their learning rates; "kept":
            their state goes with the weights, as if the policies exchanged nothing but their names.

    Metrics: exchange/shift (by how many places the weights of this iteration had been moved).

    Raises: RecipeError, for fewer than two roles, one named twice, one that nobody plays or that is frozen; for
        policies that are not trained, play two of the roles, or differ in architecture, in having a reference or, where
        they are kept, in their optimizers; for episodes of older weights, which would teach the other policy.
    """

    def __init__(
        self, *, roles: tuple[str, ...], every: PositiveInt = 5, optimizers: Literal["new", "kept"] = "new"
    ) -> None:
        if len(roles) < 2 or len(set(roles)) < len(roles):
            raise RecipeError(
                where=WHERE,
                what=f"`roles: [{', '.join(roles)}]` cannot be exchanged.",
                remedy="Name two roles or more, each once.",
            )
        self._roles, self._every, self._optimizers = roles, every, optimizers
        self._gradient, self._players = PolicyGradient(), list[str]()

    @staticmethod
    def runs(settings: Any, policy: str) -> Sequence[Any]:
        """The loss and the regularizers of this policy."""
        return PolicyGradient.runs(settings, policy)

    def start(self, setup: RunSetup, policies: Mapping[str, Any]) -> None:
        """Make an optimizer for each policy, and look up who plays the roles."""
        self._gradient.start(setup, policies)
        self._settings: RunSettings = setup.settings
        self._refuse_roles(setup)
        self._players = [setup.role(role).policy.name for role in self._roles]
        self._refuse_players(policies)
        training = self._settings.training
        if training.max_staleness or training.lag:
            raise RecipeError(
                where=WHERE,
                what="episodes of weights before an exchange would teach the other policy.",
                remedy="Set `training.max_staleness` and `training.lag` to 0.",
            )

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """One iteration's updates, and the exchange where it is due."""
        metrics = self._gradient.update(batch, iteration)
        self.made, self.ready = self._gradient.made, self._gradient.ready
        if (iteration.number + 1) % self._every == 0:
            self._exchange(iteration.references)
        return {**metrics, "exchange/shift": float(iteration.number // self._every % len(self._roles))}

    def _exchange(self, references: Mapping[str, Any]) -> None:
        updaters = [self._gradient.updaters[name] for name in self._players]
        move([updater.policy.module for updater in updaters])
        if self._players[0] in references:
            move([references[name].module for name in self._players])
        if self._optimizers == "kept":
            move([updater.optimizer for updater in updaters])
        for name, updater in zip(self._players, updaters, strict=True):
            if self._optimizers == "new":
                updater.optimizer = make_optimizer(self._optimizer_of(name), updater.policy.module)
            updater.policy.weights_changed(updater.policy.version + 1)

    def _optimizer_of(self, name: str) -> BoundPart:
        return self._settings.policies[name].optimizer or self._settings.optimizer

    def has_signal(self, batch: Batch, iteration: Iteration) -> bool:
        """Whether a token that counts has an advantage."""
        return self._gradient.has_signal(batch, iteration)

    def state_dict(self) -> dict[str, Any]:
        """Optimizers, by policy; the number of the iteration says how often weights were exchanged."""
        return self._gradient.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self._gradient.load_state_dict(state)

    # ---- what is refused ----------------------------------------------------------------------------------
    def _refuse_roles(self, setup: RunSetup) -> None:
        """Raises: RecipeError, for a role that does not act, or that is frozen."""
        declared = roles_of(setup.program)
        acting = list(declared or setup.source.agents)
        if declared is None:  # then any role of the recipe may act
            acting += [name for name in setup.roles if name != "*" and name not in acting]
        for role in self._roles:
            if role not in acting:
                raise RecipeError(
                    where=f"{WHERE}, roles",
                    what=f"nobody is called `{role}`.",
                    options=nearest(role, acting),
                    remedy=f"Those who act are: {', '.join(acting)}.",
                )
            if setup.role(role).frozen:
                raise RecipeError(
                    where=f"agents.{role}.frozen",
                    what="a frozen role cannot be exchanged: nobody learns what it is about.",
                    remedy="Leave `frozen` out, or exchange other roles.",
                )

    def _refuse_players(self, policies: Mapping[str, Any]) -> None:
        """Raises: RecipeError, for policies that cannot stand in for each other."""
        played = ", ".join(f"{role} by {name}" for role, name in zip(self._roles, self._players, strict=True))
        if len({*self._players} & {*policies}) < len(self._players):
            raise RecipeError(
                where=WHERE,
                what=f"the roles are not played by as many policies that are trained ({played}).",
                remedy="Give each role a policy of its own in `agents`, and leave `trainable` out.",
            )
        settings = self._settings
        alike = {
            "architecture": [policies[name].architecture() for name in self._players],
            "reference": ["start" in (settings.reference, settings.policies[name].reference) for name in self._players],
        }
        if self._optimizers == "kept":
            alike["optimizer"] = [self._optimizer_of(name) for name in self._players]
        for what, values in alike.items():
            if any(value != values[0] for value in values):
                raise RecipeError(
                    where=WHERE,
                    what=f"the policies that are exchanged ({played}) differ in their {what}.",
                    remedy=f"Give them the same {what}.",
                )


def move(owners: Sequence[Any]) -> None:
    """Each takes over the state of the next one, the last one that of the first: modules, or optimizers."""
    first = copy.deepcopy(owners[0].state_dict())
    for owner, following in pairwise(owners):
        owner.load_state_dict(following.state_dict())
    owners[-1].load_state_dict(first)
