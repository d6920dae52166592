"""Agent: one role in one episode. Every act becomes a Step, whoever calls it and however many act at once."""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from palaestra.chat import ContextFull
from palaestra.data import Action, Observation, Step, StopReason, derive
from palaestra.data.protocols import Response, Session
from palaestra.errors import ContractError, EpisodeFailure, PalaestraError, nearest
from palaestra.rollout.limits import LimitReached
from palaestra.rollout.programs import roles_of
from palaestra.rollout.roles import AgentTools, Role, tools_of

if TYPE_CHECKING:
    from palaestra.rollout.episode import Episode

CONVERSATION = 4096  # segments of a role's k-th conversation are numbered from k times this
PAGE = 2**31 * CONVERSATION  # …, and from the 4096th on in further pages, which no other conversation's numbers reach
Shown = Observation | str  # what a program may show an agent


@dataclass(slots=True, eq=False)
class Agent:
    """One role in one episode: a name and a session with its policy.

    Attributes:
        invocation: 0 for the conversation that lasts the whole episode, else the number of `Episode.invoke`.
        parent: turn of the step that called this invocation.
        acts: how often it was asked. last: its last step. cut: what a limit kept it from answering.
        tools: those of its role, and what it knows of those of others; None where nobody has any.
    """

    name: str
    session: Session
    role: Role
    episode: Episode
    invocation: int = 0
    parent: int | None = None
    acts: int = 0
    last: Step | None = None
    cut: Observation | None = None
    tools: AgentTools | None = field(init=False)

    def __post_init__(self) -> None:
        self.tools = tools_of(self.role, self.episode.setup.roles, earlier=self.episode.tools_so_far(self.name))

    @property
    def policy(self) -> str:
        """The name of the policy that plays it."""
        return self.role.policy.name

    async def act(self, shown: Shown, *, invocation: int | None = None, parent: int | None = None) -> Action:
        """Let the policy answer an observation, or a text; the act is recorded as a step.

        Several agents may act at once (`asyncio.gather`): their steps are in the order in which they were asked.
        A role with tools may call them first: each call is a step too, and its result is what the agent reads next.

        Args:
            invocation, parent: of this step, in place of the agent's own.

        Raises: LimitReached, when a limit is reached; EpisodeFailure, when the policy or its engine fails.
        """
        if self.tools is None:
            return (await self._act(shown, invocation, parent)).action
        observation = Observation(text=shown, state_key=shown) if isinstance(shown, str) else shown
        for left in range(self.tools.rounds, -1, -1):
            step = await self._act(observation, invocation, parent)
            said = step.action.text or ""
            with self.episode.busy():
                results = await self.tools.run(said, step, last=left == 0)
            if results is None:
                break
            observation = self.tools.shown(observation, said, results)
        return step.action

    async def _act(self, shown: Shown, invocation: int | None, parent: int | None) -> Step:
        observation = self.view(shown)
        self._within_limits(observation)
        if self.episode.branch is not None:
            await self.episode.branch.wait(self.episode)
        turn, act, began = self.episode.next_turn(), self.acts, time.monotonic()
        self.acts += 1
        place = (self.name, act) if self.invocation == 0 else (self.name, self.invocation, act)
        try:
            with self.episode.busy():
                response = await self.session.act(observation, seed=derive(self.episode.play.seed, *place))
        except ContextFull:
            self.cut = observation
            raise LimitReached(StopReason.CONTEXT_OVERFLOW) from None
        except (LimitReached, EpisodeFailure, asyncio.CancelledError):
            raise
        except Exception as error:
            raise _failure(f"agent {self.name}, policy {self.policy}", error) from error
        step = self._note(observation, response, turn, invocation=invocation, parent=parent)
        step.seconds = time.monotonic() - began
        return step

    async def ask(self, shown: Shown, parse: Callable[[str], Any], **place: Any) -> Any:
        """Act, and read the response: `parse` of its text, by the role's own parser where the recipe names one.

        A response that means nothing gives None, and its step is marked `invalid`.
        """
        action = await self.act(shown, **place)
        step = self.last
        assert step is not None
        meant = (self.role.parser or parse)(action.text or "")
        if meant is None:
            step.info["invalid"] = 1.0
        return meant

    def reward(self, amount: float) -> None:
        """Add to the reward of this agent's last step. Raises: EpisodeFailure, for a number that is not finite."""
        self.episode.reward(self.name, amount, step=self.last)

    def record(self, shown: Shown, action: Action | str, **info: Any) -> Action:
        """Take a given action as this agent's own: demonstrations, and actions from outside.

        Args:
            info: for the step. `noise` is a mark: 1 says that the act is random, and nobody imitates it.
        """
        observation = self.view(shown)
        action = Action(text=action, value=action) if isinstance(action, str) else action
        self._within_limits(observation)
        try:
            response = self.session.record(observation, action)
        except ContextFull:
            self.cut = observation
            raise LimitReached(StopReason.CONTEXT_OVERFLOW) from None
        step = self._note(observation, response, self.episode.next_turn(), invocation=None, parent=None)
        self.acts += 1
        if "noise" in info:
            step.mark(noise=info.pop("noise"))
        step.info.update(info)
        return response.action

    def _within_limits(self, observation: Observation) -> None:
        """Raises: LimitReached, when this act would pass a limit."""
        try:
            self.episode.check_limits(self)
        except LimitReached:
            self.cut = observation
            raise

    def view(self, shown: Shown) -> Observation:
        """What the policy is shown: the role's prompt around the text, and what the play says to everybody.

        Raises: EpisodeFailure, for what is no observation, or for a role with a prompt that is shown no text.
        """
        observation = Observation(text=shown, state_key=shown) if isinstance(shown, str) else shown
        if not isinstance(observation, Observation):
            raise EpisodeFailure(
                boundary="part",
                where=f"program, role {self.name}",
                what=f"it is shown a {type(shown).__name__}; a role is shown an Observation, or a text.",
            )
        if self.role.prompt is not None:
            if observation.text is None:
                raise EpisodeFailure(
                    boundary="part",
                    where=f"agents.{self.name}.prompt",
                    what="it goes around a text, and what the role is shown has none.",
                    remedy="Leave the prompt out, or show the role a text.",
                )
            tools = "" if self.tools is None else self.tools.toolbox.explain()
            text = self.role.prompt.replace("{tools}", tools).replace("{text}", observation.text)
            observation = replace(observation, text=text)
        return self.episode.instructed(observation)

    def _note(
        self, observation: Observation, response: Response, turn: int, *, invocation: int | None, parent: int | None
    ) -> Step:
        step = Step(
            agent=self.name,
            turn=turn,
            action=response.action,
            observation=observation,
            policy=self.policy,
            version=response.version,
            prompt=response.prompt,
            segment=segment_number(self.invocation, response.segment),
            invocation=self.invocation if invocation is None else invocation,
            parent=self.parent if parent is None else parent,
        )
        insort(self.episode.trajectory.steps, step, key=lambda recorded: recorded.turn)
        self.last = step
        self.episode.record(step, opponent=self.role.opponent)
        return step


def segment_number(conversation: int, segment: int) -> int:
    """The number in the trajectory of a segment of a role's conversation: every pair has a number of its own.

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


class Agents(dict[str, Agent]):
    """Agents by name, made when first asked for."""

    def __init__(self, episode: Episode) -> None:
        super().__init__()
        self._episode = episode

    def __missing__(self, name: str) -> Agent:
        """Raises: ContractError, for a role that the program does not have by its own words."""
        setup = self._episode.setup
        declared = roles_of(setup.program)
        known = {*(declared or ()), *self._episode.names, *self._episode.play.roles, *setup.roles} - {"*"}
        if declared is not None and name not in known:
            raise ContractError(
                where=f"role {name}",
                what=f"the program asks for role `{name}`, which is none of its roles.",
                options=nearest(name, known),
                remedy="Spell it as `acted_by` does, or name it there.",
            )
        self[name] = self._episode.make_agent(name)
        return self[name]


def _failure(where: str, error: BaseException) -> EpisodeFailure:
    what = error.what if isinstance(error, PalaestraError) else f"{type(error).__name__}: {error}"
    remedy = error.remedy if isinstance(error, PalaestraError) else ""
    return EpisodeFailure(boundary="engine", where=where, what=what, remedy=remedy)
