"""A run whose episodes an outside agent plays: (1) the ids of its trajectories are those that the engine has read and
answered, with the versions of the weights, and the policy learns from them; (2) a run with the same seed is the same;
(3) an agent that fails sometimes does not end the run; (4) the recipe of the package loads, and its agent plays.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.engines import InProcessEngine
from palaestra.recipe import load
from palaestra.rollout.episode import conversation_of
from palaestra.store.episodes import EpisodeLog
from palaestra.store.metrics import read
from palaestra.training.start import train
from tests.extras import needs

pytestmark = needs("openai", "fastapi", "uvicorn", "trl")
if not pytestmark.args[0]:
    from tests.chat.conversations import policy_of

AGENTS = Path(__file__).with_name("some_agents.py")
REWARD = "def even(completion):\n    return float(len(completion) % 2)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model, questions, and a reward function."""
    place = Path(tmp_path_factory.mktemp("run"))
    policy_of("qwen3", place / "model")
    rows = (json.dumps({"prompt": f"question {n}", "answer": str(n)}) for n in range(40))
    (place / "questions.jsonl").write_text("\n".join(rows))
    (place / "rewards.py").write_text(REWARD)
    return place


def trained(folder: Path, run: str, agent: str = "three_turns", *overrides: str) -> Path:
    recipe = {
        "environment": {"dataset": {"path": str(folder / "questions.jsonl"), "reward": f"{folder}/rewards.py:even"}},
        "program": {"outside_agent": {"agent": f"{AGENTS}:{agent}"}},
        "policies": {"main": {"policy": {"language": {"model": str(folder / "model")}}}},
        "agents": {"*": {"policy": "main", "context": "full_history"}},
        "advantage": "grpo",
        "optimizer": {"adamw": {"lr": 0.01}},
        "rollout": {"tasks": 4, "group": 4, "response_tokens": 8},
        "evaluation": {"tasks": 2},
    }
    found = load([recipe], [f"run={folder / run}", "training.iterations=2", *overrides])
    train(found.settings, recipe=found.to_json(), quiet=True)
    return folder / run


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> dict[Any, list[Any]]:
    """Session → what the engine was asked to read, and what it answered."""
    sessions: dict[Any, list[Any]] = defaultdict(list)
    generate = InProcessEngine.generate

    async def noted(self: Any, request: Any) -> Any:
        response = await generate(self, request)
        action = response.action
        sessions[request.session].append((request.prompt, action.tokens, action.logprobs, response.version))
        return response

    monkeypatch.setattr(InProcessEngine, "generate", noted)
    return sessions


def test_trajectories_are_what_the_model_has_seen(folder: Path, heard: dict[Any, list[Any]]) -> None:  # rule 1
    run = trained(folder, "first")
    episodes = [(step, one) for step, name, one in EpisodeLog(run).read() if name == "train"]
    assert len(episodes) > 8 and not any(one.error for _, one in episodes)
    for number, trajectory in episodes:
        asked: dict[Any, list[Any]] = {key: list(calls) for key, calls in heard.items()}
        for step in trajectory.steps:
            conversation, segment = conversation_of(step.segment)
            key = (trajectory.group, trajectory.sample, step.agent)
            session = ((*key, conversation) if conversation else key, segment)
            prompt, tokens, logprobs, version = asked[session].pop(0)
            assert np.array_equal(step.prompt, prompt) and np.array_equal(step.action.tokens, tokens)
            assert np.allclose(step.action.logprobs, logprobs) and step.version == version
        assert {step.version for step in trajectory.steps} == {number - 1 if number else 0}
    assert all(len(one.steps) == 3 for _, one in episodes)
    mismatch = {name: value for name, value in read(run)[0].items() if name.startswith("mismatch/") and "kl" in name}
    assert mismatch and all(abs(value) < 1e-5 for value in mismatch.values())
    assert {version for _, one in episodes for version in [one.steps[0].version]} == {0, 1}, "it has learned"


def test_a_run_repeats(folder: Path) -> None:  # rule 2
    runs = [EpisodeLog(trained(folder, name)).read() for name in ("second", "third")]
    said = [[[step.action.tokens.tolist() for step in one.steps] for _, _, one in run] for run in runs]
    assert said[0] == said[1]


def test_an_agent_that_fails_sometimes(folder: Path) -> None:  # rule 3
    run = trained(folder, "fourth", "fails_by_chance")
    episodes = [one for _, name, one in EpisodeLog(run).read() if name == "train"]
    failed = [one for one in episodes if one.error is not None]
    assert 0 < len(failed) < len(episodes)
    assert all("by chance (some_agents.py, line" in one.error.message for one in failed)


def test_the_recipe(smollm2: Path, tmp_path: Path) -> None:  # rule 4
    model = f"policies.main.policy.language.model={smollm2}"
    found = load(["models/outside-agent.yaml"], [f"run={tmp_path / 'run'}", model], smoke=True)
    train(found.settings, recipe=found.to_json(), quiet=True)
    episodes = EpisodeLog(tmp_path / "run").read()
    assert episodes and not any(one.error for _, _, one in episodes)
    text = "".join(message["content"] for message in episodes[0][2].steps[0].observation.messages)
    assert "tree, red, cat, moon" in text, "the agent's own example"
