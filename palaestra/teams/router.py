"""Router: one role says whether enough is known, and so who acts next: the one who searches, or the one who answers."""

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

VERDICTS = {"yes": "answer", "no": "search"}  # what is said → the word that an action for the environment begins with
WORK = {"search": "searcher", "answer": "answerer"}


def verdict(text: str) -> str | None:
    """What the verifier says: yes or no."""
    return choice(text, options=tuple(VERDICTS))


async def demonstrate(episode: Episode, *, noise: float = 0.0) -> None:
    """The expert searches: the verifier said no. It answers: the verifier said yes."""
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


@register("program", "router", source="arXiv 2602.08847")
@acted_by("verifier", "searcher", "answerer")
@demonstrated_by(demonstrate)
async def router(episode: Episode, *, turns: PositiveInt = 4, must_answer: bool = True) -> None:
    """The verifier reads what was asked and found: no → the searcher writes a search; yes → the answerer an answer.

    For environments of one agent whose actions are `search …` and `answer …`. The roles write what follows that word
    and the program writes the word, so that none can do another's work. What they do is the environment's reward, which
    goes to who acted; `returns: [trajectory]` of an estimator shares it.

    Args:
        turns: rounds. Higher: more searches, longer episodes. Usual: 4.
        must_answer: in the last round nobody asks the verifier, and the answerer answers. False: an episode may end
            without an answer, so that the answerer acts in those only in which the verifier was content in time.

    A verdict that is neither yes nor no is `invalid` and taken as no.

    Raises: ContractError, in an environment of several agents.
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
    """The observation, to which only a verdict is an answer."""
    return replace(observation, legal=None if observation.legal is None else list(VERDICTS))


def _for_worker(observation: Observation, kind: str) -> Observation:
    """The observation; of what was legal, what this role may write."""
    if observation.legal is None:
        return observation
    parts = [str(text).partition(" ") for text in observation.legal]
    return replace(observation, legal=[rest for word, _, rest in parts if word == kind])


def _routed(observation: Observation) -> Observation:
    """The observation without legal actions that are no role's work."""
    if observation.legal is None:
        return observation
    legal = [text for text in observation.legal if str(text).partition(" ")[0] in WORK]
    return replace(observation, legal=legal)


def _work_of(chosen: Action) -> tuple[str, str]:
    """Whose work an action is, and what that role writes.

    Raises: ContractError, for an action of another kind.
    """
    kind, _, rest = (chosen.text or "").partition(" ")
    if kind not in WORK:
        raise ContractError(
            where="program router, demonstration",
            what=f"the expert says `{chosen.text}`, which is neither a search nor an answer.",
            options=list(WORK),
            remedy="Take an environment whose expert begins with these words; of searchqa, one with `style: words` "
            "and `passage_words: 0`, where nothing is opened.",
        )
    return kind, rest


def _acting(kind: str, action: Action) -> Action:
    """What a role wrote, as the environment reads it."""
    return replace(action, value=f"{kind} {action.text or ''}")
