"""Episode: gives a program its agents, the environment and rewards.

An episode uses a host, which runs its environment, and a function that opens sessions with policies. Other ways to play
wrap these two: branches and windows answer from a record, and lock step waits for other episodes.
"""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from palaestra.boundary.cleaning import clean_action, clean_observation, clean_result
from palaestra.chat import ContextFull
from palaestra.data import Action, Observation, Play, RunSetup, Step, StepResult, StopReason, Trajectory, derive
from palaestra.data.protocols import Response, Sampling, Session, complete
from palaestra.errors import ContractError, EpisodeFailure, PalaestraError, described, ends_run, nearest
from palaestra.rollout.faults import current_task, is_ended
from palaestra.rollout.hosts import Host, failure
from palaestra.rollout.limits import Activity, LimitReached, Limits
from palaestra.rollout.results import clean_notes, outcome_of, refuse_notes, refuse_result, refuse_reward
from palaestra.rollout.roles import AgentTools, Role, declared, refuse_hidden_tools, tools_of

CONVERSATION = 4096  # the segments of a role's k-th conversation have numbers from k · CONVERSATION on
PAGE = 2**31 * CONVERSATION  # from its 4096th segment on, a conversation has numbers in further pages
Shown = Observation | str  # what a program may show an agent
Key = tuple[Any, ...]  # group, sample and role, and the number of a call
OpenSession = Callable[[Role, Sampling, Key], Session]


def open_session(role: Role, sampling: Sampling, key: Key) -> Session:
    """A session with the policy of a role. Raises: ContractError, for one that lacks a method."""
    session = role.policy.session(context=role.context, sampling=role.sampling_of(sampling), key=key)
    return complete(session, Session, where=f"policy {role.policy.name}, session")


