"""Episode: what a program sees: agents, the environment, rewards; limits end it with a reason."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from palaestra.columns import may_be_missing
from palaestra.data import Action, Observation, Play, RunSetup, Step, StepResult, StopReason, Trajectory
from palaestra.data.protocols import Sampling, Session, complete
from palaestra.errors import ContractError, EpisodeFailure
from palaestra.rollout.agent import Agent, Agents, segment_number
from palaestra.rollout.branches import Branch
from palaestra.rollout.hosts import Host
from palaestra.rollout.limits import LimitReached, Limits
from palaestra.rollout.roles import AgentTools, Role


@dataclass(slots=True, eq=False)
class Episode:
    """What a program sees: agents, the environment's `reset` and `step`, rewards, and the trajectory so far."""

    play: Play
    setup: RunSetup
    host: Host
    limits: Limits
    sampling: Sampling
    trajectory: Trajectory = field(init=False)
    agents: Agents = field(init=False)
    latest: dict[str, Step] = field(default_factory=dict)  # each agent's last step
    pending: dict[str, Observation] = field(default_factory=dict)  # what the environment shows, still unanswered
    owed: dict[str, float] = field(default_factory=dict)  # rewards from before an agent's first act, which gets them
    over: bool = False  # nobody acts any more
    env_steps: int = 0
    sampled_tokens: int = 0
    started: float = field(default_factory=time.monotonic)
    branch: Branch | None = field(init=False)  # where a strategy branches
    turns: int = 0  # acts that were begun
    moves: int = 0  # grows with whatever happens, so that an episode that stands still can be told
    under_way: dict[asyncio.Task[Any] | None, int] = field(default_factory=dict)  # what waits for policies or worlds
    invoked: list[Agent] = field(default_factory=list)  # conversations beside those of `agents`
    actors: dict[str, str] = field(default_factory=dict)  # the environment's agent → the role that acted for it

    def __post_init__(self) -> None:
        play = self.play
        self.trajectory = Trajectory(task=play.task, group=play.group, sample=play.sample, info=dict(play.info))
        self.agents = Agents(self)
        self.branch = None if play.branch is None else replace(play.branch)
        if self.branch is not None:
            self.trajectory.info = {**play.info, **self.branch.info}

    @property
    def names(self) -> tuple[str, ...]:
        """The environment's agents."""
        return self.host.agents

    def make_agent(self, name: str) -> Agent:
        role = self._role(name)
        start = None if self.branch is None else self.branch.start
        session = None if start is None else start.sessions.get(name)
        if session is None:
            session = self._session(role, (self.play.group, self.play.sample, name))
        session.hear_expert(lambda: self.expert(name))
        if start is not None:
            session = start.repeating(name, session)
        return Agent(name, session, role, self)

    def invoke(self, name: str, *, parent: Agent | None = None) -> Agent:
        """The role in a fresh conversation, as a sub-agent that is called: it knows nothing of earlier calls.

        Args:
            parent: who calls; the call belongs to its last step.

        Raises: ContractError, in a branch of another episode.
        """
        if self.branch is not None:
            raise ContractError(
                where=f"episode {self.trajectory.id}, role {name}",
                what="calls of sub-agents cannot be repeated, and a strategy branches off from this episode.",
                remedy="Leave out the strategy that branches, or let the role act in `episode.agents`.",
            )
        role, number = self._role(name), 1 + sum(agent.name == name for agent in self.invoked)
        session = self._session(role, (self.play.group, self.play.sample, name, number))
        called_by = None if parent is None or parent.last is None else parent.last.turn
        agent = Agent(name, session, role, self, invocation=number, parent=called_by)
        self.invoked.append(agent)
        return agent

    def tools_so_far(self, name: str) -> AgentTools | None:
        """The tools of this role's other conversations, whose budget of calls is shared; None before the first."""
        made = [*self.agents.values(), *self.invoked]
        return next((agent.tools for agent in made if agent.name == name), None)

    def _role(self, name: str) -> Role:
        return self.setup.role(self.play.roles.get(name, name))

    def _session(self, role: Role, key: tuple[Any, ...]) -> Session:
        session = role.policy.session(context=role.context, sampling=role.sampling_of(self.sampling), key=key)
        return complete(session, Session, where=f"policy {role.policy.name}, session")

    def instructed(self, observation: Observation) -> Observation:
        """The observation with what this play says to everybody; without such, as the environment gave it."""
        text = self.play.instruction
        return observation if text is None else replace(observation, instruction=text)

    # ---- the environment ----------------------------------------------------------------------------------
    async def reset(self) -> StepResult:
        """Set the task up. Raises: EpisodeFailure(boundary="environment")."""
        result = None if self.branch is None else await self.branch.repeated(self)
        if result is None:
            with self.busy():
                result = await self.host.reset(self.play.task)
        self._take(result)
        return result

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        """Act in the environment; its rewards go to the steps that earned them.

        A role that is no agent of the environment acts for its only agent, or for the one that
        `agents.<role>.acts_for` names; what the environment says of that agent is then said of the role, until another
        role acts for it.

        Raises: ContractError, for a role that acts for no agent, or two that act for one; EpisodeFailure, for what is
            no Action.
        """
        actions_of_agents = self._by_agent(actions)
        result = None if self.branch is None else await self.branch.repeated(self)
        if result is None:
            began = time.monotonic()
            if self.branch is not None:
                self.branch.answered = True
            with self.busy():
                result = await self.host.step(actions_of_agents)
            for agent in actions.keys() & self.latest.keys():
                self.latest[agent].seconds += time.monotonic() - began
        self.env_steps += 1
        self._take(result)
        for agent, reward in result.rewards.items():
            self.reward(self.actors.get(agent, agent), reward)
        for marked, name in ((result.terminated, "terminated"), (result.truncated, "truncated")):
            for agent in marked:
                if (role := self.actors.get(agent, agent)) in self.latest:
                    setattr(self.latest[role], name, True)
        return result

    def _by_agent(self, actions: Mapping[str, Action]) -> dict[str, Action]:
        """The actions by the environment's agents; `actors` notes who acted for whom."""
        by_agent: dict[str, Action] = {}
        for name, action in actions.items():
            if not isinstance(action, Action):
                raise EpisodeFailure(
                    boundary="part",
                    where=f"program, role {name}",
                    what=f"it gave the environment a {type(action).__name__}, not an Action.",
                    remedy="Pass on what `await episode.agents[role].act(…)` gives; for a text, `replace` its `value`.",
                )
            agent = name
            if name not in self.host.agents:
                agent = self._role(name).acts_for or (self.host.agents[0] if len(self.host.agents) == 1 else name)
            if agent not in self.host.agents or agent in by_agent:
                fault = f"two roles act for `{agent}`" if agent in by_agent else "it is no agent of the environment"
                raise ContractError(
                    where=f"program, role {name}",
                    what=f"its action cannot be given to environment {self.setup.environment_name}: {fault}.",
                    options=list(self.host.agents),
                    remedy=f"Set `agents.{name}.acts_for` to the agent of the environment that it acts for.",
                )
            by_agent[agent] = action
            self.actors[agent] = name
        return by_agent

    async def expert(self, agent: str) -> Action:
        """The environment's own expert action for the present state."""
        with self.busy():
            return await self.host.expert(agent)

    def reward(self, agent: str, amount: float, *, step: Step | None = None) -> None:
        """Add to the reward of the agent's last step, or of another step of its own; and to its return."""
        amount = float(amount)
        if amount != amount or amount in (float("inf"), float("-inf")):
            raise EpisodeFailure(
                boundary="environment",
                where=f"environment {self.setup.environment_name}, agent {agent}, turn {len(self.trajectory.steps)}",
                what=f"the reward is {amount}.",
                remedy="Rewards must be finite numbers; mend the environment's `step`.",
            )
        self.trajectory.returns[agent] = self.trajectory.returns.get(agent, 0.0) + amount
        earned = step or self.latest.get(agent)
        if earned is not None:
            earned.reward += amount
        else:
            self.owed[agent] = self.owed.get(agent, 0.0) + amount

    def _take(self, result: StepResult) -> None:
        if not isinstance(result, StepResult):
            raise ContractError(
                where=f"environment {self.setup.environment_name}",
                what=f"`step` and `reset` must return a StepResult, found {type(result).__name__}.",
                remedy="Run palaestra.testing.check_environment on it.",
            )
        self._refuse_no_numbers(result)
        if self.branch is not None:
            self.branch.results.append(result)
        self.moves += 1
        shown = {**result.observations, **result.last}
        self.pending = {self.actors.get(agent, agent): observation for agent, observation in shown.items()}
        self.trajectory.info = {**self.trajectory.info, **result.info}
        for name, given in result.info.items():
            if isinstance(given, Mapping):  # {"process": {agent: 0.5}} belongs to the agents' last steps
                for agent, value in given.items():
                    if (role := self.actors.get(agent, agent)) in self.latest:
                        _annotate(self.latest[role], name, value)

    def _refuse_no_numbers(self, result: StepResult) -> None:
        """Raises: EpisodeFailure, if the environment's info tells NaN or an infinite number."""
        for name, given in result.info.items():
            for agent, value in given.items() if isinstance(given, Mapping) else [("", given)]:
                if _spoils(name, value):
                    raise EpisodeFailure(
                        boundary="environment",
                        where=f"environment {self.setup.environment_name}, info, {f'agent {agent}, ' if agent else ''}"
                        f"turn {len(self.trajectory.steps)}",
                        what=f"`{name}` is {value}.",
                        remedy="Numbers must be finite; leave a name out where there is none.",
                    )

    # ---- acts -----------------------------------------------------------------------------------------------
    def next_turn(self) -> int:
        """The turn of an act that begins now."""
        self.turns, self.moves = self.turns + 1, self.moves + 1
        return self.turns - 1

    def record(self, step: Step, *, opponent: bool) -> None:
        """An act has become a step. That of an opponent is nobody's to learn from."""
        if opponent:
            step.mark(row_weight=0.0)
        if self.branch is not None:
            self.branch.mark(step, self.trajectory.id)
        self.sampled_tokens += len(step.action.tokens)
        self.latest[step.agent] = step
        self.pending.pop(step.agent, None)
        step.reward += self.owed.pop(step.agent, 0.0)
        self.moves += 1

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While something is under way for this episode that takes its time, so that it does not seem deadlocked."""
        task = _current_task()
        self.under_way[task] = self.under_way.get(task, 0) + 1
        try:
            yield
        finally:
            self.under_way[task] -= 1
            if not self.under_way[task]:
                del self.under_way[task]

    async def settle(self) -> None:
        """End acts that a program has left behind: one of several at once has failed, or nobody waits for them."""
        left = [task for task in self.under_way if task is not None and task is not _current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # ---- the end ------------------------------------------------------------------------------------------
    def check_limits(self, agent: Agent) -> None:
        """Raises: LimitReached, when this act would pass a limit; CancelledError, in what a program has left behind."""
        if self.over:
            raise asyncio.CancelledError
        if self.limits.turns is not None and max(self.env_steps, agent.acts) >= self.limits.turns:
            raise LimitReached(StopReason.MAX_TURNS)
        if self.limits.tokens is not None and self.sampled_tokens >= self.limits.tokens:
            raise LimitReached(StopReason.MAX_TOKENS)
        if self.limits.seconds is not None and time.monotonic() - self.started >= self.limits.seconds:
            raise LimitReached(StopReason.TIMEOUT)

    def finish(self, reason: StopReason) -> Trajectory:
        """Close all sessions and mark how each agent's part ended; a suspended episode has no end and no outcome."""
        trajectory, self.over = self.trajectory, True
        if reason is StopReason.COMPLETED and "stop" in trajectory.info:
            reason = _stop_reason(trajectory.info["stop"], self.setup.environment_name)
        trajectory.stop = reason
        if reason is not StopReason.ERROR:
            _refuse_spoiled(trajectory.steps)
        over = reason not in (StopReason.ERROR, StopReason.SUSPENDED)
        if self.branch is not None and self.branch.start is not None:  # what it did not come to need is freed too
            for name in self.branch.start.sessions:
                self.agents[name]
        for name, agent in self.agents.items():
            last = self.latest.get(name)
            if last is not None and not last.terminated and over:
                last.truncated = last.truncated or reason.cut
                last.terminated = not last.truncated
            observation = self._open(agent) if last is not None and last.truncated else None
            prompt = agent.session.end(observation)
            if observation is not None:
                trajectory.last[name] = observation
            if prompt is not None:
                trajectory.next_prompts[name] = prompt._replace(segment=segment_number(0, prompt.segment))
        for agent in self.invoked:
            agent.session.end(None)
            if agent.last is not None and over and not agent.last.terminated:
                agent.last.truncated = agent.last.truncated or agent.cut is not None
                agent.last.terminated = not agent.last.truncated
        trajectory.outcome = None if reason is StopReason.SUSPENDED else _outcome(trajectory)
        return trajectory

    def _open(self, agent: Agent) -> Observation | None:
        """What the agent would have answered next, as it would have seen it; None, if nobody had asked it yet."""
        if agent.cut is not None:
            return agent.cut
        shown = self.pending.get(agent.name)
        return None if shown is None else agent.view(shown)


