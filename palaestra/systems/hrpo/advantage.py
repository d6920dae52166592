"""HRPO's advantage: the group-relative advantage of the result, plus a score of the single action."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Peers, segment_sum, total_return
from palaestra.data import Key, StepTable
from palaestra.errors import MissingColumn
from palaestra.registry import Columns, NonNegative, Scale, register


@register("advantage", "hrpo", reads=("process",), writes=("advantage",), uses=("group",), source="arXiv 2506.08507")
def hrpo(
    table: StepTable,
    *,
    action_weight: NonNegative = 0.5,
    group_weight: NonNegative = 1.0,
    action: Columns = (),
    scale: Scale = "std",
    peers: Peers = Peers(),
) -> Float[Tensor, " rows"]:
    """Add the score of each action to the group-relative advantage of the trajectory.

        A_t = group_weight · (R_i − mean of R over the group) / (deviation + 1e-6)  +  action_weight · q_t

    The score q_t is neither centered nor scaled.

    Args:
        table: columns group, trajectory, reward and process = q, each (rows,); NaN in `process` counts as 0.
        action_weight: λ ≥ 0. Higher: the price of building counts more; 0 is GRPO. Usual: 0.5.
        group_weight: ≥ 0; 0 learns from action scores only.
        action: columns whose equal values mark the rows of one action, such as ("trajectory", "agent", "invocation").
            Those rows share the sum of their scores, so that the probability of the whole action changes. Empty: every
            row is an action.
        scale: "std" divides by the deviation; "none" only centers.
        peers: the options of `Peers`.

    Returns: float32 (rows,).
    Raises: MissingColumn, if no row has a score; InvalidData, if no group has two members.
    Differs from the authors' code: none is public; the form of the sum follows the abstract.

    >>> table = StepTable(group=["g"] * 3, trajectory=["a", "a", "b"], agent=["x"] * 3, turn=[0, 1, 0],
    ...                   reward=[0, 1, 0], process=[0, -0.2, 0])
    >>> [round(a, 4) for a in hrpo(table).tolist()]
    [0.7071, 0.6071, -0.7071]
    """
    if "process" not in table or bool(table["process"].isnan().all()):
        raise MissingColumn(
            where="advantage: hrpo",
            what="no row has a score of its action (column `process`).",
            remedy="Use an environment that gives `process` in its info, or the advantage `grpo`, which needs none.",
        )
    whole = peers.standardize(total_return(table), table, scale=scale)
    counts, score = table.row_weight > 0, table["process"].nan_to_num()
    if action:
        one = table.key(*action)
        score = segment_sum(score, by=Key(one.codes, one.size, one.names, counts.double()))[one.codes]
    return torch.where(counts, group_weight * whole.double() + action_weight * score, 0.0).float()
