"""The program `outside_agent`: an agent that was written for OpenAI's client plays the episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from palaestra.data import Observation, derive
from palaestra.errors import ContractError, EpisodeFailure, PalaestraError
from palaestra.gateway.agents import Given, answer_of, check_options, run_command, run_function
from palaestra.gateway.chats import EpisodeChats, refuse_role, text_of
from palaestra.gateway.gate import GATE
from palaestra.registry import Files, Positive, declaring, register
from palaestra.rollout.episode import Agent, Episode
from palaestra.rollout.limits import LimitReached
from palaestra.rollout.programs import acted_by

KEY = "palaestra"  # clients want a key; the secret is in the address


def _roles(options: Mapping[str, Any]) -> tuple[str, ...]:
    """No roles but the environment's agents. A run asks for them at its start, so mistakes are refused there."""
    if options:
        check_options(options)
    return ()


@register("program", "outside_agent", uses=("one_agent",), extra="serve", modules=("fastapi", "uvicorn"))
@acted_by(_roles)
@declaring(waits=True)
async def outside_agent(
    episode: Episode,
    *,
    agent: Annotated[str | None, Files(functions=True)] = None,
    command: Annotated[tuple[str, ...], Files()] = (),
    seconds: Positive = 300.0,
    model: str = "policy",
) -> None:
    """Let an agent from outside play: it asks the policy through OpenAI's protocol, as it would ask any server.

    All that the policy reads and answers is recorded token by token. The environment judges the agent's answer. An
    agent that raises, takes too long or ends with an error fails its own episode.

    Args:
        agent: a function such as `my_agent.py:solve`, which returns the answer as a text. It takes by name what it
            needs: prompt, messages, tools, base_url, api_key, model, act, seed. It may be `async`.
        command: the words of a command, which reads the task from standard input and writes the answer to standard
            output. OPENAI_BASE_URL and OPENAI_API_KEY are set for it.
        seconds: for one episode of the agent. Higher: slow agents can end. Lower: agents that hang cost less time.
        model: the name of the policy for the agent.
    """
    check_options({"agent": agent, "command": command})
    (name, *others), label = episode.names, agent or " ".join(command)
    if others:
        raise ContractError(
            where="program: outside_agent",
            what=f"the environment {episode.setup.environment_name} has {1 + len(others)} agents, and an outside agent "
            "plays one.",
            remedy="Use an environment with one agent.",
        )
    refuse_role(episode, name)
    result = await episode.reset()
    chats = EpisodeChats(episode, name=name, model=model)
    chats.shown = result.observations.get(name)
    if chats.shown is None:
        return
    with GATE.episode(chats) as address, episode.busy():
        given = _given(episode, episode.agents[name], chats, address, model)
        began = chats.shown
        try:
            if agent is not None:
                returned = await run_function(agent, given, seconds)
            else:
                returned = await run_command(command, given, seconds)
        except Exception as error:
            _refuse_reached(episode, chats, error)
            raise
    if chats.fault is not None:
        raise chats.fault
    acted = chats.shown is not began
    if chats.shown is None or (acted and returned is None):
        return
    if await chats.step(answer_of(returned, label)) is not None:
        raise EpisodeFailure(
            boundary="part",
            where=f"agent {label}",
            what="it has ended with an answer, and the environment goes on after it.",
            remedy="Let the agent take `act`, and call it until it returns None.",
        )


def _refuse_reached(episode: Episode, chats: EpisodeChats, error: Exception) -> None:
    """The agent has raised. If the policy has failed or a limit was reached before, that is the reason.

    Raises: EpisodeFailure; LimitReached.
    """
    if chats.fault is not None:
        raise chats.fault from error
    if chats.limit is not None and episode.latest and not isinstance(error, PalaestraError):
        raise LimitReached(chats.limit) from error


def _given(episode: Episode, player: Agent, chats: EpisodeChats, address: str, model: str) -> Given:
    """What the agent gets for the episode."""
    shown = chats.shown
    assert shown is not None
    return Given(
        prompt=text_of(shown),
        messages=_messages(shown, player),
        tools=[dict(tool) for tool in shown.tools or ()],
        base_url=f"{address}/v1",
        api_key=KEY,
        model=model,
        act=chats.act_from_thread,
        seed=derive(episode.play.seed, "agent"),
    )


def _messages(shown: Observation, player: Agent) -> list[dict[str, Any]]:
    """The task as messages, with the instruction of the role, the environment and the play before it."""
    messages = [dict(one) for one in shown.messages or ()] or [{"role": "user", "content": text_of(shown)}]
    told = "\n\n".join(filter(None, (player.rules, shown.instruction, player.instruction)))
    if told and messages[0]["role"] == "system":
        messages[0]["content"] = f"{told}\n\n{messages[0]['content']}"
    elif told:
        messages.insert(0, {"role": "system", "content": told})
    return messages
