"""A policy-gradient learner that exchanges the weights of the policies of several roles every few iterations."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from palaestra.data import Batch, Iteration, RunSetup
from palaestra.data.protocols import Learner
from palaestra.errors import RecipeError, nearest
from palaestra.registry import PositiveInt, register
from palaestra.registry.bound import BoundPart
from palaestra.rollout.programs import roles_of
from palaestra.training.policy_gradient import PolicyGradient, make_optimizer
from palaestra.training.settings import RunSettings

WHERE = "learner: role_exchange"


@register("learner", "role_exchange", reads=("advantage", "weight", "counts"), source="arXiv 2410.06101")
class RoleExchange(Learner):
    """Update every trained policy as `policy_gradient` does; after each `every`-th iteration exchange weights.

        weights of role i  ←  weights of role (i + 1) mod n          n roles, each played by a policy of its own

    Two roles swap their weights, and the next exchange swaps them back. Reference weights move with the weights of
    their policy. The name of a policy stays with the role: prompts, contexts, sampling, learning rates and metrics
    belong to the role.

    Args:
        roles: names of the roles: at least two, all different.
        every: iterations between exchanges. Higher: weights stay in one role longer. Usual: 5.
        optimizers: "new" makes new optimizers, with new learning-rate schedules, at each exchange; "kept" moves the
            optimizer state with the weights, as if the policies exchanged only their names.

    Metrics: exchange/shift (by how many roles the weights of this iteration had been moved).

    Raises: RecipeError, for fewer than two roles, a role named twice, a role that no agent plays or that is frozen; for
        policies that are not trained, play two of the roles, or differ in architecture, in having a reference or, with
        "kept", in their optimizers; for stale or lagged episodes, which were played with the weights of another role.
    """

    def __init__(
        self, *, roles: tuple[str, ...], every: PositiveInt = 5, optimizers: Literal["new", "kept"] = "new"
    ) -> None:
        if len(roles) < 2 or len(set(roles)) < len(roles):
            raise RecipeError(
                where=WHERE,
                what=f"`roles: [{', '.join(roles)}]` cannot be exchanged.",
                remedy="Name at least two roles, each once.",
            )
        self._roles, self._every, self._optimizers = roles, every, optimizers
        self._gradient, self._players = PolicyGradient(), list[str]()

    @staticmethod
    def runs(settings: Any, policy: str) -> Sequence[Any]:
        """The loss and the regularizers of this policy."""
        return PolicyGradient.runs(settings, policy)

    def start(self, setup: RunSetup, policies: Mapping[str, Any]) -> None:
        """Make an optimizer for each policy, and find the policies of the roles."""
        self._gradient.start(setup, policies)
        self._settings: RunSettings = setup.settings
        self._refuse_roles(setup)
        self._players = [setup.role(role).policy.name for role in self._roles]
        self._refuse_players(policies)
        training = self._settings.training
        if training.max_staleness or training.lag:
            raise RecipeError(
                where=WHERE,
                what="after an exchange, stale or lagged episodes would train the weights of another role.",
                remedy="Set `training.max_staleness` and `training.lag` to 0.",
            )

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """Run one iteration's updates, and the exchange where it is due."""
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
        """The optimizers by policy; the number of exchanges follows from the iteration number."""
        return self._gradient.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the optimizers."""
        self._gradient.load_state_dict(state)

    # ---- what is refused ----------------------------------------------------------------------------------
    def _refuse_roles(self, setup: RunSetup) -> None:
        """Raises: RecipeError, for a role that does not act, or that is frozen."""
        declared = roles_of(setup.program)
        acting = list(declared or setup.source.agents)
        if declared is None:  # a program without a declaration may use any role of the recipe
            acting += [name for name in setup.roles if name != "*" and name not in acting]
        for role in self._roles:
            if role not in acting:
                raise RecipeError(
                    where=f"{WHERE}, roles",
                    what=f"there is no role `{role}`.",
                    options=nearest(role, acting),
                    remedy=f"Name roles that act: {', '.join(acting)}.",
                )
            if setup.role(role).frozen:
                raise RecipeError(
                    where=f"agents.{role}.frozen",
                    what="a frozen role cannot be exchanged, because its policy is not trained.",
                    remedy="Remove `frozen`, or exchange other roles.",
                )

    def _refuse_players(self, policies: Mapping[str, Any]) -> None:
        """Raises: RecipeError, for policies that cannot exchange their weights."""
        played = ", ".join(f"{role} by {name}" for role, name in zip(self._roles, self._players, strict=True))
        if len({*self._players} & {*policies}) < len(self._players):
            raise RecipeError(
                where=WHERE,
                what=f"the roles do not have one trained policy each ({played}).",
                remedy="Give each role its own policy in `agents`, and remove `trainable: false`.",
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
    """Load into each module or optimizer the state of the next one, and into the last one the state of the first."""
    first = copy.deepcopy(owners[0].state_dict())
    for owner, following in pairwise(owners):
        owner.load_state_dict(following.state_dict())
    owners[-1].load_state_dict(first)
