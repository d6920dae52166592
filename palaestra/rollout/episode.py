"""Episode and Agent: every act becomes a Step, whoever calls it; limits end an episode with a reason.

Knows sessions, an environment host and limits. Knows no method and no model.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from palaestra.contexts import ContextFull
from palaestra.data import Action, Observation, Step, StepResult, StopReason, Trajectory, derive
from palaestra.data.protocols import Acted, Sampling, Session
from palaestra.errors import ContractError, EpisodeFailure, PalaestraError
from palaestra.rollout.hosts import Host
from palaestra.rollout.origin import Origin, fork
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.stage import Play, Stage


class Halt(Exception):
    """Ends an episode before its program is through."""

    def __init__(self, reason: StopReason) -> None:
        self.reason = reason
        super().__init__(reason.value)


@dataclass(slots=True, kw_only=True)
class Limits:
    """Limits of one episode; None is no limit. Turns are steps of the environment, or acts of one agent."""

    turns: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, play: Play, settings: RolloutSettings) -> Limits:
        """Those of the settings, but the turns of the play where it says so."""
        turns = settings.max_turns if play.turns is None else play.turns
        return cls(turns=turns, tokens=settings.max_tokens, seconds=settings.max_seconds)


@dataclass(slots=True, eq=False)
class Agent:
    """One role in one episode: a name and a session with its policy."""

    name: str
    session: Session
    policy: str
    episode: Episode
    acts: int = 0

    async def act(self, observation: Observation, *, invocation: int = 0, parent: int | None = None) -> Action:
        """Let the policy answer an observation; the act is recorded as a step.

        Raises: Halt, when a limit is reached; EpisodeFailure, when the policy or its engine fails.
        """
        observation = self.episode.instructed(observation)
        self.episode.check_limits(self, observation)
        await self.episode.watched()
        seed, began = derive(self.episode.play.seed, self.name, self.acts), time.monotonic()
        try:
            acted = await self.session.act(observation, seed=seed)
        except ContextFull:
            self.episode.seen[self.name] = observation
            raise Halt(StopReason.CONTEXT_OVERFLOW) from None
        except (Halt, EpisodeFailure, asyncio.CancelledError):
            raise
        except Exception as error:
            raise _failure("engine", f"agent {self.name}, policy {self.policy}", error) from error
        action = self._note(observation, acted, invocation=invocation, parent=parent)
        self.episode.latest[self.name].seconds = time.monotonic() - began
        return action

    def record(self, observation: Observation, action: Action, **info: Any) -> Action:
        """Take a given action as this agent's own: demonstrations, and actions from outside."""
        observation = self.episode.instructed(observation)
        self.episode.check_limits(self, observation)
        try:
            acted = self.session.record(observation, action)
        except ContextFull:
            raise Halt(StopReason.CONTEXT_OVERFLOW) from None
        taken = self._note(observation, acted, invocation=0, parent=None)
        self.episode.trajectory.steps[-1].info.update(info)
        return taken

    def _note(self, observation: Observation, acted: Acted, *, invocation: int, parent: int | None) -> Action:
        steps = self.episode.trajectory.steps
        steps.append(
            Step(
                agent=self.name,
                turn=len(steps),
                action=acted.action,
                observation=observation,
                policy=self.policy,
                version=acted.version,
                prompt=acted.prompt,
                segment=acted.segment,
                invocation=invocation,
                parent=parent,
            )
        )
        self.acts += 1
        self.episode.mark(steps[-1])
        self.episode.sampled_tokens += len(acted.action.tokens)
        self.episode.latest[self.name] = steps[-1]
        return acted.action


class Agents(dict[str, Agent]):
    """Agents by name, made when first asked for."""

    def __init__(self, episode: Episode) -> None:
        super().__init__()
        self._episode = episode

    def __missing__(self, name: str) -> Agent:
        self[name] = self._episode.make_agent(name)
        return self[name]


