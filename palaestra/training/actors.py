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

from palaestra.data import RunSetup
from palaestra.registry import part
from palaestra.training.build import connect_engine
from palaestra.training.settings import RunSettings

Weights = Mapping[str, tuple[int, Mapping[str, Tensor]]]  # policy → version and state of its module


class Actors:
    """The policies of a setup a second time, with a setup, an engine and a runner of their own.

    Attributes:
        policies: by name; those without weights are the setup's own. runner: plays with them.
    """

    def __init__(self, settings: RunSettings, setup: RunSetup) -> None:
        self._learners = {name: policy for name, policy in setup.policies.items() if hasattr(policy, "module")}
        self.policies: dict[str, Any] = {**setup.policies, **{n: p.twin() for n, p in self._learners.items()}}
        connect_engine(self.policies, setup.device)
        roles = {
            name: dataclasses.replace(role, policy=self.policies[role.policy.name])
            for name, role in setup.roles.items()
        }
        self.setup: RunSetup = dataclasses.replace(setup, roles=roles, policies=self.policies)
        self.runner = self.setup.runner = part("rollout", settings.rollout.runner).target(self.setup, settings.rollout)

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
