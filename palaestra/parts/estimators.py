"""Advantage estimators that need no critic: GRPO and its variants, and REINFORCE."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Peers, reward_to_go, segment_mean, standardize, token_rewards, total_return, whiten
from palaestra.data import Key, StepTable
from palaestra.registry import Columns, Discount, NonNegative, Scale, register


@register("advantage", "dr_grpo", reads=(), writes=("advantage",), uses=("group",), source="arXiv 2503.20783")
def dr_grpo(table: StepTable, *, peers: Peers = Peers(fixed=("ddof",))) -> Float[Tensor, " rows"]:
    """Subtract the group's mean return. Without a deviation, very easy and very hard tasks get no larger weight.

        A_i = R_i − mean of R over the group

    Args:
        table: columns group, trajectory, reward, each (rows,).
        peers: the options by, unit, singleton and zero_variance of `Peers`.

    Returns: float32 (rows,).
    Raises: InvalidData, if no group has two trajectories.
    """
    return peers.standardize(total_return(table), table)


@register(
    "advantage",
    "dr_mas",
    reads=(),
    reads_if={"penalty": ("invalid?",)},
    writes=("advantage",),
    uses=("group",),
    first=("scale", "by", "unit"),
    source="arXiv 2602.08847",
)
def dr_mas(
    table: StepTable,
    *,
    scale: Scale = "std",
    returns: Columns = ("trajectory",),
    penalty: NonNegative = 0.0,
    peers: Peers = Peers(by=("group", "agent"), unit="row"),
) -> Float[Tensor, " rows"]:
    """Standardize the return over the rows of one agent in one group.

        s_r = R_r − penalty · invalid_r
        A_r = (s_r − mean of s over rows of this agent in the group) / (their deviation + 1e-6)

    With one baseline for all agents, the mean square advantage of an agent with mean μ_a and deviation σ_a is
    (σ_a² + (μ_a − μ)²)/σ², which has no upper bound. With a baseline for each agent it is 1.

    Args:
        table: columns group, trajectory, agent, reward, each (rows,); with a penalty also invalid, 1 where a
            response could not be read. It may be absent if all responses could be read.
        scale: "std" divides by the deviation; "none" only centers.
        returns: rows that agree in these columns share one return; ("trajectory", "agent") sums each agent's rewards
            separately.
        penalty: ≥ 0, subtracted from the score of a row with an unreadable response. Higher: the format is learned
            sooner. Usual: 0.01 for searches, 0.1 for mathematics.
        peers: the options of `Peers`. Two of them have further uses here:
        by: ("group",) is the same estimator without statistics for each agent, as an ablation.
            ("group", "agent", "turn") compares only calls of the same turn, as AT-GRPO does (arXiv 2510.11062).
        unit: "row": an agent that acts twice in a trajectory counts twice. "trajectory": it counts once, and the
            penalty of an unreadable response is spread over its rows. Where `returns` contains "agent", the return of
            each agent counts once for each trajectory.

    Returns: float32 (rows,).
    Raises: InvalidData, if no agent has two rows in any group.
    Differs from the authors' code: a row without peers gets 0, not its raw return (`singleton="raw"`); padding has
        weight 0, where the authors repeat random rows.
    """
    own = table.key("trajectory", *returns) if peers.unit == "trajectory" else table.unit(peers.unit)
    score = total_return(table, by=returns)
    if penalty > 0 and "invalid" in table:
        once = None if own is None or peers.unit == "token" else table.key(*peers.by) & own
        score = (score.double() - penalty * _shared(table["invalid"].double(), once)).float()
    return peers.standardize(score, table, unit=own, scale=scale)


def _shared(values: Float[Tensor, " rows"], once: Key | None) -> Float[Tensor, " rows"]:
    """The value of each row; with `once`, the mean over the rows that count as one."""
    return values if once is None else segment_mean(values, by=once)[once.codes]


@register("advantage", "grpo", reads=(), writes=("advantage",), uses=("group",), source="arXiv 2402.03300")
def grpo(
    table: StepTable,
    *,
    scale: Scale = "std",
    peers: Peers = Peers(),
) -> Float[Tensor, " rows"]:
    """Standardize the return inside the group. All rows of a trajectory get the same advantage.

        A_i = (R_i − mean of R over the group) / (deviation of R over the group + 1e-6)

    Args:
        table: columns group, trajectory, reward, each (rows,).
        scale: "std" divides by the deviation; "none" is Dr. GRPO.
        peers: the options of `Peers`.

    Returns: float32 (rows,).
    Raises: InvalidData, if no group has two members.
    Differs from the authors' code: a trajectory without peers gets 0, not its raw return (`singleton="raw"`).

    >>> table = StepTable(group=["g"] * 3, trajectory=["a", "b", "c"], agent=["x"] * 3, turn=[0, 0, 0],
    ...                   reward=[0, 1, 2])
    >>> grpo(table, scale="none").tolist()
    [-1.0, 0.0, 1.0]
    """
    return peers.standardize(total_return(table), table, scale=scale)


@register(
    "advantage",
    "grpo_process",
    reads=(),
    writes=("advantage",),
    uses=("group",),
    source="arXiv 2402.03300, process supervision",
)
def grpo_process(
    table: StepTable,
    *,
    scale: Scale = "std",
    peers: Peers = Peers(unit="row", fixed=("unit",)),
) -> Float[Tensor, " rows"]:
    """Sum the standardized rewards from a step to the end of its trajectory.

        z_k = (r_k − mean of r over all rows of the group) / (deviation of r over them + 1e-6)
        A_k = z_k + A_{k+1}

    Use it where the environment rewards steps. If only the last step has a reward, z is a small negative number on
    every other step, and a longer trajectory has more of them.

    Args:
        table: columns group, trajectory, turn, reward, each (rows,).
        scale: "std" divides by the deviation; "none" only centers.
        peers: the options by, ddof, singleton and zero_variance of `Peers`; each row counts once.

    Returns: float32 (rows,).
    Raises: InvalidData, if no group has two rows.
    """
    standard = peers.standardize(table["reward"], table, scale=scale)
    return reward_to_go(table, gamma=1.0, reward=standard)


@register("advantage", "reinforce", reads=(), writes=("advantage",), source="Williams 1992")
def reinforce(
    table: StepTable,
    *,
    baseline: Literal["none", "batch", "group"] = "none",
    gamma: Discount = 1.0,
    level: Literal["row", "token"] = "row",
    chain: Columns = ("trajectory",),
) -> Float[Tensor, " units"]:
    """Compute the reward to go and subtract a baseline.

        A_u = D_u − b          D_u = r_u + gamma · D_{u+1}

    Args:
        table: columns group, trajectory, turn, reward (rows,); token_count at level "token".
        baseline: "none": b is 0. "batch": b is the mean of D over all units of the batch. "group": over the group.
        gamma: in (0, 1]. Higher: late rewards reach early units. Usual: 0.99–1.
        level: the unit of time, a row or a response token. At level "token", the last token of a row gets its reward.
        chain: rows that agree in these columns follow each other in time.

    Returns: float32 (rows,) at level "row", (tokens,) at level "token".
    Raises: InvalidData, if baseline is "group" and no group has two units.
    """
    values = reward_to_go(table, gamma=gamma, by=chain, level=level)
    peers = table.key("group") if baseline == "group" else table.key()
    return standardize(
        values,
        by=peers if level == "row" else peers.spread(table.token_row),
        center="none" if baseline == "none" else "mean",
        singleton="raw" if baseline == "none" else "zero",
        need_peers=baseline == "group",
    )


@register(
    "advantage",
    "reinforce_plus_plus",
    reads=(),
    reads_if={"beta": ("logprob_reference", "logprob_old?", "logprob_behavior?")},
    writes=("advantage",),
    source="arXiv 2501.03262",
)
def reinforce_plus_plus(
    table: StepTable,
    *,
    beta: NonNegative = 0.0,
    gamma: Discount = 1.0,
    chain: Columns = ("trajectory",),
) -> Float[Tensor, " tokens"]:
    """Whiten the reward to go of all response tokens. It needs no group: one trajectory for each task is enough.

        r_u = −beta · (logprob_u − reference_u)  +  the row's reward, on its last token
        D_u = r_u + gamma · D_{u+1}              A = (D − mean of D) / deviation of D, over the batch

    Args:
        table: columns trajectory, turn, reward (rows,), token_count; with beta > 0 logprob_reference and
            logprob_old (else logprob_behavior), each (tokens,).
        beta: ≥ 0. Higher: the policy stays closer to the reference. Usual: 0–0.01.
        gamma: in (0, 1], per token. Higher: late rewards reach early tokens. Usual: 1.
        chain: rows that agree in these columns follow each other in time.

    Returns: float32 (tokens,).
    Raises: InvalidData, for fewer than 2 tokens or a missing log-probability; MissingColumn, if beta > 0
        and there is no reference.
    Differs from the authors' code: nothing. There are several public versions; in this one the reward to go continues
        over all steps of a trajectory.
    """
    counts = table.row_weight[table.token_row] > 0
    rewards = token_rewards(table, kl=beta, where="reinforce_plus_plus: beta")
    returns = reward_to_go(table, gamma=gamma, by=chain, level="token", reward=rewards)
    return whiten(returns, weight=counts)


@register(
    "advantage",
    "reinforce_plus_plus_baseline",
    reads=(),
    writes=("advantage",),
    uses=("group",),
    source="arXiv 2501.03262",
)
def reinforce_plus_plus_baseline(
    table: StepTable, *, peers: Peers = Peers(fixed=("ddof", "zero_variance"))
) -> Float[Tensor, " tokens"]:
    """Subtract the group's mean return, then whiten over all response tokens of the batch.

        A_u = (C_u − mean of C) / deviation of C, over the tokens of the batch;  C = R_i − mean of R in the group

    The deviation is that of the batch, so a group with nearly equal returns gets no large advantages.

    Args:
        table: columns group, trajectory, reward (rows,), token_count.
        peers: the options by, unit and singleton of `Peers`.

    Returns: float32 (tokens,).
    Raises: InvalidData, if no group has two trajectories.
    """
    centered = peers.standardize(total_return(table), table)
    return whiten(table.per_token(centered), weight=table.per_token(table.row_weight))


@register("advantage", "rloo", reads=(), writes=("advantage",), uses=("group",), source="arXiv 2402.14740")
def rloo(table: StepTable, *, peers: Peers = Peers(fixed=("ddof",))) -> Float[Tensor, " rows"]:
    """Subtract the mean return of the other trajectories of the group. The estimate is unbiased.

        A_i = R_i − mean of R over the other trajectories of the group = n/(n−1) · (R_i − mean of R)

    Args:
        table: columns group, trajectory, reward, each (rows,).
        peers: the options by, unit, singleton and zero_variance of `Peers`.

    Returns: float32 (rows,).
    Raises: InvalidData, if no group has two trajectories.
    """
    return peers.standardize(total_return(table), table, center="leave_one_out")
