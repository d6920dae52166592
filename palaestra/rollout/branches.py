"""Branches: episodes that leave another one on the way, and how what came before is repeated.

A running program cannot be copied. So a branch is an episode of its own whose program runs anew: resets, steps and
acts are answered from the record, without the environment, without an engine, until it stands where the other one
stood. There the environment is put back into its place, and sessions go on as copies of the other's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from palaestra.data import Action, NextPrompt, Observation, Play, Step, StepResult
from palaestra.data.protocols import Response, Session
from palaestra.errors import ContractError, EpisodeFailure
from palaestra.rollout.agent import conversation_of

if TYPE_CHECKING:
    from palaestra.rollout.episode import Episode


@dataclass(slots=True, frozen=True, kw_only=True, eq=False)
class BranchPoint:
    """Where a branch leaves another episode. Each serves one branch.

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


@dataclass(slots=True, kw_only=True, eq=False)
class Branch:
    """What branching keeps of one episode. A play's is copied when its episode begins.

    Attributes:
        start: where the episode leaves another one; None: it begins with the task.
        pause: called with the episode whenever the environment has answered and an agent is about to act; the episode
            waits for it. There, and only there, `fork` makes the play of a branch.
        results: what the environment has answered. past: answers that are still to be repeated.
        answered: the environment has, and nobody has acted on it yet.
    """

    start: BranchPoint | None = None
    pause: Callable[[Any], Awaitable[None]] | None = None
    results: list[StepResult] = field(init=False, default_factory=list)
    past: deque[StepResult] = field(init=False)
    answered: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.past = deque(() if self.start is None else self.start.results)

    @property
    def info(self) -> dict[str, Any]:
        """What the trajectory tells of the place where it left another one."""
        return {} if self.start is None else {"parent": self.start.parent, "fork": len(self.start.steps)}

    async def wait(self, episode: Episode) -> None:
        """Before an act: wait while others may leave this place."""
        if self.answered and self.pause is not None:
            self.answered = False
            with episode.busy():
                await self.pause(episode)

    async def repeated(self, episode: Episode) -> StepResult | None:
        """The next answer of the record. With its last one, the environment is where the branch begins."""
        if not self.past:
            return None
        result = self.past.popleft()
        if not self.past and self.start is not None:
            await episode.host.reset(episode.play.task)
            await episode.host.restore(self.start.state)
            for copied, step in zip(episode.trajectory.steps, self.start.steps, strict=False):
                copied.seconds = step.seconds
        return result

    def mark(self, step: Step, trajectory: str) -> None:
        """Each step tells the node of the tree that it stands at; those of the record tell that they are copies."""
        if self.start is not None and step.turn < len(self.start.steps):
            step.mark(copied=1.0, node=self.start.steps[step.turn].marks.node)
        else:
            step.mark(node=f"{trajectory}:{step.turn}")

    async def fork(self, episode: Episode, play: Play) -> Play:
        """The play of an episode that begins where this one stands.

        Raises: EpisodeFailure, if the environment cannot be copied; ContractError, if a session cannot.
        """
        state = await episode.host.snapshot()
        sessions = {
            name: fork(agent.session, (play.group, play.sample, name)) for name, agent in episode.agents.items()
        }
        point = BranchPoint(
            parent=episode.trajectory.id,
            results=tuple(self.results),
            steps=tuple(episode.trajectory.steps),
            state=state,
            sessions=sessions,
        )
        return replace(play, branch=Branch(start=point))


class _Repeating:
    """Answers acts from the record; when that is used up, it is the copied session."""

    def __init__(self, session: Session, past: deque[Step]) -> None:
        self._session, self._past = session, past

    async def act(self, observation: Observation, *, seed: int) -> Response:
        """The next recorded act, else a new one. Raises: EpisodeFailure, if the record does not fit."""
        return self._repeat(observation) if self._past else await self._session.act(observation, seed=seed)

    def record(self, observation: Observation, action: Action) -> Response:
        """Take a given action: a program that records repeats itself."""
        return self._repeat(observation) if self._past else self._session.record(observation, action)

    def end(self, observation: Observation | None) -> NextPrompt | None:
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

    def _repeat(self, observation: Observation) -> Response:
        step = self._past.popleft()
        if (observation.text, observation.state_key) != (step.observation.text, step.observation.state_key):
            raise EpisodeFailure(
                boundary="part",
                where=f"a branch, agent {step.agent}, turn {step.turn}",
                what="the program shows another observation than when it ran first.",
                remedy="What a program does must follow from what agents and the environment say.",
            )
        segment = conversation_of(step.segment)[1]
        return Response(action=step.action, prompt=step.prompt, segment=segment, version=step.version)


def fork(session: Any, key: Any) -> Session:
    """A copy of a session that goes on by itself under another key.

    Raises: ContractError, if this kind of session cannot be copied.
    """
    return session.fork(key)  # type: ignore[no-any-return]
