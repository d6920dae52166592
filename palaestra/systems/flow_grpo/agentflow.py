"""The program of AgentFlow: planner, executor and verifier take turns with a growing memory; the generator answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from palaestra.data import Action, Observation, derive
from palaestra.registry import PositiveInt, register
from palaestra.rollout.programs import acted_by, demonstrated_by
from palaestra.teams.demonstration import option_of
from palaestra.teams.parsers import choice
from palaestra.teams.shown import has_read, noted, sole

if TYPE_CHECKING:
    from palaestra.rollout.episode import Episode

PLANNER, EXECUTOR, VERIFIER, GENERATOR = ROLES = ("planner", "executor", "verifier", "generator")
STOP, CONTINUE = "stop", "continue"
ANSWER = "answer"  # first word of an expert's answer
MEMORY = 8


def verdict(text: str) -> str | None:
    """Read the verifier's verdict, stop or continue; None for any other text."""
    return choice(text, options=(STOP, CONTINUE))


def remembered(goal: str, command: str, found: str) -> str:
    """One line of the memory: the sub-goal, the command and its result.

    >>> remembered("calc", "calc plus", "plus is done. 19.")
    'calc | calc plus | plus is done. 19.'
    """
    return " | ".join(" ".join(text.split()) for text in (goal, command, found))


async def demonstrate(episode: Episode, *, noise: float = 0.0) -> None:
    """Demonstrate the team with the expert: the sub-goal is the first word of its action, the command the action.

    The verifier says stop where the expert answers next. A share `noise` of the sub-goals is replaced by another word
    that fits the same rest (`head` for `calc` of `calc plus`). The executor learns to follow it; the planner does not
    learn it.
    """
    draw = np.random.default_rng(derive(episode.play.seed, "noise"))
    agents = episode.agents
    shown = option_of(episode, "memory", MEMORY)
    result, question, memory = await episode.reset(), None, list[str]()
    while result.observations:
        name, seen = sole(result, program="agentflow")
        question = seen.text if question is None else question
        read, right = _remembering(seen, question, memory[-shown:]), await episode.expert(name)
        if memory:
            agents[VERIFIER].record(read, STOP if _kind(right) == ANSWER else CONTINUE)
        if _kind(right) == ANSWER:
            agents[GENERATOR].record(read, right)
            result = await episode.step({GENERATOR: right})
            continue
        others = [text for text in map(str, seen.legal or ()) if _rest(text) == _rest(right.text or "")]
        wild = draw.random() < noise and len(others) > 1
        command = Action(text=others[int(draw.integers(len(others)))]) if wild else right
        agents[PLANNER].record(read, _kind(command), noise=float(wild))
        agents[EXECUTOR].record(noted(read, f"sub-goal: {_kind(command)}"), command)
        result = await episode.step({EXECUTOR: command})
        found = next((seen.text or "" for seen in result.observations.values()), "")
        memory.append(remembered(_kind(command), command.text or "", found))


@register("program", "agentflow", uses=("one_agent",), source="arXiv 2510.05592")
@acted_by(*ROLES)
@demonstrated_by(demonstrate)
async def agentflow(episode: Episode, *, steps: PositiveInt = 5, memory: PositiveInt = MEMORY) -> None:
    """The planner sets sub-goals, the executor acts on them, the verifier stops or continues; the generator answers.

    For environments with one agent. All roles read the question and the memory, to which each act adds a line:
    sub-goal, command, and the environment's result; the executor reads the sub-goal too. A role gets the rewards of its
    own acts, so the generator gets the answer's; `flow_grpo` gives the planner the return of the whole trajectory.

    Args:
        steps: largest number of sub-goals; after them the generator answers in any case. Higher: longer questions can
            be answered and mistakes corrected. Usual: 5.
        memory: largest number of lines that are shown, the latest ones. Higher: longer prompts; 1 is enough where the
            environment repeats all that is known. Usual: 8.

    As in the authors' code the verifier is asked after the last sub-goal too, where its verdict changes nothing. A
    verdict that cannot be read is `invalid` and counts as continue. `info` has `steps`, the number of sub-goals.

    Differs from the authors' code: the executor's command goes to the environment, which has the tools.
    """
    planner, executor, verifier, generator = (episode.agents[name] for name in ROLES)
    result, question, lines, enough = await episode.reset(), None, list[str](), False
    while result.observations:
        _, seen = sole(result, program="agentflow")
        question = seen.text if question is None else question
        read = _remembering(seen, question, lines[-memory:])
        if lines and not enough:
            enough = await verifier.ask(read, verdict) == STOP
            has_read(verifier, planner, executor)
        if enough or len(lines) >= steps:
            answer = await generator.act(read)
            has_read(generator, planner, executor)
            result = await episode.step({GENERATOR: answer})
            continue
        goal = await planner.act(read)
        has_read(planner, executor, verifier)
        command = await executor.act(noted(read, f"sub-goal: {goal.text or ''}"))
        has_read(executor, planner)
        result = await episode.step({EXECUTOR: command})
        found = next((seen.text or "" for seen in result.observations.values()), "")
        lines.append(remembered(goal.text or "", command.text or "", found))
        episode.trajectory.info = {**episode.trajectory.info, "steps": len(lines)}


def _remembering(seen: Observation, question: str | None, memory: list[str]) -> Observation:
    """The question and the memory as text; everything else is from the present observation."""
    return noted(replace(seen, text=question), *memory)


def _kind(action: Action) -> str:
    return (action.text or "").partition(" ")[0]


def _rest(text: str) -> str:
    return text.partition(" ")[2]
