"""A run whose episodes an outside agent plays: (1) the ids of its trajectories are those that the engine has read and
answered, with the versions of the weights, and the policy learns from them; (2) a run with the same seed is the same;
(3) an agent that fails sometimes does not end the run; (4) episodes go on while the policy learns; (5) the recipes of
the package, and their agents, of which two are those of other libraries.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.data import Trajectory
from palaestra.engines import InProcessEngine
from palaestra.recipe import load
from palaestra.rollout.episode import conversation_of
from palaestra.rollout.runner import EpisodeRunner
from palaestra.store.metrics import read
from palaestra.training.start import train
from tests.extras import absent, needs, skip_without

pytestmark = needs("openai", "fastapi", "uvicorn", "trl")
if not absent(*pytestmark.args):
    from tests.chat.conversations import policy_of

AGENTS = Path(__file__).with_name("some_agents.py")
SHORT = ("rollout.tasks=1", "rollout.group=2", "evaluation.tasks=1", "rollout.response_tokens=16")
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
        "training": {"iterations": 2},
        "evaluation": {"tasks": 2},
    }
    found = load([recipe], [f"run={folder / run}", *overrides])
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


@pytest.fixture
def episodes(monkeypatch: pytest.MonkeyPatch) -> list[Trajectory]:
    """All episodes that are played, in the order in which they end."""
    ended: list[Trajectory] = []
    play = EpisodeRunner._play

    async def noted(self: Any, *given: Any) -> Trajectory:
        ended.append(await play(self, *given))
        return ended[-1]

    monkeypatch.setattr(EpisodeRunner, "_play", noted)
    return ended


def test_trajectories_are_what_the_model_has_seen(
    folder: Path, heard: dict[Any, list[Any]], episodes: list[Trajectory]
) -> None:  # rule 1
    run = trained(folder, "first")
    assert len(episodes) == 36 and not any(one.error for one in episodes)
    for trajectory in episodes:
        assert len(trajectory.steps) == 3
        for step in trajectory.steps:
            conversation, segment = conversation_of(step.segment)
            key = (trajectory.group, trajectory.sample, step.agent)
            prompt, tokens, logprobs, version = heard[(*key, conversation) if conversation else key, segment].pop(0)
            assert np.array_equal(step.prompt, prompt) and np.array_equal(step.action.tokens, tokens)
            assert np.array_equal(step.action.logprobs, logprobs) and step.version == version
    left = {session for session, calls in heard.items() if calls}
    assert {session[0] for session in left} == {"agreement"}, "nothing else was asked that no step has"
    assert [{step.version for step in one.steps} for one in episodes[::16]] == [{0}, {0}, {1}], "it learns"
    lines = read(run)
    assert len(lines) == 2 and all(abs(line["mismatch/kl"]) < 1e-6 and line["updates"] for line in lines)


@pytest.mark.slow
def test_a_run_repeats(folder: Path, episodes: list[Trajectory]) -> None:  # rule 2
    said = []
    for name in ("second", "third"):
        trained(folder, name)
        said.append({(n // 18, one.group, one.sample): words(one) for n, one in enumerate(episodes)})
        episodes.clear()
    assert said[0] == said[1] and len(said[0]) == 36


def words(trajectory: Trajectory) -> list[list[int]]:
    return [step.action.tokens.tolist() for step in trajectory.steps]


def test_an_agent_that_fails_sometimes(folder: Path, episodes: list[Trajectory]) -> None:  # rule 3
    run = trained(folder, "fourth", "fails_by_chance")
    failed = [one for one in episodes if one.error is not None]
    assert 0 < len(failed) < len(episodes) and len(read(run)) == 2
    assert all("by chance (some_agents.py, line" in one.error.message for one in failed if one.error)


def test_while_the_policy_learns(folder: Path, episodes: list[Trajectory]) -> None:  # rule 4
    run = trained(folder, "fifth", "three_turns", "training.max_staleness=1", "training.iterations=3")
    assert len(read(run)) == 3 and not any(one.error for one in episodes)
    seen = {step.version for one in episodes for step in one.steps}
    assert 0 in seen and len(seen) > 1, "the clock decides which weights play an episode"


LONGER = pytest.param("outside-agent-smolagents", marks=pytest.mark.slow)  # its model writes and reads code


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["outside-agent", "outside-agent-pydantic-ai", LONGER])
def test_the_recipes(name: str, smollm2: Path, tmp_path: Path, episodes: list[Trajectory]) -> None:  # rule 5
    if name != "outside-agent":
        skip_without(name.removeprefix("outside-agent-").replace("-", "_"))
    model = f"policies.main.policy.language.model={smollm2}"
    found = load([f"models/{name}.yaml"], [f"run={tmp_path / 'run'}", model, *SHORT], smoke=True)
    train(found.settings, recipe=found.to_json(), quiet=True)
    assert episodes and not any(one.error for one in episodes)
    text = "".join(message["content"] for message in episodes[0].steps[0].observation.messages or ())
    assert "tree, red, cat, moon" in text, "the agent's own example"
