"""docs/one_file.py is the library's flow: (1) the engine samples the same tokens; (2) the first update gives the
same weights; (3) it learns.
"""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from palaestra.data import Action, Batch, FinishReason, Observation, RunSetup, Step, Task, Trajectory
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import Request
from palaestra.engines import InProcessEngine
from palaestra.policies.language import LanguagePolicy
from palaestra.registry.bound import BoundPart, bind
from palaestra.training.loop import prepare
from palaestra.training.stages import Stages
from palaestra.training.updates import Updater


@pytest.fixture(scope="module")
def one_file() -> ModuleType:
    path = Path(__file__).parents[2] / "docs" / "one_file.py"
    spec = importlib.util.spec_from_file_location("one_file", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["one_file"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def groups(one_file: ModuleType) -> list[list[object]]:
    return one_file.rollout(one_file.make_model(), 0)  # type: ignore[no-any-return]


def test_1_same_tokens(one_file: ModuleType, groups: list[list[object]]) -> None:
    engine = InProcessEngine(models={"main": one_file.make_model()})

    async def replay(episode: object) -> list[list[int]]:
        out = []
        for turn, recorded in enumerate(episode.turns):  # type: ignore[attr-defined]
            request = Request(
                policy="main",
                session=(episode.task, episode.sample),  # type: ignore[attr-defined]
                prompt=np.array(recorded.prompt, np.int32),
                seed=one_file.derive(episode.task, episode.sample, turn),  # type: ignore[attr-defined]
                max_tokens=one_file.RESPONSE,
                stop=(one_file.ID["<end>"],),
            )
            out.append((await engine.generate(request)).action.tokens.tolist())
        return out

    async def replay_all() -> list[list[list[int]]]:
        return list(await asyncio.gather(*(replay(episode) for group in groups for episode in group)))

    sampled = [[turn.response for turn in episode.turns] for group in groups for episode in group]  # type: ignore[attr-defined]
    assert asyncio.run(replay_all()) == sampled


def trajectory(group: int, episode: object) -> Trajectory:
    """The library's record of an episode."""
    steps = [
        Step(
            agent="player",
            turn=number,
            action=Action(tokens=np.array(turn.response, np.int32), finish=FinishReason.STOP),
            observation=Observation(text=""),
            reward=turn.reward,
            policy="main",
            prompt=np.array(turn.prompt, np.int32),
        )
        for number, turn in enumerate(episode.turns)  # type: ignore[attr-defined]
    ]
    steps[-1].terminated = True
    return Trajectory(task=Task(env="say", seed=group), group=f"{group:03d}", sample=episode.sample, steps=steps)  # type: ignore[attr-defined]


def test_2_same_first_update(one_file: ModuleType, groups: list[list[object]]) -> None:
    model = one_file.make_model()
    policy = LanguagePolicy("main", RunSetup(seed=0, texts=lambda: ["x"]), hidden=32, heads=2, vocabulary=300)
    policy.module.model = copy.deepcopy(model)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    norm = one_file.update(model, optimizer, groups)

    grpo = [bind("advantage", BoundPart(name="grpo"))]
    updater = Updater(
        policy=policy,
        optimizer=bind("optimizer", BoundPart(name="adamw", options={"lr": 1e-2}))(list(policy.module.parameters())),
        loss=bind("loss", BoundPart(name="ppo_clip")),
        regularizers=[],
        how="token-mean",
        constant=None,
        epochs=1,
        minibatches=1,
        token_budget=512,
    )
    played = [trajectory(number, episode) for number, group in enumerate(groups) for episode in group]
    iteration = Iteration({"main": policy}, 0, 0, 1.0, 512)
    stages = Stages(
        reward=[bind("reward", BoundPart(name="environment"))],
        selection=[],
        advantage=grpo,
        weights=[],
        updates={"main": updater.parts},
    )
    batch = Batch.of(played)
    prepare(batch, stages, iteration, several_updates=False)
    metrics = updater.update(batch, iteration, seed=0)

    assert metrics["policy/grad_norm"] == pytest.approx(norm, rel=1e-4)
    for mine, theirs in zip(policy.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_3_it_learns(one_file: ModuleType) -> None:
    assert one_file.main() > 1.7
