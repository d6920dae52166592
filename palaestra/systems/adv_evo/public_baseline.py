"""The public baseline of AdvEvo-MARL: all agents of one team share the mean of their returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from palaestra.algebra import standardize, total_return
from palaestra.data import Key, StepTable
from palaestra.errors import InvalidData, RecipeError
from palaestra.registry import Columns, Singleton, register

PLACE = "advantage: public_baseline"
Teams = dict[str, tuple[str, ...]]


@register("advantage", "public_baseline", reads=("team?",), writes=("advantage",), source="arXiv 2510.01586")
def public_baseline(
    table: StepTable,
    *,
    teams: Teams | None = None,
    by: Columns = ("team",),
    center: Literal["mean", "leave_one_out"] = "mean",
    whiten: Literal["none", "return", "token"] = "none",
    singleton: Singleton = "zero",
) -> Float[Tensor, " rows"]:
    """Subtract from an agent's return in an episode the mean return of all agents of its team in the batch.

        A_ia = R_ia − b_T      R_ia = Σ reward of agent a in trajectory i      b_T = mean of R_ja' over all j and a' ∈ T

    Each (trajectory, agent) counts once, however often the agent acted.

    Args:
        table: columns trajectory, agent, reward, each (rows,); team (rows,), unless `teams` is given.
        teams: name of each team → its agents, for instance {attackers: [red], defenders: [a, b]}; None: the column
            `team`, which the environment gives.
        by: columns whose equal values make returns share a mean. ("agent",) gives each agent a private baseline;
            ("group", "team") compares inside a task.
        center: "mean" subtracts the mean of all; "leave_one_out" the mean of the others. With "mean" an agent's own
            return is part of its baseline: in a set of n, A is (n − 1)/n of the unbiased value.
        whiten: standardize A afterwards inside the same sets, (A − mean) / (deviation + 1e-6). "return": over returns,
            each counted once. "token": over response tokens, as in REINFORCE++. "none": no.
        singleton: value of a return without peers.

    Returns: float32 (rows,).
    Raises: InvalidData, if an agent is in no team, or in two; RecipeError, if `teams` has fewer than two teams, puts
        agents of different teams of the environment together, or is given while `by` has no team; MissingColumn, with
        neither `teams` nor the column `team`.
    Differs from the authors' code: there was none to read; the formula is the paper's text.

    >>> table = StepTable(group=["g"] * 4, trajectory=["a", "a", "b", "b"], agent=["red", "blue"] * 2,
    ...                   turn=[0, 1, 0, 1], reward=[1, 0, 0, 0.5], team=["attack", "defense"] * 2)
    >>> public_baseline(table).tolist()
    [0.5, -0.25, -0.5, 0.25]
    """
    peers, each = _peers(table, by, teams), table.key("trajectory", "agent")
    returns = total_return(table, by=("trajectory", "agent"))
    advantage = standardize(returns, by=peers, unit=each, center=center, singleton=singleton)
    if whiten == "none":
        return advantage
    return standardize(advantage, by=peers, unit=_unit(table, whiten, each), scale="std", singleton=singleton)


def _unit(table: StepTable, whiten: str, each: Key) -> Key | None:
    return each if whiten == "return" else table.unit("token")


def _peers(table: StepTable, by: Columns, teams: Teams | None) -> Key:
    """The sets whose returns share a mean; the teams are those of the option, or of the column."""
    if "team" not in by:
        if teams is not None:
            raise RecipeError(
                where=f"{PLACE}, teams",
                what=f"`teams` has no effect, because `by` is [{', '.join(by)}], without `team`.",
                remedy="Add `team` to `by`, or remove `teams`.",
            )
        return table.key(*by)
    if teams is None:
        codes, names = table["team"], [str(name) for name in table.labels("team")]
    else:
        codes, names = _given(table, teams), list(teams)
    _check_membership(table, codes, names)
    return table.key(*(name for name in by if name != "team")) & Key(codes.clamp_min(0), len(names), ("team",))


def _given(table: StepTable, teams: Teams) -> Int[Tensor, " rows"]:
    """The team of each row as its index in the option.

    Raises: RecipeError, InvalidData.
    """
    if len(teams) < 2:
        raise RecipeError(
            where=f"{PLACE}, teams",
            what=f"attackers and defenders need separate baselines, but the teams are: {', '.join(teams) or 'none'}.",
            remedy="Name at least two teams, or remove `teams` and set by: [] for one baseline.",
        )
    team_of: dict[str, int] = {}
    for place, (team, agents) in enumerate(teams.items()):
        for agent in agents:
            if agent in team_of:
                raise _in_two(agent, list(teams)[team_of[agent]], team)
            team_of[agent] = place
    agents_here = [str(name) for name in table.labels("agent")]
    homeless = [name for name in agents_here if name not in team_of]
    if homeless:
        raise _in_none(homeless, team_of)
    codes = torch.tensor([team_of[name] for name in agents_here])[table["agent"]]
    if "team" in table:
        _refuse_mixing(table, codes, list(teams))
    return codes


def _refuse_mixing(table: StepTable, codes: Int[Tensor, " rows"], teams: list[str]) -> None:
    """Raises: RecipeError, if a chosen team has agents of several of the environment's own teams."""
    own, known = table["team"], table["team"] >= 0
    for place, team in enumerate(teams):
        mixed = torch.unique(own[known & (codes == place)]).tolist()
        if len(mixed) > 1:
            raise RecipeError(
                where=f"{PLACE}, teams.{team}",
                what=f"it mixes agents of the environment's teams "
                f"{' and '.join(sorted(str(table.labels('team')[code]) for code in mixed))}.",
                remedy="Separate them: opponents must not share a baseline; one gains what the other loses.",
            )


def _check_membership(table: StepTable, codes: Int[Tensor, " rows"], teams: list[str]) -> None:
    """Check that every agent is in exactly one team of the batch.

    Raises: InvalidData.
    """
    agents, counts = table.labels("agent"), table.row_weight > 0
    agent, team = table["agent"][counts], codes[counts]
    nameless = torch.unique(agent[team < 0]).tolist()
    if nameless:
        raise _in_none([str(agents[code]) for code in nameless], ())
    low = torch.full((len(agents),), len(teams)).scatter_reduce(0, agent, team, "amin")
    high = torch.full((len(agents),), -1).scatter_reduce(0, agent, team, "amax")
    twice = (low < high).nonzero()
    if len(twice):
        code = int(twice[0, 0])
        raise _in_two(str(agents[code]), teams[int(low[code])], teams[int(high[code])])


def _in_none(agents: list[str], known: Iterable[str]) -> InvalidData:
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
        remedy="Name each agent in one team only.",
    )
