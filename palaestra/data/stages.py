"""The stages of every advantage estimator: kernel → baseline and scale → pool → modulate.

Knows tables and numbers. Knows no method: a method in `palaestra/advantages/` is a few of these calls.
Everything is float64 inside and float32 outside.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data.segments import (
    Key,
    compact,
    reverse_scan,
    segment_count,
    segment_equal,
    segment_mean,
    segment_std,
    segment_sum,
)
from palaestra.data.table import StepTable
from palaestra.errors import InvalidData, MissingColumn

EPS = 1e-6  # added to a deviation, never to a mean
HALF_ULP = 2.0**-24  # what one float32 number may be off by, relatively


class Estimate(NamedTuple):
    """An advantage and, where a critic was read, the target its value should move to. Equal shapes."""

    advantage: Tensor
    target: Tensor


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
    weight = table.weight > 0
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
) -> Estimate:
    """Generalized advantage estimation over rows or over response tokens.

        δ_u = r_u + g_u · V_{u+1} − V_u          A_u = δ_u + g_u · lam · A_{u+1}          target = A + V

    V_{u+1} is 0 after a terminated last row and `value_end` after a truncated one. g_u is `gamma` between
    rows and `gamma_in` (default: `gamma`) between the tokens of one row. At token level a row's reward
    stands on its last token, and the unit after a row's last token is the first token of the next row.
    A chain without any value belongs to an agent without a critic: advantage 0, target NaN, as on padding.

    Args:
        table: columns value (rows,) at level "row", token_value (tokens,) at level "token"; terminated,
            truncated (rows,); value_end (rows,), read on truncated last rows.
        reward: (units,) in place of the reward column.
        open_end: what follows the last row of a chain which is neither terminated nor truncated: "error", or
            "last_value": V of the chain's last unit once more, so that with gamma 1 its δ is its own reward.
        target_lam: `lam` of the targets; None: the same. 1 makes them discounted rewards to go.

    Raises: MissingColumn, if values or flags are missing; InvalidData, if the last row of a chain is
        neither terminated nor truncated (open_end "error"), or if a chain has values on some of its rows only.
    """
    order, last = table.timeline(*by)
    value, judged = _values(table, "value" if level == "row" else "token_value", by=by)
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
    return Estimate(advantage.float(), torch.where(judged, aim + value, torch.nan).float())


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
    counts, code = table.weight[row] > 0, chain.codes[row]
    has = torch.zeros(chain.size, dtype=torch.bool)
    has[code[counts & ~column.isnan()]] = True
    needed = counts & has[code]
    if not bool(column[needed].isfinite().all()):
        raise InvalidData(where=f"column `{name}`", what=f"a value is not finite inside one ({', '.join(by)}).")
    return torch.where(needed, column, 0.0), (table.weight > 0) & has[chain.codes]


def _end_value(
    table: StepTable, order: Tensor, last: Tensor, judged: Tensor, *, open_end: Literal["error", "last_value"]
) -> tuple[Tensor, Tensor]:
    """V after the last row of each chain: 0 if terminated, value_end if truncated; and which last rows are neither.

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
            remedy="Say how the episode ended: a value of 0 follows a terminated row, `value_end` a truncated one.",
        )
    if not bool((last & truncated).any()):
        return torch.zeros(len(order), dtype=torch.float64), unfinished
    end = _values_at(table, (last & truncated), order)
    return torch.where(last & truncated, end, 0.0), unfinished


