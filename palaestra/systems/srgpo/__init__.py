"""SeeNav-Agent (arXiv 2512.02631) trains navigation, where states rarely repeat, so that there are no equal states to
compare. A verifier scores each step, for instance whether it came nearer to the target. Such a score means the same in
every state. SRGPO compares it inside random blocks of steps and adds this to GRPO's advantage. Here the return counts
each trajectory once (`unit: row` is the authors' way), and blocks can stay inside a group, an option without effect in
their code. Image navigation, the visual prompt and vision-language models are not here.

This file is the estimator. `navdist.py` is a walled grid with a hidden target and a verifier of steps.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Peers, row_draws, segment_rank, total_return
from palaestra.data import Iteration, Key, StepTable
from palaestra.data.keys import compact
from palaestra.errors import InvalidData
from palaestra.registry import NonNegative, Scale, register

BlockSize = Annotated[int, pydantic.Field(ge=2)]


@register("advantage", "srgpo", reads=("process",), writes=("advantage",), uses=("group",), source="arXiv 2512.02631")
def srgpo(
    table: StepTable,
    iteration: Iteration,
    *,
    step_weight: NonNegative = 0.5,
    block_size: BlockSize | None = 16,
    block_scope: Literal["batch", "group", "trajectory"] = "batch",
    scale: Scale = "std",
    peers: Peers = Peers(),
) -> Float[Tensor, " rows"]:
    """Credit a step with its episode's return and with its own score, compared inside a random block of steps.

        A_k = E_i + step_weight · S_k
        E_i = (R_i − mean of R over the trajectories of the group) / their deviation
        S_k = (v_k − mean of v over the block of row k) / the block's deviation

    v_k is the verified score of the step itself, not a sum of later ones. It means the same in every state, so any
    steps can be compared, even where no state occurs twice.

    Args:
        table: columns group, trajectory, agent, turn, reward, process, each (rows,).
        iteration: its seed decides the blocks. A row's block depends on this seed and on its trajectory, agent and
            turn, not on the order of rows.
        step_weight: ≥ 0. Higher: the verifier counts more; 0 is GRPO. Usual: 0.5.
        block_size: rows of a block, ≥ 2; the last block of a scope may be smaller. Higher: less noisy baselines, and
            fewer blocks with equal scores. None: one block. Usual: 16.
        block_scope: what is cut into blocks: the whole batch, each group or each trajectory.
        scale: "std" divides by the deviation, in E and S; "none" only centers.
        peers: the options of `Peers`; by, unit and singleton are for E; a row alone in its block always has S = 0.

    Returns: float32 (rows,).
    Raises: MissingColumn, without scores; InvalidData, if a row has none, for fewer than 2 rows, or if no group has two
        trajectories.
    Differs from the authors' code: E counts each trajectory once (theirs: `unit="row"`); blocks can stay inside a
        group, which is an option without effect in their code.
    """
    counts = table.row_weight > 0
    score = torch.where(counts, _scores(table, counts), 0.0)
    episode = peers.standardize(total_return(table), table, scale=scale)
    scope = table.key(*(() if block_scope == "batch" else (block_scope,)))
    blocks = _blocks(table, scope, counts, size=block_size, seed=iteration.seed)
    step = peers.inside(score, blocks, scale=scale)
    return episode + step_weight * step


def _scores(table: StepTable, counts: Tensor) -> Tensor:
    score = table["process"]
    if int(counts.sum()) < 2:
        raise InvalidData(
            where="advantage: srgpo",
            what=f"the table has {int(counts.sum())} rows that count; a comparison needs 2.",
            remedy="Play more episodes in an iteration: rollout.tasks × rollout.group.",
        )
    missing = (~score.isfinite() & counts).nonzero()
    if len(missing):
        raise InvalidData(
            where=f"advantage: srgpo, column `process`, row {int(missing[0, 0])}",
            what=f"{len(missing)} of {int(counts.sum())} steps have no score.",
            remedy="Let the environment's verifier, or a reward part, score every step.",
        )
    return score


def _blocks(table: StepTable, scope: Key, counts: Tensor, *, size: int | None, seed: int) -> Key:
    """The rows of each scope in random order, cut into pieces; padding is never in a block with rows that count."""
    apart = Key(2 * scope.codes + ~counts, 2 * scope.size, (), scope.weight)
    if size is None:
        return Key(apart.codes, apart.size, ("block",), scope.weight)
    place = segment_rank(row_draws(table, seed=seed, purpose="blocks"), by=apart) // size
    codes, number = compact(apart.codes * (int(place.max()) + 1) + place)
    return Key(codes, number, ("block",), scope.weight)
