"""Actors: copies of the policies that act with weights of their own, while or after the others learn.

Knows worlds, policies and their weights. Knows nothing of when weights are handed over.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from palaestra.registry import part
from palaestra.rollout.stage import Stage
from palaestra.training.build import World, connect_engine
from palaestra.training.settings import RunSettings

Weights = Mapping[str, tuple[int, Mapping[str, Tensor]]]  # policy → version and state of its module


class Actors:
    """The policies of a world a second time, with a stage, an engine and a runner of their own.

    Attributes:
        policies: by name; those without weights are the world's own. runner: plays with them.
    """

    def __init__(self, settings: RunSettings, world: World) -> None:
        self._learners = {name: policy for name, policy in world.policies.items() if policy.module is not None}
        self.policies: dict[str, Any] = {**world.policies, **{n: p.twin() for n, p in self._learners.items()}}
        connect_engine(self.policies, world.setting.device)
        roles = {
            name: dataclasses.replace(role, policy=self.policies[role.policy.name])
            for name, role in world.stage.roles.items()
        }
        self.stage: Stage = dataclasses.replace(world.stage, roles=roles)
        self.runner = part("rollout", settings.rollout.runner).target(self.stage, settings.rollout)

    def weights(self) -> Weights:
        """A copy of what the learners know now."""
        return {n: (p.version, copy.deepcopy(p.module.state_dict())) for n, p in self._learners.items()}

    def disturb(self, share: float, *, seed: int) -> None:
        """Add noise to every tensor of the acting weights: normal, with this share of the tensor's own deviation."""
        draw = torch.Generator().manual_seed(seed % 2**63)
        for name in self._learners:
            module = self.policies[name].module
            with torch.no_grad():
                for p in module.parameters():
                    if p.numel() > 1:
                        p += share * p.std() * torch.randn(p.shape, generator=draw).to(p.device)
            self.policies[name].weights_changed(self.policies[name].version)

    def follow(self, weights: Weights | None = None, *, again: bool = False) -> None:
        """Act with these weights from now on; None: with the learners' present ones.

        Args:
            again: take them even if they are of the version that acts already.
        """
        for name, policy in self._learners.items():
            version, state = (policy.version, policy.module.state_dict()) if weights is None else weights[name]
            twin = self.policies[name]
            if again or twin.version != version:
                twin.module.load_state_dict(state)
                twin.weights_changed(version)

    def close(self) -> None:
        """End the runner's workers."""
        self.runner.close()
