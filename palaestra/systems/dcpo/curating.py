"""The program of MemAct: agents edit their own memory by an action that does not reach the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from palaestra.data import Action, Observation, derive
from palaestra.errors import ContractError, InvalidData
from palaestra.registry import declaring, register
from palaestra.rollout.programs import acted_by, demonstrated_by, expert_or_random
from palaestra.systems.dcpo.editable import PRUNED, Edit, Editable, EditableMemory, read_edit, write_edit

if TYPE_CHECKING:
    from palaestra.rollout.episode import Agent, Episode
    from palaestra.training.settings import RunSettings


async def demonstrate_curating(episode: Episode, *, noise: float = 0.0) -> None:
    """Let the environment's expert act; whenever memory is full, replace all records by a summary.

    The summary is the environment's text `info["gist"][agent]`, empty where there is none.
    """
    draw = np.random.default_rng(derive(episode.play.seed, "noise"))
    result = await episode.reset()
    while result.observations:
        actions: dict[str, Action] = {}
        for name, seen in result.observations.items():
            agent, memory = episode.agents[name], _memory_of(episode.agents[name])
            if memory.full and memory.coming is not None:
                edit = Edit(ids=(*memory.ids, memory.coming), summary=result.info.get("gist", {}).get(name, ""))
                agent.record(seen, Action(text=write_edit(edit)))
                seen = _edited(episode, agent, seen, edit)
            chosen, wild = await expert_or_random(episode, name, seen, noise=noise, draw=draw)
            actions[name] = agent.record(seen, chosen, noise=float(wild))
        result = await episode.step(actions)


def _refuse_fixed_memory(options: Mapping[str, Any], settings: RunSettings, source: Any) -> None:
    """Refuse a role whose context is not `editable`, before the start."""
    for name in source.agents:
        if not isinstance(settings.role(name).context(), Editable):
            raise _no_memory(name)


@register("program", "curate", source="arXiv 2510.12635")
@acted_by()
@declaring(fits=_refuse_fixed_memory)
@demonstrated_by(demonstrate_curating)
async def curate(episode: Episode) -> None:
    """Let agents act; the action `prune IDS: SUMMARY` edits the agent's own memory, not the environment.

    For language policies with the context `editable`. A memory action is a step of reward 0 and counts against the turn
    limit. The step's `info` has `edit` (ids and summary) and `pruned`, the number of removed outputs. An edit that the
    context refuses is marked `invalid`, and the reason is the next observation.
    """
    result = await episode.reset()
    while result.observations:
        actions = {name: await _decide(episode, name, seen) for name, seen in result.observations.items()}
        result = await episode.step(actions)


async def _decide(episode: Episode, name: str, seen: Observation) -> Action:
    """The agent's next action for the environment, after any number of edits."""
    agent = episode.agents[name]
    _memory_of(agent)
    while True:
        action = await agent.act(seen)
        edit = read_edit(action.text or "")
        if edit is None:
            return action
        seen = _edited(episode, agent, seen, edit)


def _edited(episode: Episode, agent: Agent, seen: Observation, edit: Edit) -> Observation:
    """Edit the agent's memory, record it in `info` of its last step, and return its next observation."""
    info = episode.latest[agent.name].info
    try:
        _memory_of(agent).prune(edit.ids)
    except InvalidData as refused:
        info |= {"invalid": 1.0, "pruned": 0.0}
        return replace(seen, text=refused.what)
    info |= {"pruned": float(len(edit.ids)), "edit": {"ids": list(edit.ids), "summary": edit.summary}}
    return replace(seen, text=PRUNED)


def _memory_of(agent: Agent) -> EditableMemory:
    memory = agent.session.history()
    if not isinstance(memory, EditableMemory):
        raise _no_memory(agent.name)
    return memory


def _no_memory(agent: str) -> ContractError:
    return ContractError(
        where=f"program: curate, agent {agent}",
        what="it has no memory that can be edited.",
        remedy="Give it a language policy and `context: editable`, or use `program: play`.",
    )
