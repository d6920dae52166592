"""Dynamic sampling: groups in which everybody ended alike are thrown away, and others are played in their place."""

from __future__ import annotations

from collections.abc import Sequence

from palaestra.data import Play, StopReason, Trajectory
from palaestra.errors import NoSignal, UnknownName, nearest
from palaestra.registry import PositiveInt, register
from palaestra.rollout.strategies import RolloutContext


@register("strategy", "dynamic_sampling", uses=("group",), source="arXiv 2503.14476; cap and metric: public code")
class DynamicSampling:
    """Keep groups whose trajectories differ in a metric; play further batches until there are as many as asked for.

    An iteration asks for the groups of its plays (`rollout.tasks`). Groups are kept in the order in which they were
    played; those beyond the number are cut. Everything that was played counts as spent.

    Args:
        metric: "outcome", the raw result, never shaped; "return", the sum of rewards; or a number that the
            environment tells in its last `info`.
        max_batches: batches an iteration may play, the first included. Higher: hard sets of tasks last longer.
            Usual: 10; 0 or less: no limit.
        batch: groups of each further batch. None: as many as asked for.

    Raises: NoSignal, if after `max_batches` too few groups differ; UnknownName, for a metric that a trajectory has not.

    Failed episodes are not compared. Logged: dynamic_sampling/batches; dynamic_sampling/constant, the share of played
    groups that were constant; dynamic_sampling/discarded, the share that was not used, groups cut included.
    """

    called_per = "iteration"  # batches are counted over all groups of an iteration

    def __init__(self, *, metric: str = "outcome", max_batches: int = 10, batch: PositiveInt | None = None) -> None:
        self.metric, self.max_batches, self.batch = metric, max_batches, batch

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        """The trajectories of as many groups that differ as `plays` has groups."""
        wanted, played, batches = len({play.group for play in plays}), 0, 0
        kept: list[list[Trajectory]] = []
        while len(kept) < wanted:
            if 0 < self.max_batches <= batches:
                raise self._exhausted(len(kept), wanted, played, batches)
            groups = _groups(await rollout.collect(plays if not batches else rollout.more(self.batch or wanted)))
            kept += [group for group in groups if self.differs(group)]
            played, batches = played + len(groups), batches + 1
        rollout.metrics |= {
            "dynamic_sampling/batches": float(batches),
            "dynamic_sampling/constant": 1 - len(kept) / max(played, 1),
            "dynamic_sampling/discarded": 1 - wanted / max(played, 1),
        }
        return [trajectory for group in kept[:wanted] for trajectory in group]

    def differs(self, group: Sequence[Trajectory]) -> bool:
        """Whether two trajectories of the group that did not fail differ in the metric."""
        return len({self.value(t) for t in group if t.stop is not StopReason.ERROR}) > 1

    def value(self, trajectory: Trajectory) -> float:
        """The metric of one trajectory.

        Raises: UnknownName, if it has none of this name.
        """
        numbers = {n: v for n, v in trajectory.info.items() if isinstance(v, bool | int | float)}
        numbers["return"] = sum(trajectory.returns.values())
        if trajectory.outcome is not None:
            numbers["outcome"] = trajectory.outcome
        if self.metric not in numbers:
            raise UnknownName(
                where=f"strategy: dynamic_sampling, metric: {self.metric}",
                what=f"trajectory {trajectory.id} has no number of this name; it has {', '.join(sorted(numbers))}.",
                options=nearest(self.metric, numbers),
                remedy="Use `metric: return`, or let the environment tell the number in its last `info`.",
            )
        return float(numbers[self.metric])

    def _exhausted(self, kept: int, wanted: int, played: int, batches: int) -> NoSignal:
        return NoSignal(
            where="strategy: dynamic_sampling",
            what=f"after {batches} batches {kept} of {played} groups differ in `{self.metric}`, and {wanted} are "
            "wanted: nearly all tasks are always solved, or never.",
            remedy="Do one of these:\n"
            "  • tasks of other difficulty, or a better warm start,\n"
            "  • a larger `rollout.group` or a smaller `rollout.tasks`, or\n"
            "  • a higher `strategy.dynamic_sampling.max_batches` (0: no limit).",
        )


def _groups(played: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Trajectories by group, in the order of the first of each."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in played:
        groups.setdefault(trajectory.group, []).append(trajectory)
    return list(groups.values())