@dataclass(slots=True, eq=False)
class Episode:
    """What a program sees: agents, the environment's `reset` and `step`, rewards, and the trajectory so far."""

    play: Play
    stage: Stage
    host: Host
    limits: Limits
    sampling: Sampling
    trajectory: Trajectory = field(init=False)
    agents: Agents = field(init=False)
    latest: dict[str, Step] = field(default_factory=dict)  # each agent's last step
    seen: dict[str, Observation] = field(default_factory=dict)  # each agent's observation not yet acted on
    env_steps: int = 0
    sampled_tokens: int = 0
    started: float = field(default_factory=time.monotonic)
    results: list[StepResult] = field(default_factory=list)  # what the environment answered, where somebody watches
    past: deque[StepResult] = field(default_factory=deque)  # of a branch: answers that are still to be repeated
    answered: bool = False  # the environment has, and nobody has acted on it yet

    def __post_init__(self) -> None:
        play = self.play
        self.trajectory = Trajectory(task=play.task, group=play.group, sample=play.sample, info=dict(play.info))
        self.agents = Agents(self)
        if play.origin is not None:
            self.past.extend(play.origin.results)
            self.trajectory.info = {**play.info, "parent": play.origin.parent, "fork": len(play.origin.steps)}

    @property
    def names(self) -> tuple[str, ...]:
        """The environment's agents."""
        return self.host.agents

    def make_agent(self, name: str) -> Agent:
        role = self.stage.role(name)
        key = (self.play.group, self.play.sample, name)
        origin = self.play.origin
        session = None if origin is None else origin.sessions.get(name)
        if session is None:
            session = role.policy.session(context=role.context, sampling=self.sampling, key=key)
        if hasattr(session, "oracle"):  # scripted experts ask the environment itself
            session.oracle = lambda: self.expert(name)
        if origin is not None:
            session = origin.repeating(name, session)
        return Agent(name, session, role.policy.name, self)

    def instructed(self, observation: Observation) -> Observation:
        """The observation with what this play says to everybody; without such, as the environment gave it."""
        text = self.play.instruction
        return observation if text is None else replace(observation, instruction=text)

    # ---- the environment ----------------------------------------------------------------------------------
    async def reset(self) -> StepResult:
        """Set the task up. Raises: EpisodeFailure(boundary="environment")."""
        result = await self._repeated() or await self.host.reset(self.play.task)
        self._take(result)
        return result

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        """Act in the environment; its rewards go to the steps that earned them."""
        result = await self._repeated()
        if result is None:
            began, self.answered = time.monotonic(), True
            result = await self.host.step(dict(actions))
            for agent in actions.keys() & self.latest.keys():
                self.latest[agent].seconds += time.monotonic() - began
        self.env_steps += 1
        self._take(result)
        for agent, reward in result.rewards.items():
            self.reward(agent, reward)
        for agent in result.terminated:
            if agent in self.latest:
                self.latest[agent].terminated = True
        for agent in result.truncated:
            if agent in self.latest:
                self.latest[agent].truncated = True
        return result

    async def expert(self, agent: str) -> Action:
        """The environment's own expert action for the present state."""
        return await self.host.expert(agent)

    def reward(self, agent: str, amount: float) -> None:
        """Add to the reward of the agent's last step (and to its return)."""
        amount = float(amount)
        if amount != amount or amount in (float("inf"), float("-inf")):
            raise EpisodeFailure(
                boundary="environment",
                where=f"environment {self.stage.environment_name}, agent {agent}, turn {len(self.trajectory.steps)}",
                what=f"the reward is {amount}.",
                remedy="Rewards must be finite numbers; mend the environment's `step`.",
            )
        self.trajectory.returns[agent] = self.trajectory.returns.get(agent, 0.0) + amount
        if agent in self.latest:
            self.latest[agent].reward += amount

    def _take(self, result: StepResult) -> None:
        if not isinstance(result, StepResult):
            raise ContractError(
                where=f"environment {self.stage.environment_name}",
                what=f"`step` and `reset` must return a StepResult, found {type(result).__name__}.",
                remedy="Run palaestra.testing.check_environment on it.",
            )
        if self.play.watch is not None:
            self.results.append(result)
        self.seen = {**result.observations, **result.last}
        self.trajectory.info = {**self.trajectory.info, **result.info}
        for name, given in result.info.items():
            if isinstance(given, Mapping):  # {"process": {agent: 0.5}} belongs to the agents' last steps
                for agent, value in given.items():
                    if agent in self.latest:
                        _tell(self.latest[agent], name, value)

    # ---- branches -----------------------------------------------------------------------------------------
    async def watched(self) -> None:
        """Wait until the play's watcher has looked at this place: the environment has answered, an act comes next."""
        if self.answered and self.play.watch is not None:
            self.answered = False
            await self.play.watch(self)

    async def branch(self, play: Play) -> Play:
        """The play of an episode that begins where this one stands. A watcher calls it.

        Raises: EpisodeFailure, if the environment cannot be copied; ContractError, if a session cannot.
        """
        state = await self.host.snapshot()
        sessions = {name: fork(agent.session, (play.group, play.sample, name)) for name, agent in self.agents.items()}
        steps, results = tuple(self.trajectory.steps), tuple(self.results)
        origin = Origin(parent=self.trajectory.id, results=results, steps=steps, state=state, sessions=sessions)
        return replace(play, origin=origin)

    def mark(self, step: Step) -> None:
        """In trees each step tells the node that it stands at; those of the record tell that they are copies."""
        origin = self.play.origin
        if origin is not None and step.turn < len(origin.steps):
            step.info |= {"copied": 1.0, "node": origin.steps[step.turn].info["node"]}
        elif origin is not None or self.play.watch is not None:
            step.info["node"] = f"{self.trajectory.id}:{step.turn}"

    async def _repeated(self) -> StepResult | None:
        """The next answer of the record. With its last one, the environment is where the branch begins."""
        if not self.past:
            return None
        result, origin = self.past.popleft(), self.play.origin
        if not self.past and origin is not None:
            await self.host.reset(self.play.task)
            await self.host.restore(origin.state)
            for copied, step in zip(self.trajectory.steps, origin.steps, strict=False):
                copied.seconds = step.seconds
        return result

    # ---- the end ------------------------------------------------------------------------------------------
    def check_limits(self, agent: Agent, observation: Observation) -> None:
        """Raises: Halt, when this act would pass a limit."""
        self.seen[agent.name] = observation
        if self.limits.turns is not None and max(self.env_steps, agent.acts) >= self.limits.turns:
            raise Halt(StopReason.MAX_TURNS)
        if self.limits.tokens is not None and self.sampled_tokens >= self.limits.tokens:
            raise Halt(StopReason.MAX_TOKENS)
        if self.limits.seconds is not None and time.monotonic() - self.started >= self.limits.seconds:
            raise Halt(StopReason.TIMEOUT)

    def finish(self, reason: StopReason) -> Trajectory:
        """Close all sessions and mark how each agent's part ended; a suspended episode has no end and no outcome."""
        trajectory = self.trajectory
        if reason is StopReason.COMPLETED and "stop" in trajectory.info:
            reason = _told(trajectory.info["stop"], self.stage.environment_name)
        trajectory.stop = reason
        over = reason not in (StopReason.ERROR, StopReason.SUSPENDED)
        if self.play.origin is not None:  # what the branch did not come to need is freed too
            for name in self.play.origin.sessions:
                self.agents[name]
        for name, agent in self.agents.items():
            last = self.latest.get(name)
            if last is not None and not last.terminated and over:
                last.truncated = last.truncated or reason.cut
                last.terminated = not last.truncated
            observation = self.seen.get(name) if last is not None and last.truncated else None
            tail = agent.session.end(observation)
            if observation is not None:
                trajectory.last[name] = observation
            if tail is not None:
                trajectory.tail[name] = tail
        trajectory.outcome = None if reason is StopReason.SUSPENDED else _outcome(trajectory)
        return trajectory


