"""Credit in games of several players: MARS's advantages and rewards for the length of a game."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import reward_to_go, segment_count, segment_sum, standardize
from palaestra.data import Key, StepTable
from palaestra.data.keys import compact
from palaestra.errors import InvalidData, RecipeError
from palaestra.registry import Columns, NonNegative, PositiveInt, Singleton, register

DIGITS = 6  # values that agree to so many decimals are one value


@register("advantage", "mars", reads=("game?",), writes=("advantage",), source="arXiv 2510.15414")
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
    nameless = int(((table["game"] < 0) & (table.row_weight > 0)).sum())
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


@register(
    "reward",
    "game_shaping",
    reads=("illegal?", "invalid?"),
    writes=("reward",),
    source="arXiv 2510.15414, secondary",
)
def game_shaping(
    table: StepTable,
    *,
    format: NonNegative = 0.05,
    illegal: NonNegative = 10.0,
    length: NonNegative = 0.5,
    shortest: PositiveInt = 11,
    longest: PositiveInt = 2048,
) -> Float[Tensor, " rows"]:
    """Add to the reward of each turn what its form deserves.

        r + format + length · clip(1 − (n − shortest) / (longest − shortest), 0, 1)     after a legal move of n tokens
        r − illegal                                                                  after an illegal one

    Args:
        table: columns token_count; illegal or invalid (rows,), 1 where the move was none; absent, if none was.
        format: bonus of a legal move. Higher: forms are learned sooner, but long games pay too. Usual: 0.05.
        illegal: price of an illegal move. Higher: they vanish sooner. Usual: 10, of rewards up to 4.
        length: bonus of a short turn; 0 for policies whose actions have one token. Usual: 0.5.
        shortest, longest: tokens up to which the whole bonus is paid, and from which on none is.

    Returns: float32 (rows,).
    Raises: RecipeError, unless shortest < longest.
    """
    if shortest >= longest:
        raise RecipeError(
            where="reward: game_shaping",
            what=f"shortest {shortest} is not below longest {longest}.",
            remedy="Give `shortest` and `longest` as numbers of tokens, the smaller one first.",
        )
    brief = 1 - (table["token_count"].double() - shortest) / (longest - shortest)
    bonus = format + length * brief.clamp(0, 1)
    bad = torch.zeros(len(table), dtype=torch.bool)
    for name in ("illegal", "invalid"):
        if name in table:
            bad |= table[name] != 0
    return (table["reward"].double() + torch.where(bad, -illegal, bonus)).float()