def _values_at(table: StepTable, needed: Tensor, order: Tensor) -> Tensor:
    if "value_end" not in table:
        raise MissingColumn(where="lambda_return(…)", what="a trajectory is truncated and there is no `value_end`.")
    end = table["value_end"].double()[order]
    if not bool(torch.isfinite(end[needed]).all()):
        raise InvalidData(where="column `value_end`", what="it is missing on the last row of a truncated trajectory.")
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
        table: columns reward, token_count; with kl > 0 also token_reference and token_proximal (else
            token_logprob), each (tokens,). Tokens of scripted agents have neither and cost nothing.
        kl: ≥ 0.
        where: `method: option` that asks for it, for messages.

    Raises: MissingColumn, if kl > 0 and there is no reference; InvalidData, for a log-probability that is not
        finite.
    """
    if kl <= 0:
        return _on_last_token(table)
    if "token_reference" not in table:
        raise MissingColumn(
            where=where,
            what="a KL penalty needs the column `token_reference`, which the table lacks.",
            remedy=f"Set `reference: start` in the recipe, or {where.rpartition(' ')[2]}: 0.",
        )
    sampled = table["token_proximal"] if "token_proximal" in table else table["token_logprob"]
    reference = table["token_reference"]
    silent = (table.weight[table.token_row] == 0) | (sampled.isnan() & reference.isnan())
    drift = torch.where(silent, 0.0, sampled - reference)
    bad = int((~drift.isfinite()).sum())
    if bad:
        raise InvalidData(
            where=where,
            what=f"{bad} tokens have a log-probability that is not finite.",
            remedy="The reference must read the policy's own tokens: same tokenizer, same vocabulary.",
        )
    return _on_last_token(table) - kl * drift


# ---- baseline and scale -----------------------------------------------------------------------------------
def standardize(
    values: Float[Tensor, " rows"],
    *,
    by: Key,
    unit: Key | None = None,
    center: Literal["mean", "leave_one_out", "none"] = "mean",
    scale: Literal["none", "std"] = "none",
    ddof: int = 1,
    singleton: Literal["zero", "raw", "error"] = "zero",
    zero_variance: Literal["zero", "keep"] = "zero",
    need_peers: bool = False,
) -> Float[Tensor, " rows"]:
    """(values − baseline) / scale, both over the row's peer set.

    Args:
        by: the peer sets; its weights say how much each row counts.
        unit: what counts once inside a set (a trajectory, a token's row …); None: each row once.
        center: "leave_one_out" is n/(n−1) · (value − mean), the mean of the others as baseline.
        scale: "std" divides by deviation + 1e-6, with `ddof` degrees taken off.
        singleton: what a set with one member gives: 0, the raw value, or an error.
        zero_variance: "zero": a set whose members are all equal (up to the rounding of sums, see `segment_equal`)
            gives exactly 0, and with a scale also one whose units are all equal, or too few for a deviation; "keep":
            what rounding leaves.
        need_peers: refuse a table in which no set has two members: nothing could be compared.

    Returns: float32 (rows,); 0 on padding rows.
    Raises: InvalidData, for a lone member with singleton="error" or when need_peers is not met.
    """
    members, owner = (by, None) if unit is None else _units(by, unit)
    x = values.double() if owner is None else _unit_values(values, by, unit, owner, len(members.codes))
    count = segment_count(by=members)
    distinct = torch.zeros(by.size, dtype=torch.int64).index_add_(0, members.codes, (members.weights > 0).long())
    alone = distinct <= 1
    if center == "leave_one_out":
        alone = alone | (count <= 1)  # two of weight ½ are no more than one
    _refuse_lone(alone & (distinct > 0), distinct, by, singleton=singleton, need_peers=need_peers)
    out = values.double() - (segment_mean(x, by=members)[by.codes] if center != "none" else 0.0)
    if center == "leave_one_out":
        out = out * (count / (count - 1).clamp_min(1e-300))[by.codes]
    same = segment_equal(x, by=members)
    flat = same & segment_equal(values, by=by)
    if scale == "std":
        deviation = segment_std(x, by=members, ddof=ddof)
        out = out / (deviation + EPS)[by.codes]
        flat = same | (deviation == 0)
    if zero_variance == "zero" and center != "none":
        out = torch.where(flat[by.codes], 0.0, out)
    lone = alone[by.codes]
    out = torch.where(lone, values.double() if singleton == "raw" else torch.zeros_like(out), out)
    return torch.where(by.weights > 0, out, 0.0).float()


def _units(by: Key, unit: Key) -> tuple[Key, Tensor]:
    """The key of units (each once, or weighted by tokens), and the unit of each row."""
    pair = Key(by.codes, by.size, by.names, by.weight) & unit
    size = pair.size
    sets = torch.zeros(size, dtype=torch.int64)
    sets[pair.codes] = by.codes
    weight = torch.zeros(size, dtype=torch.float64)
    if unit.names == ("token",):
        weight.index_add_(0, pair.codes, unit.weights)
    else:
        weight[pair.codes[by.weights > 0]] = 1.0
    return Key(sets, by.size, by.names, weight), pair.codes


def _unit_values(values: Tensor, by: Key, unit: Key | None, owner: Tensor, size: int) -> Tensor:
    return segment_mean(values, by=Key(owner, size, (), by.weight))


def _refuse_lone(lone: Tensor, distinct: Tensor, by: Key, *, singleton: str, need_peers: bool) -> None:
    what = f"key ({', '.join(by.names) or 'whole table'})"
    if singleton == "error" and bool(lone.any()):
        raise InvalidData(where=what, what=f"{int(lone.sum())} peer sets have a single member.")
    if need_peers and bool((distinct > 0).any()) and not bool((distinct > 1).any()):
        raise InvalidData(
            where=what,
            what="no peer set has two members, so nothing can be compared and every advantage would be 0.",
            remedy="Sample at least 2 trajectories a task (`rollout.group`), or use reinforce_plus_plus, "
            "which needs none.",
        )


def whiten(
    values: Float[Tensor, " units"],
    *,
    weight: Tensor | None = None,
    floor: Literal["variance", "deviation"] = "variance",
) -> Float[Tensor, " units"]:
    """(x − mean) / sqrt(variance + 1e-8) over all units, sample variance; padding (weight 0) is 0.

    Args:
        floor: what the 1e-8 is added to; "deviation": (x − mean) / (sqrt(variance) + 1e-8). They differ where the
            deviation is below 0.001.

    Units that are all equal, up to the rounding of sums (see `segment_equal`), give exactly 0.

    Raises: InvalidData, for fewer than 2 units.
    """
    counts = torch.ones(len(values), dtype=torch.bool) if weight is None else weight > 0
    if int(counts.sum()) < 2:
        raise InvalidData(where="whiten(…)", what=f"{int(counts.sum())} units cannot be whitened; 2 are needed.")
    x = values.double()
    everyone = Key(torch.zeros(len(values), dtype=torch.int64), 1, (), counts.double())
    if bool(segment_equal(x, by=everyone)):  # rounding must not look like a signal
        return torch.zeros_like(x).float()
    variance, mean = torch.var_mean(x[counts], correction=1)
    deviation = torch.sqrt(variance + 1e-8) if floor == "variance" else torch.sqrt(variance) + 1e-8
    return torch.where(counts, (x - mean) / deviation, 0.0).float()


def whitened(estimate: Estimate, *, floor: Literal["variance", "deviation"] = "variance") -> Estimate:
    """The same estimate, its advantages whitened over the units that a critic judges; targets stay as they are."""
    judged = estimate.target.isfinite()
    return Estimate(whiten(estimate.advantage, weight=judged, floor=floor), estimate.target)


# ---- pool and modulate ------------------------------------------------------------------------------------
def pool(values: Float[Tensor, " rows"], *, by: Key) -> Float[Tensor, " rows"]:
    """Equal units share the mean of their values."""
    return segment_mean(values, by=by)[by.codes].float()


def modulate(
    values: Float[Tensor, " units"], *, factor: Tensor | float = 1.0, bonus: Tensor | float = 0.0
) -> Float[Tensor, " units"]:
    """factor · values + bonus, elementwise."""
    return (values.double() * factor + bonus).float()


__all__ = [
    "EPS", "Estimate", "compact", "lambda_return", "modulate", "pool", "reward_to_go", "standardize",
    "token_rewards", "total_return", "whiten", "whitened",
]  # fmt: skip
