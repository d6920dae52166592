"""Episodes of a role whose chat template declares the world's tools, played by a tiny model or by given replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from palaestra.chat import FullHistory
from palaestra.data import Action, FinishReason, Play, RunSetup, Task, ToolCall, Trajectory
from palaestra.data.protocols import Engine, Request, Response
from palaestra.rollout.programs import demonstrate, play
from palaestra.rollout.roles import Role, RoleTools
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.tools.formats import format_of
from tests.chat.conversations import policy_of

Reply = str | Sequence[ToolCall]


def right_call(world: Any) -> list[ToolCall]:
    """The call that the world's expert makes now."""
    return list(format_of("json").parse(world.expert("player").text, {}).calls)


class Replies(Engine):
    """Answers the requests of one episode by given replies, then by the calls of the world's expert."""

    def __init__(self, renderer: Any, world: Callable[[], Any], replies: Sequence[Reply]) -> None:
        self._renderer, self._world, self._replies = renderer, world, list(replies)

    async def generate(self, request: Request) -> Response:
        world = self._world()
        reply = self._replies.pop(0) if self._replies else right_call(world)
        tools = world._box.declarations
        ids = self._renderer.action(reply) if isinstance(reply, str) else self._renderer.call(reply, tools)
        return Response(action=Action(tokens=ids, finish=FinishReason.STOP))

    def publish(self, policy: str, named_tensors: Any, version: int) -> None:
        return None

    def close(self, session: Any) -> None:
        return None

    def context(self, policy: str) -> int:
        return 32_768


def played(
    make: Callable[[], Any],
    task: Task,
    folder: Path,
    *,
    replies: Sequence[Reply] | None = None,
    template: str = "qwen3",
) -> tuple[Trajectory, str]:
    """An episode and all that the model reads and writes in it.

    Args:
        replies: of the model, before those of the expert. None: the episode is a demonstration.
        template: the name of a chat template, see tests/chat/templates.py.
    """
    policy = policy_of(template, folder)
    worlds: list[Any] = []

    def made() -> Any:
        worlds.append(make())
        return worlds[-1]

    if replies is not None:
        policy.engine = Replies(policy.renderer, lambda: worlds[-1], replies)
    setup = RunSetup(
        environment_name=task.env,
        make_environment=made,
        source=make(),
        roles={"*": Role(policy=policy, context=FullHistory(), tools=RoleTools(native=True))},
        program=demonstrate if replies is None else play,
    )
    runner = EpisodeRunner(setup, RolloutSettings(response_tokens=400, stuck_seconds=None))
    (trajectory,) = runner.collect([Play(task=task, group="g", sample=0, seed=0)])
    runner.close()
    assert trajectory.error is None, trajectory.error
    return trajectory, policy.renderer.said(trajectory.sequence("player", 0))
