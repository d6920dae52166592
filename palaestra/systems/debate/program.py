"""The program of debate: several agents answer, read all answers and answer again; the majority decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from palaestra.data import Action, Observation
from palaestra.registry import Fraction, PositiveInt, register
from palaestra.rollout.programs import acted_by, demonstrated_by
from palaestra.teams.demonstration import everybody_as_expert
from palaestra.teams.graph import act_together, converse, settle

if TYPE_CHECKING:
    from palaestra.rollout.episode import Episode


def names_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The names `debater_1`, `debater_2` …"""
    return tuple(f"debater_{number + 1}" for number in range(options.get("debaters", 3)))


@register("program", "debate", uses=("one_agent",), source="arXiv 2505.22960")
@acted_by(names_of)
@demonstrated_by(everybody_as_expert)
async def debate(
    episode: Episode, *, debaters: PositiveInt = 3, rounds: PositiveInt = 2, agree: Fraction | None = None
) -> None:
    """Debaters answer, read all answers of the round before and answer again; the last round votes.

    For environments with one agent; there is one debate for each of its acts. One round is self-consistency, one
    debater is self-refinement. A debate generates debaters · rounds answers, and each prompt grows with the number of
    debaters.

    Args:
        debaters: number of roles `debater_1` to `debater_n`, of one policy or of several. With an even number a tie is
            possible; the answer of the lowest number wins it. Higher: more answers to choose from. Usual: 3.
        rounds: number of rounds, the first one included. Higher: more debaters change their answers, to right or wrong
            ones. Usual: 2.
        agree: end early once this share of the answers means the same. Usual: none; 1 where tokens are expensive.

    The debater whose answer wins acts; an estimator with `returns: [trajectory]` gives all debaters its return. `info`
    has `agreement`, the share of the last round that means the same, and `changed`, the share of debaters whose last
    answer differs from their first.
    """
    names = names_of({"debaters": debaters})

    async def think(observation: Observation) -> tuple[str, Action]:
        said = await converse(episode, observation, names, rounds=rounds, agree=agree)
        changed = sum(said[0][name] != said[-1][name] for name in names) / debaters
        episode.trajectory.info = {**episode.trajectory.info, "changed": changed}
        return settle(episode, said[-1], "vote")

    await act_together(episode, think, program="debate")
