"""The foresight advantage: a subgoal is compared with the other subgoals that were tried in the same state."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from palaestra.algebra import segment_range, standardize
from palaestra.data import Key, StepTable
from palaestra.data.keys import compact
from palaestra.errors import InvalidData
from palaestra.registry import Columns, Degrees, NonNegative, Scale, ZeroVariance, register

WORTH = ("format", "executed", "judged")


@register(
    "advantage",
    "foresight",
    reads=("node", "format", "executed", "judged", "invocation?", "state_key?"),
    writes=("advantage",),
    source="arXiv 2510.14388",
)
def foresight(
    table: StepTable,
    *,
    format_weight: NonNegative = 0.1,
    execution_weight: NonNegative = 0.6,
    judge_weight: NonNegative = 0.3,
    planner: str = "planner",
    by: Columns = ("node",),
    peers: Columns = ("group", "agent"),
    scale: Scale = "std",
    ddof: Degrees = 1,
    zero_variance: ZeroVariance = "zero",
) -> Float[Tensor, " rows"]:
    """Credit a subgoal relative to the other subgoals of its state, and an attempt by whether it was executed.

        planner:  F = format_weight · format + execution_weight · executed + judge_weight · judged
                  A = (F − mean of F over the node) / (deviation of F over the node + 1e-6)
        others:   A = (executed − mean over attempts of the peers) / (their deviation + 1e-6)

    A node is one state with the subgoals that the program `foresight` tried there. One decision is one group, so credit
    does not need the end of the episode. An attempt is what one agent did for one subgoal (`invocation`).

    Args:
        table: columns trajectory, agent, node, invocation, each (rows,); on rows of the planner also format, executed
            and judged: whether the subgoal was well-formed, whether the others reached it, and the judge's score for
            the state after it. On rows of others also executed, of which the largest value of an attempt counts.
        format_weight, execution_weight, judge_weight: ≥ 0. Usual: 0.1, 0.6, 0.3 (ours; the paper's are unknown to us).
        planner: the agent that sets subgoals.
        by: columns whose equal values mark subgoals of one state.
        peers: columns whose equal values mark attempts of the others that are compared: ("group", "agent"), or
            ("trajectory", "agent") inside one episode.
        scale: "std" divides by the deviation, for subgoals and attempts; "none" only centers.
        ddof, zero_variance: as in `palaestra.algebra.Peers`, for subgoals and attempts; an attempt or subgoal without
            peers gets 0.

    Returns: float32 (rows,); 0 on padding.
    Raises: MissingColumn, without `node`, `format`, `executed` or `judged`; InvalidData, if no row is the planner's, if
        a subgoal has no node, or if one node has different states.
    """
    counts, planned = table.row_weight > 0, torch.zeros(len(table), dtype=torch.bool)
    if planner in table.labels("agent"):
        planned = table["agent"] == table.labels("agent").index(planner)
    node = table.key(*by)
    _check_nodes(table, node, planned & counts, planner)
    worth = [table[name].double() for name in WORTH]
    weights = (format_weight, execution_weight, judge_weight)
    value = sum(w * column for w, column in zip(weights, worth, strict=True))
    own = Key(node.codes, node.size, node.names, (planned & counts).double())
    subgoal = standardize(torch.as_tensor(value), by=own, scale=scale, ddof=ddof, zero_variance=zero_variance)
    attempt = table.key("trajectory", "agent", *(("invocation",) if "invocation" in table else ()))
    acting = counts & ~planned
    reached = torch.zeros(attempt.size, dtype=torch.float64)
    reached = reached.scatter_reduce(0, attempt.codes[acting], worth[1][acting], "amax")
    group = table.key(*peers)
    executed = standardize(
        reached[attempt.codes],
        by=Key(*compact(2 * group.codes + planned), group.names, acting.double()),
        unit=attempt,
        scale=scale,
        ddof=ddof,
        zero_variance=zero_variance,
    )
    return torch.where(planned, subgoal, executed)


def _check_nodes(table: StepTable, node: Key, planned: Bool[Tensor, " rows"], planner: str) -> None:
    if not bool(planned.any()) and bool((table.row_weight > 0).any()):
        raise InvalidData(
            where="advantage: foresight",
            what=f"no row is of agent `{planner}`; the agents are {', '.join(map(str, table.labels('agent')))}.",
            remedy="Name the agent that sets subgoals in `planner`.",
        )
    lacking = (planned & (table["node"] < 0) if "node" in node.names else planned[:0]).nonzero()
    if len(lacking):
        raise InvalidData(
            where=f"advantage: foresight, row {int(lacking[0, 0])}",
            what="a subgoal has no node, so its state is unknown.",
            remedy="Play with `program: foresight`.",
        )
    if "state_key" not in table:
        return
    mixed = segment_range(table["state_key"], by=Key(node.codes, node.size, (), planned.double())).nonzero()
    if len(mixed):
        row = int((planned & (node.codes == mixed[0, 0])).nonzero()[0, 0])
        trajectory = table.labels("trajectory")[int(table["trajectory"][row])]
        raise InvalidData(
            where=f"advantage: foresight, trajectory {trajectory}, turn {int(table['turn'][row])}",
            what="the subgoals of one node were set in different states, so they cannot be compared.",
            remedy="Let the environment's `snapshot` and `restore` cover everything that its observations depend on.",
        )
