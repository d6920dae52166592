"""Return of descendants addresses teams in which not every message is read by everyone, such as routed teams and
parallel sub-agents. If all acts share one return, an act is also paid for what happened without it. Here an act gets
its own reward and the discounted rewards of all acts that were shown its message, directly or through others. These
sums are standardized among peers of the group. In a chain the sum is the discounted reward to go. Programs can say
which messages an act was shown; otherwise calls and replies are followed. This is common practice and follows no
single paper.

This file is the estimator. `messages.py` finds who was shown what and sums the rewards.
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
    """Sum the rewards of all acts that were shown an act's message, directly or through others; then compare.

        D_k = r_k + Σ gamma^hops(k, d) · r_d over the acts d below k
        A_k = (D_k − mean of D over the peers) / (their deviation + 1e-6)

    What was said and read by nobody gets its own reward only, whatever the team achieved without it. In a chain D is
    the discounted reward to go.

    Args:
        table: columns group, trajectory, agent, turn, reward, each (rows,); reads, the turns whose messages an act
            was shown (a program's `agent.last.info["reads"] = (0, 2)`), or parent, the turn of the act that called.
        gamma: in [0, 1], per hop. Higher: the beginning of a chain is credited as much as its end; 0: own rewards
            only. Usual: 1.
        own: an act was also shown the act before it in its own conversation; False where contexts forget.
        replies: the next act of who called was also shown the last act of the call. A program that tells everything
            in `reads` sets both to False.
        scale: "std" divides by the deviation; "none" only centers.
        peers: the options of `Peers`.
        by: columns that peers agree in; ("group", "agent", "act") compares first acts with first acts.

    Returns: float32 (rows,).
    Raises: InvalidData, if no peer set has two members, or if an act was shown what is no earlier act.

    >>> table = StepTable(group=["g"] * 4, trajectory=["a", "a", "a", "b"], agent=["x", "y", "z", "x"],
    ...                   turn=[0, 1, 2, 0], reward=[0, 0, 1, 0], reads=[(), (), (0,), ()])
    >>> [round(a, 4) for a in descendants(table).tolist()]
    [0.7071, 0.0, 0.0, -0.7071]
    """
    readings = readings_of(table, own=own, replies=replies, where="advantage: descendants")
    return peers.standardize(descendant_return(table, readings, gamma=gamma), table, scale=scale)
