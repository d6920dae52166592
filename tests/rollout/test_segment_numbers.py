"""Numbers of segments, each rule pinned by the test of the same number.

1. Every segment of every conversation of a role has a number of its own, however many there are; below 4,096 segments a
   conversation the numbers are k · 4096 + segment.
2. What an agent would have read next has the number of its segment.
3. An episode with more segments than that is suspended and goes on.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, NextPrompt, Observation, Play, RunSetup, StopReason
from palaestra.data.protocols import Policy, Response, Session
from palaestra.rollout.episode import conversation_of, segment_number
from palaestra.rollout.programs import play
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.systems.t_ppo.windows import WindowRunner
from palaestra.testing import EchoEnvironment
from tests.rollout.test_vector import make_setup


@dataclass
class Turns(Session):
    """A conversation whose every act is a segment of its own; the first ones are behind it already."""

    segment: int

    async def act(self, observation: Observation, *, seed: int) -> Response:
        return self.record(observation, Action(text="red"))

    def record(self, observation: Observation, action: Action) -> Response:
        self.segment += 1
        return Response(action=action, prompt=np.array([self.segment], np.int32), segment=self.segment)

    def fork(self, key: Hashable) -> Turns:
        return Turns(self.segment)

    def end(self, observation: Observation | None) -> NextPrompt | None:
        return None if observation is None else NextPrompt(np.array([self.segment], np.int32), self.segment)


class Long(Policy):
    """A policy with such conversations: that of the whole episode has many segments behind it."""

    name, trainable, version = "long", False, 0

    def __init__(self, first: int = 4094) -> None:
        self.first = first

    def session(self, **given: Any) -> Turns:
        return Turns(self.first - 1 if len(given["key"]) == 3 else -1)  # calls begin at 0


async def calling(episode: Any) -> None:
    result = await episode.reset()
    while result.observations:
        sub = episode.invoke("player", parent=episode.agents["player"])
        for _ in range(3):
            await sub.act("say red")
        result = await episode.step({"player": await episode.agents["player"].act(result.observations["player"])})


def on(program: Any = play, first: int = 4094, turns: int = 6) -> RunSetup:
    return make_setup(lambda: EchoEnvironment(turns=turns), program=program, all=Long(first))


def one() -> list[Play]:
    (task,) = EchoEnvironment().tasks("train", 1, seed=1)
    return [Play(task=task, group="0", sample=0, seed=0)]


@pytest.mark.parametrize("first", [0, 4094, 8190, 123_456])
def test_1_every_segment_has_a_number(first: int) -> None:
    (played,) = EpisodeRunner(on(calling, first), RolloutSettings()).collect(one())
    assert played.error is None and len(played.steps) == 24
    assert len({step.segment for step in played.steps}) == 24, "each act is a segment"
    for step in played.steps:
        assert played.prompt_of(step).tolist() == step.prompt.tolist(), "nothing of another segment"
        assert conversation_of(step.segment) == (step.invocation, int(step.prompt[0]))
        if step.prompt[0] < 4096:
            assert step.segment == step.invocation * 4096 + step.prompt[0]


def test_1_back_and_forth() -> None:
    places = [(k, s) for k in (0, 1, 5, 10**6) for s in (0, 1, 4095, 4096, 4097, 8192, 10**6)]
    numbers = [segment_number(*place) for place in places]
    assert [conversation_of(number) for number in numbers] == places and len(set(numbers)) == len(places)
    assert max(numbers) < 2**53, "every JSON reader has such numbers"


def test_2_what_comes_next() -> None:
    (played,) = EpisodeRunner(on(turns=9), RolloutSettings(max_turns=4)).collect(one())
    assert played.stop is StopReason.MAX_TURNS and played.next_prompts["player"].segment == played.steps[-1].segment
    assert conversation_of(played.next_prompts["player"].segment) == (0, 4097)


def test_3_windows() -> None:
    settings, stops, runner = RolloutSettings(window=3), [], None
    state: Any = {"suspended": []}
    for _ in range(9):
        runner = WindowRunner(on(calling), settings)
        runner.load_state_dict(json.loads(json.dumps(state)))
        (played,) = runner.collect(one())
        assert played.error is None, played.error
        stops.append(played.stop)
        state = runner.state_dict()
        if played.stop is StopReason.COMPLETED:
            break
    assert stops[-1] is StopReason.COMPLETED and len(stops) > 3
    (expected,) = EpisodeRunner(on(calling), RolloutSettings()).collect(one())
    assert [s.segment for s in played.steps] == [s.segment for s in expected.steps]
