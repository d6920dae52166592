"""Branches: episodes that start in the middle of another episode, their parent.

A running program cannot be copied. So a branch is a new episode whose program runs from the beginning. Up to the branch
point, its resets, steps and acts are answered from the record of the parent, without environment and engine. There the
environment is restored from a snapshot, and sessions continue as copies of the parent's sessions.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from typing import Any

from palaestra.data import Action, NextPrompt, Observation, Play, Step, StepResult, Task, Trajectory
from palaestra.data.protocols import Response, Sampling, Session
from palaestra.errors import ContractError, EpisodeFailure
from palaestra.rollout.episode import Episode, Key, conversation_of
from palaestra.rollout.roles import Role


@dataclass(slots=True, frozen=True, kw_only=True, eq=False)
class BranchPoint:
    """The point of a parent episode at which one branch starts.

    Attributes:
        parent: id of the parent's trajectory.
        results: the environment's results so far: that of `reset`, then those of each `step`.
        steps: the acts so far, in order of time.
        state: the environment's snapshot. sessions: by agent, a copy of its session at this point.
    """

    parent: str
    results: Sequence[StepResult]
    steps: Sequence[Step]
    state: Any
    sessions: Mapping[str, Session]


@dataclass(slots=True, frozen=True, kw_only=True, eq=False)
class Branch:
    """The branching of a play.

    Attributes:
        start: the branch point at which the episode starts; None: it starts with the task.
        pause: called with the `BranchingEpisode` before the first act after each result of the environment. The episode
            waits for it. `fork` may be called only inside it.
    """

    start: BranchPoint | None = None
    pause: Callable[[BranchingEpisode], Awaitable[None]] | None = None


class BranchingEpisode:
    """Wraps an episode whose play has a `Branch`: it replaces the episode's host and wraps its sessions.

    Attributes:
        episode: the wrapped episode. agents: names of the environment's agents.
    """

    def __init__(self, episode: Episode, lend: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        """
        Args:
            lend: gives the episode's place in flight to another episode during a pause.
        """
        self.episode, self.agents = episode, episode.host.agents
        self._host, self._open_session, self._lend = episode.host, episode.open_session, lend
        self._branch: Branch = episode.play.branch
        self._start = self._branch.start
        self._results: list[StepResult] = []
        self._past = deque(() if self._start is None else self._start.results)
        self._sessions = {} if self._start is None else dict(self._start.sessions)  # not yet opened by their agents
        self._answered = False  # whether the environment has answered and no agent has acted since
        self._pauses: list[tuple[Action, float]] = []  # the action after a pause, and the pause's seconds
        episode.host, episode.open_session = self, self._open

    @property
    def trajectory(self) -> Trajectory:
        """The trajectory so far."""
        return self.episode.trajectory

    async def fork(self, play: Play) -> Play:
        """The play of a branch that starts at the present point of this episode.

        Raises: EpisodeFailure, if the environment cannot be copied; ContractError, if a session cannot.
        """
        self._note()
        state, steps = await self._host.snapshot(), tuple(self.trajectory.steps)
        agents = self.episode.agents
        point = BranchPoint(
            parent=self.trajectory.id,
            results=tuple(self._results),
            steps=steps,
            state=state,
            sessions={n: agent.session.fork((play.group, play.sample, n)) for n, agent in agents.items()},
        )
        info = {**play.info, "parent": point.parent, "fork": len(steps)}
        return replace(play, branch=Branch(start=point), info=info)

    # ---- the environment ------------------------------------------------------------------------------------
    async def reset(self, task: Task) -> StepResult:
        """What the record says, else the environment."""
        result = await self._repeated()
        return self._recorded(await self._host.reset(task)) if result is None else result

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        """What the record says, else the environment."""
        result = await self._repeated()
        if result is not None:
            return result
        self._answered = True
        return self._recorded(await self._host.step(actions))

    async def expert(self, agent: str) -> Action:
        """The environment's expert action."""
        return await self._host.expert(agent)

    async def snapshot(self) -> Any:
        """The environment's snapshot."""
        return await self._host.snapshot()

    async def restore(self, state: Any) -> None:
        """Restore the environment."""
        await self._host.restore(state)

    async def close(self) -> None:
        """Mark the steps of the finished episode, and close copied sessions that no agent used."""
        self._note()
        for session in self._sessions.values():
            with suppress(Exception):  # the episode is over and recorded
                session.end(None)
        await self._host.close()

    async def _repeated(self) -> StepResult | None:
        """The next result of the record, or None. At the last one, the environment is restored at the branch point."""
        if not self._past:
            return None
        result = self._recorded(self._past.popleft())
        if not self._past and self._start is not None:
            await self._host.reset(self.episode.play.task)
            await self._host.restore(self._start.state)
        return result

    def _recorded(self, result: StepResult) -> StepResult:
        self._results.append(result)
        return result

    # ---- sessions -------------------------------------------------------------------------------------------
    def _open(self, role: Role, sampling: Sampling, key: Key) -> Session:
        _, _, name, *call = key
        if call:
            raise ContractError(
                where=f"episode {self.trajectory.id}, role {name}",
                what="calls of sub-agents cannot be repeated, but a strategy branches off from this episode.",
                remedy="Leave out the strategy that branches, or let the role act in `episode.agents`.",
            )
        session = self._sessions.pop(name, None) or self._open_session(role, sampling, key)
        copied = () if self._start is None else self._start.steps
        past = deque(step for step in copied if step.agent == name)
        return _BranchingSession(session, past, self)  # type: ignore[return-value]

    async def act(self, session: Session, observation: Observation, *, seed: int) -> Response:
        """A new act, after a pause in which branches may start here."""
        if not self._answered or self._branch.pause is None:
            return await session.act(observation, seed=seed)
        self._answered, began = False, time.monotonic()
        async with self._lend():
            await self._branch.pause(self)
        paused = time.monotonic() - began
        response = await session.act(observation, seed=seed)
        self._pauses.append((response.action, paused))
        return response

    def _note(self) -> None:
        """Mark each step so far with its node of the tree, and repeated steps as copies.

        A copy gets the seconds of its original. A pause before an act does not count in its seconds.
        """
        copied = {} if self._start is None else {step.turn: step for step in self._start.steps}
        for step in self.trajectory.steps:
            original = copied.get(step.turn)
            if original is not None:
                step.seconds = original.seconds
                step.mark(copied=1.0, node=original.marks.node)
            elif step.marks.node is None:
                step.mark(node=f"{self.trajectory.id}:{step.turn}")
            step.seconds -= sum(seconds for action, seconds in self._pauses if action is step.action)
        self._pauses.clear()


