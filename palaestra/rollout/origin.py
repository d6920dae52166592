"""Origins: where a branch leaves the episode that it came from, and how what came before is repeated.

A running program cannot be copied. So a branch is an episode of its own whose program runs anew: resets, steps and
acts are answered from the record, without the environment, without an engine, until it stands where the other one
stood. There the environment is put back into its place, and sessions go on as copies of the other's.

Knows steps, step results and sessions. Knows no method, no model and no environment by name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palaestra.data import Action, Observation, Step, StepResult, Tail
from palaestra.data.protocols import Acted, Session
from palaestra.errors import ContractError, EpisodeFailure
from palaestra.rollout.agent import conversation_of


@dataclass(slots=True, frozen=True, kw_only=True, eq=False)
class Origin:
    """Where a branch begins. Each serves one branch.

    Attributes:
        parent: the trajectory that it leaves.
        results: what the environment answered so far: to `reset`, then to each `step`.
        steps: the acts so far, in time.
        state: the environment's snapshot. sessions: per agent, a copy that goes on from here.
    """

    parent: str
    results: Sequence[StepResult]
    steps: Sequence[Step]
    state: Any
    sessions: Mapping[str, Session]

    def repeating(self, agent: str, session: Session) -> Session:
        """The agent's session behind the acts that the record has of it."""
        past = deque(step for step in self.steps if step.agent == agent)
        return _Repeating(session, past) if past else session


class _Repeating:
    """Answers acts from the record; when that is used up, it is the copied session."""

    def __init__(self, session: Session, past: deque[Step]) -> None:
        self._session, self._past = session, past

    async def act(self, observation: Observation, *, seed: int) -> Acted:
        """The next recorded act, else a new one. Raises: EpisodeFailure, if the record does not fit."""
        return self._repeat(observation) if self._past else await self._session.act(observation, seed=seed)

    def record(self, observation: Observation, action: Action) -> Acted:
        """Take a given action: a program that records repeats itself."""
        return self._repeat(observation) if self._past else self._session.record(observation, action)

    def end(self, observation: Observation | None) -> Tail | None:
        """Close the session; one that was still repeating has no next prompt."""
        return self._session.end(None if self._past else observation)

    def fork(self, key: Any) -> Session:
        """A copy of the copy."""
        return fork(self._session, key)

    def __getattr__(self, name: str) -> Any:
        if self._past:
            raise ContractError(
                where=f"a branch, {len(self._past)} acts before it begins",
                what=f"the program asks its agent's session for `{name}` while its acts are repeated.",
                remedy="Branch with programs that only act and step, such as `play`.",
            )
        return getattr(self._session, name)

    def _repeat(self, observation: Observation) -> Acted:
        step = self._past.popleft()
        if (observation.text, observation.state_key) != (step.observation.text, step.observation.state_key):
            raise EpisodeFailure(
                boundary="part",
                where=f"a branch, agent {step.agent}, turn {step.turn}",
                what="the program shows another observation than when it ran first.",
                remedy="What a program does must follow from what agents and the environment say.",
            )
        segment = conversation_of(step.segment)[1]
        return Acted(action=step.action, prompt=step.prompt, segment=segment, version=step.version)


def fork(session: Any, key: Any) -> Session:
    """A copy of a session that goes on by itself under another key.

    Raises: ContractError, if this kind of session cannot be copied.
    """
    return session.fork(key)  # type: ignore[no-any-return]
