"""Credit in games of several players: the advantages of MARS, and rewards for legal and short moves."""

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

DIGITS = 6  # values that are equal after rounding to this many decimals count as one


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
    """Subtract from a turn's reward to go its mean over all turns of the batch in the same game and seat.

        A_k = R_k − mean of R over the rows of (game, agent)          R_k = r_k + R_{k+1} over the agent's own turns

    This equals generalized advantage estimation with gamma = lam = 1 and that mean as V. Nothing is divided by a
    deviation. The authors whiten over tokens afterwards: `advantage: [mars, whiten]`.

    Args:
        table: columns trajectory, agent, turn, reward, each (rows,); game (rows,), if several games are played.
        by: turns that agree in these columns share a baseline. ("game",) gives all seats one baseline: if the seats
            have unequal chances, the advantage then shows the seat more than the move. ("game", "group", "agent")
            compares inside a task. Games with different scales of reward should not share a key. A table without the
            column `game` has one game.
        chain: R sums the rewards of rows that agree in these columns. ("trajectory",) also counts rewards at the turns
            of other agents; use it for a team that shares one reward.
        center: "mean" is the mean over turns. "unique" is the mean over the different values of R and 0, as in the
            authors' code, which pads the turns with zeros; use it only for reproduction.
        singleton: the advantage of a seat with a single turn in the batch: "zero", "raw" (its R) or "error".
        normalize_rewards: standardize the rewards of turns over the same key before they are summed, as in some of the
            authors' runs. A turn without reward may then have a negative one.

    Returns: float32 (rows,).
    Raises: InvalidData, if only some rows have a `game`, or if singleton="error" and a seat has a single turn.
    Differs from the authors' code: the baseline is the mean over turns; `center="unique"` gives theirs.

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
    """Whether the table tells the game of its rows.

    Raises: InvalidData, if only some rows have a game.
    """
    if "game" not in table:
        return False
    nameless = int(((table["game"] < 0) & (table.row_weight > 0)).sum())
    if nameless:
        raise InvalidData(
            where="advantage: mars, column `game`",
            what=f"{nameless} of {len(table)} rows have no game.",
            remedy='Let the environment give `info={"game": …}` in every episode, or in none.',
        )
    return True


def _mean_of_values(values: Tensor, key: Key) -> Tensor:
    """The mean over the distinct values of each set and the value 0: float64 (sets,); 0 for a set with one row."""
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
    """Add a bonus to the reward of each legal move, a larger one if it is short, and subtract a price if it is illegal.

        r + format + length · clip(1 − (n − shortest) / (longest − shortest), 0, 1)     after a legal move of n tokens
        r − illegal                                                                  after an illegal one

    Args:
        table: columns token_count; illegal or invalid (rows,), 1 where the move was illegal or unreadable. Both may be
            absent.
        format: bonus of a legal move. Higher: the format is learned sooner, but long games pay more. Usual: 0.05.
        illegal: price of an illegal move. Higher: illegal moves become rare sooner. Usual: 10, for rewards up to 4.
        length: largest bonus for a short turn; set 0 for policies whose actions have one token. Usual: 0.5.
        shortest, longest: a turn of at most `shortest` tokens gets the whole bonus, and from `longest` tokens on none.

    Returns: float32 (rows,).
    Raises: RecipeError, unless shortest < longest.
    """
    if shortest >= longest:
        raise RecipeError(
            where="reward: game_shaping",
            what=f"shortest {shortest} is not below longest {longest}.",
            remedy="Give numbers of tokens with `shortest` < `longest`.",
        )
    brief = 1 - (table["token_count"].double() - shortest) / (longest - shortest)
    bonus = format + length * brief.clamp(0, 1)
    bad = torch.zeros(len(table), dtype=torch.bool)
    for name in ("illegal", "invalid"):
        if name in table:
            bad |= table[name] != 0
    return (table["reward"].double() + torch.where(bad, -illegal, bonus)).float()
