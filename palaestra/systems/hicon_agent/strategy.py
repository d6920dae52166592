"""The strategy `dual_branch`: it adds to each trajectory a twin with the same actions after uncompressed prompts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from palaestra.data import Play, StopReason, Trajectory
from palaestra.data.protocols import Context
from palaestra.errors import ContractError
from palaestra.registry import register
from palaestra.rollout.programs import roles_of
from palaestra.rollout.strategies import Opened, RolloutContext, opening, retold

if TYPE_CHECKING:
    from palaestra.training.settings import RunSettings


@register("strategy", "dual_branch", uses=("tokens",), source="arXiv 2512.01763")
class DualBranch:
    """Add to each trajectory its twin: the same actions after prompts that keep the past observations.

    Twins are samples of the same group, marked by the columns `branch` (0: the sampled trajectory, 1: a twin) and
    `pair` (equal for both). To compare a twin with twins only, give the estimator `by: [group, branch]`. Twins cost no
    environment step and no generated token, but each is a further sequence of the update. A trajectory has no twin
    where its prompts are the same in both branches, as in a single turn, or where the uncompressed prompt does not fit
    the model's context.

    Metrics: branch/twins (the share of trajectories that have a twin); branch/read (the sum of squared prompt lengths
        as a share of the twins', which is what compression leaves of the attention cost).

    Raises: ContractError, if no agent's context compresses.
    """

    called_per = "group"
    provides = frozenset({"branch", "pair", "foreign"})  # columns that it adds to tables

    @staticmethod
    def fits(options: Mapping[str, Any], settings: RunSettings, source: Any) -> None:
        """Raises: ContractError, if no agent's context compresses."""
        agents = roles_of(settings.program) or source.agents
        _uncompressed({agent: settings.role(agent).context() for agent in agents})

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """Play, and return the trajectories followed by their twins."""
        played = await rollout.collect(plays)
        agents = sorted({step.agent for one in played for step in one.steps})
        opened = opening(rollout.setup, **_uncompressed({agent: rollout.setup.role(agent).context for agent in agents}))
        size: dict[str, int] = defaultdict(int)
        for one in played:
            size[one.group] = max(size[one.group], one.sample + 1)
        twins, cost = [], np.zeros(2)
        for one in played:
            for step in one.steps:
                step.mark(branch=0.0, pair=float(one.sample))
            twin = _twin(one, opened)
            if twin is not None:
                twin.sample += size[one.group]
                twins.append(twin)
                cost += _attention(one), _attention(twin)
        rollout.metrics["branch/twins"] = len(twins) / max(len(played), 1)
        if twins:
            rollout.metrics["branch/read"] = float(cost[0] / cost[1])
        return [*played, *twins]


def _twin(one: Trajectory, opened: Opened) -> Trajectory | None:
    """The twin of a trajectory; None for a failed or empty one, and where the twin's prompts would not fit or not
    differ.
    """
    if one.stop is StopReason.ERROR or not one.steps:
        return None
    twin = retold(one, opened, instruction=one.steps[0].observation.instruction, branch=1.0)
    if twin is None:
        return None
    prompts = zip(one.steps, twin.steps, strict=True)
    return None if all(np.array_equal(one.prompt_of(a), twin.prompt_of(b)) for a, b in prompts) else twin


def _uncompressed(contexts: Mapping[str, Context]) -> dict[str, Context]:
    """The uncompressed context of each agent whose context compresses. Raises: ContractError, if none does."""
    found = {agent: whole for agent, context in contexts.items() if (whole := context.uncompressed) is not None}
    if contexts and not found:
        raise ContractError(
            where="strategy: dual_branch",
            what=f"no history is compressed: {', '.join(contexts)} see all that a twin would show.",
            remedy='Set `agents: {"*": {context: {sampled_history: {compress: true}}}}`.',
        )
    return found


def _attention(one: Trajectory) -> float:
    """The sum of the squared lengths of all segments, to which the cost of attention is proportional."""
    segments = {(step.agent, step.segment) for step in one.steps}
    return float(sum(len(one.sequence(agent, segment)) ** 2 for agent, segment in segments))
