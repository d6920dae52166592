"""The runner `windows`: it plays a part of each long episode in an iteration, and continues in the next.

A suspended episode is data, its play and its recorded steps, so it survives a checkpoint. To continue, the environment
is reset with the same task and the program runs again, with every act answered from the record. Environment, contexts
and sessions are then as they were, and the present weights have read the whole record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from palaestra.data import Action, Failure, NextPrompt, Observation, Play, RunSetup, Step, StopReason, Trajectory
from palaestra.data.protocols import Oracle, Response, Sampling, Session
from palaestra.errors import EpisodeFailure
from palaestra.registry import register
from palaestra.rollout.episode import Key, conversation_of, open_session
from palaestra.rollout.limits import LimitReached
from palaestra.rollout.programs import Program
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.store.episodes import from_json, to_json
from palaestra.store.journal import play_from_json, play_to_json


@register("rollout", "windows")
class WindowRunner:
    """Play every episode for `rollout.window` sampled tokens per iteration, then suspend it (successive batching).

    An episode is suspended before an act if its window is used up by then, so its last response may exceed the window.
    At most as many episodes are under way as an iteration has plays: suspended ones continue first, new plays fill the
    remaining room in order, and the other plays are dropped.

    Steps carry the mark `fresh`: 1 if they were generated in this iteration, 0 if in an earlier one. Suspended episodes
    have the stop reason SUSPENDED and neither an end nor an outcome. Use an estimator for unfinished trajectories
    (`egae`), and keep old steps out of the policy's loss (`weights: [fresh]`).

    Evaluations and demonstrations are played to their end. `rollout.max_seconds` is counted anew in each window.
    """

    provides = frozenset({"fresh"})  # columns that it adds to tables

    def __init__(self, setup: RunSetup, settings: RolloutSettings) -> None:
        self._size = settings.window
        self._environment = setup.environment_name
        self._windows: dict[tuple[str, int], Window] = {}  # by group and sample; empty outside of `collect`
        self._runner = EpisodeRunner(setup, settings, self._open)
        self._suspended: list[Suspended] = []

    def collect(
        self, plays: Sequence[Play], *, temperature: float | None = None, program: Program | None = None
    ) -> list[Trajectory]:
        """One window of each suspended episode, then of as many new plays as there is room for, in this order.

        Args:
            plays: of this iteration.
            temperature, program: as for the runner `episodes`; with either of them, all `plays` are played to their
                end.
        """
        if temperature is not None or program is not None:
            return self._runner.collect(plays, temperature=temperature, program=program)
        resumed = {place.key: place for place in self._suspended}
        new = plays[: max(len(plays) - len(resumed), 0)]
        current = [*(place.play for place in resumed.values()), *new]
        for play in current:
            key = (play.group, play.sample)
            past = resumed[key].steps if key in resumed else []
            self._windows[key] = Window(self._environment, play, past, self._size)
        try:
            played = self._runner.collect(current)
            for trajectory in played:
                self._windows[trajectory.group, trajectory.sample].close(trajectory)
        finally:
            self._windows.clear()
        self._suspended = [
            Suspended(play, trajectory)
            for play, trajectory in zip(current, played, strict=True)
            if trajectory.stop is StopReason.SUSPENDED
        ]
        return played

    def sampling(self, temperature: float | None = None) -> Sampling:
        """The sampling settings, or those settings at another temperature."""
        return self._runner.sampling(temperature)

    def close(self) -> None:
        """End worker threads and processes."""
        self._runner.close()

    def state_dict(self) -> dict[str, Any]:
        """The suspended episodes, as JSON values."""
        return {
            "suspended": [
                {"play": play_to_json(place.play), "trajectory": to_json(place.trajectory)} for place in self._suspended
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore suspended episodes; `collect` continues them."""
        self._suspended = []
        for entry in state["suspended"]:
            past = from_json(entry["trajectory"])
            if "play" in entry:
                play = play_from_json(entry["play"])
            else:  # a checkpoint of an earlier version, which kept the seed alone
                play = Play(task=past.task, group=past.group, sample=past.sample, seed=int(entry["seed"]))
            self._suspended.append(Suspended(play, past))

    def _open(self, role: Role, sampling: Sampling, key: Key) -> Session:
        """A session that follows its window's record and limit; where there is no window, the policy's own session."""
        session = open_session(role, sampling, key)
        group, sample, *place = key
        window = self._windows.get((group, sample))
        return session if window is None else _WindowedSession(session, window, window.record(*place))


@dataclass(slots=True, eq=False)
class Suspended:
    """An episode between two windows."""

    play: Play
    trajectory: Trajectory

    @property
    def key(self) -> tuple[str, int]:
        """Group and sample, which identify the episode."""
        return self.play.group, self.play.sample

    @property
    def steps(self) -> list[Step]:
        """The recorded steps."""
        return self.trajectory.steps


