"""Replies: (1) what arrives piece by piece is always the beginning of what the whole reply says, whatever the ids are;
(2) plain words and thoughts do not wait for the end; (3) a reply ends at the first id that completes a text of `stop`,
and shows nothing of that text; (4) thoughts, calls and faults of a whole reply.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from palaestra.chat import ChatRenderer
from palaestra.data.interaction import FinishReason
from palaestra.gateway.replies import Incoming, Reading
from palaestra.tools import tool
from tests.extras import absent, needs

pytestmark = needs("trl")
if not absent(*pytestmark.args):
    from tests.chat.templates import tokenizer_of

PIECES = (
    "go", " north", "é", "漢字", " ", "\n", "\n\n", "<think>", "</think>", "<thi", "<tool_call>", "</tool_call>", "{",
    "}",
    '{"name": "find", "arguments": {"id": 3}}', '<tool_call>\n{"name": "find", "arguments": {"id": 3}}\n</tool_call>',
    "[", "stop", "sto", "END", "\ufffd", "<|im_end|>", "<",
)  # fmt: skip
FAMILIES = ("qwen3", "qwen2_5", "gptoss", "llama3_1", "lfm2", "deepseekv3", "gemma4", "cohere2", "mistral")

CASES = [(name, kind) for name in FAMILIES for kind in ("plain", "tools", "opened", "completion")]
CASES.remove(("gptoss", "opened"))  # its prompts open no thought by a tag


@tool
def find(id: int) -> str:
    """Find something by its number."""
    return str(id)


TOOLS = (find.declaration(),)


def reading(name: str, *, prompt: str = "<|im_start|>assistant\n", **options: Any) -> Reading:
    tokenizer = tokenizer_of(name)
    renderer = ChatRenderer(tokenizer)
    ids = np.array(tokenizer(prompt)["input_ids"], np.int32)
    return Reading(renderer=renderer, tokenizer=tokenizer, prompt=ids, prompt_tokens=len(ids), **options)


def random_ids(draw: random.Random, tokenizer: Any) -> np.ndarray:
    ids: list[int] = []
    for _ in range(draw.randint(0, 12)):
        if draw.random() < 0.15:
            ids.append(draw.randrange(len(tokenizer)))  # also halves of characters, and special tokens
        else:
            ids += tokenizer(draw.choice(PIECES), add_special_tokens=False)["input_ids"]
    return np.array(ids, np.int32)


def said(incoming: Incoming, ids: np.ndarray, draw: random.Random) -> tuple[str, str]:
    """What the deltas say together, for ids that arrive in pieces."""
    thinking = text = ""
    place = 0
    while place < len(ids):
        place = min(len(ids), place + draw.randint(1, 4))
        delta = incoming.push(ids[:place])
        thinking, text = thinking + delta.thinking, text + delta.text
    return thinking, text


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_stream_is_the_beginning(name: str, kind: str) -> None:  # rule 1
    options: dict[str, Any] = {"tools": TOOLS} if kind == "tools" else {"plain": kind == "completion"}
    prompt = "<|im_start|>assistant\n<think>\n" if kind == "opened" else "<|im_start|>assistant\n"
    read = reading(name, prompt=prompt, **options)
    draw = random.Random(f"{name} {kind}")
    for _ in range(300):
        ids = random_ids(draw, read.tokenizer)
        thinking, text = said(Incoming(read), ids, draw)
        whole = read.read(ids, np.zeros(len(ids), np.float32), FinishReason.LENGTH)
        case = read.decode(ids)
        assert whole.thinking.startswith(thinking), case
        assert whole.text.startswith(text), case


def test_words_do_not_wait() -> None:  # rule 2
    read = reading("qwen3")
    ids = read.tokenizer("<think>\nhm, so\n</think>\n\nwell then", add_special_tokens=False)["input_ids"]
    assert said(Incoming(read), np.array(ids), random.Random(0)) == ("hm, so", "well then")


@pytest.mark.parametrize("text", ["one ENDtwo", "END", "a\nEND b stop", "éENDé stop", "no"])
def test_texts_of_stop(text: str) -> None:  # rule 3
    stops = ("END", " stop")
    read = reading("qwen3", stops=stops)
    ids = np.array(read.tokenizer(text, add_special_tokens=False)["input_ids"], np.int32)
    places = [at for stop in stops if (at := text.find(stop)) >= 0]
    for step in (1, 3, 7):
        found = None
        for end in range(step, len(ids) + step, step):
            count = read.stopped(ids[:end], new=len(ids[end - step : end]))
            if count is not None:
                found = count
                break
        if not places:
            assert found is None
            continue
        assert found is not None
        assert not any(stop in read.decode(ids[: found - 1]) for stop in stops)
        reply = read.read(ids[:found], np.zeros(found, np.float32), FinishReason.LENGTH, stopped=True)
        assert reply.text == text[: min(places)].strip() and reply.finish == "stop" and not reply.exact


@pytest.mark.parametrize(
    ("text", "thinking", "answer", "calls", "exact"),
    [
        ("yes", "", "yes", 0, True),
        ("<think>\nhm\n</think>\n\nyes", "hm", "yes", 0, True),
        ("<think>\nhm", "hm", "", 0, True),
        ("ok " + PIECES[15], "", "ok", 1, True),
        (f"{PIECES[15]}\n{PIECES[15]}", "", "", 2, True),
        (f"<think>\n{PIECES[15]}\n</think>\n\nyes", PIECES[15], "yes", 0, True),
        (f"<think>\nhm\n</think>\n\n{PIECES[15]}", "hm", "", 1, True),
        ('<tool_call>\n{"name": "find", ', "", '<tool_call>\n{"name": "find",', 0, False),
    ],
)
def test_whole_replies(text: str, thinking: str, answer: str, calls: int, exact: bool) -> None:  # rule 4
    read = reading("qwen3", tools=TOOLS)
    ids = read.renderer.action(text)
    reply = read.read(ids, np.zeros(len(ids), np.float32), FinishReason.STOP)
    assert (reply.thinking, reply.text, len(reply.calls), reply.exact) == (thinking, answer, calls, exact)
    assert reply.finish == ("tool_calls" if calls else "stop")
    assert len({call.id for call in reply.calls}) == calls


def test_one_call_at_most() -> None:  # rule 4
    read = reading("qwen3", tools=TOOLS, several=False)
    ids = read.renderer.action(f"{PIECES[15]}\n{PIECES[15]}")
    reply = read.read(ids, np.zeros(len(ids), np.float32), FinishReason.STOP)
    assert len(reply.calls) == 1 and not reply.exact
