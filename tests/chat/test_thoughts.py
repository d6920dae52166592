"""Thoughts: (1) one that the prompt has opened and that a limit cut hides the rest from every reader and calls nothing;
(2) the tags of other models are `<think>` for readers, and special tokens for the template; (3) `strip` leaves out a
thought that was never closed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from palaestra.chat import ChatRenderer, FullHistory
from palaestra.chat.readers import LastLine, Tagged, ToolCalls
from palaestra.data import Observation
from tests.chat.conversations import find, move
from tests.chat.templates import tokenizer_of

DECLARED = (find.declaration(), move.declaration())
CALL = '<tool_call>\n{"name": "find", "arguments": {"id": 7}}\n</tool_call>'


def ids_of(renderer: ChatRenderer, said: str) -> np.ndarray:
    """The ids of a reply in which special tokens are what they are."""
    return np.array(renderer._tokenizer(said, add_special_tokens=False)["input_ids"], np.int32)


@pytest.mark.parametrize("name", ["qwen3_5_think", "deepseek_r1_distill", "nemotron_3_nano"])
def test_1_a_thought_that_the_prompt_opens_hides_what_it_never_ends(name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    talk = FullHistory().start(renderer)
    prompt = talk.observe(Observation(text="look", tools=DECLARED)).ids
    assert renderer.opened(talk._before)[1]
    cut = ids_of(renderer, f"maybe <action>go</action> or {CALL}\nor go")
    text = renderer.text(cut, tools=DECLARED, prompt=prompt)
    assert text.startswith("<think>\nmaybe")
    assert [reader.read(text) for reader in (Tagged(), LastLine(), ToolCalls(text=True))] == [None, None, None]
    assert not renderer.calls(text, DECLARED).calls and renderer.calls(text, DECLARED).fault is None
    talk.respond(cut)
    assert not talk._reply.called  # so what follows is no result of a call
    whole = ids_of(renderer, f"maybe {CALL}\n</think>\n\n{CALL}")
    assert len(renderer.calls(renderer.text(whole, tools=DECLARED, prompt=prompt), DECLARED).calls) == 1


def gemma() -> ChatRenderer:
    return ChatRenderer(tokenizer_of("gemma4_v5"))


def test_2_readers_know_the_thoughts_of_other_models() -> None:
    renderer = gemma()
    said = "<|channel>thought\n<action>no</action>\n<channel|><action>go</action><turn|>"
    text = renderer.text(ids_of(renderer, said))
    assert text == "<think>\n<action>no</action>\n</think><action>go</action>" and Tagged().read(text) == "go"
    tokenizer = tokenizer_of.__wrapped__("qwen3")
    tokenizer.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]"]})
    mistral = ChatRenderer(tokenizer)
    assert mistral.text(ids_of(mistral, "[THINK]north[/THINK]go<|im_end|>")) == "<think>north</think>go"


def test_2_a_thought_tag_that_is_a_special_token_stays_in_the_text() -> None:
    tokenizer = tokenizer_of.__wrapped__("qwen2_5")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    renderer = ChatRenderer(tokenizer)
    assert LastLine().read(renderer.text(ids_of(renderer, "<think>north</think>go<|im_end|>"))) == "go"
    assert LastLine().read(renderer.text(ids_of(renderer, "<think>north"))) is None


def shown(renderer: ChatRenderer, said: str, **options: Any) -> tuple[bool, str]:
    """Whether the second prompt begins a segment, and its text."""
    talk = FullHistory(**options).start(renderer)
    talk.observe(Observation(text="a"))
    talk.respond(ids_of(renderer, said))
    prompt = talk.observe(Observation(text="b"))
    return prompt.fresh, renderer.said(prompt.ids)


def test_2_the_template_of_gemma_leaves_out_its_own_thoughts() -> None:
    fresh, text = shown(gemma(), "<|channel>thought\nnorth\n<channel|>go<turn|>")
    assert fresh and "north" not in text and "model\ngo<turn|>" in text
    assert not shown(gemma(), "<|channel>thought\nnorth\n<channel|>go<turn|>", thoughts="keep")[0]


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "gemma4_v5"])
def test_3_strip_leaves_out_a_thought_that_was_cut(name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    said = {"qwen3": "<think>\nnorth", "gemma4_v5": "<|channel>thought\nnorth"}.get(name, "north")
    fresh, text = shown(renderer, said, thoughts="strip")
    assert fresh and "north" not in text
