"""Programs that say which role speaks when and reads whom: a chain, a star, a mesh, layers, and independent roles."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import pydantic

from palaestra.data import Action, Observation
from palaestra.errors import ContractError
from palaestra.registry import Fraction, NonNegative, PositiveInt, declaring, register
from palaestra.rollout.programs import acted_by, demonstrated_by
from palaestra.teams.aggregate import Answer, How, agreement, concat, quorum, weighted_vote
from palaestra.teams.demonstration import everybody_as_expert
from palaestra.teams.shown import noted, sole

if TYPE_CHECKING:
    from palaestra.rollout.episode import Episode

Said = Mapping[str, Answer]  # role → its answer; None if its message has no valid one


def _different(roles: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(roles)) < len(roles):
        raise ValueError("a role is named twice, and one role cannot speak twice at once")
    return roles


def _of_votes(weights: tuple[float, ...], given: pydantic.ValidationInfo) -> tuple[float, ...]:
    how = given.data.get("how", "vote")
    if weights and how != "vote":
        raise ValueError(f"only votes are weighed, and `how` is {how}; leave `weights` empty")
    return weights


Roles = Annotated[tuple[str, ...], pydantic.Field(min_length=1), pydantic.AfterValidator(_different)]
Weights = Annotated[tuple[NonNegative, ...], pydantic.AfterValidator(_of_votes)]


async def speak(episode: Episode, observation: Observation, sources: Mapping[str, Sequence[str]]) -> dict[str, Answer]:
    """Let several roles act at the same time. Each reads the observation and the last messages of its sources.

    The parser of a role turns its message into an answer; without a parser the answer is the text itself. Each step
    records which messages it has read.

    Args:
        sources: role that speaks → roles whose last messages it reads, in this order.

    Returns: the answer of each role.
    """
    shown, turns = {}, {}
    for role, others in sources.items():
        steps = [(other, step) for other in others if (step := episode.agents[other].last) is not None]
        lines = [f"{'you' if other == role else other}: {step.action.text or ''}" for other, step in steps]
        shown[role], turns[role] = noted(observation, *lines), tuple(step.turn for _, step in steps)
    meant = await asyncio.gather(*(episode.agents[role].ask(text, _plain) for role, text in shown.items()))
    for role, read in turns.items():
        step = episode.agents[role].last
        assert step is not None
        step.info["reads"] = read
    return {role: None if meaning is None else str(meaning) for role, meaning in zip(sources, meant, strict=True)}


async def converse(
    episode: Episode, observation: Observation, roles: Sequence[str], *, rounds: int, agree: float | None = None
) -> list[Said]:
    """Play rounds in which all roles act at the same time, after they have read the whole round before.

    Args:
        rounds: most rounds.
        agree: share of the roles whose equal answers end the rounds early. None: play all rounds.

    Returns: the answers, round by round.
    """
    said: list[Said] = []
    for _round in range(rounds):
        said.append(await speak(episode, observation, dict.fromkeys(roles, roles if said else ())))
        if agree is not None and quorum(list(said[-1].values()), share=agree) is not None:
            break
    return said


def settle(episode: Episode, said: Said, how: How, weights: Sequence[float] = ()) -> tuple[str, Action]:
    """Make one action from the answers of several roles. Returns the role that acts, and the action.

    With "vote", the first role that gave the winning answer acts; else the last role does.

    Raises: InvalidData, for weights that do not fit.
    """
    roles, outputs = list(said), list(said.values())
    episode.trajectory.info = {**episode.trajectory.info, "agreement": agreement(outputs)}
    if how == "vote":
        chosen = weighted_vote(outputs, weights or [1.0] * len(outputs))
        role = roles[outputs.index(chosen)]  # the first role if there is no valid answer
        return role, _action(episode, role)
    if how == "last":
        return roles[-1], _action(episode, roles[-1])
    texts = [_action(episode, role).text if said[role] is not None else None for role in roles]
    return roles[-1], replace(_action(episode, roles[-1]), value=concat(texts) or "")


async def act_together(
    episode: Episode, think: Callable[[Observation], Awaitable[tuple[str, Action]]], *, program: str
) -> None:
    """Play an episode of an environment with one agent. For each act, `think` gives a role and its action."""
    result = await episode.reset()
    while result.observations:
        _, observation = sole(result, program=program)
        role, action = await think(observation)
        result = await episode.step({role: action})


@register("program", "chain", uses=("one_agent",), source="common practice")
@acted_by(lambda options: options["roles"])
@demonstrated_by(everybody_as_expert)
@declaring(waits=True)
async def chain(episode: Episode, *, roles: Annotated[tuple[str, ...], pydantic.Field(min_length=1)]) -> None:
    """Roles speak one after the other. Each reads the observation and the message before its own. The last one acts.

    For environments with one agent. Each of its acts takes one chain.

    Args:
        roles: roles in the order in which they speak. A role may occur more than once.
    """

    async def think(observation: Observation) -> tuple[str, Action]:
        for place, role in enumerate(roles):
            said = await speak(episode, observation, {role: roles[max(place - 1, 0) : place]})
        return settle(episode, said, "last")

    await act_together(episode, think, program="chain")


@register("program", "star", uses=("one_agent",), source="common practice")
@acted_by(lambda options: (options["hub"], *options["spokes"]))
@demonstrated_by(everybody_as_expert)
@declaring(waits=True)
async def star(episode: Episode, *, hub: str, spokes: Roles, rounds: PositiveInt = 1) -> None:
    """The hub speaks, the spokes read it and speak at once, and the hub reads them all. Its last message is the action.

    For environments with one agent. No spoke reads another spoke.

    Args:
        hub: role that asks the spokes and reads their answers.
        spokes: roles that are asked, all at once. More of them: more opinions, more tokens.
        rounds: how often the spokes are asked. Higher: the hub can ask again for what was not clear. Usual: 1.

    Raises: ContractError, if the hub is a spoke too.
    """
    if hub in spokes:
        what = f"`{hub}` is the hub and also a spoke."
        raise ContractError(where="program star", what=what, remedy="Name another role as the hub.")

    async def think(observation: Observation) -> tuple[str, Action]:
        said = await speak(episode, observation, {hub: ()})
        for _round in range(rounds):
            await speak(episode, observation, dict.fromkeys(spokes, (hub,)))
            said = await speak(episode, observation, {hub: spokes})
        return settle(episode, said, "last")

    await act_together(episode, think, program="star")


@register("program", "mesh", uses=("one_agent",), source="common practice")
@acted_by(lambda options: options["roles"])
@demonstrated_by(everybody_as_expert)
@declaring(waits=True)
async def mesh(
    episode: Episode, *, roles: Roles, rounds: PositiveInt = 2, how: How = "vote", agree: Fraction | None = None
) -> None:
    """All roles speak at once, in rounds. Each reads the whole round before, its own message included.

    For environments with one agent. Each of its acts takes all rounds.

    Args:
        roles: roles that speak. In a tie, the answer of the earliest role wins.
        rounds: most rounds; 1 equals `independent`. Higher: each reads more of the others, more tokens. Usual: 2.
        how: of the last round, "vote" takes the most frequent answer, "last" the last role's, "concat" all texts.
        agree: share of roles whose equal answers end the rounds early; 1 asks for consensus. Lower: fewer rounds.
            Usual: none.
    """

    async def think(observation: Observation) -> tuple[str, Action]:
        return settle(episode, (await converse(episode, observation, roles, rounds=rounds, agree=agree))[-1], how)

    await act_together(episode, think, program="mesh")


@register("program", "layers", uses=("one_agent",), source="common practice")
@acted_by(lambda options: [role for layer in options["layers"] for role in layer])
@demonstrated_by(everybody_as_expert)
@declaring(waits=True)
async def layers(
    episode: Episode,
    *,
    layers: Annotated[tuple[Roles, ...], pydantic.Field(min_length=1)],
    how: How = "vote",
    weights: Weights = (),
) -> None:
    """The roles of a layer speak at once, after they have read the whole layer before. The last layer decides.

    For environments with one agent. Each of its acts takes all layers.

    Args:
        layers: roles, layer by layer.
        how: how the last layer's answers become one, as in `mesh`.
        weights: weights of the last layer's votes, one for each role. Empty: all are equal.
    """

    async def think(observation: Observation) -> tuple[str, Action]:
        before: tuple[str, ...] = ()
        for layer in layers:
            said = await speak(episode, observation, dict.fromkeys(layer, before))
            before = layer
        return settle(episode, said, how, weights)

    await act_together(episode, think, program="layers")


@register("program", "independent", uses=("one_agent",), source="common practice")
@acted_by(lambda options: options["roles"])
@demonstrated_by(everybody_as_expert)
@declaring(waits=True)
async def independent(episode: Episode, *, roles: Roles, how: How = "vote", weights: Weights = ()) -> None:
    """All roles speak at once without reading each other. Their answers become one.

    For environments with one agent. If one policy plays all roles, a vote is self-consistency.

    Args:
        roles: roles that speak. In a tie, the answer of the earliest role wins.
        how: how the answers become one, as in `mesh`.
        weights: weights of the votes, one for each role. Empty: all are equal.
    """

    async def think(observation: Observation) -> tuple[str, Action]:
        return settle(episode, await speak(episode, observation, dict.fromkeys(roles, ())), how, weights)

    await act_together(episode, think, program="independent")


def _plain(text: str) -> Any:
    return " ".join(text.split()) or None


def _action(episode: Episode, role: str) -> Action:
    step = episode.agents[role].last
    assert step is not None
    return step.action
