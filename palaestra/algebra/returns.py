"""Returns of rows, trajectories and tokens, with and without a critic."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra.segments import reverse_scan, segment_sum
from palaestra.data.keys import Key
from palaestra.data.table import StepTable
from palaestra.errors import InvalidData, MissingColumn

HALF_ULP = 2.0**-24  # the largest relative rounding error of one float32 number


class Credit(NamedTuple):
    """The result of an estimator.

    Attributes:
        advantage: (rows,) or (tokens,).
        target: same shape, the targets of the critic's values, NaN where the critic gives no value; None without a
            critic.
        columns: further columns of rows or tokens. Later parts and losses read them by name.
    """

    advantage: Tensor
    target: Tensor | None = None
    columns: Mapping[str, Tensor] = MappingProxyType({})

    @property
    def judged(self) -> Tensor:
        """Which rows or tokens have a target: bool, same shape as `advantage`. Without a critic, none has."""
        return torch.zeros(len(self.advantage), dtype=torch.bool) if self.target is None else self.target.isfinite()


# ---- temporal kernels -------------------------------------------------------------------------------------
def total_return(table: StepTable, *, by: tuple[str, ...] = ("trajectory",)) -> Float[Tensor, " rows"]:
    """R = Σ reward over the rows that agree in `by`, such as a trajectory: the same number on each row of such a set.

    A sum so small that the rounding of its terms explains it, such as 0.3 + 0.3 + 0.3 − 0.9, becomes exactly 0.
    """
    key, reward = table.key(*by), table["reward"]
    counts = Key(
        key.codes, key.size, key.names, (key.weights > 0).double()
    )  # a row of weight ½ still adds its whole reward
    total = segment_sum(reward, by=counts)
    left = total.abs() <= HALF_ULP * segment_sum(reward.abs(), by=counts)
    return torch.where(left, 0.0, total)[key.codes].float()


def reward_to_go(
    table: StepTable,
    *,
    gamma: float,
    by: tuple[str, ...] = ("trajectory",),
    clock: Literal["row", "turn"] = "row",
    level: Literal["row", "token"] = "row",
    reward: Tensor | None = None,
) -> Float[Tensor, " units"]:
    """D_u = r_u + gamma · D_{u+1} over the rows of a trajectory in time, or over their response tokens.

    Args:
        clock: "row" discounts once per row. "turn" discounts by the difference of turns, so that agents that act in
            one turn share a return. It is ignored at level "token", which discounts once per token.
        level: what a unit is. At "token" a row's reward is on its last token.
        reward: (units,), used instead of the column `reward`.
    """
    unit, last = table.timeline(*by)
    weight = table.row_weight > 0
    if level == "token":
        unit, closes, row = _token_timeline(table, unit)
        last, weight = last[row] & closes, weight[table.token_row]
        reward = _on_last_token(table) if reward is None else reward
    reward = (table["reward"] if reward is None else reward).double() * weight
    step = torch.full((len(unit),), gamma, dtype=torch.float64)
    if level == "row" and clock == "turn":
        out = _shared_turns(reward[unit], gamma, table["turn"][unit], last)
    else:
        out = reverse_scan(reward[unit], torch.where(last, 0.0, step))
    return torch.empty_like(out).index_copy_(0, unit, out).float()


def _shared_turns(reward: Tensor, gamma: float, turn: Tensor, last: Tensor) -> Tensor:
    """Reward to go in timeline order, discounted by the difference of turns; equal turns share one value."""
    hop = torch.diff(turn, append=turn[-1:] + 1).clamp_min(0).double()
    total = reverse_scan(reward, torch.where(last, 0.0, gamma**hop))
    opens = torch.ones(len(turn), dtype=torch.bool)
    opens[1:] = (turn[1:] != turn[:-1]) | last[:-1]
    return total[opens][opens.cumsum(0) - 1]


def lambda_return(
    table: StepTable,
    *,
    gamma: float,
    lam: float,
    level: Literal["row", "token"] = "row",
    gamma_in: float | None = None,
    reward: Tensor | None = None,
    by: tuple[str, ...] = ("trajectory", "agent"),
    open_end: Literal["error", "last_value"] = "error",
    target_lam: float | None = None,
) -> Credit:
    """Generalized advantage estimation over rows or over response tokens.

        δ_u = r_u + g_u · V_{u+1} − V_u          A_u = δ_u + g_u · lam · A_{u+1}          target = A + V

    V_{u+1} is 0 after a terminated last row and `bootstrap_value` after a truncated one. g_u is `gamma` between
    rows and `gamma_in` (default: `gamma`) between the tokens of one row. At token level a row's reward is on its
    last token, and the unit after a row's last token is the first token of the next row. A chain is a set of rows
    that agree in `by`. A chain without any value belongs to an agent without a critic; like padding it gets
    advantage 0 and target NaN.

    Args:
        table: columns row_value (rows,) at level "row", value_old (tokens,) at level "token";
            terminated, truncated (rows,); bootstrap_value (rows,), read on truncated last rows.
        reward: (units,), used instead of the column `reward`.
        open_end: what to do if the last row of a chain is neither terminated nor truncated. "error": raise.
            "last_value": take V of the chain's last unit once more as the next value, so that with gamma 1 the
            unit's δ is its own reward.
        target_lam: `lam` for the targets; None: `lam`. With 1 the targets are discounted rewards to go.

    Raises: MissingColumn, if values or flags are missing; InvalidData, if the last row of a chain is
        neither terminated nor truncated (open_end "error"), or if a chain has values on some of its rows only.
    """
    order, last = table.timeline(*by)
    value, judged = _values(table, "row_value" if level == "row" else "value_old", by=by)
    end, unfinished = _end_value(table, order, last, judged, open_end=open_end)
    rewards, inner = (table["reward"] if reward is None else reward), gamma
    unit, closes = order, torch.ones(len(order), dtype=torch.bool)
    if level == "token":
        unit, closes, row = _token_timeline(table, order)
        last, end, judged = last[row] & closes, end[row], judged[table.token_row]
        unfinished = unfinished[row] & closes
        rewards = _on_last_token(table) if reward is None else reward
        inner = gamma if gamma_in is None else gamma_in
    v, r = value[unit], (rewards.double() * judged)[unit]
    g = torch.where(closes, float(gamma), float(inner)).double()
    following = torch.cat([v[1:], v.new_zeros(1)])[: len(v)]
    delta = r + g * torch.where(unfinished, v, torch.where(last, end, following)) - v
    advantage = torch.empty_like(delta)
    advantage[unit] = reverse_scan(delta, torch.where(last, 0.0, g * lam))
    aim = advantage
    if target_lam is not None and target_lam != lam:
        aim = torch.empty_like(delta)
        aim[unit] = reverse_scan(delta, torch.where(last, 0.0, g * target_lam))
    return Credit(advantage.float(), torch.where(judged, aim + value, torch.nan).float())


def _values(table: StepTable, name: str, *, by: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """The critic's values, float64 (units,), 0 where there is none; and which rows have values, bool (rows,)."""
    if name not in table or bool(table[name].isnan().all()):
        raise MissingColumn(
            where="lambda_return(…)",
            what=f"the table has no column `{name}`: no critic has given values.",
            remedy="Give the policy a value head, or use an estimator without a critic: grpo, rloo, dr_grpo.",
        )
    column, chain = table[name].double(), table.key(*by)
    row = table.token_row if len(column) == table.tokens else torch.arange(len(table))
    counts, code = table.row_weight[row] > 0, chain.codes[row]
    has = torch.zeros(chain.size, dtype=torch.bool)
    has[code[counts & ~column.isnan()]] = True
    needed = counts & has[code]
    if not bool(column[needed].isfinite().all()):
        raise InvalidData(where=f"column `{name}`", what=f"a value is not finite inside one ({', '.join(by)}).")
    return torch.where(needed, column, 0.0), (table.row_weight > 0) & has[chain.codes]


