"""ArCHer: a critic of whole utterances learns off-policy from replayed episodes and gives the advantage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Module

from palaestra.algebra import Credit
from palaestra.data import Action, Batch, Row, RunSetup, StepTable, Trajectory, derive
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart
from palaestra.errors import CheckpointError, ContractError, MissingColumn, RecipeError
from palaestra.models.sizes import LoadedModel, PolicySize
from palaestra.parts.optimizers import AdamW
from palaestra.registry import Discount, Positive, PositiveInt, register
from palaestra.replay.buffer import ReplayBuffer
from palaestra.replay.transitions import Transition, one_step, seen_before
from palaestra.systems.archer.critics import TWINS, TwinCritic, frozen_copy, move_towards
from palaestra.training.policy_gradient import refuse_exploded, weight_norm

Share = Annotated[float, pydantic.Field(gt=0, le=1)]
Count = Annotated[int, pydantic.Field(ge=0)]
CLIP = 1.0  # norm of the critic's gradient
JUDGED_TOGETHER = 512  # rows in one forward pass of the critic


@register(
    "advantage",
    "archer",
    reads=(),
    reads_if={"token_baseline": ("value_old",)},
    writes=("advantage", "value_target", "value_weight"),
    source="arXiv 2402.19446",
)
class Archer(StatefulPart):
    """Compare an utterance with the policy's average utterance in the same situation, by learned Q and V.

        A(o, u~) = min(Q_1, Q_2)(o, u~) − min(V_1, V_2)(o)              u~ sampled now from the policy, o replayed
        loss     = Σ_h (Q_h(o, u) − r − gamma · (1 − done) · V'_h(o'))² + (V_h(o) − Q'_h(o, u~))²
        target'  ← (1 − tau) · target' + tau · online                    after each update of the critic

    Each iteration adds its episodes to a buffer, one buffer for each policy, and updates the critic. Then situations
    are drawn from the buffer and the policy answers them again; the rest of the iteration learns from these one-step
    episodes. Use it with the loss `reinforce`. The critic learns from the environment's own rewards: parts of the slot
    `reward` run after it.

    Args:
        gamma: in (0, 1]. Higher: late rewards reach early utterances, more slowly. Usual: 0.95.
        tau: in (0, 1]. Higher: targets follow the critic sooner; 1 copies it. Usual: 0.1.
        critic_lr: learning rate of the critic's AdamW. Usual: 1e-3 for small critics, 1e-5 for pretrained encoders.
        critic_updates: updates of the critic in each iteration. Higher: the critic learns more from each episode.
            Usual: 50.
        batch: transitions of one update. Usual: 8 with large encoders, 64 with small ones.
        warmup: number of first iterations in which only the critic learns. Higher: the policy starts with a better
            critic, later. Usual: 10–20.
        capacity: transitions in the buffer. Higher: more varied and older transitions. Usual: 100000.
        actor_rows: situations that the policy learns from in an iteration; None: as many as the iteration added.
        hidden: width of the critic's heads, and of the GRU.
        encoder: what reads token ids: "gru" starts from scratch; "policy" is a copy of the policy's own model after the
            warm start, for tasks that a critic from scratch learns too slowly. Vectors go directly to the heads.
        fresh: learn from the utterances of this iteration's episodes instead of answers in replayed situations. This
            variant is on-policy for the policy and off-policy for the critic.
        token_baseline: subtract the policy's own value b of each token, and give A as its target: advantage A − b,
            critic loss (A − b)².

    An act that a limit cut off is not kept if the next observation is unknown: it has no target. A language policy
    reads the next observation if it has a value head. While a buffer holds fewer transitions than a batch, its critic
    does not learn, and the policies wait as in the warm-up.

    Metrics: critic/q_loss, critic/v_loss, critic/q, critic/buffer (transitions), critic/left_out (acts of the iteration
        that are not kept).
    Raises: RecipeError, if the buffer is smaller than a batch. In a run: InvalidData, if an episode's end is missing or
        an utterance is empty; MissingColumn, for `token_baseline` with a policy that has no critic.
    Differs from the authors' code: a small encoder reads situation and utterance together; theirs encodes them apart
        with RoBERTa. Utterances for the V target are drawn once for all updates of an iteration, which is the same,
        since the policy does not change meanwhile.
    """

    def __init__(
        self,
        *,
        gamma: Discount = 0.95,
        tau: Share = 0.1,
        critic_lr: Positive = 1e-3,
        critic_updates: PositiveInt = 50,
        batch: PositiveInt = 64,
        warmup: Count = 10,
        capacity: PositiveInt = 100_000,
        actor_rows: PositiveInt | None = None,
        hidden: PositiveInt = 64,
        encoder: Literal["gru", "policy"] = "gru",
        fresh: bool = False,
        token_baseline: bool = False,
    ) -> None:
        if capacity < max(batch, actor_rows or 0):
            raise RecipeError(
                where="advantage: archer",
                what=f"the buffer holds {capacity} transitions, but {max(batch, actor_rows or 0)} are drawn at once.",
                remedy="Set `capacity` to at least `batch` and `actor_rows`; usual: 100000.",
            )
        self.gamma, self.tau, self.critic_lr, self.critic_updates = gamma, tau, critic_lr, critic_updates
        self.batch, self.warmup, self.capacity, self.actor_rows = batch, warmup, capacity, actor_rows
        self.hidden, self.encoder, self.fresh, self.token_baseline = hidden, encoder, fresh, token_baseline
        self.ready = warmup == 0
        self.critics: dict[str, UtteranceCritic] = {}
        self._metrics: dict[str, float] = {}

    @staticmethod
    def loads(options: Mapping[str, Any], policies: Mapping[str, PolicySize], settings: Any) -> list[LoadedModel]:
        """With `encoder: policy`, the critic and the target of each trained policy are whole copies of its model."""
        copied = {name: size for name, size in policies.items() if size.trainable and options["encoder"] == "policy"}
        critics = [
            LoadedModel(what=f"critic of {name}", size=size, learns=True, counted=False)
            for name, size in copied.items()
        ]
        return critics + [
            LoadedModel(what=f"target of the critic of {name}", size=size) for name, size in copied.items()
        ]

    def start(self, setup: RunSetup, policies: Mapping[str, Any]) -> None:
        """Create a buffer and a critic for each trained policy.

        Raises: InvalidData, for a policy that reads neither vectors nor token ids.
        """
        for name, policy in policies.items():
            seed = derive(setup.seed, "archer", name)
            model = policy.model if self.encoder == "policy" else None
            trunk = None if model is None else model.base_model
            online = TwinCritic(policy.architecture(), model=trunk, hidden=self.hidden, seed=seed)
            buffer = ReplayBuffer(capacity=self.capacity, policy=name)
            self.critics[name] = UtteranceCritic(online, buffer, gamma=self.gamma, tau=self.tau, lr=self.critic_lr)

    def choose(self, trajectories: list[Trajectory], iteration: Iteration) -> list[Trajectory]:
        """Add the episodes, update the critic, and return replayed situations with the policy's present answers."""
        if not self.critics:
            raise ContractError(
                where="advantage: archer",
                what="`choose` was called before `start`.",
                remedy="Call `start(setup, policies)` first; the training loop does so.",
            )
        added = {name: critic.buffer.add(trajectories) for name, critic in self.critics.items()}
        full = all(len(critic.buffer) >= self.batch for critic in self.critics.values())
        self.ready, self._metrics = full and iteration.number >= self.warmup, {}
        replayed: list[Trajectory] = []
        for name, critic in self.critics.items():
            metrics = critic.learn(iteration, updates=self.critic_updates, batch=self.batch)
            prefix = "critic" if len(self.critics) == 1 else f"critic/{name}"
            self._metrics |= {f"{prefix}/{key}": value for key, value in metrics.items()}
            rows = min(self.actor_rows or added[name], len(critic.buffer))
            if rows and self.ready and not self.fresh:
                drawn = critic.buffer.sample(rows, seed=derive(iteration.seed, "actor", name))
                said = critic.answers(drawn, iteration, seed=derive(iteration.seed, "answers", name))
                first = len(replayed)
                replayed += [one_step(d, a, number=first + i) for i, (d, a) in enumerate(zip(drawn, said, strict=True))]
        return replayed or trajectories

    def __call__(self, table: StepTable, iteration: Iteration) -> Float[Tensor, " rows"] | Credit:
        """A of each row's utterance; 0 during the critic's warm-up, on padding, and for other policies."""
        found = torch.zeros(len(table))
        for name, critic in self.critics.items() if self.ready else ():
            own = [row for row in iteration.rows if row.step.policy == name and table.row_weight[row.index] > 0]
            for start in range(0, len(own), JUDGED_TOGETHER):
                some = own[start : start + JUDGED_TOGETHER]
                found[[row.index for row in some]] = self.advantage(*critic.judge(some)).cpu()
        return self._above_baseline(found, table) if self.token_baseline else found

    def advantage(self, q: Float[Tensor, "heads rows"], v: Float[Tensor, "heads rows"]) -> Float[Tensor, " rows"]:
        """The smaller Q minus the smaller V."""
        return q.amin(0) - v.amin(0)

    def _above_baseline(self, found: Tensor, table: StepTable) -> Credit:
        if "value_old" not in table:
            raise MissingColumn(
                where="advantage: archer, token_baseline",
                what="no policy gives values of its tokens.",
                remedy="Give the policy a critic (language: value_head=true), or set `token_baseline: false`.",
            )
        baseline, row = table["value_old"], table.token_row
        judged = baseline.isfinite() & (table.row_weight[row] > 0) & self.ready
        credit = found[row]
        return Credit(torch.where(judged, credit - baseline, credit), torch.where(judged, credit, torch.nan))

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """The metrics of the critic's updates; `choose` has made these updates before the advantages."""
        return self._metrics

    # ---- checkpoints --------------------------------------------------------------------------------------
    def modules(self) -> Mapping[str, Module]:
        """The critic and the target of each policy."""
        critics = {f"{name}_critic": critic.online for name, critic in self.critics.items()}
        return critics | {f"{name}_target": critic.target for name, critic in self.critics.items()}

    def state_dict(self) -> dict[str, Any]:
        """Buffers and optimizers, by policy."""
        return {
            name: {"buffer": critic.buffer.state_dict(), "optimizer": critic.optimizer.state_dict()}
            for name, critic in self.critics.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore buffers and optimizers.

        Raises: CheckpointError, if `state` is of other policies or another capacity.
        """
        if state.keys() != self.critics.keys():
            raise CheckpointError(
                where="advantage: archer",
                what=f"the checkpoint has critics of the policies {sorted(state)}, the run has {sorted(self.critics)}.",
                remedy="Resume with the recipe that wrote the checkpoint.",
            )
        for name, critic in self.critics.items():
            critic.buffer.load_state_dict(state[name]["buffer"])
            critic.optimizer.load_state_dict(state[name]["optimizer"])


class UtteranceCritic:
    """The buffer, the critic, the target and the critic's optimizer of one policy."""

    def __init__(self, online: TwinCritic, buffer: ReplayBuffer, *, gamma: float, tau: float, lr: float) -> None:
        self.online, self.buffer, self.gamma, self.tau = online, buffer, gamma, tau
        self.target: TwinCritic = frozen_copy(online)
        self.optimizer = AdamW(online.parameters(), lr=lr, clip=CLIP)

    def learn(self, iteration: Iteration, *, updates: int, batch: int) -> dict[str, float]:
        """Update the critic `updates` times, if the buffer holds a batch. Returns the means of losses and values."""
        name = self.buffer.policy
        counts = {"buffer": float(len(self.buffer)), "left_out": float(self.buffer.left_out)}
        if len(self.buffer) < batch:
            return counts
        drawn = [self.buffer.sample(batch, seed=derive(iteration.seed, "critic", name, i)) for i in range(updates)]
        said = self.answers(
            [d for some in drawn for d in some], iteration, seed=derive(iteration.seed, "proposals", name)
        )
        before = weight_norm(self.online)
        seen = [
            self.update(some, [action.tokens for action in said[i * batch : (i + 1) * batch]])
            for i, some in enumerate(drawn)
        ]
        refuse_exploded(f"policy {name}, critic", before, weight_norm(self.online), rate="advantage.archer.critic_lr")
        means = {key: float(np.mean([one[key] for one in seen])) for key in seen[0]}
        return {**means, **counts}

    def answers(self, drawn: Sequence[Transition], iteration: Iteration, *, seed: int) -> list[Action]:
        """Sample the policy's present answers in these situations."""
        played = [one_step(one, None, number=number) for number, one in enumerate(drawn)]
        rows = [Row(number, episode, episode.steps[0], number) for number, episode in enumerate(played)]
        seeds = np.random.default_rng(seed).integers(2**62, size=len(rows)).tolist()
        found: list[Action] = iteration.policies[self.buffer.policy].respond(
            rows, seeds, temperature=iteration.temperature, max_tokens=self.buffer.longest
        )
        return found

    def update(self, drawn: Sequence[Transition], proposals: Sequence[np.ndarray]) -> dict[str, float]:
        """Make one step of the critic and then one step of its target."""
        q_loss, v_loss, q = self.losses(drawn, proposals)
        self.optimizer.zero()
        (q_loss + v_loss).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        move_towards(self.target, self.online, tau=self.tau)
        return {"q_loss": q_loss.item(), "v_loss": v_loss.item(), "q": q.mean().item()}

    def losses(self, drawn: Sequence[Transition], proposals: Sequence[np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
        """The mean squared errors of Q and of V, each summed over heads, with gradient; and Q."""
        situations = [one.observation for one in drawn]
        with torch.no_grad():
            q_goal = self.q_target(drawn)
            v_goal = self.target.q(situations, proposals)
        q, v = self.online.both(situations, [one.utterance for one in drawn])
        return (q - q_goal).square().mean(1).sum(), (v - v_goal).square().mean(1).sum(), q.detach()

    def q_target(self, drawn: Sequence[Transition]) -> Float[Tensor, "heads rows"]:
        """r + gamma · (1 − done) · V'_h(o')."""
        goes_on = [place for place, one in enumerate(drawn) if one.following is not None]
        rewards = torch.tensor([one.reward for one in drawn], device=next(self.target.parameters()).device)
        goal = rewards.repeat(TWINS, 1)
        if goes_on:
            following = self.target.v([one.following for one in drawn if one.following is not None])
            goal[:, goes_on] += self.gamma * following
        return goal

    def judge(self, rows: Sequence[Row]) -> tuple[Float[Tensor, "heads rows"], Float[Tensor, "heads rows"]]:
        """Q of these rows' utterances and V of their situations, without gradient."""
        situations = [seen_before(row.trajectory, row.step) for row in rows]
        with torch.no_grad():
            return self.online.both(situations, [row.step.action.tokens for row in rows])
