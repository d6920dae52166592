"""Answering recorded situations anew, between rollouts:

1. A language policy reads the whole prompt of the row and says what its session would say with the same seed.
2. The log-probabilities are those that training finds for the answer; seeds alone decide the draw.
3. A response is at most `max_tokens` long and fits the context; no session stays in the engine.
4. A network policy chooses among what is legal, as `act_batch` does.
5. Refused: a prompt without room for a response, an engine that is missing, logits that are not finite.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.data import Action, Observation, Row, RunSetup, Step, Task, Trajectory, rows_of
from palaestra.data.protocols import Sampling
from palaestra.engines import InProcessEngine
from palaestra.errors import EpisodeFailure, PalaestraError
from palaestra.policies.language import LanguagePolicy
from palaestra.policies.network import NetworkPolicy
from tests.messages import told

TEXTS = ("the door is red", "open the door", "go north", "nothing happens here")


@pytest.fixture(scope="module")
def talker() -> LanguagePolicy:
    setup = RunSetup(seed=0, texts=lambda: list(TEXTS) * 4)
    policy = LanguagePolicy("main", setup, hidden=32, layers=1, heads=2, context=48, vocabulary=300)
    policy.engine = InProcessEngine(models={"main": policy.model})
    return policy


def played(policy: LanguagePolicy, turns: int = 2, seed: int = 5) -> Trajectory:
    """An episode of one conversation with its full history."""
    trajectory = Trajectory(task=Task(env="talk", seed=0), group="g")

    async def talk() -> None:
        session = policy.session(context=None, sampling=Sampling(max_tokens=4), key="talk")
        for turn in range(turns):
            seen = Observation(text=TEXTS[turn])
            acted = await session.act(seen, seed=seed + turn)
            step = Step(agent="x", turn=turn, action=acted.action, observation=seen, policy="main", prompt=acted.prompt)
            trajectory.steps.append(step)
        session.end(None)

    asyncio.run(talk())
    return trajectory


def test_1_it_says_what_the_session_said(talker: LanguagePolicy) -> None:
    episode = played(talker)
    said = talker.respond(rows_of([episode]), [5, 6], temperature=1.0, max_tokens=4)
    for action, step in zip(said, episode.steps, strict=True):
        assert action.tokens.tolist() == step.action.tokens.tolist()
        assert action.text == step.action.text and action.finish is step.action.finish
        np.testing.assert_allclose(action.logprobs, step.action.logprobs, atol=1e-5)


def test_2_training_finds_the_same_log_probabilities(talker: LanguagePolicy) -> None:
    episode = played(talker, turns=1)
    (row,) = rows_of([episode])
    answers = talker.respond([row] * 20, range(20), temperature=0.7, max_tokens=4)
    assert len({action.tokens.tobytes() for action in answers}) > 10
    again = talker.respond([row] * 20, range(20), temperature=0.7, max_tokens=4)
    assert [a.tokens.tolist() for a in answers] == [a.tokens.tolist() for a in again]
    row.step.action = answers[3]
    samples = talker.collate(rows_of([episode]), temperature=0.7)
    now = talker.forward(samples, [0], ("logprob",))
    np.testing.assert_allclose(now["logprob"].detach().numpy(), answers[3].logprobs, atol=1e-4)


def test_3_length_and_sessions(talker: LanguagePolicy) -> None:
    rows = rows_of([played(talker)])
    assert max(len(a.tokens) for a in talker.respond(rows * 10, range(20), temperature=5.0, max_tokens=3)) == 3
    long = max(len(a.tokens) for a in talker.respond(rows * 10, range(20), temperature=5.0, max_tokens=500))
    assert 3 < long <= talker.limit - len(rows[0].trajectory.prompt_of(rows[0].step))
    for place in range(20):
        with pytest.raises(PalaestraError, match="there is no session"):
            talker.engine.fork(("respond", place), "other")


def looking_at(vector: np.ndarray, **more: Any) -> Row:
    """A row of a network policy that acted somehow."""
    seen = Observation(vector=np.asarray(vector, np.float32), **more)
    step = Step(agent="x", turn=0, action=Action(value=0), observation=seen, policy="main")
    return rows_of([Trajectory(task=Task(env="t", seed=0), group="g", steps=[step])])[0]


def test_4_networks_choose_what_is_legal() -> None:
    policy = NetworkPolicy("main", RunSetup(seed=0, vector_size=2, action_count=3), hidden=(8,))
    vectors = np.random.default_rng(0).random((30, 2)).astype(np.float32)
    said = policy.respond([looking_at(vector, legal=[0, 2]) for vector in vectors], range(30), temperature=1.0)
    expected = policy.act_batch(vectors, range(30), legal=np.tile([True, False, True], (30, 1)))
    assert [action.value for action in said] == expected.index.tolist()
    assert {action.value for action in said} == {0, 2}
    np.testing.assert_array_equal(np.concatenate([action.logprobs for action in said]), expected.logprob)


def test_5_no_room_is_refused(talker: LanguagePolicy) -> None:
    episode = played(talker, turns=1)
    episode.steps[0].prompt = np.ones(48, np.int32)
    with told(EpisodeFailure, "48 tokens"):
        talker.respond(rows_of([episode]), [0], temperature=1.0, max_tokens=4)


def test_5_no_engine_is_refused(talker: LanguagePolicy) -> None:
    rows = rows_of([played(talker, turns=1)])
    engine, talker.engine = talker.engine, None
    with told(PalaestraError, "no engine"):
        talker.respond(rows, [0], temperature=1.0, max_tokens=4)
    talker.engine = engine


def test_5_broken_networks_are_refused() -> None:
    policy = NetworkPolicy("main", RunSetup(seed=0, vector_size=2, action_count=3), hidden=(8,))
    with torch.no_grad():
        policy.module.actor.bias.fill_(torch.nan)
    with told(EpisodeFailure, "finite"):
        policy.respond([looking_at(np.zeros(2))], [0], temperature=1.0)