def _end_value(
    table: StepTable, order: Tensor, last: Tensor, judged: Tensor, *, open_end: Literal["error", "last_value"]
) -> tuple[Tensor, Tensor]:
    """V after the last row of each chain: 0 if terminated, `bootstrap_value` if truncated; and which rows are neither.

    Both are in timeline order.
    """
    if "terminated" not in table and "truncated" not in table:
        raise MissingColumn(
            where="lambda_return(…)",
            what="the table has neither `terminated` nor `truncated`.",
            remedy="Add one of these columns: true on the last row of a trajectory that ended so.",
        )
    no = torch.zeros(len(table), dtype=torch.bool)
    terminated = (table["terminated"] if "terminated" in table else no)[order]
    counts = judged[order]
    truncated = (table["truncated"] if "truncated" in table else no)[order] & ~terminated & counts
    unfinished = last & ~terminated & ~truncated & counts
    if open_end == "error" and bool(unfinished.any()):
        row = int(order[unfinished.nonzero()[0, 0]])
        raise InvalidData(
            where=f"row {row}, turn {int(table['turn'][row])}",
            what="it is the last row of its trajectory and neither terminated nor truncated.",
            remedy="Set `terminated` (the next value is 0) or `truncated` (it is `bootstrap_value`) on this row.",
        )
    if not bool((last & truncated).any()):
        return torch.zeros(len(order), dtype=torch.float64), unfinished
    end = _values_at(table, (last & truncated), order)
    return torch.where(last & truncated, end, 0.0), unfinished