# ---- agents -----------------------------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class Agent:
    """One agent of an episode: a name and a session with the policy of its role. Each of its acts becomes a step.

    Attributes:
        tools: the tools of its role, and those of others, which it recognizes; None if no role of the run has tools.
        rules: the instruction of its role. instruction: the one that the play gives to every agent.
        invocation: 0 for the conversation that lasts the whole episode, else the number of `Episode.invoke`.
        parent: turn of the step that called this invocation.
        acts: number of its acts, begun or recorded. last: its last step. cut: the observation that it could not answer
            because of a limit.
    """

    name: str
    session: Session
    role: Role
    episode: Episode
    tools: AgentTools | None
    rules: str | None = None
    instruction: str | None = None
    invocation: int = 0
    parent: int | None = None
    acts: int = 0
    last: Step | None = None
    cut: Observation | None = None

    @property
    def policy(self) -> str:
        """The name of the policy that acts for the agent."""
        return self.role.policy.name

    async def act(self, shown: Shown, *, invocation: int | None = None, parent: int | None = None) -> Action:
        """Let the policy answer an observation, or a text. The act is recorded as a step.

        Several agents may act at once (`asyncio.gather`). Their steps are in the order of the calls of `act`. An agent
        with tools may call them first. Each call is a step, too, and the agent reads its result next.

        Args:
            invocation, parent: of this step, in place of the agent's own.

        Raises: LimitReached, when a limit is reached; EpisodeFailure, when the policy or its engine fails.
        """
        observation = _observation(shown)
        for left in range(0 if self.tools is None else self.tools.rounds, -1, -1):
            with self.episode.turn(self, self.view(observation)) as turn:
                response = await self.answer(turn)
                step = turn.file(response, invocation=invocation, parent=parent)
                if self.tools is None:
                    break
                said = step.action.text or ""
                results = await self.tools.run(said, step, last=left == 0)
            if results is None:
                break
            self.episode.trajectory.replaced.update(results.replaced)
            observation = self.tools.shown(observation, said, results)
        if self.tools is None or not self.tools.act(step):
            self.role.read(step)
        return step.action

    async def answer(self, turn: Turn) -> Response:
        """The policy's response. Raises: EpisodeFailure, boundary "engine", if the policy or its engine fails."""
        task = current_task()
        try:
            response = await self.session.act(turn.observation, seed=turn.seed)
            return self.cleaned(response)
        except (ContextFull, LimitReached, EpisodeFailure, GeneratorExit):
            raise
        except BaseException as error:
            if ends_run(error) or is_ended(error, task):
                raise
            what = error.what if isinstance(error, PalaestraError) else described(error)
            remedy = error.remedy if isinstance(error, PalaestraError) else ""
            where = f"agent {self.name}, policy {self.policy}"
            raise EpisodeFailure(boundary="engine", where=where, what=what, remedy=remedy) from error

    def cleaned(self, response: Any) -> Response:
        """The response with an action that can be stored. Raises: ContractError, for anything but a response."""
        if not isinstance(response, Response):
            raise ContractError(where="act", what=f"`act` must return a Response, found {type(response).__name__}.")
        action = clean_action(response.action, self.episode.trajectory.replaced)
        return response if action is response.action else replace(response, action=action)

    async def ask(self, shown: Shown, parse: Callable[[str], Any], **place: Any) -> Any:
        """Act, and parse the text of the response, by the role's own parser if the recipe names one, else by `parse`.

        A response that cannot be read gives None, and its step gets the entry `invalid`.
        """
        action = await self.act(shown, **place)
        step = self.last
        assert step is not None
        meant = (self.role.parser or parse)(action.text or "")
        if meant is None:
            step.info["invalid"] = 1.0
        return meant

    def record(self, shown: Shown, action: Action | str, **info: Any) -> Action:
        """Record a given action as this agent's act, for demonstrations and actions from outside.

        Args:
            info: entries of the step's `info`. `noise` becomes a mark: 1 for a random act, which is not imitated.
        """
        action = Action(text=action, value=action) if isinstance(action, str) else action
        view = self.view(shown)
        action = clean_action(action, self.episode.trajectory.replaced)
        action = action if self.tools is None else self.tools.demonstrated(action)
        with self.episode.turn(self, view) as turn:
            step = turn.file(self.session.record(turn.observation, self.role.written(action)))
        if step.action.text != action.text:
            step.action = replace(step.action, text=action.text, value=action.value, reply=step.action.text)
        if "noise" in info:
            step.mark(noise=info.pop("noise"))
        step.info.update(info)
        return step.action

    def reward(self, amount: float) -> None:
        """Add to the reward of this agent's last step. Raises: EpisodeFailure, for a number that is not finite."""
        self.episode.reward(self.name, amount, step=self.last)

    def view(self, shown: Shown) -> Observation:
        """The observation as the policy gets it: with the role's prompt around the text, and the play's instruction.

        Raises: EpisodeFailure, if `shown` is no observation or text, or if it has no text and the role has a prompt.
        """
        observation = _observation(shown)
        if not isinstance(observation, Observation):
            raise EpisodeFailure(
                boundary="part",
                where=f"program, role {self.name}",
                what=f"it is shown a {type(shown).__name__}; it must be an Observation or a text.",
            )
        if self.role.prompt is not None:
            if observation.text is None and not observation.messages:
                raise EpisodeFailure(
                    boundary="part",
                    where=f"agents.{self.name}.prompt",
                    what="a prompt needs a text, but the observation of this role has none.",
                    remedy="Leave the prompt out, or show the role a text.",
                )
            observation = self.role.prompted(observation, self.tools)
        if self.acts == 0 and (self.name in self.episode.names or self.role.acts_for is not None):
            refuse_hidden_tools(self.role, self.name, observation, self.rules)
        observation = declared(observation, self.tools, first=self.acts == 0)
        told = self.instruction if self.rules is None else self._told(observation)
        return observation if told is None else replace(observation, instruction=told)

    def _told(self, observation: Observation) -> str:
        """The role's rules, then the observation's own instruction and that of the play."""
        return "\n\n".join(filter(None, (self.rules, observation.instruction, self.instruction)))


def _observation(shown: Shown) -> Observation:
    return Observation(text=shown, state_key=shown) if isinstance(shown, str) else shown


