"""OPRL's advantage: the episode's return compared inside the group, plus the step's own reward compared inside the
group.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Peers, segment_count, segment_equal, segment_mean, segment_std, standardize, total_return
from palaestra.algebra.peers import EPS
from palaestra.data import Key, StepTable
from palaestra.errors import MissingColumn
from palaestra.registry import NonNegative, register


@register("advantage", "oprl", reads=("process",), writes=("advantage",), uses=("group",), source="arXiv 2509.19199")
def oprl(
    table: StepTable,
    *,
    alpha: NonNegative = 1.0,
    episode_weight: NonNegative = 1.0,
    style: Literal["rloo", "grpo"] = "rloo",
    baseline_rows: Literal["all", "first"] = "all",
    peers: Peers = Peers(),
) -> Float[Tensor, " rows"]:
    """Credit a step with its episode's return and with its own step reward, each compared inside the group.

        A_k = episode_weight · E_i + alpha · S_k
        E_i = R_i compared with the returns of the group            (each trajectory once)
        S_k = p_k compared with the step rewards p of the group     (each row once)

    A comparison of x is n/(n−1) · (x − mean) in style "rloo" and (x − mean) / (deviation + 1e-6) in style "grpo".

    Args:
        table: columns group, trajectory, turn, reward, process, each (rows,). A row without step reward (NaN) has S = 0
            and counts in no mean.
        alpha: ≥ 0. Higher: the step's own reward counts more; 0 is RLOO (or GRPO). Usual: 1.
        episode_weight: ≥ 0. 0 learns from step rewards alone, for an ablation. Usual: 1.
        style: the form of both comparisons.
        baseline_rows: "first" takes the mean of p over the first row of each trajectory only, with n the number of
            trajectories, as the public code does; it is there to reproduce that code.
        peers: the options of `Peers`; by and ddof are for both comparisons, the others for E. A step reward without
            peers, or equal to all its peers, gives S = 0.

    Returns: float32 (rows,).
    Raises: MissingColumn, if no row has a step reward; InvalidData, if no group has two trajectories.
    Differs from the authors' code: the baseline of S is over all steps of the group, as its comments say.

    >>> table = StepTable(group=["g"] * 4, trajectory=["a", "a", "b", "b"], agent=["x"] * 4, turn=[1, 2, 1, 2],
    ...                   reward=[0, 1, 0, 0], process=[0.75, 0.0, 0.0, 0.0])
    >>> oprl(table, alpha=2.0).tolist()      # E = ±1;  S = 4/3 · (p − 3/16)
    [2.5, 0.5, -1.5, -1.5]
    """
    key, process = table.key(*peers.by), table["process"]
    known = process.isfinite()
    if not bool((known & (key.weights > 0)).any()):
        raise MissingColumn(
            where="oprl(…)",
            what="no row has a step reward in the column `process`.",
            remedy="Put `implicit_process` into `reward`, or let the environment score steps.",
        )
    center: Literal["mean", "leave_one_out"] = "leave_one_out" if style == "rloo" else "mean"
    scale: Literal["none", "std"] = "none" if style == "rloo" else "std"
    episode = peers.standardize(total_return(table), table, center=center, scale=scale)
    scored = Key(key.codes, key.size, key.names, key.weights * known)
    process = process.nan_to_num()
    if baseline_rows == "first":
        step = _against_first_rows(process, table, scored, style=style, ddof=peers.ddof)
    else:
        step = standardize(process, by=scored, center=center, scale=scale, ddof=peers.ddof)
    return episode_weight * episode + alpha * step


def _against_first_rows(
    process: Tensor, table: StepTable, scored: Key, *, style: Literal["rloo", "grpo"], ddof: int
) -> Float[Tensor, " rows"]:
    """S with mean, deviation and n over the first row of each trajectory: (rows,)."""
    order, last = table.timeline("trajectory")
    opens = torch.ones(len(table), dtype=torch.bool)
    opens[order[1:]] = last[:-1]
    first = Key(scored.codes, scored.size, scored.names, scored.weights * opens)
    count = segment_count(by=first)
    out = process.double() - segment_mean(process, by=first)[first.codes]
    if style == "rloo":
        out = out * (count / (count - 1).clamp_min(1e-300))[first.codes]
    else:
        deviation = segment_std(process, by=first, ddof=ddof)[first.codes]
        equal = segment_equal(process, by=first)[first.codes]
        out = torch.where(equal | (deviation == 0), 0.0, out / (deviation + EPS))
    compared = (scored.weights > 0) & (count[first.codes] > 1)
    return torch.where(compared, out, 0.0).float()
