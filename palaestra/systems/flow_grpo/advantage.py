"""Flow-GRPO: every turn of the trained planner gets the standardized return of the whole trajectory."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from palaestra.algebra import Peers, segment_count, total_return
from palaestra.data import Key, StepTable
from palaestra.errors import InvalidData
from palaestra.parts.rewards import outcomes_of
from palaestra.registry import Scale, register


@register(
    "advantage",
    "flow_grpo",
    reads=("outcome?", "truncated?"),
    writes=("advantage",),
    uses=("group",),
    source="arXiv 2510.05592",
)
def flow_grpo(
    table: StepTable,
    *,
    planner: str | None = None,
    scale: Scale = "std",
    peers: Peers = Peers(fixed=("by",)),
) -> Float[Tensor, " rows"]:
    """Standardize the return inside the group; every planner turn gets it, every other module's row gets 0.

        A_i = (R_i − mean of R over the group) / (deviation of R over the group + 1e-6)

    R_i is the reward of all rows of trajectory i: with `reward: outcome`, whether its final answer was right.

    Args:
        table: columns group, trajectory, agent, reward, each (rows,).
        planner: name of the trained module; None: all agents are trained.
        scale: "std" divides by the deviation; "none" only centers.
        peers: unit, ddof, singleton and zero_variance of `Peers`, inside the group.
        unit: what counts once in mean and deviation. "trajectory": each trajectory. "row": each planner turn, so that
            long trajectories weigh more, as in the public code.

    Returns: float32 (rows,).
    Raises: InvalidData, if no group has two members, if a trajectory has no planner turn, or if it has no outcome while
        others have one: a missing judgment must not count as 0.
    Differs from the authors' code: statistics are over trajectories (`unit="row"` reproduces it).

    >>> table = StepTable(group=["g"] * 4, trajectory=["a", "a", "a", "b"], agent=["planner"] * 4, turn=[0, 1, 2, 0],
    ...                   reward=[0, 0, 1, 0])
    >>> [round(a, 4) for a in flow_grpo(table).tolist()]
    [0.7071, 0.7071, 0.7071, -0.7071]
    """
    own = _planned(table, planner)
    _refuse_unjudged(table)
    group = table.key(*peers.by)
    planned = Key(group.codes, group.size, group.names, group.weights * own)
    return peers.standardize(total_return(table), table, by=planned, scale=scale)


def _planned(table: StepTable, planner: str | None) -> Bool[Tensor, " rows"]:
    """Mark the rows of the planner."""
    if planner is None:
        return torch.ones(len(table), dtype=torch.bool)
    names = [str(name) for name in table.labels("agent")]
    own = table["agent"] == (names.index(planner) if planner in names else -1)
    trajectory = table.key("trajectory")
    idle = segment_count(by=Key(trajectory.codes, trajectory.size, (), own.double())) == 0
    if bool(idle.any()):
        first = table.labels("trajectory")[int(idle.nonzero()[0])]
        raise InvalidData(
            where=f"advantage: flow_grpo, trajectory {first}",
            what=f"{int(idle.sum())} of {len(idle)} have no turn of `{planner}`; agents: {', '.join(names)}.",
            remedy="Set `planner` to the trained module, and leave out trajectories in which it never acted.",
        )
    return own


def _refuse_unjudged(table: StepTable) -> None:
    """Refuse a missing outcome beside others: its judge failed. If all are missing, only rewards are used.

    A trajectory that a limit cut off had no judge, and counts as failed.
    """
    if "outcome" not in table:
        return
    missing = outcomes_of(table).isnan() & (table.row_weight > 0)
    if bool(missing.any()) and not bool(table["outcome"].isnan().all()):
        row = int(missing.nonzero()[0])
        raise InvalidData(
            where=f"advantage: flow_grpo, trajectory {table.labels('trajectory')[int(table['trajectory'][row])]}",
            what="its outcome is missing while others have one: the judge failed.",
            remedy="Judge it again or leave the trajectory out; as 0 it would count as a wrong answer.",
        )
