"""The policy `sac_actor`: its actions are vectors within the environment's bounds."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from palaestra.data import Action, Observation, Row, RunSetup
from palaestra.data.abilities import box_of
from palaestra.data.protocols import Policy, Response, Sampling, Session
from palaestra.errors import CheckpointError, EpisodeFailure, RecipeError
from palaestra.models.devices import device_of
from palaestra.models.weight_files import load_weights, save_weights
from palaestra.policies.architecture import Widths, refuse_small, stored_architecture
from palaestra.policies.vectors import refuse_instruction
from palaestra.registry import register

LOG_STD = (-20.0, 2.0)  # bounds of the logarithm of a standard deviation
ARCHITECTURE, WEIGHTS = "sac_actor.json", "sac_actor.safetensors"


@register("policy", "sac_actor", ignores_if={"model": ("hidden",)}, uses=("vector", "box"), source="arXiv 1812.05905")
class SacActor(Policy):
    """A squashed Gaussian over vectors, for environments with the ability `box`.

        a = tanh(mu(o) + std(o) · eps),  eps ~ N(0, 1)        Action.value = middle + half · a

    `rollout.temperature` multiplies eps; at 0 the action is tanh(mu). The learner `sac` trains it. It reads
    `Observation.vector`; an act has no tokens.

    Args:
        model: a folder that `save` wrote; `hidden` is then read from it.
        hidden: widths of the layers, with ReLU between them. Higher: more capacity, slower. Usual: (256, 256).

    Raises: ContractError, for bounds that are not finite; RecipeError, for an environment without vectors or with
        numbered actions; CheckpointError, if `model` holds no such policy, or one of other sizes.
    """

    def __init__(self, name: str, setup: RunSetup, *, model: str | None = None, hidden: Widths = (256, 256)) -> None:
        box = box_of(setup.source)
        if box is None or not setup.vector_size:
            raise RecipeError(
                where=f"policies.{name}.policy: sac_actor",
                what=f"its actions are vectors, and the environment {'shows' if box else 'takes'} none.",
                remedy="Use an environment with the abilities `vector` and `box`, or the policy `network`.",
            )
        self.name, self.trainable, self.version = name, True, 0
        self.middle, self.half = (box[0] + box[1]) / 2, (box[1] - box[0]) / 2
        self.size, self.hidden = setup.vector_size, tuple(hidden)
        if model is not None:
            self.hidden = tuple(_stored(Path(model), self.architecture())["hidden"])
        actor = SquashedGaussian(self.size, len(self.middle), self.hidden, seed=setup.seed)
        if model is not None:
            load_weights(actor, Path(model) / WEIGHTS)
        self.module: SquashedGaussian = actor.to(setup.device)

    def session(self, *, context: Any, sampling: Sampling, key: Hashable) -> SacSession:
        """The session of one agent in one episode. Raises: RecipeError, for top-k or top-p, which a density does not
        have.
        """
        if sampling.top_k or sampling.top_p < 1:
            raise RecipeError(
                where=f"policy {self.name}",
                what=f"top_k={sampling.top_k} and top_p={sampling.top_p} are set, but it samples from a density.",
                remedy="Leave `rollout.top_k` at 0 and `rollout.top_p` at 1; `rollout.temperature` has an effect.",
            )
        return SacSession(self, sampling.temperature)

    def act(self, observation: Observation, *, temperature: float, seed: int) -> Action:
        """Sample an action. Raises: EpisodeFailure, without a vector of this size, or if the action is not finite."""
        refuse_instruction(observation, self.name)
        vector = observation.vector
        if vector is None or vector.size != self.size:
            found = "no vector" if vector is None else f"a vector of {vector.size} numbers"
            remedy = "Let the environment give `Observation.vector` in that size."
            self.fail(f"the observation has {found} instead of one of {self.size}.", remedy)
        noise = temperature * np.random.default_rng(seed).standard_normal(len(self.middle), np.float32)
        with torch.inference_mode():
            inputs = (torch.from_numpy(np.float32(one)).reshape(1, -1) for one in (vector, noise))
            action = self.module(*(one.to(device_of(self.module)) for one in inputs))[0][0].cpu().numpy()
        if not np.isfinite(action).all():
            remedy = "Check that the observation is finite; if it is, training has diverged: lower the learning rate."
            self.fail("the action is not finite.", remedy)
        value = self.middle + self.half * action
        return Action(text=" ".join(f"{number:.2f}" for number in value), value=value)

    def fail(self, what: str, remedy: str) -> NoReturn:
        """Raise an EpisodeFailure of this policy."""
        raise EpisodeFailure(boundary="engine", where=f"policy {self.name}", what=what, remedy=remedy)

    def unit(self, values: Float[Tensor, "rows numbers"]) -> Float[Tensor, "rows numbers"]:
        """Actions of the environment, scaled to the module's range [−1, 1]."""
        middle, half = (torch.from_numpy(one).to(values.device) for one in (self.middle, self.half))
        return ((values - middle) / half).clamp(-1, 1)

    def clone(self) -> SacActor:
        """The same policy with its own weights."""
        other = copy.copy(self)
        other.module = copy.deepcopy(self.module)
        return other

    def weights_changed(self, version: int) -> None:
        """Set the version; the learner calls this after its updates."""
        self.version = version

    def collate(self, rows: Sequence[Row], *, temperature: float) -> Any:
        """Raise a RecipeError: acts of this policy have no tokens for a loss per token."""
        raise RecipeError(
            where=f"policies.{self.name}.policy: sac_actor",
            what="a loss per token needs tokens, but its acts have no tokens: they are vectors.",
            remedy="Set `learner: sac`.",
        )

    def architecture(self) -> dict[str, Any]:
        """What two policies must have in common to exchange weights."""
        return {"kind": "sac_actor", "size": self.size, "numbers": len(self.middle), "hidden": list(self.hidden)}

    def save(self, folder: str) -> None:
        """Write `sac_actor.json` and `sac_actor.safetensors`; the option `model` reads them."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        (path / ARCHITECTURE).write_text(json.dumps(self.architecture(), indent=1))
        save_weights(self.module.state_dict(), path / WEIGHTS)


@dataclass(slots=True, eq=False)
class SacSession(Session):
    """One agent in one episode; it keeps no state."""

    policy: SacActor
    temperature: float

    async def act(self, observation: Observation, *, seed: int) -> Response:
        """Sample an action."""
        action = self.policy.act(observation, temperature=self.temperature, seed=seed)
        return Response(action=action, version=self.policy.version)

    def record(self, observation: Observation, action: Action) -> Response:
        """Return the given vector as a response. Raises: EpisodeFailure, for anything else."""
        if not isinstance(action.value, np.ndarray) or action.value.shape != self.policy.middle.shape:
            remedy = f"Record vectors of {len(self.policy.middle)} numbers as `Action.value`."
            self.policy.fail(f"the given action {action.value!r} is not one of its vectors.", remedy)
        return Response(action=action, version=self.policy.version)

    def fork(self, key: Hashable) -> SacSession:
        """A copy."""
        return replace(self)

    def end(self, observation: Observation | None) -> None:
        """There is nothing to free."""


# ---- the module -------------------------------------------------------------------------------------------
class SquashedGaussian(nn.Module):
    """Actions in (−1, 1) and their log-densities.

    Args:
        size: of the vectors.
        numbers: of the actions.
        hidden: widths of the layers.
        seed: of the initial weights.
    """

    def __init__(self, size: int, numbers: int, hidden: Sequence[int], *, seed: int) -> None:
        super().__init__()
        self.layers = layers((size, *hidden, 2 * numbers), seed=seed)

    def forward(
        self, vectors: Float[Tensor, "rows size"], noise: Float[Tensor, "rows numbers"]
    ) -> tuple[Float[Tensor, "rows numbers"], Float[Tensor, " rows"]]:
        """tanh(u) and its log pi, with u = mu + std · noise."""
        mean, log_std = self.layers(vectors).chunk(2, -1)
        log_std = log_std.clamp(*LOG_STD)
        before = mean + log_std.exp() * noise
        return before.tanh(), squashed_logprob(before, mean, log_std)


def squashed_logprob(
    before: Float[Tensor, "rows numbers"], mean: Float[Tensor, "rows numbers"], log_std: Float[Tensor, "rows numbers"]
) -> Float[Tensor, " rows"]:
    """log pi(tanh(u)) = log N(u; mean, std) − Σ log(1 − tanh(u)²).

    log(1 − tanh(u)²) = 2 · (log 2 − u − softplus(−2u)): the right side is finite for every u; the left side is log 0
    from about |u| = 9 on.
    """
    normal = -0.5 * ((before - mean) * (-log_std).exp()).square() - log_std - 0.5 * math.log(2 * math.pi)
    correction = 2 * (math.log(2) - before - nn.functional.softplus(-2 * before))
    return (normal - correction).sum(-1)


def layers(widths: Sequence[int], *, seed: int) -> nn.Sequential:
    """Linear layers with ReLU between them; weights are uniform in ±1/√(inputs) and depend on `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pieces = [piece for a, b in pairwise(widths) for piece in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*pieces[:-1])


def _stored(folder: Path, here: Mapping[str, Any]) -> dict[str, Any]:
    """The architecture of a saved actor. Raises: CheckpointError, if there is none, or one of other sizes."""
    if not (folder / ARCHITECTURE).exists():
        raise CheckpointError(
            where=str(folder),
            what=f"it holds no policy `sac_actor` (no file {ARCHITECTURE}).",
            remedy="Set `model` to a folder that a policy `sac_actor` was saved in, or leave it out.",
        )
    there = stored_architecture(folder / ARCHITECTURE, SacActor, sizes=("size", "numbers"), options=("hidden",))
    for key, what in (("size", "reads vectors"), ("numbers", "gives actions")):
        if there[key] != here[key]:
            raise CheckpointError(
                where=str(folder),
                what=f"its actor {what} of {there[key]} numbers; the environment has {here[key]}.",
                remedy="Use it with the environment that it was trained in.",
            )
    refuse_small(folder / WEIGHTS, (there["size"], *there["hidden"], 2 * there["numbers"]))
    return there
