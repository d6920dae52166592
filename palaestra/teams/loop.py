"""The program of solver and verifier, in which the verifier checks each proposal of the solver."""

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
    """The first word of a verdict, if it accepts or rejects. None for any other text.

    >>> verdict("Reject: the last digit is wrong."), verdict("hm")
    ('reject', None)
    """
    word = text.lower().replace(":", " ").replace(",", " ").replace(".", " ").split()[:1]
    return word[0] if word and word[0] in (*ACCEPT, *REJECT) else None


async def demonstrate(episode: Episode, *, noise: float = 0.0) -> None:
    """The expert proposes and is accepted. A share `noise` of the first proposals is wrong, rejected, and corrected.

    Without noise the verifier sees no wrong proposal, and learns to accept everything. An agent with a calculator uses
    it before it speaks.
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


@register("program", "solver_verifier", uses=("one_agent",), source="arXiv 2602.08847")
@acted_by(SOLVER, VERIFIER)
@demonstrated_by(demonstrate)
async def solver_verifier(episode: Episode, *, rounds: PositiveInt = 2) -> None:
    """The solver proposes, the verifier accepts or criticizes, the solver proposes again. The last proposal counts.

    For environments with one agent. Each of its acts takes one such loop. The verifier reads the observation and the
    proposal. The solver reads the observation, its proposal and the text of the verifier. The environment's reward goes
    to the solver; an estimator with `returns: [trajectory]` shares it.

    Args:
        rounds: most verdicts. The proposal after the last verdict is taken unchecked. Higher: more mistakes can be
            corrected, more tokens. Usual: 2.

    A verdict begins with accept, approve or yes, or with reject or no. A `parser` of the role may find these words
    elsewhere. A verdict that cannot be read is `invalid` and rejects. The trajectory's `info` has `proposals`, the
    number of proposals for each act, and `accepted`, whether the last one was accepted.
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
    """The solver's next proposal, after it has read the criticism of this one."""
    solver, verifier = episode.agents[SOLVER], episode.agents[VERIFIER]
    criticism = verifier.last.action.text if verifier.last is not None else None
    mended = await solver.act(_criticized(observation, proposal.text or "", criticism or ""))
    has_read(solver, verifier)
    return mended


def _proposed(observation: Observation, proposal: str) -> Observation:
    return noted(observation, f"proposal: {proposal}")


def _criticized(observation: Observation, proposal: str, criticism: str) -> Observation:
    return noted(observation, f"proposal: {proposal}", f"verifier: {criticism}")
