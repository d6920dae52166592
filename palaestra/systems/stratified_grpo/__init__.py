"""Stratified GRPO (arXiv 2510.06214) addresses search agents whose trajectories differ in structure, such as the number
of search calls. A common baseline compares trajectories that are not alike. The method standardizes a return among the
trajectories of the same stratum and blends this with the comparison in the whole group, since only the latter shows
whether a stratum is good. Here the blend of 0.8 is ours, because the paper's value is not known to us, and strata that
are made of results are refused. The recipe trains a network policy; language models that search a corpus are not in it.
This file is the estimator; the environment gives the column `stratum`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Peers, segment_range, total_return
from palaestra.data import StepTable
from palaestra.data.keys import Key
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.rewards import cut_off
from palaestra.registry import Columns, Fraction, Scale, register

RESULTS = ("reward", "outcome", "process", "row_value")  # columns that a stratum must not be made of


@register(
    "advantage",
    "stratified_grpo",
    reads=("stratum", "truncated?"),
    writes=("advantage",),
    uses=("group",),
    source="arXiv 2510.06214",
)
def stratified_grpo(
    table: StepTable,
    *,
    blend: Fraction = 0.8,
    strata: Columns = ("stratum",),
    scale: Scale = "std",
    peers: Peers = Peers(),
) -> Float[Tensor, " rows"]:
    """Compare a trajectory with its stratum, blended with a comparison in its whole group.

        A = blend · S + (1 − blend) · G
        S_i = (R_i − mean of R over the group's trajectories of the same stratum) / their deviation
        G_i = (R_i − mean of R over the group) / its deviation

    Without scale G = S + (mean of the stratum − mean of the group). The last term compares structures, not the results
    inside one, and it alone shows which structure is better; `blend` keeps a part of it.

    Args:
        table: columns group, trajectory, reward, stratum, each (rows,); the stratum is a trajectory's structure, such
            as its number of tool calls, and never its result. Trajectories that a limit cut off before they had a
            stratum are a stratum of their own.
        blend: in [0, 1]. Higher: structures are compared less. 1: a good stratum has no advantage over a bad one. 0:
            GRPO. Usual: 0.8 (ours: the paper's value is not known to us).
        strata: columns that make the stratum.
        scale: "std" divides by the deviation, in both parts; "none" only centers.
        peers: the options of `Peers`, for both parts; singleton is for G; a trajectory alone in its stratum has S = 0.

    Returns: float32 (rows,).
    Raises: MissingColumn, without strata; InvalidData, if a row has none, if a trajectory has several, or if no group
        has two trajectories; RecipeError, for strata made of results.
    """
    table = _with_cut(table) if "stratum" in strata else table
    _check_strata(table, strata)
    returns = total_return(table)
    overall = peers.standardize(returns, table, scale=scale)
    inside = peers.inside(returns, table.key(*peers.by, *strata), scale=scale, unit=table.unit(peers.unit))
    return blend * inside + (1 - blend) * overall


def _with_cut(table: StepTable) -> StepTable:
    """The table in which trajectories that were cut off without a stratum have one for themselves."""
    codes, lacks = table["stratum"], (table["stratum"] < 0) & cut_off(table)
    if not bool(lacks.any()):
        return table
    labels = [*table.labels("stratum"), ("cut off",), None]
    return table.replace(stratum=[labels[code] for code in torch.where(lacks, len(labels) - 2, codes).tolist()])


def _check_strata(table: StepTable, strata: Columns) -> None:
    """Refuse strata made of results, missing strata, and trajectories in several strata."""
    leak = sorted({*strata} & {*RESULTS})
    if leak or not strata:
        raise RecipeError(
            where="advantage: stratified_grpo",
            what=f"a stratum cannot be made of `{leak[0]}`: trajectories with the same result have no differences."
            if leak
            else "`strata` names no column.",
            remedy="Name a column of structure, such as the number of tool calls: strata: [stratum].",
        )
    whole = table.key("trajectory")
    for name in strata:
        codes = table[name]
        if name == "stratum" and bool(((codes < 0) & (table.row_weight > 0)).any()):
            row = int(((codes < 0) & (table.row_weight > 0)).nonzero()[0, 0])
            raise InvalidData(
                where=f"column `{name}`, row {row}",
                what="a trajectory has no stratum.",
                remedy='Let the environment name it in its last `info`: {"stratum": "2 calls"}.',
            )
        counts = Key(whole.codes, whole.size, (), (table.row_weight > 0).double())
        mixed = segment_range(codes, by=counts).nonzero()
        if len(mixed):
            trajectory = table.labels("trajectory")[int(mixed[0, 0])]
            raise InvalidData(
                where=f"column `{name}`, trajectory {trajectory}",
                what="its rows are in different strata.",
                remedy="Give all rows of a trajectory the same stratum: it describes the whole trajectory.",
            )
