"""The router program: a verifier says whether enough is known, and then either the searcher or the answerer acts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from palaestra.data import Action, Observation, derive
from palaestra.errors import ContractError
from palaestra.registry import PositiveInt, register
from palaestra.rollout.programs import acted_by, demonstrated_by, expert_or_random
from palaestra.teams.parsers import choice
from palaestra.teams.shown import sole

if TYPE_CHECKING:
    from palaestra.rollout.episode import Episode

VERDICTS = {"yes": "answer", "no": "search"}  # verdict → first word of the environment's action
WORK = {"search": "searcher", "answer": "answerer"}


def verdict(text: str) -> str | None:
    """The verifier's verdict: yes, no, or None for any other text."""
    return choice(text, options=tuple(VERDICTS))


async def demonstrate(episode: Episode, *, noise: float = 0.0) -> None:
    """Play the expert's actions. The verifier says no before a search, and yes before an answer."""
    draw = np.random.default_rng(derive(episode.play.seed, "noise"))
    result = await episode.reset()
    while result.observations:
        name, observation = sole(result, program="router")
        action, is_random = await expert_or_random(episode, name, _routed(observation), noise=noise, draw=draw)
        kind, rest = _work_of(action)
        said = next(word for word, meant in VERDICTS.items() if meant == kind)
        episode.agents["verifier"].record(_for_verifier(observation), said, noise=float(is_random))
        action = episode.agents[WORK[kind]].record(_for_worker(observation, kind), rest, noise=float(is_random))
        result = await episode.step({WORK[kind]: _acting(kind, action)})


@register("program", "router", uses=("one_agent",), source="arXiv 2602.08847")
@acted_by("verifier", "searcher", "answerer")
@demonstrated_by(demonstrate)
async def router(episode: Episode, *, turns: PositiveInt = 4, must_answer: bool = True) -> None:
    """A verifier reads the question and what was found. On no, the searcher searches; on yes, the answerer answers.

    For environments with one agent whose actions are `search …` and `answer …`. The program writes the first word and
    the role writes the rest, so that no role can do the work of another. The environment's reward goes to the role that
    acted; an estimator with `returns: [trajectory]` shares it.

    Args:
        turns: most rounds. Higher: more searches, longer episodes. Usual: 4.
        must_answer: in the last round the verifier is not asked, and the answerer answers. False: an episode may end
            without an answer, so the answerer acts only if the verifier says yes in time.

    A verdict that is neither yes nor no is `invalid` and taken as no.

    Raises: ContractError, if the environment has several agents.
    """
    result = await episode.reset()
    for rounds_left in reversed(range(turns)):
        _, observation = sole(result, program="router")
        said: str | None = "yes"
        if rounds_left or not must_answer:
            said = await episode.agents["verifier"].ask(_for_verifier(observation), verdict)
        kind = VERDICTS[said or "no"]
        action = await episode.agents[WORK[kind]].act(_for_worker(observation, kind))
        result = await episode.step({WORK[kind]: _acting(kind, action)})
        if not result.observations:
            return


# ---- what a role is shown, and what becomes of what it writes ---------------------------------------------
def _for_verifier(observation: Observation) -> Observation:
    """The observation, with the verdicts as its legal actions."""
    return replace(observation, legal=None if observation.legal is None else list(VERDICTS))


def _for_worker(observation: Observation, kind: str) -> Observation:
    """The observation, with only those legal actions that this role may write, without their first word."""
    if observation.legal is None:
        return observation
    parts = [str(text).partition(" ") for text in observation.legal]
    return replace(observation, legal=[rest for word, _, rest in parts if word == kind])


def _routed(observation: Observation) -> Observation:
    """The observation, with only those legal actions that some role may write."""
    if observation.legal is None:
        return observation
    legal = [text for text in observation.legal if str(text).partition(" ")[0] in WORK]
    return replace(observation, legal=legal)


def _work_of(chosen: Action) -> tuple[str, str]:
    """The first word of an action, which names a role's work, and the rest, which that role writes.

    Raises: ContractError, for an action with another first word.
    """
    kind, _, rest = (chosen.text or "").partition(" ")
    if kind not in WORK:
        raise ContractError(
            where="program router, demonstration",
            what=f"the expert's action `{chosen.text}` is neither a search nor an answer.",
            options=list(WORK),
            remedy="Use an environment whose expert's actions begin with these words. For searchqa, set `style: words` "
            "and `passage_words: 0`, so that no passage is opened.",
        )
    return kind, rest


def _acting(kind: str, action: Action) -> Action:
    """The action of a role, with the first word that the environment expects."""
    return replace(action, value=f"{kind} {action.text or ''}")
