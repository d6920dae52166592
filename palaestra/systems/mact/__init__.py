"""MACT (arXiv 2508.03404) answers questions about visual documents with four roles: planner, executor, judge and
answerer. The judge corrects nothing. It says whether the plan or its execution is wrong and sends the work back, a
limited number of times. A role's reward is mixed from its own and the team's (overlay `role_mix.yaml`). Here a plan and
a process are each made once, in one act; parallel plans and candidates chosen by a reward model are left out.
Documents, a process reward model and longer thinking of the judge are not here, and in the recipe only the answerer has
a reward of its own. This file is the team program; the reward `role_mix` is in `palaestra/parts/rewards.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
import pydantic

from palaestra.data import Action, Observation, derive
from palaestra.registry import register
from palaestra.rollout.programs import acted_by, demonstrated_by
from palaestra.teams.demonstration import option_of, spoiled
from palaestra.teams.shown import has_read, noted, sole

if TYPE_CHECKING:
    from palaestra.rollout.episode import Agent, Episode

PLANNER, EXECUTOR, JUDGE, ANSWERER = ROLES = ("planner", "executor", "judge", "answerer")
CORRECT, PLAN, EXECUTE = "correct", "plan", "execute"
CORRECTIONS = 3
FLAGS = {PLAN: {PLAN}, EXECUTE: {EXECUTE}, "plan and execute": {PLAN, EXECUTE}}


def judgment(text: str) -> str | None:
    """`correct`, or the flag of a text such as `plan: <the mistake>`; None for a text that is neither.

    >>> judgment("Plan and execute: two steps are missing"), judgment("Correct."), judgment("plan")
    ('plan and execute', 'correct', None)
    """
    flag, _, note = text.partition(":")
    flag = " ".join(flag.lower().replace(".", " ").split())
    return flag if flag == CORRECT or (flag in FLAGS and note.strip()) else None


async def demonstrate(episode: Episode, *, noise: float = 0.0) -> None:
    """Demonstrate the program: the plan is the first word of the expert's action, and the process is all of it.

    A share `noise` of the first plans or processes is wrong; the judge finds the mistake, and the work is done again.
    Without corrections nothing is wrong, and the judge does not act.
    """
    draw = np.random.default_rng(derive(episode.play.seed, "noise"))
    judged = option_of(episode, "corrections", CORRECTIONS) > 0
    result = await episode.reset()
    while result.observations:
        name, seen = sole(result, program="mact")
        right = await episode.expert(name)
        process = right.text or ""
        plan = (process.split() or ["?"])[0]
        notes: tuple[str, ...] = ()
        if draw.random() >= noise or not judged:
            episode.agents[PLANNER].record(seen, plan)
        else:
            fault = (PLAN, EXECUTE)[int(draw.integers(2))]
            first = spoiled(plan, draw) if fault == PLAN else plan
            bad, said = spoiled(process, draw), f"{fault}: look again"
            episode.agents[PLANNER].record(seen, first, noise=float(fault == PLAN))
            _record_pass(episode, seen, first, bad, said, (), noise=1.0)
            notes = (_wrong(bad, said),)
            if fault == PLAN:
                episode.agents[PLANNER].record(noted(seen, *notes), plan)
        _record_pass(episode, seen, plan, process, CORRECT if judged else None, notes)
        answer = episode.agents[ANSWERER].record(noted(seen, *notes, f"process: {process}"), right)
        result = await episode.step({ANSWERER: answer})


def _record_pass(
    episode: Episode,
    seen: Observation,
    plan: str,
    process: str,
    said: str | None,
    notes: tuple[str, ...],
    noise: float = 0.0,
) -> None:
    """Record the executor's work and the judge's text about it; None: the judge does not act."""
    episode.agents[EXECUTOR].record(noted(seen, *notes, f"plan: {plan}"), process, noise=noise)
    if said is not None:
        episode.agents[JUDGE].record(noted(seen, f"plan: {plan}", f"process: {process}"), said)


@register("program", "mact", uses=("one_agent",), source="arXiv 2508.03404, Algorithm 1")
@acted_by(*ROLES)
@demonstrated_by(demonstrate)
async def mact(episode: Episode, *, corrections: Annotated[int, pydantic.Field(ge=0)] = CORRECTIONS) -> None:
    """Planner and executor work, the judge sends mistakes back to the role that made them, and the answerer answers.

    For environments with one agent; the roles go through all of it for each of its acts. The planner reads the task and
    earlier mistakes, the executor also the plan, the judge the task, the plan and the process, the answerer the task,
    earlier mistakes and the last process.

    Args:
        corrections: N_c ≥ 0, most judgments; the work after the last one is not judged. Higher: more mistakes can be
            corrected, more tokens. Usual: 3.

    A judgment is `correct`, `plan: <the mistake>`, `execute: <the mistake>` or `plan and execute: <the mistake>`, which
    goes to the planner first. One that cannot be read, or names no mistake, is `invalid` and goes to the executor. Let
    workers be right with probability a, and let the judge find faults with probability t and raise false alarms with f.
    After K judgments they are right with S_K = a(1 − f) + [a f + (1 − a) t] S_{K−1}, S_0 = a. `info` has the numbers of
    `corrections`, and of `both`, the judgments that blame plan and execution.

    The reward of the answer goes to the answerer; the reward `role_mix` mixes it with the roles' own scores.
    Differs from the authors' code: one plan and one process at a time, each made in one act; parallel plans, and
        candidates that a reward model chooses, are left out.
    """
    result = await episode.reset()
    counts = {"corrections": 0, "both": 0}
    while result.observations:
        _, seen = sole(result, program="mact")
        process, notes = await _work(episode, seen, corrections, counts)
        answerer = episode.agents[ANSWERER]
        answer = await answerer.act(noted(seen, *notes.values(), f"process: {process}"))
        has_read(answerer, episode.agents[EXECUTOR], earlier=notes)
        episode.trajectory.info = {**episode.trajectory.info, **counts}
        result = await episode.step({ANSWERER: answer})


async def _work(
    episode: Episode, seen: Observation, corrections: int, counts: dict[str, int]
) -> tuple[str, dict[int, str]]:
    """The last process, and what was wrong before it: by the turn of each judgment that sent work back, its text."""
    planner, executor, judge = (episode.agents[name] for name in (PLANNER, EXECUTOR, JUDGE))
    notes: dict[int, str] = {}
    flags = {PLAN, EXECUTE}
    for left in range(corrections, -1, -1):
        if PLAN in flags:
            await planner.act(noted(seen, *notes.values()))
            if notes:
                has_read(planner, earlier=notes)
        plan = _text(planner)
        await executor.act(noted(seen, *notes.values(), f"plan: {plan}"))
        has_read(executor, planner, earlier=notes)
        process = _text(executor)
        if left == 0:
            break
        meant = await judge.ask(noted(seen, f"plan: {plan}", f"process: {process}"), judgment)
        has_read(judge, planner, executor)
        if meant == CORRECT:
            break
        flags = FLAGS.get(str(meant), {EXECUTE})
        assert judge.last is not None
        notes[judge.last.turn] = _wrong(process, _text(judge))
        counts["corrections"] += 1
        counts["both"] += len(flags) == 2
    return process, notes


def _text(agent: Agent) -> str:
    action: Action | None = None if agent.last is None else agent.last.action
    return (None if action is None else action.text) or ""


def _wrong(process: str, said: str) -> str:
    return f"wrong: {process} ({said})"