class _BranchingSession:
    """Answers acts from the record. After its end, it passes calls on to the session, with a pause before an act."""

    def __init__(self, session: Session, past: deque[Step], episode: BranchingEpisode) -> None:
        self._session, self._past, self._episode = session, past, episode

    async def act(self, observation: Observation, *, seed: int) -> Response:
        """The next recorded act, else a new one. Raises: EpisodeFailure, if the record does not fit."""
        if self._past:
            return self._repeat(observation)
        return await self._episode.act(self._session, observation, seed=seed)

    def record(self, observation: Observation, action: Action) -> Response:
        """Record a given action, or repeat the recorded act."""
        return self._repeat(observation) if self._past else self._session.record(observation, action)

    def end(self, observation: Observation | None) -> NextPrompt | None:
        """Close the session. There is no next prompt if the record was not used up."""
        return self._session.end(None if self._past else observation)

    def fork(self, key: Any) -> Session:
        """A copy of the session."""
        return self._session.fork(key)

    def hear_expert(self, ask: Any) -> None:
        """Pass on the function that asks the environment's expert."""
        self._session.hear_expert(ask)

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
                what="the program shows the agent another observation than in the parent episode.",
                remedy="Let the program depend on nothing but actions and results of the environment.",
            )
        segment = conversation_of(step.segment)[1]
        return Response(
            action=step.action, prompt=step.prompt, pictures=step.pictures, segment=segment, version=step.version
        )
