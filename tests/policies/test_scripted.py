"""What must hold: (1) random play is legal and depends on its seed only; (2) without legal actions it needs an action
count; (3) the expert asks the environment; (4) a person types words or the number of a listed action.
"""

from __future__ import annotations

import asyncio
import builtins

import numpy as np
import pytest

from palaestra.data import Action, Observation, RunSetup
from palaestra.data.protocols import Sampling
from palaestra.errors import EpisodeFailure
from palaestra.policies.scripted import ScriptedSession, expert, human, random

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
    with pytest.raises(EpisodeFailure, match="random play needs legal actions"):
        act(session(random), seen)


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
