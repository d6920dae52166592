"""What is trained on is id for id what the model has read and said, in random conversations with tools and thoughts.

A tiny random model plays them through the real runner. Its engine answers most requests by replies with calls,
thoughts, faults and missing ends, and records what it was asked to read. In every segment, the sequence that training
reads equals the record of the engine, and `thoughts: keep` never needs a second segment.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chat.conversations import CONTEXTS, differences, played, policy_of
from tests.chat.templates import NAMES

AT_ONCE = 20


def exact(name: str, folder: Path, conversations: int) -> None:
    policy = policy_of(name, folder)
    episodes = -(-conversations // len(CONTEXTS))
    talked = 0
    for start in range(0, episodes, AT_ONCE):
        engine, trajectories = played(policy, range(start, min(start + AT_ONCE, episodes)))
        assert differences(policy, engine, trajectories) == []
        for one in trajectories:
            assert {step.segment for step in one.steps if step.agent == "keep"} == {0}
            talked += len({step.agent for step in one.steps})
    assert talked >= conversations


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "gptoss", "mistral", "phi3", "qwen3_5_think"])
def test_what_is_trained_on_is_what_the_model_saw(name: str, tmp_path: Path) -> None:
    exact(name, tmp_path, 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_conversations_with_tools_are_exact(name: str, tmp_path: Path) -> None:
    """100 conversations for each of 73 templates."""
    exact(name, tmp_path, 100)
