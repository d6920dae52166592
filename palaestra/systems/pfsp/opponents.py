"""The pool of a policy's earlier versions, their results against the learner, and the choice of the next opponent."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from torch import Tensor

from palaestra.errors import CheckpointError, InvalidData

START = 1000.0  # rating of the first policy
K = 32.0  # the most that one game changes a rating

Choose = Literal["latest", "uniform", "prioritized"]
Weighting = Literal["hard", "variance"]


# ---- numbers ----------------------------------------------------------------------------------------------
def win_rate(wins: float, draws: float, games: float) -> float:
    """The smoothed win rate (wins + draws / 2 + 1) / (games + 2), which is 1/2 before the first game.

    Raises: InvalidData, for more results than games.

    >>> win_rate(3, 2, 8)
    0.5
    """
    if min(wins, draws, games) < 0 or wins + draws > games:
        raise InvalidData(
            where="win_rate",
            what=f"{wins} wins and {draws} draws in {games} games are impossible.",
            remedy="Give numbers from 0 whose wins and draws are at most the games.",
        )
    return (wins + draws / 2 + 1) / (games + 2)


def chances(rates: Sequence[float], *, weighting: Weighting = "hard") -> np.ndarray:
    """The probability of each opponent, from the learner's win rate x against it: float64 (opponents,).

        hard: f(x) = (1 − x)²          variance: f(x) = x · (1 − x)          p_j = f(x_j) / Σ_i f(x_i)

    All probabilities are equal where every f is 0.

    >>> chances([0.9, 0.5, 0.2], weighting="hard").round(4).tolist()
    [0.0111, 0.2778, 0.7111]
    """
    x = np.asarray(rates, np.float64)
    weights = (1 - x) ** 2 if weighting == "hard" else x * (1 - x)
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(x), 1 / len(x))


def elo(rating: float, opponent: float, score: float, *, k: float = K) -> tuple[float, float]:
    """Both ratings after a game in which the first player scored `score` (1, 0.5 or 0); their sum does not change.

        R' = R + k · (score − 1 / (1 + 10^((R_o − R) / 400)))

    >>> [round(rating, 4) for rating in elo(1000, 1200, 1.0)]
    [1024.3119, 1175.6881]
    """
    change = k * (score - 1 / (1 + 10 ** ((opponent - rating) / 400)))
    return rating + change, opponent - change


# ---- the pool ---------------------------------------------------------------------------------------------
@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """An earlier version of the learner.

    Attributes:
        number: the iteration before which it was taken.
        policy: its frozen policy, named `main@12`.
        wins, draws, games: the learner's results against it.
        rating: Elo.
        playing: episodes under way in which it plays; its memory is freed only when there are none.
    """

    number: int
    policy: Any
    rating: float
    wins: int = 0
    draws: int = 0
    games: int = 0
    playing: int = 0

    @property
    def rate(self) -> float:
        """The learner's smoothed win rate against it."""
        return win_rate(self.wins, self.draws, self.games)


@dataclass(slots=True, kw_only=True, eq=False)
class Pool:
    """Earlier versions of one policy, the oldest first, with their results.

    Attributes:
        size: most members; a further one replaces the oldest.
        members: those that can be sampled.
        left: those that were replaced and still play.
        rating: the learner's.
    """

    size: int
    members: list[Member] = field(default_factory=list)
    left: list[Member] = field(default_factory=list)
    rating: float = START

    def add(self, policy: Any, number: int) -> Member:
        """Add a copy of the policy as it is now, with the learner's rating."""
        member = Member(number=number, policy=snapshot(policy, number), rating=self.rating)
        self.members.append(member)
        while len(self.members) > self.size:
            self.left.append(self.members.pop(0))
        return member

    def draw(self, random: np.random.Generator, *, choose: Choose, weighting: Weighting) -> Member:
        """An opponent: the youngest, any with equal probability, or by the learner's win rate against it."""
        if choose == "latest":
            return self.members[-1]
        p = chances([m.rate for m in self.members], weighting=weighting) if choose == "prioritized" else None
        return self.members[int(random.choice(len(self.members), p=p))]

    def note(self, member: Member, score: float) -> None:
        """Record a finished game against this member: the learner won (1), drew (0.5) or lost (0)."""
        member.games += 1
        member.wins += score == 1.0
        member.draws += score == 0.5
        self.rating, member.rating = elo(self.rating, member.rating, score)

    def gone(self) -> list[Member]:
        """Remove and return the replaced members that play no more."""
        idle = [member for member in self.left if member.playing == 0]
        self.left = [member for member in self.left if member.playing > 0]
        return idle

    # ---- checkpoints --------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """The members with weights, architecture and results."""
        return {
            "rating": self.rating,
            "members": [
                {
                    "number": m.number,
                    "version": m.policy.version,
                    "architecture": m.policy.architecture(),
                    "weights": _weights(m.policy),
                    "rating": m.rating,
                    "wins": m.wins,
                    "draws": m.draws,
                    "games": m.games,
                }
                for m in self.members
            ],
        }

    def restore(self, state: Mapping[str, Any], policy: Any) -> None:
        """Restore what `state_dict` gave; the members are copies of `policy` with their own weights.

        Raises: CheckpointError, if a member has another architecture (another tokenizer included).
        """
        self.rating, self.members, self.left = float(state["rating"]), [], []
        for kept in state["members"]:
            here = policy.architecture()
            if kept["architecture"] != here:
                differing = sorted(key for key in here if kept["architecture"].get(key) != here[key])
                raise CheckpointError(
                    where=f"pool of policy {policy.name}, member {kept['number']}",
                    what=f"it has another architecture than the policy; what differs: {', '.join(differing)}.",
                    remedy="Resume with the recipe that the pool was made with, or start a new run.",
                )
            copied = snapshot(policy, int(kept["number"]))
            copied.module.load_state_dict(kept["weights"])
            copied.weights_changed(int(kept["version"]))
            results = {name: int(kept[name]) for name in ("wins", "draws", "games")}
            number, rating = int(kept["number"]), float(kept["rating"])
            self.members.append(Member(number=number, policy=copied, rating=rating, **results))


def snapshot(policy: Any, number: int) -> Any:
    """A frozen copy with its own weights, named `main@12`; if the policy has an engine, it serves the copy too."""
    copied = policy.clone()
    copied.name, copied.trainable = f"{policy.name}@{number}", False
    copied.module.requires_grad_(False)
    engine = policy.engine
    if engine is not None:
        engine.serve(copied.name, copied.model)
        copied.engine = engine
    return copied


def let_go(member: Member) -> None:
    """Free what an engine holds for this member."""
    engine = member.policy.engine
    if engine is not None:
        engine.dismiss(member.policy.name)


def _weights(policy: Any) -> dict[str, Tensor]:
    return {name: copy.deepcopy(tensor.detach()).cpu() for name, tensor in policy.module.state_dict().items()}
