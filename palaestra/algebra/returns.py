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

HALF_ULP = 2.0**-24  # what one float32 number may be off by, relatively


class Credit(NamedTuple):
    """What an estimator gives.

    Attributes:
        advantage: (rows,) or (tokens,).
        target: of the same shape, where a critic's values should move, NaN where no critic speaks; None without a
            critic.
        columns: further columns of rows or tokens, which later parts and losses may read by their names.
    """

    advantage: Tensor
    target: Tensor | None = None
    columns: Mapping[str, Tensor] = MappingProxyType({})

    @property
    def judged(self) -> Tensor:
        """Which rows or tokens have a target, bool; none without a critic."""
        return torch.zeros(len(self.advantage), dtype=torch.bool) if self.target is None else self.target.isfinite()


# ---- temporal kernels -------------------------------------------------------------------------------------
def total_return(table: StepTable, *, by: tuple[str, ...] = ("trajectory",)) -> Float[Tensor, " rows"]:
    """R = Σ reward of the row's trajectory (or of another set of rows), the same number on each of its rows.

    A sum that its terms' rounding alone can leave, such as 0.3 + 0.3 + 0.3 − 0.9, is 0.
    """
    key, reward = table.key(*by), table["reward"]
    counts = Key(key.codes, key.size, key.names, (key.weights > 0).double())  # a row of weight ½ has all its reward
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
        clock: "row" discounts once per row; "turn" by the difference of turns, so that agents acting in
            one turn share a return. At level "token" only "row" has a meaning: once per token.
        level: at "token" a row's reward stands on its last token.
        reward: (units,) in place of the reward column.
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
    rows and `gamma_in` (default: `gamma`) between the tokens of one row. At token level a row's reward
    stands on its last token, and the unit after a row's last token is the first token of the next row.
    A chain without any value belongs to an agent without a critic: advantage 0, target NaN, as on padding.

    Args:
        table: columns value (rows,) at level "row", value_old (tokens,) at level "token"; terminated,
            truncated (rows,); bootstrap_value (rows,), read on truncated last rows.
        reward: (units,) in place of the reward column.
        open_end: what follows the last row of a chain which is neither terminated nor truncated: "error", or
            "last_value": V of the chain's last unit once more, so that with gamma 1 its δ is its own reward.
        target_lam: `lam` of the targets; None: the same. 1 makes them discounted rewards to go.

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
    """The critic's column, float64 (units,), 0 where it is silent; and which rows it judges, bool (rows,)."""
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
    """V after the last row of each chain: 0 if terminated, `bootstrap_value` if truncated; which are neither.

    Both in timeline order.
    """
    if "terminated" not in table and "truncated" not in table:
        raise MissingColumn(where="lambda_return(…)", what="the table has neither `terminated` nor `truncated`.")
    no = torch.zeros(len(table), dtype=torch.bool)
    terminated = (table["terminated"] if "terminated" in table else no)[order]
    counts = judged[order]
    truncated = (table["truncated"] if "truncated" in table else no)[order] & ~terminated & counts
    unfinished = last & ~terminated & ~truncated & counts
    if open_end == "error" and bool(unfinished.any()):
        row = int(order[unfinished.nonzero()[0, 0]])
        raise InvalidData(
            where=f"row {row}, turn {int(table['turn'][row])}",
            what="it is the last of its trajectory and neither terminated nor truncated.",
            remedy="Say how it ended: a value of 0 follows a terminated row, `bootstrap_value` a truncated one.",
        )
    if not bool((last & truncated).any()):
        return torch.zeros(len(order), dtype=torch.float64), unfinished
    end = _values_at(table, (last & truncated), order)
    return torch.where(last & truncated, end, 0.0), unfinished


def _values_at(table: StepTable, needed: Tensor, order: Tensor) -> Tensor:
    if "bootstrap_value" not in table:
        raise MissingColumn(
            where="lambda_return(…)", what="a trajectory is truncated and there is no `bootstrap_value`."
        )
    end = table["bootstrap_value"].double()[order]
    if not bool(torch.isfinite(end[needed]).all()):
        raise InvalidData(
            where="column `bootstrap_value`", what="it is missing on the last row of a truncated trajectory."
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
    """Row rewards on the last token of their row, 0 elsewhere: (tokens,)."""
    out = torch.zeros(table.tokens)
    out[table["token_count"].cumsum(0) - 1] = table["reward"]
    return out


def token_rewards(table: StepTable, *, kl: float, where: str) -> Float[Tensor, " tokens"]:
    """Row rewards on the last token of their row, minus kl · (logprob − reference) on every token.

    Args:
        table: columns reward, token_count; with kl > 0 also logprob_reference and logprob_old (else
            logprob_behavior), each (tokens,). Tokens of scripted agents have neither and cost nothing.
        kl: ≥ 0.
        where: `method: option` that asks for it, for messages.

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
