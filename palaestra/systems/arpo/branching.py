"""Branching: new trajectories of a group start in the middle of others, where the policy has become uncertain.

`tree.py` grows a group; `palaestra/rollout/branches.py` repeats the shared steps of an episode.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Play, Step, Trajectory
from palaestra.errors import RecipeError
from palaestra.registry import NonNegative, PositiveInt, register
from palaestra.rollout.strategies import RolloutContext
from palaestra.systems.arpo.tree import Tree

Base = Annotated[float, pydantic.Field(le=1)]
TOP = 3  # trajectories whose share of the branches is logged


@register(
    "strategy",
    "branching",
    uses=("snapshot", "fork"),
    source="arXiv 2507.19849; budget and penalty: 2510.14545; both with public code",
)
class Branching:
    """Grow each group as a tree: some trajectories start at the task, others branch off after a tool's answer.

    After each answer of the environment, up to beam − 1 new trajectories may branch off from every trajectory of the
    group that goes on, each with the probability

        P = clip(base + weight · (H − H₀), 0, 1) · (1 − min(1, l / patience))

    where H is the uncertainty of the acts that led to the answer, H₀ that of the trajectory's first acts, and l the
    number of its latest answers in a row at which something branched off. The uncertainty of an act is the sum of the
    entropies of its first `probe` tokens, divided by ln(number of tokens, or of actions, to choose from). The steps
    that a branch shares with its parent are neither generated nor played again.

    A group has as many trajectories as without the strategy. When all have ended and some are left to play, one more
    starts at the task. With `base` < 0 nothing branches, and groups are the plain ones, bit for bit.

    Args:
        initial: number of trajectories that start at the task; at most the size of a group. Lower: more is shared, less
            explored. None: half of the group, as usual.
        beam: a trajectory becomes at most this many at one answer. 1: no branches. Usual: 2.
        base: P where the entropy has not changed; < 0 switches branching off. Higher: more and earlier branches. Usual:
            0.5.
        weight: ≥ 0. Higher: more branches where uncertainty has grown. Usual: 0.2.
        probe: tokens of an act that are measured. Usual: 20.
        balance: ≥ 0. One trajectory of the group is played first, alone, and sets how many of the k start at the task:
            round(k · sigmoid(balance · (H_root − H_tool))), between 1 and k, where H_root is the uncertainty of its
            first act and H_tool the mean over its later ones. Higher: the number depends more on them. Usual: 1. None:
            `initial` sets the number.
        patience: number of answers in a row after which nothing more branches off from a trajectory. Lower: branches
            spread over more trajectories. Usual: 4. None: no penalty.

    Returns: whole trajectories. Their steps have the marks `node`, equal for copies of one step, and `copied`, 1 for a
        step that was taken over from the parent; such steps do not count as spent. `info` has `parent` and `fork`, the
        turn at which the branch begins.
    Raises: RecipeError, for a group that is smaller than `initial`, or than 2 with `balance`.
    Needs: environments with `snapshot` and `restore`; the runner `episodes`; programs that only act and step.
        `rollout.max_turns` and `rollout.max_tokens` also count shared steps. A trajectory that waits for the others of
        its group does not occupy one of `rollout.in_flight`, but its time limit runs.

    Differs from the authors' code: entropies are over all tokens; theirs are over the ten likeliest, which are all that
        an outside engine gives. The probe of `balance` is one of the group's trajectories.

    Logged: branching/branches, …/fresh (started at the task because all had ended), …/initial, means per group;
        …/copied, the share of all steps that was taken over; …/entropy, …/rise (H − H₀), means over answers; …/top3,
        the share of branches that grew on the three initial trajectories of their group with the most branches.
    """

    called_per = "group"
    provides = frozenset({"node", "copied"})  # columns that this strategy adds to tables

    def __init__(
        self,
        *,
        initial: PositiveInt | None = None,
        beam: PositiveInt = 2,
        base: Base = 0.5,
        weight: NonNegative = 0.2,
        probe: PositiveInt = 20,
        balance: NonNegative | None = None,
        patience: PositiveInt | None = None,
    ) -> None:
        self.initial, self.beam, self.base, self.weight, self.probe = initial, beam, base, weight, probe
        self.balance, self.patience = balance, patience
        self._step, self._grown = -1, list[Tree]()  # all trees of iteration `_step`, which may collect several times

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """Grow one tree per group, all at once; return trajectories in the order of the plays."""
        groups: dict[str, list[Play]] = {}
        for play in plays:
            groups.setdefault(play.group, []).append(play)
        for group in groups.values():
            self._refuse_small(len(group))
        with_entropy = rollout.with_(sampling=dataclasses.replace(rollout.sampling, entropy=True))
        trees = [Tree(group, with_entropy, self) for group in groups.values()]
        grown = [asyncio.ensure_future(tree.grow()) for tree in trees]
        try:
            found = await asyncio.gather(*grown)
        finally:
            for tree in grown:
                tree.cancel()
        self._grown = [*(self._grown if rollout.step == self._step else ()), *trees]
        self._step = rollout.step
        rollout.metrics |= _measured(self._grown)
        order = {(play.group, play.sample): place for place, play in enumerate(plays)}
        return sorted((t for tree in found for t in tree), key=lambda t: order[t.group, t.sample])

    def probability(self, rise: float, streak: int = 0) -> float:
        """P of one branch.

        Args:
            rise: H − H₀.
            streak: l.
        """
        if self.base < 0:
            return 0.0
        chance = 1.0 if self.base >= 1 else min(max(self.base + self.weight * rise, 0.0), 1.0)
        return chance * (1 - min(1.0, streak / self.patience)) if self.patience is not None else chance

    def at_the_root(self, size: int, root: float, tool: float) -> int:
        """How many of a group's trajectories start at the task.

        Args:
            size: k.
            root, tool: H_root and H_tool of the probe.
        """
        if self.balance is None:
            return (size + 1) // 2 if self.initial is None else self.initial
        share = 1 / (1 + math.exp(-max(min(self.balance * (root - tool), 500.0), -500.0)))
        return min(max(round(size * share), 1), size)

    def uncertainty(self, steps: Sequence[Step], policies: Any) -> float:
        """H of these acts: the mean over those with known entropies; 0 if there are none."""
        choices = {name: policy.choices for name, policy in policies.items()}
        found = [
            float(step.action.entropy[: self.probe].sum()) / math.log(max(choices[step.policy], 2))
            for step in steps
            if step.action.entropy is not None and choices.get(step.policy) is not None
        ]
        return sum(found) / len(found) if found else 0.0

    def _refuse_small(self, size: int) -> None:
        if self.balance is not None and size < 2:
            raise RecipeError(
                where="strategy: branching, balance",
                what=f"a group of {size} cannot be divided into trajectories that start at the task and branches.",
                remedy="Set rollout.group=2 or more; usual: 16.",
            )
        if self.balance is None and self.initial is not None and self.initial > size:
            raise RecipeError(
                where="strategy: branching, initial",
                what=f"{self.initial} trajectories should start at the task, but a group has only {size}.",
                remedy=f"Set `initial` to at most {size} (usual: half of that), or raise rollout.group.",
            )


def _measured(trees: Sequence[Tree]) -> dict[str, float]:
    """The metrics of an iteration's trees."""
    steps = [step for tree in trees for path in tree.paths for t in path.trajectories for step in t.steps]
    branches = [Counter(path.root for path in tree.paths if path.play.branch.start is not None) for tree in trees]
    total = sum(map(Counter.total, branches))
    answers = [pair for tree in trees for pair in tree.uncertainties]
    metrics = {
        "branching/branches": total / len(trees),
        "branching/fresh": float(np.mean([tree.fresh for tree in trees])),
        "branching/initial": float(np.mean([tree.initial for tree in trees])),
        "branching/copied": float(np.mean([step.marks.copied or 0.0 for step in steps] or [0.0])),
    }
    if answers:
        metrics |= {
            f"branching/{name}": float(np.mean(found))
            for name, found in zip(("entropy", "rise"), zip(*answers, strict=True), strict=True)
        }
    if total:
        metrics["branching/top3"] = sum(n for roots in branches for _, n in roots.most_common(TOP)) / total
    return metrics
