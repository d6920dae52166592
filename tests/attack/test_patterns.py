"""Acts and replies that are long and have no end: worlds read them at once.

Each text here took a world minutes or years, since a pattern tried each way to split it. `timeout` stops such a test.
"""

from __future__ import annotations

import pytest

from palaestra.chat.readers import LastLine, Tagged, ToolCalls
from palaestra.envs.adapters.reasoning_gym.answers import untagged
from palaestra.envs.worlds.memory_dialogue import actions as memory_dialogue
from palaestra.envs.worlds.searchqa import actions as searchqa
from palaestra.envs.worlds.shop import pages as shop
from palaestra.teams.parsers import tagged
from tests.attack.promises import Trials, promise

SHOWN = promise(
    "An act or a reply of blanks, of open tags or of half a call is read at once, however long it is",
    how="texts of 100,000 characters that made patterns try each way to split them",
    subject="texts",
)
LONG = 100_000
TEXTS = {
    "blanks": " " * LONG,
    "lines": "\n \t" * (LONG // 3),
    "a word and blanks": "search" + " " * LONG + "]",
    "half a call": "search(" + ")" * LONG + "x",
    "brackets": "search[" * (LONG // 7),
    "thoughts": "<think>" * (LONG // 7),
    "a thought without end": "<think>" + " " * LONG + "<search>a</search>",
    "answers": "<answer>" * (LONG // 8),
    "tool calls": "<|tool_call>call:x{" * (LONG // 19),
    "python calls": "<|tool_call_start|>[" + "a(b=1)," * (LONG // 7) + "]<|tool_call_end|>",
    "recalled": "<think>a</think>" + "<search>a</search><information>a</information>" * (LONG // 46) + "<answer>",
}


@SHOWN
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", TEXTS)
def test_long_texts(name: str, trials: Trials) -> None:
    text = TEXTS[name]
    for reader in (Tagged(), LastLine(), ToolCalls(), ToolCalls(text=True)):
        reader.read(text)
        trials.add()
    assert untagged(text) is None and tagged(text, tag="answer") is None
    assert shop.SPOKEN.fullmatch(text) is None or name == "half a call"
    assert searchqa._ONE_TURN.fullmatch(text) is None and searchqa._RECALLED.fullmatch(text) is None
    call = memory_dialogue._CALL.fullmatch(text)
    assert call is None or not call[1]
    trials.add(4)
