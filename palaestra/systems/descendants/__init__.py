"""Return of descendants addresses teams in which not every message is read by everyone, such as routed teams and
parallel sub-agents. If all acts share one return, an act is also paid for results that it did not contribute to. Here
an act gets its own reward and the discounted rewards of all acts that were shown its message, directly or through
others. These sums are standardized among peers of the group. In a chain the sum is the discounted reward to go. A
program can record which messages an act was shown; otherwise calls and replies are followed. This is common practice
and follows no single paper.

This file is the estimator. `messages.py` finds which messages each act was shown and sums the rewards.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Peers
from palaestra.data import StepTable
from palaestra.registry import Fraction, Scale, register
from palaestra.systems.descendants.messages import descendant_return, readings_of


@register(
    "advantage",
    "descendants",
    reads=("reads?", "parent?", "invocation?"),
    writes=("advantage",),
    uses=("group",),
    first=("gamma", "own", "replies", "by", "unit"),
    source="common practice",
)
def descendants(
    table: StepTable,
    *,
    gamma: Fraction = 1.0,
    own: bool = True,
    replies: bool = True,
    scale: Scale = "std",
    peers: Peers = Peers(by=("group", "agent"), unit="row"),
) -> Float[Tensor, " rows"]:
    """Sum the rewards of all acts that were shown an act's message, directly or through others; standardize the sum.

        D_k = r_k + Σ gamma^hops(k, d) · r_d over the acts d below k
        A_k = (D_k − mean of D over the peers) / (their deviation + 1e-6)

    An act whose message no other act was shown gets its own reward only, whatever the team earned. In a chain D is the
    discounted reward to go.

    Args:
        table: columns group, trajectory, agent, turn, reward, each (rows,); reads, the turns whose messages an act was
            shown (a program's `agent.last.info["reads"] = (0, 2)`), or parent, the turn of the act that called.
        gamma: in [0, 1], discount per hop. Higher: early acts of a chain get more; 1 credits them as much as the last;
            0: own rewards only. Usual: 1.
        own: an act was also shown the act before it in its own conversation; set it to false for contexts that forget.
        replies: the caller's next act was also shown the last act of the call. A program that records everything in
            `reads` sets `own` and `replies` to false.
        scale: "std" divides by the deviation; "none" only centers.
        peers: the options of `Peers`.
        by: columns whose equal values make acts peers; ("group", "agent", "act") compares first acts with first acts.

    Returns: float32 (rows,).
    Raises: InvalidData, if no peer set has two members, or if an act was shown a turn that is not an earlier act.

    >>> table = StepTable(group=["g"] * 4, trajectory=["a", "a", "a", "b"], agent=["x", "y", "z", "x"],
    ...                   turn=[0, 1, 2, 0], reward=[0, 0, 1, 0], reads=[(), (), (0,), ()])
    >>> [round(a, 4) for a in descendants(table).tolist()]
    [0.7071, 0.0, 0.0, -0.7071]
    """
    readings = readings_of(table, own=own, replies=replies, where="advantage: descendants")
    return peers.standardize(descendant_return(table, readings, gamma=gamma), table, scale=scale)
