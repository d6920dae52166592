"""Episodes in which a teacher chooses the acts of the run's policies, and these write them in their own tokens."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from palaestra.chat.reply_calls import calls_of
from palaestra.data import Action, NextPrompt, Observation
from palaestra.data.protocols import Conversation, Oracle, Policy, Response, Sampling, Session
from palaestra.rollout.episode import Episode, Key
from palaestra.rollout.programs import Program
from palaestra.rollout.roles import Role


async def taught(episode: Episode, *, program: Program, teacher: Policy, students: Collection[str]) -> None:
    """Play a program. The teacher chooses the acts of all roles whose policy is a student.

    Args:
        program: of the run; its other roles play as they are.
        teacher: answers with texts. It reads what a student would read.
        students: names of policies that generate tokens.
    """
    usual = episode.open_session

    def opened(role: Role, sampling: Sampling, key: Key) -> Session:
        own = usual(role, sampling, key)
        if role.policy.name not in students:
            return own
        return TaughtSession(usual(replace(role, policy=teacher), sampling, key), own)

    episode.open_session = opened
    await program(episode)


@dataclass(slots=True)
class TaughtSession(Session):
    """A session whose acts are a teacher's. The student records each of them as if it had answered so.

    Calls of tools, in whatever form the teacher writes them, become calls as the student's chat template writes them.
    """

    teacher: Session
    student: Session
    tools: tuple[Mapping[str, Any], ...] = ()  # that chat templates declare

    async def act(self, observation: Observation, *, seed: int) -> Response:
        self.tools = tuple(observation.tools or self.tools)
        given = (await self.teacher.act(observation, seed=seed)).action
        text = str(given.value) if given.text is None else given.text
        calls = calls_of(text, self.tools).calls if self.tools else ()
        response = self.student.record(observation, Action(text=text, finish=given.finish, tool_calls=calls))
        written = replace(response.action, text=response.action.reply or text, reply=None)
        return replace(response, action=written)

    def record(self, observation: Observation, action: Action) -> Response:
        self.teacher.record(observation, action)
        return self.student.record(observation, action)

    def replay(self, observation: Observation, action: Action) -> Response:
        self.teacher.record(observation, action)
        return self.student.replay(observation, action)

    def end(self, observation: Observation | None) -> NextPrompt | None:
        self.teacher.end(None)
        return self.student.end(observation)

    def fork(self, key: Hashable) -> TaughtSession:
        """A copy of both sessions."""
        return replace(self, teacher=self.teacher.fork(key), student=self.student.fork(key))

    def hear_expert(self, ask: Oracle) -> None:
        self.teacher.hear_expert(ask)

    def remembers(self) -> bool:
        return self.teacher.remembers() or self.student.remembers()

    def history(self) -> Conversation | None:
        return self.student.history()
