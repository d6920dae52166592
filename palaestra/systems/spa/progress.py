"""The reward `progress`: a regression model splits an episode's outcome into the contributions of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pydantic
import torch
from torch import Tensor
from torch.nn import Module

from palaestra.data import Batch, Row, RunSetup, StepTable, derive
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart
from palaestra.errors import ContractError, InvalidData, NoSignal, RecipeError
from palaestra.parts.optimizers import AdamW
from palaestra.parts.rewards import outcomes_of
from palaestra.registry import NonNegative, Positive, PositiveInt, register
from palaestra.systems.spa.encoders import Episode, StepEstimator
from palaestra.training.policy_gradient import refuse_exploded, weight_norm

WHERE = "reward: progress"
Count = Annotated[int, pydantic.Field(ge=0)]


@register(
    "reward",
    "progress",
    reads=("outcome", "executable?", "invalid?", "truncated?"),
    writes=("reward",),
    source="arXiv 2505.20732",
)
class Progress(StatefulPart):
    """Give step rewards that sum to the predicted outcome, and a bonus for actions that could be executed.

        r_k  = alpha · c_k + beta · g_k                        replaces the reward
        loss = mean over episodes of (Σ c_k − outcome)²        of the estimator that gives c

    g_k is the column `executable`; without it 1 − `invalid`; 1 without either. Before the estimator is fitted, the
    outcome is the reward of the last step. A perfect estimator with alpha 1 and beta 0 moves the outcome to the steps
    that caused it, and changes no return. An episode that a limit cut off unjudged has failed.

    The estimator reads the observation and the action of each step: vectors and an action's index for network policies,
    the tokens of prompt and response for language policies.

    Args:
        alpha: ≥ 0, the factor of the contributions. Usual: 1.
        beta: ≥ 0, the bonus. Higher: fewer impossible actions, and longer episodes, which collect more of it.
            Usual: 0.5 with returns after a fixed number of steps; far less where an episode can go on without
            reaching its goal.
        explore: iterations whose episodes are collected; then the estimator is fitted to all of them, once. 0: it
            learns from every iteration's episodes, after it has scored them.
        epochs: passes over the episodes of one fit. Usual: 1 for large models, 4 and more for small ones.
        batch: episodes of one gradient step.
        weight_by_steps_left: multiply r_k by the number of steps after k, so that the last one gets 0, as the
            public code does; it is there to reproduce that code.
        hidden: width of the estimator.
        memory: False makes c_k depend on step k alone.
        lr: the learning rate of the estimator's own AdamW.
        clip: the largest norm of its gradient.
    """

    def __init__(
        self,
        *,
        alpha: NonNegative = 1.0,
        beta: NonNegative = 0.5,
        explore: Count = 0,
        epochs: PositiveInt = 4,
        batch: PositiveInt = 16,
        weight_by_steps_left: bool = False,
        hidden: PositiveInt = 64,
        memory: bool = True,
        lr: Positive = 1e-3,
        clip: Positive = 1.0,
    ) -> None:
        self._alpha, self._beta, self._weighted = alpha, beta, weight_by_steps_left
        self._explore, self._epochs, self._batch = explore, epochs, batch
        self._hidden, self._memory, self._lr, self._clip = hidden, memory, lr, clip
        self._reader: Reader | None = None
        self._estimator: StepEstimator | None = None
        self._optimizer: AdamW | None = None
        self.fitted = False
        self._gathered: list[tuple[Episode, float]] = []
        self._iterations = 0

    def start(self, setup: RunSetup, policies: Mapping[str, Any]) -> None:
        """Make the estimator and its optimizer.

        Raises: RecipeError, if the policies do not all read vectors, or tokens of one tokenizer.
        """
        self._reader = Reader(setup, policies)
        self._estimator = StepEstimator(
            size=self._reader.size,
            vocabulary=self._reader.vocabulary,
            hidden=self._hidden,
            memory=self._memory,
            seed=derive(setup.seed, "progress") % 2**31,
        )
        self._optimizer = AdamW(self._estimator.parameters(), lr=self._lr, clip=self._clip)

    def __call__(self, table: StepTable, iteration: Iteration) -> Tensor:
        """The step rewards, float32 (rows,).

        Raises: InvalidData, if a trajectory has no outcome, or another number of turns than its episode.
        """
        order, last = table.timeline("trajectory")
        outcome = outcomes(table, order[last])
        if not self.fitted:
            return torch.zeros(len(table)).index_copy_(0, order[last], outcome * (table.row_weight[order[last]] > 0))
        places, episodes = self._episodes(table, iteration)
        contribution = torch.zeros(len(table), dtype=torch.float64)
        contribution[torch.cat(places)] = self.contributions(episodes)
        left = steps_left(places, len(table)) if self._weighted else None
        reward = progress_rewards(contribution, executable(table), alpha=self._alpha, beta=self._beta, left=left)
        return torch.where(table.row_weight > 0, reward, 0.0).float()

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """Fit the estimator to this iteration's episodes, or collect them.

        Returns: progress/executable, the share of actions that could be executed; progress/skipped, 1 if all episodes
            have the same outcome, so that a fit is not possible; else progress/held_out, the mean squared error before
            learning, and progress/loss, that of the last pass.
        """
        table = batch.table
        counts = table.row_weight > 0
        metrics = {"progress/executable": float(executable(table)[counts].mean()), "progress/skipped": 0.0}
        if self._explore and self.fitted:
            return metrics
        places, episodes = self._episodes(table, iteration)
        result = outcomes(table, torch.stack([place[-1] for place in places])).tolist()
        if self.fitted:
            metrics["progress/held_out"] = self._error(episodes, result)
        self._gathered += zip(episodes, result, strict=True)
        self._iterations += 1
        if self._iterations >= self._explore:
            gathered, outcome = zip(*self._gathered, strict=True)
            if min(outcome) == max(outcome):
                metrics["progress/skipped"] = 1.0
            else:
                metrics["progress/loss"] = self.fit(gathered, outcome, seed=iteration.seed)
            if self.fitted or not self._explore:
                self._gathered = []
        return metrics

    # ---- the estimator ------------------------------------------------------------------------------------
    def contributions(self, episodes: Sequence[Episode]) -> Tensor:
        """c of every step, episode after episode: float64 (steps,)."""
        with torch.no_grad():
            return self._started()[0](episodes).cpu().double()  # type: ignore[no-any-return]

    def fit(self, episodes: Sequence[Episode], outcome: Sequence[float], *, seed: int) -> float:
        """Fit the estimator, `epochs` passes. Returns the mean loss of the last pass.

        Raises: InvalidData, for another number of outcomes than episodes; NoSignal, if all outcomes are equal.
        """
        estimator, optimizer = self._started()
        if len(episodes) != len(outcome):
            what = f"there are {len(outcome)} outcomes for {len(episodes)} episodes."
            raise InvalidData(where=WHERE, what=what, remedy="Give one outcome for each episode.")
        if not len(outcome) or min(outcome) == max(outcome):
            raise NoSignal(
                where=WHERE,
                what=f"all {len(outcome)} episodes have the outcome {outcome[0] if len(outcome) else 'none'}: "
                "a failed and a successful one are needed to learn the difference.",
                remedy="Collect more episodes (`explore`), or begin with a policy that succeeds sometimes.",
            )
        losses: list[float] = []
        before = weight_norm(estimator)
        for epoch in range(self._epochs):
            order = np.random.default_rng(derive(seed, "progress", epoch)).permutation(len(episodes))
            losses = []
            for cut in np.array_split(order, max(len(order) // self._batch, 1)):
                which = [episodes[i] for i in cut]
                turns = torch.tensor([len(widths) for _, widths in which])
                aim = torch.tensor([outcome[i] for i in cut])
                loss = progress_loss(estimator(which).cpu(), turns, aim).mean()
                optimizer.zero()
                torch.autograd.backward(loss)
                optimizer.step()
                losses.append(float(loss.detach()))
        refuse_exploded("the estimator of progress", before, weight_norm(estimator), rate="reward.progress.lr")
        self.fitted = True
        return float(np.mean(losses))

    def _error(self, episodes: Sequence[Episode], outcome: Sequence[float]) -> float:
        turns = torch.tensor([len(widths) for _, widths in episodes])
        return float(progress_loss(self.contributions(episodes), turns, torch.tensor(outcome)).mean())

    def _started(self) -> tuple[StepEstimator, AdamW]:
        if self._estimator is None or self._optimizer is None:
            raise ContractError(
                where=WHERE,
                what="it was called before `start`.",
                remedy="Call `start(setup, policies)` first; the training loop does it.",
            )
        return self._estimator, self._optimizer

    def _episodes(self, table: StepTable, iteration: Iteration) -> tuple[list[Tensor], list[Episode]]:
        self._started()
        assert self._reader is not None
        places = rows_of_episodes(table, iteration.rows)
        return places, [self._reader.episode([iteration.rows[i] for i in place.tolist()]) for place in places]

    # ---- checkpoints --------------------------------------------------------------------------------------
    def modules(self) -> Mapping[str, Module]:
        """The estimator."""
        return {"estimator": self._started()[0]}

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state, and the episodes collected so far."""
        return {
            "optimizer": self._started()[1].state_dict(),
            "fitted": self.fitted,
            "iterations": self._iterations,
            "gathered": [(inputs, widths, outcome) for (inputs, widths), outcome in self._gathered],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; `start` must have run."""
        self._started()[1].load_state_dict(state["optimizer"])
        self.fitted, self._iterations = state["fitted"], state["iterations"]
        self._gathered = [((inputs, widths), outcome) for inputs, widths, outcome in state["gathered"]]


class Reader:
    """Turns episodes into the estimator's inputs."""

    def __init__(self, setup: RunSetup, policies: Mapping[str, Any]) -> None:
        """Choose vectors or tokens as inputs.

        Raises: RecipeError, if the policies do not all read vectors, or tokens of one tokenizer.
        """
        known = [policy.architecture() for policy in policies.values()]
        spoken = {(form["kind"], form.get("tokenizer")) for form in known}
        if len(spoken) != 1:
            raise RecipeError(
                where=WHERE,
                what=f"the trainable policies have {len(spoken)} kinds or tokenizers; one estimator reads only one.",
                remedy="Give all trainable policies the same kind and tokenizer, or use another reward.",
            )
        self.vocabulary: int | None = known[0]["vocabulary"] if known[0]["kind"] == "language" else None
        self.actions = int(setup.action_count or 0)
        self.size = None if self.vocabulary is not None else int(setup.vector_size or 0) + self.actions

    def episode(self, rows: Sequence[Row]) -> Episode:
        """The steps of one episode in time order.

        Raises: InvalidData, if a step has no vector or action index, or no token that the estimator knows.
        """
        if self.vocabulary is None:
            inputs = torch.from_numpy(np.stack([self._vector(row) for row in rows]))
            return inputs, torch.ones(len(rows), dtype=torch.int64)
        said = [np.concatenate([row.step.prompt, row.step.action.tokens]) for row in rows]
        for row, ids in zip(rows, said, strict=True):
            if not len(ids) or int(ids.max()) >= self.vocabulary:
                raise _unreadable(row, "no tokens of the policies' tokenizer")
        return torch.from_numpy(np.concatenate(said)).long(), torch.tensor([len(ids) for ids in said])

    def _vector(self, row: Row) -> np.ndarray:
        seen, action = row.step.observation.vector, row.step.action
        index = int(action.tokens[0]) if len(action.tokens) else action.value
        if not isinstance(index, int | np.integer) or not 0 <= index < self.actions:
            raise _unreadable(row, "no action index")
        if seen is None or np.size(seen) + self.actions != self.size:
            raise _unreadable(row, "no vector of the environment's length")
        return np.concatenate([np.asarray(seen, np.float32).reshape(-1), np.eye(self.actions, dtype=np.float32)[index]])


def _unreadable(row: Row, lacks: str) -> InvalidData:
    return InvalidData(
        where=f"{WHERE}, trajectory {row.trajectory.id}, turn {row.step.turn}",
        what=f"the step has {lacks}.",
        remedy="Use this reward with policies that act by tokens, or by action indices on vectors.",
    )


# ---- formulas ---------------------------------------------------------------------------------------------
def progress_rewards(
    contribution: Tensor, executable: Tensor, *, alpha: float, beta: float, left: Tensor | None = None
) -> Tensor:
    """alpha · c_k + beta · g_k, times the steps left if `left` is given: float64 (rows,).

    Raises: InvalidData, for unequal lengths or a negative factor.
    """
    if contribution.shape != executable.shape:
        what = f"there are {len(contribution)} contributions for {len(executable)} steps."
        raise InvalidData(where=WHERE, what=what, remedy="Give one contribution for each step.")
    if alpha < 0 or beta < 0:
        raise InvalidData(where=WHERE, what=f"alpha {alpha} or beta {beta} is negative.", remedy="Use 0 or more.")
    reward = alpha * contribution.double() + beta * executable.double()
    return reward if left is None else reward * left


def progress_loss(contribution: Tensor, turns: Tensor, outcome: Tensor) -> Tensor:
    """(Σ c_k − outcome)² of each episode: (episodes,). `contribution`: (steps,), episode after episode.

    Raises: InvalidData, if the episodes have another number of steps than contributions.
    """
    if int(turns.sum()) != len(contribution):
        what = f"there are {len(contribution)} contributions for episodes of {int(turns.sum())} turns."
        raise InvalidData(where=WHERE, what=what, remedy="Give one contribution for each turn.")
    total = contribution.new_zeros(len(turns))
    total = total.index_add(0, torch.repeat_interleave(torch.arange(len(turns)), turns), contribution)
    return (total - outcome.to(total.dtype)) ** 2


def executable(table: StepTable) -> Tensor:
    """g, 1 where the action could be executed: float64 (rows,)."""
    if "executable" in table:
        return table["executable"].double()
    return 1.0 - table["invalid"].double() if "invalid" in table else torch.ones(len(table), dtype=torch.float64)


def outcomes(table: StepTable, ends: Tensor) -> Tensor:
    """The outcome on these rows; 0 for a trajectory that a limit cut off unjudged.

    Raises: InvalidData, if one is missing.
    """
    found = outcomes_of(table)[ends]
    missing = (found.isnan() & (table.row_weight[ends] > 0)).nonzero()
    if len(missing):
        trajectory = table.labels("trajectory")[int(table["trajectory"][ends[missing[0, 0]]])]
        raise InvalidData(
            where=f"{WHERE}, trajectory {trajectory}",
            what=f"it has no outcome; {len(missing)} of {len(ends)} trajectories have none.",
            remedy="Give `success` or `outcome` in the environment's last `info`.",
        )
    return found.nan_to_num()


def rows_of_episodes(table: StepTable, rows: Sequence[Row]) -> list[Tensor]:
    """Positions of each trajectory's rows, in time order.

    Raises: InvalidData, if a trajectory has another number of rows than its episode has turns, since the estimator
        would then read another episode.
    """
    if len(rows) != len(table):
        raise InvalidData(
            where=WHERE,
            what=f"the table has {len(table)} rows, but the episodes have {len(rows)} steps.",
            remedy="Use this reward before parts that drop rows.",
        )
    found: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        found.setdefault(row.trajectory.id, []).append(place)
    for name, own in found.items():
        turns = len(rows[own[0]].trajectory.steps)
        if len(own) != turns:
            raise InvalidData(
                where=f"{WHERE}, trajectory {name}",
                what=f"the table has {len(own)} of its rows, but the episode has {turns} turns.",
                remedy="Use this reward before parts that drop rows.",
            )
        own.sort(key=lambda place: rows[place].step.turn)
    return [torch.tensor(own) for own in found.values()]


def steps_left(places: Sequence[Tensor], rows: int) -> Tensor:
    """The number of steps of its episode that follow each row: float64 (rows,)."""
    out = torch.zeros(rows, dtype=torch.float64)
    for place in places:
        out[place] = torch.arange(len(place) - 1, -1, -1, dtype=torch.float64)
    return out
