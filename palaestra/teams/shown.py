"""What a role is shown: the environment's observation, and below it the messages of others, one note a line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from palaestra.data import Observation, StepResult
from palaestra.errors import ContractError

if TYPE_CHECKING:
    from palaestra.rollout.episode import Agent


def noted(observation: Observation, *notes: str) -> Observation:
    """The observation with notes below its text. Without notes it is returned unchanged.

    The notes remove the legal actions, because a role that reads notes may answer something else. A vector and an image
    stay, for policies that read no text.

    >>> seen = noted(Observation(text="3 + 4?", legal=["7"]), "proposal: 8")
    >>> seen.text, seen.legal
    ('3 + 4?\\nproposal: 8', None)
    """
    if not notes:
        return observation
    words = observation.text
    if words is None:
        words = "\n".join(message["content"] for message in observation.messages or ())
    text = "\n".join([words, *notes])
    key = "\n".join([observation.state_key or words, *notes])
    return replace(observation, text=text, messages=None, legal=None, state_key=key)


def sole(result: StepResult, *, program: str) -> tuple[str, Observation]:
    """The environment's agent that is to act, and its observation.

    Raises: ContractError, if several agents are to act at once, because the team finds one action only.
    """
    if len(result.observations) != 1:
        raise ContractError(
            where=f"program {program}",
            what=f"it finds one action for one agent, and the environment asks {len(result.observations)} at once.",
            options=sorted(result.observations),
            remedy="Use an environment with one agent, or the program `play` with a role for each agent.",
        )
    ((name, observation),) = result.observations.items()
    return name, observation


def has_read(agent: Agent, *others: Agent, earlier: Iterable[int] = ()) -> None:
    """Record that the agent's last step has read the last message of each of `others`.

    Estimators that assign credit along messages read this.

    Args:
        earlier: turns of further messages that the step has read.
    """
    assert agent.last is not None
    agent.last.info["reads"] = (*earlier, *(other.last.turn for other in others if other.last is not None))
