"""The vector runner plays many episodes in lock step, for network policies and quick environments.

Programs and trajectories are the same as with the episode runner, but no event loop is needed. The runner advances
each program until it waits. Then it steps all environments together, and each policy answers all its questions in one
forward pass. When an episode ends, its slot takes the next play at once. A call that hangs cannot be interrupted.
"""

from __future__ import annotations

import asyncio
import dataclasses
import types
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from palaestra.boundary.process import Home, Lent, protected
from palaestra.data import Action, Play, RunSetup, StepResult, StopReason, Task, Trajectory
from palaestra.data.protocols import Sampling, Session
from palaestra.errors import EpisodeFailure, RecipeError, described, ends_run
from palaestra.policies.network import NetworkSession, Question
from palaestra.registry import declared, register
from palaestra.rollout.episode import Episode, Key, open_session
from palaestra.rollout.limits import Limits
from palaestra.rollout.programs import Program, roles_of
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import finished, let_out, nobody_acted, sampling_of, verdict
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.slots import Slots, VectorSlots, open_slots
from palaestra.rollout.strategies import RolloutContext, Strategy, play_through


@register("rollout", "vector")
class VectorRunner:
    """Plays programs in lock step, in at most `in_flight` slots."""

    lock_step = True  # no policy can wait (palaestra.registry)
    ignores = ("workers", "worker_kind", "step_seconds", "stuck_seconds", "window")  # keys of `rollout`

    def __init__(self, setup: RunSetup, settings: RolloutSettings) -> None:
        """Raises: RecipeError, if a role's policy waits for its acts, as one does that generates tokens."""
        for name, role in setup.roles.items():
            if role.policy.model is not None or declared(role.policy, "waits"):
                raise RecipeError(
                    where="rollout.runner: vector",
                    what=f"role `{name}` is played by `{role.policy.name}`, which waits for an engine or a server.",
                    remedy="Set `rollout.runner: episodes`; the vector runner is for network and scripted policies.",
                )
        self._setup, self._settings = setup, settings
        self._slots: Slots | None = None
        self._count = 0

    def collect(
        self,
        plays: Sequence[Play],
        *,
        temperature: float | None = None,
        program: Program | None = None,
        sampling: Sampling | None = None,
    ) -> list[Trajectory]:
        """Play all plays. Returns the trajectories in their order, failed ones included (stop ERROR, `error` set).

        Args:
            temperature: used instead of that of the settings, for evaluations.
            program: used instead of that of the run, for demonstrations. It may wait only for acts and steps.
            sampling: used instead of the sampling of the settings and of `temperature`.

        Raises: RecipeError, for a play that branches off from an episode.
        """
        if any(play.branch is not None for play in plays):
            raise RecipeError(
                where="rollout.runner: vector",
                what="its episodes go on in lock step, and an episode that branches off needs steps of its own first.",
                remedy="Set `rollout.runner: episodes`, or leave out the strategy that branches.",
            )
        acting = program or self._setup.program
        with protected("a part of the rollout"):
            return self._collect(plays, sampling or self.sampling(temperature), acting)

    def _collect(self, plays: Sequence[Play], sampling: Sampling, program: Program) -> list[Trajectory]:
        waiting, done = deque(enumerate(plays)), dict[int, Trajectory]()
        live: dict[int, _Running] = {}
        count = min(self._settings.in_flight, len(plays))
        lent = Lent(f"environment {self._setup.environment_name}", Home())
        slots = self._open(count)
        lent.end()
        while waiting or live:
            for slot in range(count):
                if waiting and slot not in live:
                    live[slot] = self._start(slots, slot, *waiting.popleft(), sampling, program)
            for slot, answer in _answers(live, slots).items():
                live[slot].advance(answer)
            lent.end()
            for slot in [slot for slot, running in live.items() if running.over]:
                running = live.pop(slot)
                done[running.position] = running.episode.trajectory
        return [done[position] for position in range(len(plays))]

    def perform(
        self, plays: Sequence[Play], strategies: Sequence[Strategy], rollout: RolloutContext
    ) -> list[Trajectory]:
        """Play through strategies, of which the first is the outermost. Returns the trajectories for the update.

        Each call of `collect` plays its episodes in lock step to their end.
        """

        async def collect(plays: Sequence[Play], sampling: Sampling | None = None) -> list[Trajectory]:
            return self.collect(plays, sampling=sampling)

        async def run() -> list[Trajectory]:
            return await play_through(strategies, collect)(plays, rollout)

        return asyncio.run(run())

    def close(self) -> None:
        """Close the environments."""
        if self._slots is not None:
            self._slots.close()
        self._slots, self._count = None, 0

    def _open(self, count: int) -> Slots:
        """The slots, which are kept between calls. A vector environment is made anew if their number changes."""
        if self._slots is None or (self._count != count and isinstance(self._slots, VectorSlots)):
            self.close()
            self._slots = open_slots(self._setup.environment_name, self._setup.make_environment, count)
            self._count = count
        return self._slots

    def _start(
        self, slots: Slots, slot: int, position: int, play: Play, sampling: Sampling, program: Program
    ) -> _Running:
        host, limits = _SlotHost(slots, slot), Limits.of(play, self._settings)
        declared = roles_of(self._setup.program)
        episode = Episode(play, self._setup, host, limits, sampling, _open_in_lock_step, declared)
        running = _Running(position, episode, program(episode))
        running.advance(None)
        return running

    def sampling(self, temperature: float | None = None) -> Sampling:
        """The sampling of the settings, or one at another temperature."""
        return sampling_of(self._settings, temperature)