class Window:
    """One episode in one iteration: the acts to repeat, and how many tokens may be sampled after them."""

    def __init__(self, environment: str, play: Play, past: Sequence[Step], size: int | None) -> None:
        self._environment, self._play = environment, play
        self._past, self._size, self._used = past, size, 0

    def record(self, agent: str, conversation: int = 0) -> deque[Step]:
        """The recorded acts of one agent in one of its conversations, in time order."""
        acts = (step for step in self._past if step.agent == agent)
        return deque(step for step in acts if conversation_of(step.segment)[0] == conversation)

    def check_room(self) -> None:
        """Raise LimitReached if the window is used up."""
        if self._size is not None and self._used >= self._size:
            raise LimitReached(StopReason.SUSPENDED)

    def count(self, tokens: int) -> None:
        """Count the tokens of a sampled response; an act without tokens counts as one."""
        self._used += max(tokens, 1)

    def changed(self, turn: int, what: str) -> EpisodeFailure:
        """The error for a record that does not fit the repeated episode."""
        return EpisodeFailure(
            boundary="environment",
            where=f"environment {self._environment}, task {self._play.task.content_hash}, turn {turn}",
            what=f"a suspended episode changed when its acts were repeated: {what}.",
            remedy="The runner `windows` continues an episode by repeating its acts. So the environment must depend "
            "on task and actions alone, and a run must be resumed with its first contexts and limits. "
            "`palaestra.testing.check_environment` tests the environment (rule 8).",
        )

    def close(self, trajectory: Trajectory) -> None:
        """Mark fresh steps; an episode that did not repeat its record becomes a failed one."""
        repeated = len(self._past)
        for place, step in enumerate(trajectory.steps):
            step.mark(fresh=float(place >= repeated))
        if trajectory.stop is StopReason.ERROR:
            return
        fault = self._fault(trajectory.steps)
        if fault is not None:
            trajectory.stop, trajectory.outcome = StopReason.ERROR, None
            trajectory.error = Failure(boundary=fault.boundary, message=fault.render())

    def _fault(self, steps: Sequence[Step]) -> EpisodeFailure | None:
        """The first difference between record and steps; None, if there is none."""
        if len(steps) < len(self._past):
            return self.changed(len(steps), f"it ended after {len(steps)} of {len(self._past)} recorded steps")
        last = {step.agent: step.turn for step in self._past}  # these steps may have been suspended before their reward
        for before, now in zip(self._past, steps, strict=False):
            if (before.agent, before.turn) != (now.agent, now.turn):
                return self.changed(now.turn, f"agent {now.agent} acts where {before.agent} acted")
            if before.reward != now.reward and before.turn != last[before.agent]:
                return self.changed(now.turn, f"the reward is {now.reward:g} where it was {before.reward:g}")
        return None


@dataclass(slots=True, eq=False)
class _WindowedSession(Session):
    """One agent in one window: recorded acts are repeated as they were, later ones are sampled."""

    session: Session
    window: Window
    past: deque[Step]

    async def act(self, observation: Observation, *, seed: int) -> Response:
        """The next recorded act, or a new one after the record.

        Raises: LimitReached, if the window is used up; EpisodeFailure, if the record does not fit.
        """
        if self.past:
            return self._repeat(observation, self.past.popleft())
        self.window.check_room()
        response = await self.session.act(observation, seed=seed)
        self.window.count(len(response.action.tokens))
        return response

    def record(self, observation: Observation, action: Action) -> Response:
        """Take a given action; within the record, the recorded one is repeated."""
        if self.past:
            return self._repeat(observation, self.past.popleft())
        self.window.check_room()
        response = self.session.record(observation, action)
        self.window.count(len(response.action.tokens))
        return response

    def end(self, observation: Observation | None) -> NextPrompt | None:
        return self.session.end(observation)

    def hear_expert(self, ask: Oracle) -> None:
        self.session.hear_expert(ask)

    def _repeat(self, observation: Observation, step: Step) -> Response:
        differing = _differences(step.observation, observation)
        if differing:
            raise self.window.changed(step.turn, f"the observation has another {' and another '.join(differing)}")
        response = self.session.replay(observation, step.action)
        if response.segment != conversation_of(step.segment)[1] or not np.array_equal(response.prompt, step.prompt):
            raise self.window.changed(step.turn, "the prompt has other tokens")
        return Response(
            action=step.action,
            prompt=step.prompt,
            pictures=step.pictures,
            segment=response.segment,
            version=step.version,
        )


def _differences(before: Observation, now: Observation) -> list[str]:
    """The names of the parts in which two observations differ."""
    texts = [name for name in ("text", "state_key") if getattr(before, name) != getattr(now, name)]
    return texts + [name for name in ("vector", "image") if not _equal(getattr(before, name), getattr(now, name))]


def _equal(before: np.ndarray | None, now: np.ndarray | None) -> bool:
    return before is now if before is None or now is None else np.array_equal(before, now)
