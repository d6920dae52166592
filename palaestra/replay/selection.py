"""The selection `replay_success`, which puts a stored success into a group in which every episode failed.

The group then has episodes that can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from palaestra.data import Batch, RunSetup, StepTable, Task, Trajectory, derive, rows_of
from palaestra.data.abilities import has
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart
from palaestra.errors import InvalidData, RecipeError
from palaestra.registry import PositiveInt, register
from palaestra.replay import SuccessStore, in_group_of, is_replayed

PLACE = "selection: replay_success"


@register(
    "selection",
    "replay_success",
    reads=("replayed?", "anchored?"),
    writes=("row_weight",),
    source="arXiv 2508.15144; 2509.23866",
)
class ReplaySuccess(StatefulPart):
    """In a group without a success, replace one episode, drawn at random, by a stored success of the same task.

    This happens before the advantages are computed, so the group is compared with the success. Successes are stored as
    they are played. The store is of use only if tasks are played again (samplers `repeated`, `adaptive_rollouts`). The
    steps of a copy have `replayed` 1, and its tokens have the log-probabilities of the policy that sampled them;
    `truncated_importance` among the weights corrects for the difference to the present policy.

    Args:
        how: "replace" keeps the size of the group, "add" adds the success to the failures.
        per_task: most stored successes of a task, the newest ones. Usual: 1–8.
        success: smallest outcome of a success. Usual: 1.
        expert: let the environment's expert solve, once, a task without a stored success, like a pool collected before
            training. Its tokens get the log-probabilities under the policy of the iteration that first needs them.

    Called with a table, it returns True for every row. With an empty store it changes nothing, bit for bit.
    Raises: RecipeError, for `expert` if the environment has no expert; InvalidData, if no episode of a group has an
        outcome, if a group has two replayed trajectories, or if a stored one does not fit the policy.
    """

    provides = frozenset({"replayed"})

    def __init__(
        self,
        *,
        how: Literal["replace", "add"] = "replace",
        per_task: PositiveInt = 4,
        success: float = 1.0,
        expert: bool = False,
    ) -> None:
        self._how, self._expert = how, expert
        self._store = SuccessStore(per_task=per_task, success=success)
        self._demonstrate: Any = None
        self._counts: dict[str, float] = {}

    @staticmethod
    def fits(options: Mapping[str, Any], settings: Any, source: Any) -> None:
        """Raises: RecipeError, for `expert` if the environment has no expert."""
        _refuse_no_expert(options["expert"], has(source, "expert"))

    def start(self, setup: RunSetup, policies: Mapping[str, Any]) -> None:
        """Get the environment's expert, if `expert` is set."""
        self._demonstrate = setup.demonstrate
        _refuse_no_expert(self._expert, self._demonstrate is not None)

    def choose(self, trajectories: list[Trajectory], iteration: Iteration) -> list[Trajectory]:
        """The episodes, with a stored success in each group without one. New successes are stored after that."""
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            groups.setdefault(trajectory.group, []).append(trajectory)
        self._counts = {"replay/failed_groups": 0.0, "replay/replayed": 0.0}
        chosen: list[Trajectory] = []
        for _, members in sorted(groups.items()):
            chosen += self._mended(sorted(members, key=lambda one: one.sample), iteration)
        self._store.add([one for one in chosen if self._store.solved(one) and not is_replayed(one)])
        return chosen

    def _mended(self, members: list[Trajectory], iteration: Iteration) -> list[Trajectory]:
        """The group, with a stored success in it if it has none and the store has one."""
        _refuse_unjudged(members)
        if any(self._store.solved(one) or is_replayed(one) for one in members):
            return members
        self._counts["replay/failed_groups"] += 1
        stored = self._success_of(members[0].task, iteration)
        if stored is None:
            return members
        self._counts["replay/replayed"] += 1
        place = derive(iteration.seed, "replay_success", members[0].group) % len(members)
        if self._how == "add":
            copy = in_group_of(members[place], stored, sample=max(one.sample for one in members) + 1)
            return [*members, copy]
        copy = in_group_of(members[place], stored, sample=members[place].sample)
        return [*members[:place], copy, *members[place + 1 :]]

    def _success_of(self, task: Task, iteration: Iteration) -> Trajectory | None:
        if task not in self._store and self._expert:
            shown = [one for one in self._demonstrate([task]) if self._store.solved(one)]
            self._store.add([_judged(one, iteration) for one in shown])
        return self._store.draw(task, seed=iteration.seed)

    def __call__(self, table: StepTable, iteration: Iteration) -> Bool[Tensor, " rows"]:
        if "replayed" in table:
            _refuse_several(table)
        return torch.ones(len(table), dtype=torch.bool)

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """Numbers of groups without a success, of groups that got one, and of stored successes."""
        return {**self._counts, "replay/stored": float(len(self._store))}

    def state_dict(self) -> dict[str, Any]:
        """The state of the store."""
        return self._store.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the store that was saved."""
        self._store.load_state_dict(state)


def _judged(trajectory: Trajectory, iteration: Iteration) -> Trajectory:
    """A demonstration, with the log-probabilities of its tokens under the present policies."""
    rows = rows_of([trajectory])
    for name, policy in iteration.policies.items():
        own = [row for row in rows if row.step.policy == name]
        if not own:
            continue
        samples = policy.collate(own, temperature=iteration.temperature)
        with torch.no_grad():
            now = policy.forward(samples, range(len(samples.cost)), ("logprob",))
        flat = np.full(rows[-1].start + max(len(rows[-1].step.action.tokens), 1), np.nan, np.float32)
        flat[samples.token_index] = now["logprob"].cpu().numpy()
        for row in own:
            row.step.action.logprobs = flat[row.start : row.start + len(row.step.action.tokens)].copy()
    return trajectory


def _refuse_no_expert(asked: bool, there: bool) -> None:
    if asked and not there:
        raise RecipeError(
            where=PLACE,
            what="`expert: true` asks the environment's expert for successes, but the environment has no expert.",
            remedy="Set `expert: false`, or give the environment a method `expert(agent) -> Action`.",
        )


def _refuse_unjudged(members: Sequence[Trajectory]) -> None:
    if all(one.outcome is None and not one.stop.cut for one in members):  # an episode that a limit cut off has failed
        raise InvalidData(
            where=f"{PLACE}, group {members[0].group}",
            what="none of its episodes has an outcome, so it is not known whether they failed.",
            remedy="Let the environment put `success` or `score` into its last `info`.",
        )


def _refuse_several(table: StepTable) -> None:
    """Raises: InvalidData, for a group with more than one replayed trajectory."""
    second = table["anchored"] > 0 if "anchored" in table else torch.zeros(len(table), dtype=torch.bool)
    rows = ((table["replayed"] > 0) & ~second).nonzero()[:, 0]
    pairs = table.key("group", "trajectory")
    codes, first = np.unique(pairs.codes[rows].numpy(), return_index=True)
    group = table["group"][rows[torch.from_numpy(first)]]
    several = (torch.bincount(group, minlength=1) > 1).nonzero()[:, 0] if len(codes) else group
    if len(several):
        raise InvalidData(
            where=f"{PLACE}, group {table.labels('group')[int(several[0])]}",
            what="more than one of its trajectories is replayed.",
            remedy="Name `replay_success` only once among the selections.",
        )
