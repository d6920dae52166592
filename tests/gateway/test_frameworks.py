"""Agents of other libraries play unmodified: (1) pydantic-ai calls a tool and answers; (2) smolagents writes code, and
(3) calls tools. What is recorded is id for id what the model has read. (4) The agent of the recipe, whose function is
`async`, plays one episode after the other, and uses nothing that pydantic-ai gives up.
"""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.chat import FullHistory
from palaestra.data import Play, RunSetup, Task
from palaestra.rollout.episode import conversation_of
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from tests.extras import absent, needs

pytestmark = needs("openai", "fastapi", "uvicorn", "trl", "pydantic_ai", "smolagents")
if not absent(*pytestmark.args):
    from palaestra.gateway.program import outside_agent
    from tests.chat.conversations import policy_of
    from tests.gateway.served import Scripted
    from tests.gateway.test_outside_agent import Questions

AGENTS = Path(__file__).with_name("framework_agents.py")
RECIPES = Path(__file__).parents[2] / "recipes" / "models"
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return policy_of("qwen2_5", Path(tmp_path_factory.mktemp("model")))


def rollout(policy: Any, agent: str, say: Any) -> Any:
    """One episode, whose model answers from a script."""
    engine = policy.engine = Scripted(policy, say)
    setup = RunSetup(
        environment_name="questions",
        make_environment=Questions,
        source=Questions(),
        roles={"player": Role(policy=policy, context=FullHistory())},
        program=functools.partial(outside_agent, agent=agent if ":" in agent else f"{AGENTS}:{agent}"),
    )
    play = Play(task=Task(env="questions", seed=0, params={"text": "2 + 3?"}), group="g", sample=0, seed=0)
    (trajectory,) = EpisodeRunner(setup, RolloutSettings(response_tokens=400)).collect([play])
    assert trajectory.error is None, trajectory.error
    for number in {step.segment for step in trajectory.steps}:
        conversation, segment = conversation_of(number)
        key = ("g", 0, "player", conversation) if conversation else ("g", 0, "player")
        sequence, read = trajectory.sequence("player", number), np.concatenate(engine.read[key, segment])
        assert np.array_equal(sequence, read[: len(sequence)]) and len(sequence) > 50
    return trajectory


def test_pydantic_ai(policy: Any) -> None:  # rule 1
    def say(read: str) -> str:
        return "It is 5." if "<tool_response>" in read else CALL % ("add", '{"a": 2, "b": 3}')

    trajectory = rollout(policy, "pydantic_agent", say)
    assert trajectory.info["said"] == ["It is 5."] and trajectory.outcome == 1
    assert [step.segment for step in trajectory.steps] == [0, 0], "its second request goes on from the first"
    assert "5\n</tool_response>" in policy.tokenizer.decode(trajectory.steps[1].prompt.tolist())


def test_smolagents_code(policy: Any) -> None:  # rule 2
    def say(read: str) -> str:
        return "Thought: I add.\n<code>\nfinal_answer(2 + 3)\n</code>"

    trajectory = rollout(policy, "smol_code_agent", say)
    assert trajectory.info["said"] == ["5"] and len(trajectory.steps) == 1


def test_smolagents_tools(policy: Any) -> None:  # rule 3
    def say(read: str) -> str:
        done = "Observation:" in read.rpartition("2 + 3?")[2]
        return CALL % (("final_answer", '{"answer": "5"}') if done else ("add", '{"a": 2, "b": 3}'))

    trajectory = rollout(policy, "smol_tool_agent", say)
    assert trajectory.info["said"] == ["5"] and len(trajectory.steps) == 2


def test_the_agent_of_the_recipe(policy: Any) -> None:  # rule 4
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        for _ in range(2):
            trajectory = rollout(policy, f"{RECIPES / 'words_pydantic_ai.py'}:solve", lambda read: "5")
            assert trajectory.info["said"] == ["5"] and len(trajectory.steps) == 1
    assert not [one.message for one in noted if one.category.__module__.startswith("pydantic_ai")]
