"""Loops in which one role looks at what another did: solver and verifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from palaestra.data import Action, Observation, derive
from palaestra.registry import PositiveInt, register
from palaestra.rollout.programs import acted_by, demonstrated_by
from palaestra.teams.demonstration import spoiled
from palaestra.teams.shown import has_read, noted, sole
from palaestra.teams.tool_use import worked_out

if TYPE_CHECKING:
    from palaestra.rollout.episode import Episode

SOLVER, VERIFIER = "solver", "verifier"
ACCEPT, REJECT = ("accept", "approve", "yes"), ("reject", "no")


def verdict(text: str) -> str | None:
    """The word that a verdict begins with, if it accepts or rejects; None for anything else.

    >>> verdict("Reject: the last digit is wrong."), verdict("hm")
    ('reject', None)
    """
    word = text.lower().replace(":", " ").replace(",", " ").replace(".", " ").split()[:1]
    return word[0] if word and word[0] in (*ACCEPT, *REJECT) else None


async def demonstrate(episode: Episode, *, noise: float = 0.0) -> None:
    """The expert proposes and is accepted; a share `noise` of first proposals is wrong, is rejected, and is mended.

    Without noise the verifier sees nothing wrong, and learns to accept whatever it reads. Who can calculate does so
    before it speaks.
    """
    draw = np.random.default_rng(derive(episode.play.seed, "noise"))
    solver, verifier = episode.agents[SOLVER], episode.agents[VERIFIER]
    result = await episode.reset()
    while result.observations:
        name, observation = sole(result, program="solver_verifier")
        right, shown = await episode.expert(name), observation
        if draw.random() < noise:
            wrong = spoiled(right.text or "", draw)
            solver.record(observation, wrong, noise=1.0)
            verifier.record(await worked_out(verifier, _proposed(observation, wrong)), REJECT[0])
            shown = _criticized(observation, wrong, REJECT[0])
        solver.record(await worked_out(solver, shown), right)
        verifier.record(await worked_out(verifier, _proposed(observation, right.text or "")), ACCEPT[0])
        result = await episode.step({SOLVER: right})


@register("program", "solver_verifier", source="arXiv 2602.08847")
@acted_by(SOLVER, VERIFIER)
@demonstrated_by(demonstrate)
async def solver_verifier(episode: Episode, *, rounds: PositiveInt = 2) -> None:
    """The solver proposes, the verifier accepts or criticizes, the solver proposes again; the last proposal counts.

    For environments with one agent; a loop for each of its acts. The verifier reads the observation and the proposal;
    the solver reads the observation, its proposal and all that the verifier wrote. What the environment pays goes to
    the solver; `returns: [trajectory]` of an estimator shares it.

    Args:
        rounds: most verdicts; the proposal that follows the last one is taken as it is. Higher: more mistakes can be
            mended, more tokens. Usual: 2.

    A verdict begins with accept, approve or yes, or with reject or no; a `parser` of the role that finds one of these
    words elsewhere takes its place. One that cannot be read is `invalid` and rejects. `info` tells `proposals`, and
    `accepted`, 1 if the last one was.
    """
    solver, verifier = episode.agents[SOLVER], episode.agents[VERIFIER]
    proposals = acts = 0
    result = await episode.reset()
    while result.observations:
        _, observation = sole(result, program="solver_verifier")
        proposal, accepted = await solver.act(observation), False
        acts += 1
        for _round in range(rounds):
            meant = await verifier.ask(_proposed(observation, proposal.text or ""), verdict)
            has_read(verifier, solver)
            accepted = str(meant).lower() in ACCEPT
            if accepted:
                break
            proposal = await _again(episode, observation, proposal)
            proposals += 1
        info = {"proposals": (acts + proposals) / acts, "accepted": accepted}
        episode.trajectory.info = {**episode.trajectory.info, **info}
        result = await episode.step({SOLVER: proposal})


async def _again(episode: Episode, observation: Observation, proposal: Action) -> Action:
    """The solver's next proposal, after it has read what is wrong with this one."""
    solver, verifier = episode.agents[SOLVER], episode.agents[VERIFIER]
    criticism = verifier.last.action.text if verifier.last is not None else None
    mended = await solver.act(_criticized(observation, proposal.text or "", criticism or ""))
    has_read(solver, verifier)
    return mended


def _proposed(observation: Observation, proposal: str) -> Observation:
    return noted(observation, f"proposal: {proposal}")


def _criticized(observation: Observation, proposal: str, criticism: str) -> Observation:
    return noted(observation, f"proposal: {proposal}", f"verifier: {criticism}")