def nobody_acted(where: str) -> EpisodeFailure:
    """The failure of an episode whose program came to its end without a single act."""
    return EpisodeFailure(
        boundary="part",
        where=where,
        what="it has ended, and no role has acted.",
        remedy="Let it call `await episode.agents[role].act(observation)`; an episode without acts teaches nothing.",
    )


def _stop_reason(reason: Any, environment: str) -> StopReason:
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


def _annotate(step: Step, name: str, value: Any) -> None:
    """What the environment says of a step: to which call it belongs, or any number or label."""
    if name in ("invocation", "parent"):
        setattr(step, name, int(value))
    else:
        step.info[name] = float(value) if isinstance(value, bool | int | float) else value


def _spoils(name: str, value: Any) -> bool:
    """Whether this is a number that no statistic could be made of; NaN says "none" where a column may lack values."""
    if not isinstance(value, float | np.floating) or np.isfinite(value):
        return False
    return not (may_be_missing(name) and np.isnan(value))


def _refuse_spoiled(steps: Sequence[Step]) -> None:
    """Raises: EpisodeFailure, if a program has noted NaN or an infinite number on a step."""
    for step in steps:
        for name, value in step.info.items():
            if _spoils(name, value):
                raise EpisodeFailure(
                    boundary="part",
                    where=f"program, agent {step.agent}, turn {step.turn}, info",
                    what=f"`{name}` is {value}.",
                    remedy="Numbers must be finite; leave a name out where there is none.",
                )


def _outcome(trajectory: Trajectory) -> float | None:
    """The raw result: `success`, else `score` of the environment's info; None says that it is not known yet."""
    for name in ("success", "score"):
        if trajectory.info.get(name) is not None:
            return float(trajectory.info[name])
    return None


def _current_task() -> asyncio.Task[Any] | None:
    """The running task; None where a program is driven by hand."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
