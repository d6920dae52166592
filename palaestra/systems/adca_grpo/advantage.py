"""ADCA-GRPO: standardized flags of a step judge are added to the standardized outcome."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import reward_to_go, segment_count, segment_mean, standardize, total_return
from palaestra.data import Key, StepTable
from palaestra.errors import InvalidData
from palaestra.registry import Columns, NonNegative, Positive, PositiveInt, register

SMALL = 1e-8  # added to the variance of step scores


@register(
    "advantage",
    "adca_grpo",
    reads=("good",),
    reads_if={"decay": ("version",)},
    writes=("advantage",),
    uses=("group",),
    source="arXiv 2511.10395",
)
def adca_grpo(
    table: StepTable,
    *,
    scheme: Literal["decouple", "allocation"] = "decouple",
    outcome: Literal["last_step", "all_steps"] = "last_step",
    alpha: NonNegative = 0.1,
    alpha_end: NonNegative = 0.0,
    decay: PositiveInt | None = None,
    size: Positive = 0.2,
    bad_in_success: float = 0.2,
    good_in_failure: float = 0.2,
    success: float = 0.5,
    by_length: bool = False,
    by: Columns = ("group",),
) -> Float[Tensor, " rows"]:
    """Sum the judge's standardized flags and the standardized outcome from each step to the end.

        A_j = Σ over m ≥ j of (alpha · z_m + o_m)          each times 1/√K with by_length
        z   = (x − mean of x) / sqrt(variance of x + 1e-8)  over the steps of the group, each trajectory once
        o   = (R − mean of R) / population deviation of R, on the last step; or 1/K of it on each

    decouple    x = +size for a good step, −size for a bad one
    allocation  x = ±w / Σ w of the trajectory, + in a success, − in a failure; w is 1 for a good step of a success
                and a bad one of a failure, else `bad_in_success` or `good_in_failure`

    K is the number of steps of the trajectory.

    Args:
        table: columns group, trajectory, turn, reward, good, each (rows,); good is 1 or 0.
        scheme: how flags become scores.
        outcome: which steps get the outcome. "last_step" gives it to the last step. "all_steps" gives each step 1/K of
            it, so that the sum to the end counts it at most once; late steps then get less of it.
        alpha: ≥ 0, weight of the judge. Higher: the judge counts more; 0 is GRPO with the population deviation. Usual:
            0.1.
        alpha_end: the value that alpha reaches after `decay` versions.
        decay: number of versions of the policy (column `version`) over which alpha moves to `alpha_end` on a half
            cosine; None keeps alpha constant.
        size: > 0, absolute score of a flag in "decouple". Standardization cancels it, except for the 1e-8.
        bad_in_success, good_in_failure: weights in "allocation". A negative weight reverses the sign of that step.
        success: a trajectory with a return above this is a success.
        by_length: divide by the square root of the number of steps.
        by: columns whose equal values make trajectories peers; a trajectory without peers gets 0.

    Returns: float32 (rows,).
    Raises: MissingColumn, without flags; InvalidData, for a step without a flag, a flag that is neither 0 nor 1,
        weights that sum to 0, or if no group has two trajectories.
    Differs from the authors' code: a missing flag is refused, not filled in; "all_steps" is divided by K (theirs sums
        the outcome once per remaining step); `good_in_failure` is 0.2 (theirs: 0.2 in the code, −0.2 in the
        configuration).
    """
    counts = table.row_weight > 0
    good = _flags(table, counts)
    whole, peers = table.key("trajectory"), table.key(*by)
    own = Key(whole.codes, whole.size, (), counts.double())
    steps = segment_count(by=own)[own.codes].clamp_min(1.0)
    returns = total_return(table)
    result = standardize(returns, by=peers, unit=whole, scale="std", ddof=0, need_peers=True).double()
    if scheme == "decouple":
        score = size * (2 * good - 1)
    else:
        won = returns > success
        score = _allocated(good, won, own, bad_in_success=bad_in_success, good_in_failure=good_in_failure)
    total = _alpha(table, counts, alpha, alpha_end, decay) * _standard(score, peers, counts / steps)
    if outcome == "last_step":
        order, last = table.timeline("trajectory")
        ends = order[last]
        total[ends] += result[ends]
    else:
        total += result / steps
    if by_length:
        total = total / steps.sqrt()
    compared = _compared(peers, whole, counts)
    return reward_to_go(table, gamma=1.0, reward=torch.where(compared, total, 0.0).float())


def _flags(table: StepTable, counts: Tensor) -> Tensor:
    good = table["good"].double()
    wrong = ((good != 0) & (good != 1) & counts).nonzero()
    if len(wrong):
        row = int(wrong[0, 0])
        raise InvalidData(
            where=f"column `good`, trajectory {table.labels('trajectory')[int(table['trajectory'][row])]}, "
            f"turn {int(table['turn'][row])}",
            what=f"{len(wrong)} of {int(counts.sum())} steps have a flag that is neither 0 nor 1; "
            f"the first has {float(good[row]):g}.",
            remedy="Let the judge give every step the flag 0 or 1; missing flags are not filled in.",
        )
    return torch.where(counts, good, 0.0)


def _allocated(good: Tensor, won: Tensor, own: Key, *, bad_in_success: float, good_in_failure: float) -> Tensor:
    """Divide +1 for a success or −1 for a failure among the steps of each trajectory."""
    share = torch.where(
        won, torch.where(good > 0, 1.0, bad_in_success), torch.where(good > 0, good_in_failure, 1.0)
    ).double()
    total = (segment_mean(share, by=own) * segment_count(by=own))[own.codes]
    if bool(((total.abs() < SMALL) & (own.weights > 0)).any()):
        raise InvalidData(
            where="advantage: adca_grpo, scheme: allocation",
            what="the weights of a trajectory's steps sum to 0, so the outcome cannot be divided among them.",
            remedy="Give `bad_in_success` and `good_in_failure` a value above 0; the authors' is 0.2.",
        )
    return torch.where(won, 1.0, -1.0) * share / torch.where(total == 0, 1.0, total)


def _standard(score: Tensor, peers: Key, once: Tensor) -> Tensor:
    """Standardize scores over the steps of a group; each trajectory has a total weight of 1."""
    key = Key(peers.codes, peers.size, (), once)
    centered = score - segment_mean(score, by=key)[key.codes]
    return centered / (segment_mean(centered.square(), by=key)[key.codes] + SMALL).sqrt()


def _compared(peers: Key, whole: Key, counts: Tensor) -> Tensor:
    """Mark the rows whose group has another trajectory."""
    pair = peers & whole
    sets = torch.zeros(pair.size, dtype=torch.int64)
    sets[pair.codes] = peers.codes
    present = torch.zeros(pair.size, dtype=torch.float64)
    present[pair.codes[counts]] = 1.0
    return counts & (segment_count(by=Key(sets, peers.size, (), present)) > 1)[peers.codes]


def _alpha(table: StepTable, counts: Tensor, start: float, end: float, decay: int | None) -> float:
    if decay is None or not bool(counts.any()):
        return start
    age = min(float(table["version"][counts].max()) / decay, 1.0)
    return end + (start - end) * (1 + math.cos(math.pi * age)) / 2