def _values_at(table: StepTable, needed: Tensor, order: Tensor) -> Tensor:
    if "bootstrap_value" not in table:
        raise MissingColumn(
            where="lambda_return(…)",
            what="a trajectory is truncated and there is no `bootstrap_value`.",
            remedy="Add the column: the critic's value of what follows the last row of a truncated trajectory.",
        )
    end = table["bootstrap_value"].double()[order]
    if not bool(torch.isfinite(end[needed]).all()):
        raise InvalidData(
            where="column `bootstrap_value`",
            what="it is missing on the last row of a truncated trajectory.",
            remedy="Give every such row a finite value.",
        )
    return torch.nan_to_num(end)


def _token_timeline(table: StepTable, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens in time order, whether each closes its row, and its row's place in `order`."""
    count = table["token_count"]
    start = (count.cumsum(0) - count)[order]
    ordered = count[order]
    place = torch.repeat_interleave(torch.arange(len(order)), ordered)
    offset = torch.arange(len(place)) - (ordered.cumsum(0) - ordered)[place]
    return start[place] + offset, offset == ordered[place] - 1, place


def _on_last_token(table: StepTable) -> Tensor:
    """The reward of each row on its last token, 0 on other tokens: (tokens,)."""
    out = torch.zeros(table.tokens)
    out[table["token_count"].cumsum(0) - 1] = table["reward"]
    return out


def token_rewards(table: StepTable, *, kl: float, where: str) -> Float[Tensor, " tokens"]:
    """The reward of each row on its last token, minus kl · (logprob − reference) on every token: (tokens,).

    Args:
        table: columns reward, token_count; with kl > 0 also logprob_reference, and logprob_old or else
            logprob_behavior, each (tokens,). Tokens of scripted agents have NaN in both and get no penalty.
        kl: ≥ 0.
        where: the `method: option` that asks for the penalty, for error messages.

    Raises: MissingColumn, if kl > 0 and there is no reference; InvalidData, for a log-probability that is not
        finite.
    """
    if kl <= 0:
        return _on_last_token(table)
    if "logprob_reference" not in table:
        raise MissingColumn(
            where=where,
            what="a KL penalty needs the column `logprob_reference`, which the table lacks.",
            remedy=f"Set `reference: start` in the recipe, or {where.rpartition(' ')[2]}: 0.",
        )
    sampled = table["logprob_old"] if "logprob_old" in table else table["logprob_behavior"]
    reference = table["logprob_reference"]
    silent = (table.row_weight[table.token_row] == 0) | (sampled.isnan() & reference.isnan())
    drift = torch.where(silent, 0.0, sampled - reference)
    bad = int((~drift.isfinite()).sum())
    if bad:
        raise InvalidData(
            where=where,
            what=f"{bad} tokens have a log-probability that is not finite.",
            remedy="The reference must read the policy's own tokens: same tokenizer, same vocabulary.",
        )
    return _on_last_token(table) - kl * drift
