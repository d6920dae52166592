"""MARS: in a game, every seat is compared with itself, turn by turn.

Knows rewards, turns, agents and games. Knows nothing of groups, tokens or models.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import Key, StepTable, reward_to_go, segment_count, segment_sum, standardize
from palaestra.data.segments import compact
from palaestra.errors import InvalidData
from palaestra.registry import Columns, Singleton, register

DIGITS = 6  # values that agree to so many decimals are one value


@register("advantage", "mars", source="arXiv 2510.15414")
def mars(
    table: StepTable,
    *,
    by: Columns = ("game", "agent"),
    chain: Columns = ("trajectory", "agent"),
    center: Literal["mean", "unique"] = "mean",
    singleton: Singleton = "zero",
    normalize_rewards: bool = False,
) -> Float[Tensor, " rows"]:
    """A turn's reward to go, minus the mean reward to go of all turns in the same game and seat of the batch.

        A_k = R_k − mean of R over the rows of (game, agent)          R_k = r_k + R_{k+1} over the agent's own turns

    It equals generalized advantage estimation with gamma = lam = 1 and V = that mean. No deviation divides;
    the authors' runs whiten over tokens afterwards: `advantage: [mars, whiten]`.

    Args:
        table: columns trajectory, agent, turn, reward, each (rows,); game (rows,), where several are played.
        by: whose turns share a baseline. ("game",) gives all seats one: an unequal game then tells the seats,
            not the moves, apart. ("game", "group", "agent") compares inside a task. Games of different reward
            scales should not share a key. A table without the column `game` is of one game.
        chain: whose rewards R sums. ("trajectory",) also counts what comes at the turns of others: for a team
            that shares one reward.
        center: "unique" takes the mean over the different values of R, and 0 as one of them, as the
            authors' code does, where zeros pad the turns; for reproduction only.
        singleton: what a seat with a single turn in the batch gets.
        normalize_rewards: standardize the turn rewards over the same key before they are summed. A turn
            without reward then costs something: a choice of some of the authors' runs.

    Returns: float32 (rows,).
    Raises: InvalidData, if `game` is given on some rows only, or a lone turn meets singleton="error".
    Differs from the authors' code: the baseline is the mean over turns (`center="unique"`).

    >>> table = StepTable(group=["g"] * 4, trajectory=["a", "a", "b", "b"], agent=["first", "last"] * 2,
    ...                   turn=[0, 1, 0, 1], reward=[1, -1, 0.5, -0.5])
    >>> mars(table).tolist()
    [0.25, -0.25, -0.25, 0.25]
    """
    key = table.key(*(name for name in by if name != "game" or _games(table)))
    reward = standardize(table["reward"], by=key, scale="std") if normalize_rewards else None
    to_go = reward_to_go(table, gamma=1.0, by=chain, reward=reward)
    if center == "mean":
        return standardize(to_go, by=key, singleton=singleton)
    baseline = _mean_of_values(to_go, key)
    return standardize(to_go - baseline[key.codes], by=key, center="none", singleton=singleton)


def _games(table: StepTable) -> bool:
    """Whether rows say which game they are of.

    Raises: InvalidData, if some do and some do not.
    """
    if "game" not in table:
        return False
    nameless = int(((table["game"] < 0) & (table.weight > 0)).sum())
    if nameless:
        raise InvalidData(
            where="advantage: mars, column `game`",
            what=f"{nameless} of {len(table)} rows are of no game.",
            remedy='Let the environment give `info={"game": …}` in every episode, or in none.',
        )
    return True


def _mean_of_values(values: Tensor, key: Key) -> Tensor:
    """Mean over the distinct values of each set and 0: float64 (sets,); 0 for a set with a single row."""
    counts = Key(key.codes, key.size, (), (key.weights > 0).double())
    rounded = values.double().round(decimals=DIGITS)
    same = counts & Key(*compact(rounded))
    once = Key(key.codes, key.size, (), counts.weights / segment_count(by=same).clamp_min(1)[same.codes])
    without_zero = 1 - segment_sum(rounded == 0, by=once)
    mean = segment_sum(rounded, by=once) / (segment_count(by=once) + without_zero)
    return torch.where(segment_count(by=counts) > 1, mean, 0.0)
