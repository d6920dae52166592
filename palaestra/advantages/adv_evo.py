"""Public baseline (AdvEvo-MARL): the agents of one team share the mean of their returns.

Knows rewards, agents and teams. Knows nothing of turns, of what is an attack, or of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from palaestra.data import Key, StepTable, standardize, total_return
from palaestra.errors import InvalidData, RecipeError
from palaestra.registry import Columns, Singleton, register

PLACE = "advantage: public_baseline"
Teams = dict[str, tuple[str, ...]]


@register("advantage", "public_baseline", source="arXiv 2510.01586")
def public_baseline(
    table: StepTable,
    *,
    teams: Teams | None = None,
    by: Columns = ("team",),
    center: Literal["mean", "leave_one_out"] = "mean",
    whiten: Literal["none", "return", "token"] = "none",
    singleton: Singleton = "zero",
) -> Float[Tensor, " rows"]:
    """Return of an agent in an episode, minus the mean return of all agents of its team in the batch.

        A_ia = R_ia − b_T      R_ia = Σ reward of agent a in trajectory i      b_T = mean of R_ja' over all j and a' ∈ T

    Each (trajectory, agent) counts once, however often the agent acted.

    Args:
        table: columns trajectory, agent, reward, each (rows,); team (rows,), unless `teams` is given.
        teams: name of the team → its agents, for instance {attackers: [red], defenders: [a, b]}; None: the
            column `team`, which the environment gives.
        by: whose returns share the mean. ("agent",) gives each agent a private one; ("group", "team")
            compares inside a task.
        center: "leave_one_out" takes the mean of the others. Own returns pull a baseline towards themselves, which
            hides the noise of small sets: with n members the mean's A is (n − 1)/n of the unbiased one.
        whiten: afterwards, inside the same sets, (A − mean) / (deviation + 1e-6). "return": each return once.
            "token": over response tokens, as in REINFORCE++.
        singleton: what a return without peers gets.

    Returns: float32 (rows,).
    Raises: InvalidData, if an agent is in no team, or in two; RecipeError, if `teams` has fewer than two teams,
        or puts agents together that the environment's teams keep apart; MissingColumn, with neither.
    Differs from the authors' code: there was none to read; the formula is the paper's text.

    >>> table = StepTable(group=["g"] * 4, trajectory=["a", "a", "b", "b"], agent=["red", "blue"] * 2,
    ...                   turn=[0, 1, 0, 1], reward=[1, 0, 0, 0.5], team=["attack", "defense"] * 2)
    >>> public_baseline(table).tolist()
    [0.5, -0.25, -0.5, 0.25]
    """
    if "team" in by:
        table = table if teams is None else table.replace(team=_given(table, teams))
        _check_membership(table)
    peers, each = table.key(*by), table.key("trajectory", "agent")
    returns = total_return(table, by=("trajectory", "agent"))
    advantage = standardize(returns, by=peers, unit=each, center=center, singleton=singleton)
    if whiten == "none":
        return advantage
    return standardize(advantage, by=peers, unit=_unit(table, whiten, each), scale="std", singleton=singleton)


def _unit(table: StepTable, whiten: str, each: Key) -> Key | None:
    return each if whiten == "return" else table.unit("token")


def _given(table: StepTable, teams: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The team of each row, from the option.

    Raises: RecipeError, InvalidData.
    """
    if len(teams) < 2:
        raise RecipeError(
            where=f"{PLACE}, teams",
            what=f"attackers and defenders need a baseline each, and there is one team: {', '.join(teams) or 'none'}.",
            remedy="Name at least two teams, or leave `teams` out and use by: [] for one baseline.",
        )
    team_of: dict[str, str] = {}
    for team, agents in teams.items():
        for agent in agents:
            if agent in team_of:
                raise _in_two(agent, team_of[agent], team)
            team_of[agent] = team
    names = [str(name) for name in table.labels("agent")]
    homeless = [name for name in names if name not in team_of]
    if homeless:
        raise _in_none(homeless, team_of)
    if "team" in table:
        _refuse_mixing(table, [team_of[name] for name in names])
    return [team_of[names[code]] for code in table["agent"].tolist()]


def _refuse_mixing(table: StepTable, chosen: list[str]) -> None:
    """Raises: RecipeError, if a chosen team has agents of several of the environment's own teams."""
    own = table.labels("team")
    found: dict[str, set[str]] = {}
    for agent, team in _pairs(table["agent"], table["team"]).tolist():
        if team >= 0:
            found.setdefault(chosen[agent], set()).add(str(own[team]))
    for team, mixed in found.items():
        if len(mixed) > 1:
            raise RecipeError(
                where=f"{PLACE}, teams.{team}",
                what=f"it mixes agents of the environment's teams {' and '.join(sorted(mixed))}.",
                remedy="Opponents must not share a baseline: one's gain is the other's loss. Separate them.",
            )


def _check_membership(table: StepTable) -> None:
    """Every agent is in one team, in the whole batch.

    Raises: InvalidData; MissingColumn.
    """
    team, agent = table["team"], table["agent"]
    counts = table.weight > 0
    nameless = torch.unique(agent[counts & (team < 0)]).tolist()
    if nameless:
        raise _in_none([str(table.labels("agent")[code]) for code in nameless], ())
    pairs = _pairs(agent[counts], team[counts])
    twice = (pairs[1:, 0] == pairs[:-1, 0]).nonzero()
    if len(twice):
        first, second = pairs[int(twice[0, 0])].tolist(), pairs[int(twice[0, 0]) + 1].tolist()
        names = table.labels("team")
        raise _in_two(str(table.labels("agent")[first[0]]), str(names[first[1]]), str(names[second[1]]))


def _pairs(one: Int[Tensor, " rows"], other: Int[Tensor, " rows"]) -> Int[Tensor, "pairs 2"]:
    """The different pairs, sorted."""
    width = int(other.max()) + 2 if len(other) else 1  # −1 is "none"
    both = torch.unique(one * width + other + 1)
    return torch.stack([both // width, both % width - 1], 1)


def _in_none(agents: list[str], known: Mapping[str, str] | tuple[str, ...]) -> InvalidData:
    return InvalidData(
        where=PLACE,
        what=f"{', '.join(sorted(agents))} {'is' if len(agents) == 1 else 'are'} in no team.",
        options=sorted(known),
        remedy='Add every agent to `teams`, or let the environment give `info={"team": {agent: …}}` at each step.',
    )


def _in_two(agent: str, first: str, second: str) -> InvalidData:
    return InvalidData(
        where=PLACE,
        what=f"agent `{agent}` is in two teams: {first} and {second}.",
        remedy="An agent's return can count in one team's mean only.",
    )