class Agents(dict[str, Agent]):
    """Agents by name. An agent is made at its first use."""

    def __init__(self, make: Callable[[str], Agent]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> Agent:
        agent = self[name] = self._make(name)
        return agent


@dataclass(slots=True, eq=False)
class Turn:
    """An act in progress. `Episode.turn` starts it, and `file` records it as a step.

    Attributes:
        number: its number in the order in which acts were started. seed: of the response.
        began: its start, by `time.monotonic`. task: the task that waits for it.
    """

    episode: Episode
    agent: Agent
    observation: Observation
    number: int
    seed: int
    began: float
    task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Turn:
        self.task = self.episode.activity.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises: LimitReached, for an act that does not fit the context."""
        self.episode.activity.end(self.task)
        if isinstance(error, ContextFull):
            self.agent.cut = self.observation
            raise LimitReached(StopReason.CONTEXT_OVERFLOW) from None

    def file(self, response: Response, *, invocation: int | None = None, parent: int | None = None) -> Step:
        """Record the response as a step of the trajectory.

        Args:
            invocation, parent: in place of the agent's own.
        """
        agent, episode = self.agent, self.episode
        step = Step(
            agent=agent.name,
            turn=self.number,
            action=response.action,
            observation=self.observation,
            policy=agent.policy,
            version=response.version,
            prompt=response.prompt,
            pictures=response.pictures,
            segment=segment_number(agent.invocation, response.segment),
            invocation=agent.invocation if invocation is None else invocation,
            parent=agent.parent if parent is None else parent,
        )
        if agent.role.opponent:  # it counts in no update and in no statistic
            step.mark(row_weight=0.0)
        insort(episode.trajectory.steps, step, key=lambda recorded: recorded.turn)
        episode.sampled_tokens += len(step.action.tokens)
        episode.pending.pop(agent.name, None)
        step.reward += episode.owed.pop(agent.name, 0.0)
        step.seconds = time.monotonic() - self.began
        agent.last = episode.latest[agent.name] = step
        return step


# ---- the episode ------------------------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class Episode:
    """One episode for a program: agents, the environment's `reset` and `step`, rewards, and the trajectory so far.

    Attributes:
        declared: the roles that the program declares; None without a declaration.
        latest: each agent's last step.
        pending: the environment's observations that no agent has answered yet.
        owed: rewards from before an agent's first act, which are added to that act.
        over: whether the episode has ended, so that no agent may act.
        turns: number of acts that were started.
        invoked: the agents of further conversations, made by `invoke`.
        actors: the environment's agent → the role that acted for it.
    """

    play: Play
    setup: RunSetup
    host: Host
    limits: Limits
    sampling: Sampling
    open_session: OpenSession = open_session
    declared: tuple[str, ...] | None = None
    trajectory: Trajectory = field(init=False)
    agents: Agents = field(init=False)
    latest: dict[str, Step] = field(default_factory=dict)
    pending: dict[str, Observation] = field(default_factory=dict)
    owed: dict[str, float] = field(default_factory=dict)
    over: bool = False
    env_steps: int = 0
    sampled_tokens: int = 0
    turns: int = 0
    started: float = field(default_factory=time.monotonic)
    activity: Activity = field(default_factory=Activity)
    invoked: list[Agent] = field(default_factory=list)
    actors: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        play = self.play
        self.trajectory = Trajectory(task=play.task, group=play.group, sample=play.sample, info=dict(play.info))
        self.agents = Agents(self._agent)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the environment's agents."""
        return self.host.agents

    def invoke(self, name: str, *, parent: Agent | None = None) -> Agent:
        """An agent of this role in a new conversation, as a sub-agent. It does not remember earlier calls.

        Args:
            parent: the agent that calls it, by its last step.
        """
        number = 1 + sum(agent.name == name for agent in self.invoked)
        called_by = None if parent is None or parent.last is None else parent.last.turn
        agent = self._converse(name, number, called_by)
        self.invoked.append(agent)
        return agent

    def busy(self) -> AbstractContextManager[None]:
        """A context for slow work of the program, so that the episode does not count as deadlocked."""
        return self.activity.busy()

    def _agent(self, name: str) -> Agent:
        """Make the agent of this name. Raises: ContractError, for a role that the program does not declare."""
        known = {*(self.declared or ()), *self.names, *self.play.roles, *self.setup.roles} - {"*"}
        if self.declared is not None and name not in known:
            raise ContractError(
                where=f"role {name}",
                what=f"the program asks for role `{name}`, which is none of its roles.",
                options=nearest(name, known),
                remedy="Spell it as `acted_by` does, or name it there.",
            )
        agent = self._converse(name)
        agent.session.hear_expert(lambda: self.expert(name))
        return agent

    def _converse(self, name: str, number: int = 0, parent: int | None = None) -> Agent:
        """An agent with its own conversation. All agents of a role share its tools, and so the limit of calls."""
        role, key = self._role(name), (self.play.group, self.play.sample, name)
        session = self.open_session(role, self.sampling, (*key, number) if number else key)
        earlier = next((a.tools for a in (*self.agents.values(), *self.invoked) if a.name == name), None)
        tools = tools_of(role, self.setup.roles, earlier=earlier)
        rules = role.told(name, self.setup.source)
        return Agent(name, session, role, self, tools, rules, self.play.instruction, invocation=number, parent=parent)

    def _role(self, name: str) -> Role:
        return self.setup.role(self.play.roles.get(name, name))  # type: ignore[no-any-return]

    # ---- acts -----------------------------------------------------------------------------------------------
    def turn(self, agent: Agent, observation: Observation) -> Turn:
        """Start an act of an agent: check the limits and count the turn. `Turn.file` then records the response.

        Raises: LimitReached, if the act would exceed a limit or does not fit the context; CancelledError, after the
            end of the episode, for acts that the program did not wait for.
        """
        if self.over:
            raise asyncio.CancelledError
        if observation is not self.pending.get(agent.name):  # those of the environment have been cleaned
            observation = clean_observation(observation, self.trajectory.replaced)
        began = time.monotonic()
        turns = max(self.env_steps, agent.acts)
        reason = self.limits.reached(turns=turns, tokens=self.sampled_tokens, seconds=began - self.started)
        if reason is not None:
            agent.cut = observation
            raise LimitReached(reason)
        place = (agent.acts,) if agent.invocation == 0 else (agent.invocation, agent.acts)
        turn = Turn(self, agent, observation, self.turns, derive(self.play.seed, agent.name, *place), began)
        agent.acts, self.turns = agent.acts + 1, self.turns + 1
        return turn

    def reward(self, agent: str, amount: float, *, step: Step | None = None) -> None:
        """Add to the reward of the agent's last step, or of another step of it, and to the agent's return."""
        amount = float(amount)
        total = self.trajectory.returns.get(agent, 0.0) + amount
        environment, turn = self.setup.environment_name, len(self.trajectory.steps)
        refuse_reward(amount, total, environment=environment, agent=agent, turn=turn)
        self.trajectory.returns[agent] = total
        earned = step or self.latest.get(agent)
        if earned is not None:
            earned.reward += amount
        else:
            self.owed[agent] = self.owed.get(agent, 0.0) + amount

    # ---- the environment ----------------------------------------------------------------------------------
    async def reset(self) -> StepResult:
        """Set the task up. Raises: EpisodeFailure(boundary="environment")."""
        with self.activity.busy():
            given = await self.host.reset(self.play.task)
        return self._take("reset", given)

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        """Act in the environment. Its rewards are added to the last steps of the agents that get them.

        A role that is no agent of the environment acts for its only agent, or for the one that
        `agents.<role>.acts_for` names. The rewards and observations of that agent then go to the role, until another
        role acts for it.

        Raises: ContractError, for a role that acts for no agent, or two roles that act for one; EpisodeFailure, for a
            value that is no Action.
        """
        actions_of_agents, began = self._by_agent(actions), time.monotonic()
        with self.activity.busy():
            given = await self.host.step(actions_of_agents)
        for agent in actions.keys() & self.latest.keys():
            self.latest[agent].seconds += time.monotonic() - began
        self.env_steps += 1
        result = self._take("step", given)
        for agent, reward in result.rewards.items():
            self.reward(self.actors.get(agent, agent), reward)
        for marked, name in ((result.terminated, "terminated"), (result.truncated, "truncated")):
            for agent in marked:
                if (role := self.actors.get(agent, agent)) in self.latest:
                    setattr(self.latest[role], name, True)
        return result

    async def expert(self, agent: str) -> Action:
        """The environment's own expert action for the present state."""
        with self.activity.busy():
            return await self.host.expert(agent)

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

    def _take(self, call: str, given: Any) -> StepResult:
        """Store the environment's observations as pending, and write its info to trajectory and steps.

        Returns: the result without what cannot be stored. Raises: EpisodeFailure, which names the environment.
        """
        environment = self.setup.environment_name
        try:
            result = clean_result(given)
        except BaseException as error:  # the values may have code of their own
            raise failure(environment, call, error) from error
        refuse_result(result, self.names, environment=environment, turn=len(self.trajectory.steps))
        self.trajectory.replaced.update(result.replaced or {})
        shown = {**result.observations, **result.last}
        self.pending = {self.actors.get(agent, agent): observation for agent, observation in shown.items()}
        self.trajectory.info = {**self.trajectory.info, **result.info}
        for name, value in result.info.items():
            if isinstance(value, Mapping):  # {"process": {agent: 0.5}} belongs to the agents' last steps
                for agent, part in value.items():
                    if (role := self.actors.get(agent, agent)) in self.latest:
                        _annotate(self.latest[role], name, part)
        return result

    # ---- the end ------------------------------------------------------------------------------------------
    def finish(self, reason: StopReason) -> Trajectory:
        """Close all sessions, and mark the last step of each agent as terminated or truncated.

        A suspended episode gets neither such marks nor an outcome.

        Raises: EpisodeFailure, if a program wrote NaN or an infinite number on a step; errors of a session.
        """
        trajectory, self.over = self.trajectory, True
        if reason is StopReason.COMPLETED and "stop" in trajectory.info:
            reason = StopReason(trajectory.info["stop"])
        trajectory.stop = reason
        clean_notes(trajectory)
        if reason is not StopReason.ERROR:
            refuse_notes(trajectory)
        over = reason not in (StopReason.ERROR, StopReason.SUSPENDED)
        for name, agent in self.agents.items():
            last = self.latest.get(name)
            if last is not None and over:
                _end(last, cut=reason.cut)
            observation = self._unanswered(agent) if last is not None and last.truncated else None
            prompt = agent.session.end(observation)
            if observation is not None:
                trajectory.last[name] = observation
            if prompt is not None:
                trajectory.next_prompts[name] = prompt._replace(segment=segment_number(0, prompt.segment))
        for agent in self.invoked:
            agent.session.end(None)
            if agent.last is not None and over:
                _end(agent.last, cut=agent.cut is not None)
        trajectory.outcome = None if reason is StopReason.SUSPENDED else outcome_of(trajectory.info)
        return trajectory

    def _unanswered(self, agent: Agent) -> Observation | None:
        """The observation that the agent would have answered next, as its policy would get it; None without one."""
        if agent.cut is not None:
            return agent.cut
        shown = self.pending.get(agent.name)
        return None if shown is None else agent.view(shown)


def _end(step: Step, *, cut: bool) -> None:
    """Mark an agent's last step, unless the environment has terminated it."""
    if not step.terminated:
        step.truncated = step.truncated or cut
        step.terminated = not step.truncated


def _annotate(step: Step, name: str, value: Any) -> None:
    """Write an entry of the environment's info on a step: its invocation, its parent, or any number or label."""
    if name in ("invocation", "parent"):
        setattr(step, name, int(value))
    else:
        step.info[name] = float(value) if isinstance(value, bool | int | float) else value


# ---- numbers of segments ----------------------------------------------------------------------------------
def segment_number(conversation: int, segment: int) -> int:
    """The number, in the trajectory, of a segment of a role's conversation. Each pair has a different number.

    >>> segment_number(0, 4095), segment_number(1, 0), segment_number(0, 4096) == segment_number(1, 0)
    (4095, 4096, False)
    """
    page, place = divmod(segment, CONVERSATION)
    return page * PAGE + conversation * CONVERSATION + place


def conversation_of(number: int) -> tuple[int, int]:
    """The conversation and its segment that have this number.

    >>> conversation_of(segment_number(3, 5000))
    (3, 5000)
    """
    page, rest = divmod(number, PAGE)
    conversation, place = divmod(rest, CONVERSATION)
    return conversation, page * CONVERSATION + place
