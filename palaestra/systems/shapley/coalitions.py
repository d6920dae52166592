"""Shapley and Banzhaf values: they divide what a team achieved among its members, given the value of each coalition."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from palaestra.errors import InvalidData

MOST = 10  # members; 2¹⁰ coalitions
Coalition = frozenset[str]


def shapley(values: Mapping[Coalition, float], members: Iterable[str]) -> dict[str, float]:
    """Each member's mean contribution over all orders in which the team can come together.

        φ_i = Σ over S without i of |S|! (n − |S| − 1)! / n! · (v(S ∪ {i}) − v(S))

    The shares sum to v(all) − v(∅). Equal members have equal shares. A member that changes nothing has 0. The shares of
    a sum of two games are the sums of their shares. No other rule has all four properties.

    Args:
        values: v of every coalition of the members, the empty one included. Coalitions with others are ignored.
        members: their names.

    Raises: InvalidData, for more than 10 members, a missing coalition, or a value that is not finite.
    """
    names = _checked(values, members)
    n = len(names)
    weight = [math.factorial(s) * math.factorial(n - s - 1) / math.factorial(n) for s in range(n)]
    return {name: sum(weight[len(s)] * gain for s, gain in _gains(values, names, name)) for name in names}


def banzhaf(values: Mapping[Coalition, float], members: Iterable[str]) -> dict[str, float]:
    """Each member's mean contribution to a random coalition of the others: every S weighs 1 / 2^(n − 1).

    Unlike Shapley's shares these need not sum to v(all) − v(∅). Args and Raises: as in `shapley`.
    """
    names = _checked(values, members)
    return {name: sum(gain for _, gain in _gains(values, names, name)) / 2 ** (len(names) - 1) for name in names}


def coalitions(members: Sequence[str]) -> Iterator[Coalition]:
    """All coalitions, the empty one first, small ones before large ones."""
    for size in range(len(members) + 1):
        yield from (frozenset(chosen) for chosen in combinations(members, size))


def _gains(values: Mapping[Coalition, float], names: Sequence[str], name: str) -> Iterator[tuple[Coalition, float]]:
    """Coalitions of the others, each with what `name` adds to it."""
    for others in coalitions([other for other in names if other != name]):
        yield others, values[others | {name}] - values[others]


def _checked(values: Mapping[Coalition, float], members: Iterable[str]) -> list[str]:
    """The names of the members, sorted, after checking that every coalition has a finite value."""
    names = sorted(set(members))
    if len(names) > MOST:
        raise InvalidData(
            where="coalitions",
            what=f"{len(names)} members have {2 ** len(names)} coalitions; at most {MOST} members are possible.",
            remedy="Join members that always act together.",
        )
    for coalition in coalitions(names):
        if coalition not in values:
            what = f"the value of {{{', '.join(sorted(coalition))}}} is missing; an unknown value is not 0."
            raise InvalidData(where="coalitions", what=what, remedy="Measure it on the same tasks as the others.")
        if not math.isfinite(values[coalition]):
            what = f"the value of {{{', '.join(sorted(coalition))}}} is {values[coalition]}."
            raise InvalidData(where="coalitions", what=what, remedy="Leave out the runs that failed.")
    return names


__all__ = ["banzhaf", "coalitions", "shapley"]
