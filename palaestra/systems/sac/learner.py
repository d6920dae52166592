"""The learner `sac`: two critics with target networks, a replay buffer, and an entropy weight that is learned."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
import pydantic
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from palaestra.data import Batch, Iteration, RunSetup, derive
from palaestra.data.protocols import Learner
from palaestra.errors import CheckpointError, RecipeError
from palaestra.models.devices import device_of
from palaestra.parts.optimizers import AdamW
from palaestra.policies.architecture import Widths
from palaestra.registry import Discount, Positive, PositiveInt, register
from palaestra.replay import ReplayBuffer, Transition
from palaestra.systems.sac.policy import SacActor, layers
from palaestra.training.policy_gradient import refuse_exploded, weight_norm

Share = Annotated[float, pydantic.Field(gt=0, le=1)]


@register("learner", "sac", reads=("counts",), uses=("box",), source="arXiv 1801.01290, 1812.05905")
class SoftActorCritic(Learner):
    """Train every policy, each a `sac_actor`, with critics that learn from all that was ever played.

        y        = r + gamma · (1 − d) · (min_h Q'_h(o', a') − alpha · log pi(a'|o')),  a' ~ pi(·|o')
        critics  : Σ_h mean (Q_h(o, a) − y)²        Q' ← (1 − tau) · Q' + tau · Q after each update
        actor    : mean (alpha · log pi(a|o) − min_h Q_h(o, a)),  a ~ pi(·|o)
        alpha    : −log alpha · (mean log pi(a|o) + target_entropy)

    d is 1 only where the episode terminated; where it was truncated, o' is the observation that would have come next. r
    is the reward that the slot `reward` gives; acts that the slot `selection` drops are not kept. An act that was
    truncated without a next observation has no target and is not kept either; `sac/left_out` counts such acts.
    Log-densities are those of actions in (−1, 1), whatever the bounds of the environment.

    Args:
        gamma: in (0, 1]. Higher: late rewards reach early acts, and learning is slower. Usual: 0.99.
        tau: in (0, 1]. Higher: target networks follow the critics sooner; 1 copies them. Usual: 0.005.
        lr: the learning rate of Adam, for actor, critics and alpha. Usual: 3e-4; 1e-3 for small tasks.
        batch: transitions of one update; while the buffer has fewer, there is no update. Usual: 256.
        capacity: transitions in the buffer; a further one replaces the oldest. Usual: 1000000.
        updates: for each act of the iteration. Higher: more is learned from each episode, slower. Usual: 1.
        hidden: widths of the critics' layers. Usual: (256, 256).
        target_entropy: of actions in (−1, 1), in nats. Higher: more exploration. Usual: None, −1 for each number.

    Raises: RecipeError, for a buffer smaller than a batch, and for a policy of another kind. In a run: InvalidData, for
        an episode that is neither terminated nor truncated.
    Differs from the authors' code: updates come after the episodes of an iteration, as many as they have acts.
    """

    ignores = (  # keys that only a learner with a loss per token reads
        *("loss", "aggregate.how", "aggregate.constant", "regularizers", "optimizer"),
        *("training.epochs", "training.minibatches", "training.stop_kl", "training.agent_gradients"),
        *("policies.*.loss", "policies.*.regularizers", "policies.*.optimizer"),
        *("policies.*.epochs", "policies.*.minibatches"),
    )

    def __init__(
        self,
        *,
        gamma: Discount = 0.99,
        tau: Share = 0.005,
        lr: Positive = 3e-4,
        batch: PositiveInt = 256,
        capacity: PositiveInt = 1_000_000,
        updates: Positive = 1.0,
        hidden: Widths = (256, 256),
        target_entropy: float | None = None,
    ) -> None:
        if capacity < batch:
            raise RecipeError(
                where="learner: sac",
                what=f"`capacity` is {capacity}, less than the {batch} transitions of one update (`batch`).",
                remedy="Set `capacity` to at least `batch`; usual: 1000000.",
            )
        self.gamma, self.tau, self.lr, self.batch, self.capacity = gamma, tau, lr, batch, capacity
        self.updates, self.hidden, self.target_entropy = updates, hidden, target_entropy
        self.pupils: dict[str, Pupil] = {}

    def start(self, setup: RunSetup, policies: Mapping[str, Any]) -> None:
        """Make critics, optimizers and a buffer for each policy."""
        for name, policy in policies.items():
            if not isinstance(policy, SacActor):
                raise RecipeError(
                    where="learner: sac",
                    what=f"policy `{name}` is a {type(policy).__name__}; this learner trains the policy `sac_actor`.",
                    remedy=f"Set `policies.{name}.policy: sac_actor`, or policies.{name}.trainable=false.",
                )
            self.pupils[name] = Pupil(policy, self, seed=derive(setup.seed, "sac", name))

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """Add the iteration's transitions to the buffers, and learn from samples of them."""
        self.made, metrics = 0, {}
        counted = [row for row in iteration.rows if batch.table["counts"][row.start] > 0]
        rewards = {
            (row.trajectory.id, row.step.agent, row.step.turn): float(batch.table["reward"][row.index])
            for row in counted
        }
        trajectories = list(dict.fromkeys(row.trajectory for row in iteration.rows))
        for name, pupil in self.pupils.items():
            added = pupil.buffer.add(trajectories, rewards=rewards)
            prefix = "sac" if len(self.pupils) == 1 else f"sac/{name}"
            metrics[f"{prefix}/buffer"] = float(len(pupil.buffer))
            metrics[f"{prefix}/left_out"] = float(pupil.buffer.left_out)
            updates = round(added * self.updates) if len(pupil.buffer) >= self.batch else 0
            before = weight_norm(pupil.policy.module), weight_norm(pupil.critics)
            said = [pupil.learn(seed=derive(iteration.seed, "sac", name, number)) for number in range(updates)]
            if updates:
                for size, module in zip(before, (pupil.policy.module, pupil.critics), strict=True):
                    refuse_exploded(f"policy {name}", size, weight_norm(module), rate="learner.sac.lr")
                pupil.policy.weights_changed(pupil.policy.version + 1)
                metrics |= {f"{prefix}/{key}": float(np.mean([one[key] for one in said])) for key in said[0]}
            self.made += updates
        self.ready = self.made > 0
        return metrics

    def modules(self) -> Mapping[str, nn.Module]:
        """The critics and their target networks."""
        kinds = {f"{name}.critics": pupil.critics for name, pupil in self.pupils.items()}
        return kinds | {f"{name}.slow": pupil.slow for name, pupil in self.pupils.items()}

    def state_dict(self) -> dict[str, Any]:
        """Optimizers, log alpha and buffers, by policy."""
        return {name: pupil.state_dict() for name, pupil in self.pupils.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave. Raises: CheckpointError, if it has other policies or another capacity."""
        if state.keys() != self.pupils.keys():
            raise CheckpointError(
                where="learner: sac",
                what=f"the saved critics are of the policies {sorted(state)}, the run trains {sorted(self.pupils)}.",
                remedy="Resume with the recipe that wrote the checkpoint.",
            )
        for name, pupil in self.pupils.items():
            pupil.load_state_dict(state[name])


class Pupil:
    """One policy with its critics, its entropy weight, its buffer and their optimizers."""

    def __init__(self, policy: SacActor, options: SoftActorCritic, *, seed: int) -> None:
        numbers = len(policy.middle)
        self.policy, self.options = policy, options
        self.buffer = ReplayBuffer(capacity=options.capacity, policy=policy.name)
        self.critics = TwinCritic(policy.size, numbers, options.hidden, seed=seed)
        self.slow: TwinCritic = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.target_entropy = -float(numbers) if options.target_entropy is None else options.target_entropy
        moved = {"actor": policy.module.parameters(), "critics": self.critics.parameters(), "alpha": [self.log_alpha]}
        self.optimizers = {name: AdamW(some, lr=options.lr, clip=None) for name, some in moved.items()}

    def learn(self, *, seed: int) -> dict[str, float]:
        """One update of critics, actor, alpha and target networks. Returns losses and values."""
        device, actor, alpha = device_of(self.critics), self.policy.module, float(self.log_alpha.detach().exp())
        drawn = stacked(self.buffer.sample(self.options.batch, seed=seed), device)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn((2, *drawn.actions.shape), generator=generator).to(device)
        with torch.no_grad():
            actions, logprob = actor(drawn.following, noise[0])
            slow = self.slow(drawn.following, actions)
            goal = q_target(drawn.reward, drawn.done, slow, logprob, alpha=alpha, gamma=self.options.gamma)
        q = self.critics(drawn.vectors, self.policy.unit(drawn.actions))
        q_loss = (q - goal).square().mean(1).sum()
        self._descend("critics", q_loss)
        actions, logprob = actor(drawn.vectors, noise[1])
        actor_loss = (alpha * logprob - self.critics(drawn.vectors, actions).amin(0)).mean()
        self._descend("actor", actor_loss)
        self._descend("alpha", alpha_loss(self.log_alpha, logprob.detach().cpu(), self.target_entropy))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.slow.parameters()), list(self.critics.parameters()), self.options.tau)
        entropy = -logprob.detach().mean()
        return {"q_loss": q_loss.item(), "q": q.detach().mean().item(), "entropy": entropy.item(), "alpha": alpha}

    def _descend(self, name: str, loss: Tensor) -> None:
        """A step of one optimizer; only its own parameters get a gradient."""
        optimizer = self.optimizers[name]
        optimizer.zero()
        loss.backward(inputs=optimizer.parameters)  # type: ignore[no-untyped-call]
        optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint keeps beside the modules."""
        states = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        return {**states, "log_alpha": self.log_alpha.detach(), "buffer": self.buffer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state[name])
        self.log_alpha.data.copy_(state["log_alpha"])
        self.buffer.load_state_dict(state["buffer"])


class TwinCritic(nn.Module):
    """Q_1 and Q_2 of vectors and actions in [−1, 1].

    Args:
        size: of the vectors.
        numbers: of the actions.
        hidden: widths of the layers.
        seed: of the initial weights.
    """

    def __init__(self, size: int, numbers: int, hidden: Sequence[int], *, seed: int) -> None:
        super().__init__()
        widths = (size + numbers, *hidden, 1)
        self.twins = nn.ModuleList(layers(widths, seed=derive(seed, place)) for place in range(2))

    def forward(
        self, vectors: Float[Tensor, "rows size"], actions: Float[Tensor, "rows numbers"]
    ) -> Float[Tensor, "twins rows"]:
        """The two values of each row."""
        both = torch.cat([vectors, actions], 1)
        return torch.stack([twin(both)[:, 0] for twin in self.twins])


class Drawn(NamedTuple):
    """A batch of transitions: float32 (rows, …), `done` bool (rows,). `following` has no meaning where `done` holds."""

    vectors: Tensor
    actions: Tensor
    reward: Tensor
    done: Tensor
    following: Tensor


def stacked(drawn: Sequence[Transition], device: torch.device) -> Drawn:
    """The transitions as tensors on a device."""
    columns = (
        np.stack([one.observation for one in drawn]),
        np.stack([one.utterance for one in drawn]),
        np.array([one.reward for one in drawn], np.float32),
        np.array([one.done for one in drawn]),
        np.stack([one.observation if one.following is None else one.following for one in drawn]),
    )
    return Drawn(*(torch.from_numpy(column).to(device) for column in columns))


# ---- formulas ---------------------------------------------------------------------------------------------
def q_target(
    reward: Float[Tensor, " rows"],
    done: Bool[Tensor, " rows"],
    slow: Float[Tensor, "twins rows"],
    logprob: Float[Tensor, " rows"],
    *,
    alpha: float,
    gamma: float,
) -> Float[Tensor, " rows"]:
    """r + gamma · (1 − d) · (min_h Q'_h − alpha · log pi)."""
    return reward + gamma * torch.where(done, 0.0, slow.amin(0) - alpha * logprob)


def alpha_loss(
    log_alpha: Float[Tensor, ""], logprob: Float[Tensor, " rows"], target_entropy: float
) -> Float[Tensor, ""]:
    """−log alpha · (mean log pi + target_entropy): alpha falls where the entropy, −log pi, is above its target."""
    return -log_alpha * (logprob.mean() + target_entropy)