def _answers(live: Mapping[int, _Running], slots: Slots) -> dict[int, Any]:
    """Answer the wishes of the running programs: resets first, then questions, then moves.

    So all moves are made together, once no program waits for a reset or an answer. This is the lock step.
    """
    wishes = {slot: running.wish for slot, running in live.items() if not running.over}
    resets = {slot: wish.task for slot, wish in wishes.items() if isinstance(wish, _Reset)}
    if resets:
        return slots.reset(resets)
    questions = {slot: wish for slot, wish in wishes.items() if isinstance(wish, Question)}
    if questions:
        return _ask(questions)
    return slots.step({slot: wish.actions for slot, wish in wishes.items()}) if wishes else {}


def _ask(questions: Mapping[int, Question]) -> dict[int, Action | EpisodeFailure]:
    """Let each policy answer all its questions in one forward pass."""
    answers: dict[int, Action | EpisodeFailure] = {}
    policies = {id(question.session.policy): question.session.policy for question in questions.values()}
    for policy in policies.values():
        slots = [slot for slot, question in questions.items() if question.session.policy is policy]
        answers.update(zip(slots, _answered_by(policy, [questions[slot] for slot in slots]), strict=True))
    return answers


def _answered_by(policy: Any, questions: Sequence[Question]) -> Sequence[Action | EpisodeFailure]:
    """The answers of a policy. If it raises, all episodes that asked it fail."""
    try:
        return policy.answer(questions)  # type: ignore[no-any-return]
    except BaseException as error:
        if ends_run(error):
            raise
        what = described(error)
        return [EpisodeFailure(boundary="engine", where=f"policy {policy.name}", what=what) for _ in questions]


# ---- what programs wait for -------------------------------------------------------------------------------
class _Reset(NamedTuple):
    task: Task


class _Move(NamedTuple):
    actions: Mapping[str, Action]


@types.coroutine
def _wish(wish: Any) -> Generator[Any, Any, Any]:
    """Give `wish` to the runner, wait, and return the runner's answer."""
    return (yield wish)


class _SlotHost:
    """The environment of one slot, as an episode sees it."""

    def __init__(self, slots: Slots, slot: int) -> None:
        self._slots, self._slot = slots, slot
        self.agents = slots.agents(slot)

    async def reset(self, task: Task) -> StepResult:
        return await _wish(_Reset(task))  # type: ignore[no-any-return]

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        return await _wish(_Move(actions))  # type: ignore[no-any-return]

    async def expert(self, agent: str) -> Action:
        return self._slots.expert(self._slot, agent)

    async def snapshot(self) -> Any:
        return self._slots.snapshot(self._slot)

    async def restore(self, state: Any) -> None:
        self._slots.restore(self._slot, state)

    async def close(self) -> None:
        """Do nothing: the slot is used for further episodes."""


class _LockStepBatcher:
    """Gives the questions of a session to the runner."""

    async def ask(self, question: Question) -> Action:
        return await _wish(question)  # type: ignore[no-any-return]


def _open_in_lock_step(role: Role, sampling: Sampling, key: Key) -> Session:
    """A session that asks the runner instead of the event loop."""
    session = open_session(role, sampling, key)
    if isinstance(session, NetworkSession):
        return dataclasses.replace(session, batcher=_LockStepBatcher())
    return session


# ---- one episode in progress ------------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class _Running:
    """An episode whose program runs from one wish to the next."""

    position: int
    episode: Episode
    program: Any  # a coroutine
    wish: Any = None
    over: bool = False

    def advance(self, answer: Any) -> None:
        """Answer the current wish, or begin with None, and run to the next wish or to the end."""
        try:
            if isinstance(answer, EpisodeFailure):
                self.wish = self.program.throw(answer)
            else:
                self.wish = self.program.send(answer)
            if not isinstance(self.wish, _Reset | _Move | Question):
                self.program.close()
                raise _foreign(self.wish)
        except StopIteration:
            if self.episode.latest:
                self._finish(StopReason.COMPLETED)
            else:
                self._finish(StopReason.ERROR, nobody_acted("program"))
        except asyncio.CancelledError:
            self._finish(StopReason.ERROR, let_out("program"))
        except BaseException as error:
            self._finish(*verdict(error, "program"))

    def _finish(self, reason: StopReason, fault: EpisodeFailure | None = None) -> None:
        self.over = True
        finished(self.episode, reason, fault)


def _foreign(wish: Any) -> EpisodeFailure:
    return EpisodeFailure(
        boundary="part",
        where="rollout.runner: vector",
        what=f"the program waits for a {type(wish).__name__}; in lock step it may wait only for acts and steps.",
        remedy="Set `rollout.runner: episodes`.",
    )