def _told(reason: Any, environment: str) -> StopReason:
    """Why the environment itself ended the episode, where it says so: too many calls, unreadable acts …

    Raises: ContractError, for a word that is no reason.
    """
    try:
        return StopReason(reason)
    except ValueError:
        raise ContractError(
            where=f"environment {environment}, info",
            what=f"`stop` is {reason!r}, no reason to stop.",
            options=[known.value for known in StopReason],
            remedy="Leave it out where the task itself is over.",
        ) from None


def _tell(step: Step, name: str, value: Any) -> None:
    """What the environment says of a step: to which call it belongs, or any number or label."""
    if name in ("invocation", "parent"):
        setattr(step, name, int(value))
    else:
        step.info[name] = float(value) if isinstance(value, bool | int | float) else value


def _outcome(trajectory: Trajectory) -> float | None:
    """The raw result: `success`, else `score` of the environment's info."""
    for name in ("success", "score"):
        if name in trajectory.info:
            return float(trajectory.info[name])
    return None


def _failure(boundary: str, where: str, error: BaseException) -> EpisodeFailure:
    what = error.what if isinstance(error, PalaestraError) else f"{type(error).__name__}: {error}"
    remedy = error.remedy if isinstance(error, PalaestraError) else ""
    return EpisodeFailure(boundary=boundary, where=where, what=what, remedy=remedy)
