"""The estimator `turn_gae`: one advantage per turn, whitened over response tokens."""

from __future__ import annotations

import torch

from palaestra.algebra import Credit, lambda_return, segment_range
from palaestra.algebra import whiten as whiten_units
from palaestra.data import Key, StepTable
from palaestra.data.keys import compact
from palaestra.errors import InvalidData
from palaestra.registry import Columns, Fraction, register


@register(
    "advantage",
    "turn_gae",
    reads=("row_value", "terminated?", "truncated?", "bootstrap_value?"),
    writes=("advantage", "value_target", "value_weight"),
    uses=("critic",),
    source="arXiv 2510.12693",
)
def turn_gae(
    table: StepTable,
    *,
    gamma: Fraction = 0.99,
    lam: Fraction = 0.99,
    whiten: bool = True,
    chain: Columns = ("trajectory", "agent"),
) -> Credit:
    """Generalized advantage estimation over turns, with whitening over tokens, so that long turns weigh more.

        δ_t = r_t + gamma · V_{t+1} − V_t        A_t = δ_t + gamma · lam · A_{t+1}        target_t = A_t + V_t

    Long turns weigh more in the loss, too.

    Args:
        table: columns trajectory, agent, turn, reward, terminated, truncated, token_count, row_value (rows,);
            bootstrap_value (rows,) where a trajectory is truncated.
        gamma: in [0, 1], per turn. Higher: late rewards reach early turns. Usual: 0.99.
        lam: in [0, 1], per turn. Higher: less bias, more variance. Usual: 0.99.
        whiten: standardize advantages over the response tokens of the batch; targets stay as they are.
        chain: columns whose equal values mark rows that follow each other in time; each agent has its own values.

    Returns: Credit of float32 (rows,); target NaN on rows of agents without a critic.
    Raises: MissingColumn, without values or end flags; InvalidData, for a turn that is missing or occurs twice, fewer
        than 2 tokens, or a trajectory whose last row is neither terminated nor truncated.
    Differs from the authors' code: the next turn is found by its number, not by the order of rows.
    """
    _refuse_broken_turns(table, chain)
    estimate = lambda_return(table, gamma=gamma, lam=lam, level="row", by=chain)
    if not whiten:
        return estimate
    tokens = whiten_units(table.per_token(estimate.advantage), weight=table.per_token(estimate.judged.float()))
    first = table["token_count"].cumsum(0) - table["token_count"]
    return estimate._replace(advantage=tokens[first])


def _refuse_broken_turns(table: StepTable, chain: tuple[str, ...]) -> None:
    """Raise InvalidData for an act in two rows that count, or for turns of a trajectory without any row."""
    counts = table.row_weight > 0
    acts = table.key(*chain, "turn").codes[counts]
    repeated = len(acts) - compact(acts)[1]
    if repeated:
        raise InvalidData(
            where="advantage: turn_gae",
            what=f"{repeated} rows repeat a turn of ({', '.join(chain)}).",
            remedy="Give each act one row, and copies weight 0.",
        )
    trajectory, turns = table.key("trajectory"), table.key("trajectory", "turn")
    owner = torch.zeros(turns.size, dtype=torch.int64).index_copy_(0, turns.codes, trajectory.codes)
    found = torch.bincount(owner, minlength=trajectory.size)
    span = segment_range(table["turn"], by=Key(trajectory.codes, trajectory.size)) + 1
    gaps = ((found > 0) & (found < span)).nonzero()
    if len(gaps):
        name = table.labels("trajectory")[int(gaps[0, 0])]
        raise InvalidData(
            where=f"advantage: turn_gae, trajectory {name}",
            what=f"the table has {int(found[gaps[0, 0]])} of its {int(span[gaps[0, 0]])} turns.",
            remedy="Keep every turn in the table, and give weight 0 to turns that must not be learned from.",
        )
