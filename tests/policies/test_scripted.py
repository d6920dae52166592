"""What must hold: (1) random play is legal and depends on its seed only; (2) without legal actions it needs an action
count, or draws from the environment's box; (3) the expert asks the environment; (4) a person types words or the number
of a listed action.
"""

from __future__ import annotations

import asyncio
import builtins
from types import SimpleNamespace

import numpy as np
import pytest

from palaestra.data import Action, Observation, RunSetup
from palaestra.data.protocols import Sampling
from palaestra.errors import EpisodeFailure
from palaestra.policies.scripted import ScriptedSession, expert, human, random
from tests.messages import told

LEGAL = ["go north", "go south", "take key"]


def session(kind: object, **setup: object) -> ScriptedSession:
    policy = kind("player", RunSetup(seed=0, **setup))  # type: ignore[operator]
    return policy.session(context=None, sampling=Sampling(), key=0)  # type: ignore[no-any-return]


def act(of: ScriptedSession, observation: Observation, seed: int = 0) -> Action:
    return asyncio.run(of.act(observation, seed=seed)).action


def test_1_random_is_legal_and_seeded() -> None:
    seen = Observation(text="a hall", legal=LEGAL)
    chosen = [act(session(random), seen, seed).text for seed in range(20)]
    assert set(chosen) == set(LEGAL)
    assert chosen == [act(session(random), seen, seed).text for seed in range(20)]


def test_2_random_without_legal_actions() -> None:
    seen = Observation(vector=np.zeros(2, np.float32))
    assert act(session(random, action_count=3), seen).value in range(3)
    with told(EpisodeFailure, "random play"):
        act(session(random), seen)
    low, high = np.float32([-1, 0]), np.float32([1, 3])
    boxed = session(random, source=SimpleNamespace(action_box=(low, high)))
    drawn = np.stack([act(boxed, seen, seed).value for seed in range(200)])
    assert drawn.dtype == np.float32 and (drawn >= low).all() and (drawn <= high).all()
    assert np.allclose(drawn.mean(0), (low + high) / 2, atol=0.2)


def test_3_expert_asks_the_environment() -> None:
    asking = session(expert)

    async def oracle() -> Action:
        return Action(text="take key")

    asking.hear_expert(oracle)
    assert act(asking, Observation(text="a hall")).text == "take key"


@pytest.mark.parametrize(("typed", "meant"), [("1", "go south"), ("take key", "take key"), ("7", "7")])
def test_4_a_person(monkeypatch: pytest.MonkeyPatch, typed: str, meant: str) -> None:
    monkeypatch.setattr(builtins, "input", lambda prompt: typed)
    assert act(session(human), Observation(text="a hall", legal=LEGAL)).text == meant
