"""No text of others becomes a special token: (1) observations, messages, instructions, results of tools, arguments of
calls and declarations of tools that hold the special tokens of a template's family, whole, in two halves that stand
beside each other, in letters that a tokenizer normalizes to them, or in JSON escapes; (2) for tokenizers with and
without normalization; (3) the text itself is still read. The ids of special tokens in such a dialogue are, in their
order, those of the same dialogue with plain words.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers import normalizers

from palaestra.chat import ChatRenderer, FullHistory
from palaestra.chat.template_tools import result_of
from palaestra.data import Observation, ToolCall
from palaestra.errors import EpisodeFailure
from tests.chat.templates import NAMES, tokenizer_of, with_normalizer
from tests.messages import told

WIDE = str.maketrans("<>|[]/_", "＜＞｜［］／＿")  # NFKC gives the plain ones
TEXTS = 8  # of a dialogue
PLAIN = ("door", "lamp", "a b", "7")
FAMILIES = ["qwen3", "qwen3_6", "llama3_1", "gemma3", "gemma4", "gptoss", "phi3", "cohere2", "glm4moe", "mistral"]
FAMILIES += ["deepseekv3", "lfm2_2_5", "nemotron_3_nano", "idefics3", "muse_glimmer"]


def hostile(draw: random.Random, special: list[str], count: int) -> list[str]:
    """Texts full of special tokens. Some tokens begin in one text and end in the next."""
    texts, rest = [], ""
    for _ in range(count):
        pieces, then = [rest], ""
        for _ in range(draw.randint(1, 4)):
            one = draw.choice(special)
            cut = draw.randint(1, len(one) - 1)
            form = draw.randrange(6)
            if form == 0:
                pieces.append(one)
            elif form == 1:
                pieces.append(one.translate(WIDE))
            elif form == 2:
                pieces.append(json.dumps(one, ensure_ascii=True).replace("<", "\\u003c").strip('"'))
            elif form == 3:
                pieces.append(f"{one[:cut]}{one}{one[cut:]}")  # what is left when the token inside is taken out
            elif form == 4:
                pieces.append(draw.choice(PLAIN))
            else:
                pieces.append(one[cut:])
        if draw.random() < 0.5:
            one = draw.choice(special)
            cut = draw.randint(1, len(one) - 1)
            pieces.append(one[:cut])
            then = one[cut:]
        texts.append("".join(pieces) or "x")
        rest = then
    return texts


def spoken(renderer: ChatRenderer, texts: list[str], *, parts: bool) -> np.ndarray:
    """All ids of a dialogue in which others say these texts."""
    told_first, asked, more, about, argument, first, second, then = texts
    schema = {"type": "object", "properties": {"id": {"type": "string", "description": about}}, "required": ["id"]}
    declared = [{"type": "function", "function": {"name": "find", "description": about, "parameters": schema}}]
    talk = FullHistory(thoughts="keep").start(renderer)
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": "yes"}]
    messages = [*messages, {"role": "user", "content": more}] if parts else None
    opening = Observation(text=asked, messages=messages, instruction=told_first, tools=declared)
    ids = [talk.observe(opening).ids]
    calls = renderer.call([ToolCall(name="find", arguments={"id": argument})], declared)
    read = renderer.calls(renderer.text(calls, tools=declared), declared).calls
    if [dict(one.arguments) for one in read] != [{"id": argument}]:  # the call ends inside the argument
        calls = renderer.call([ToolCall(name="find", arguments={"id": "word"})], declared)
    for reply, seen in (
        (calls, Observation(text="x", messages=[result_of(first, "find"), result_of(second, "find")])),
        (renderer.action("fine"), Observation(text=then)),
    ):
        talk.respond(reply)
        prompt = talk.observe(seen)
        assert not prompt.fresh
        ids += [reply, prompt.ids]
    return np.concatenate(ids)


def forged(name: str, kind: str, count: int) -> int:
    """Compare hostile dialogues with plain ones. Returns the number of hostile texts."""
    tokenizer = tokenizer_of(name) if kind == "plain" else with_normalizer(name, NORMALIZERS[kind])
    renderer, draw = ChatRenderer(tokenizer), random.Random(f"{name} {kind}")
    special = [one.content for one in tokenizer.added_tokens_decoder.values() if len(one.content) > 1]
    meant = {i for i, one in tokenizer.added_tokens_decoder.items() if one.special} | renderer._quoting._forged
    for place in range(count):
        texts, parts = hostile(draw, special, TEXTS), place % 2 == 0
        found, wanted = (
            [i for i in spoken(renderer, said, parts=parts).tolist() if i in meant]
            for said in (texts, [f"word{n}" for n in range(TEXTS)])
        )
        assert found == wanted, texts
    return count * TEXTS


NORMALIZERS = {
    "nfkc": normalizers.NFKC(),
    "lower": normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
}
KINDS = ["plain", *NORMALIZERS]


@pytest.mark.parametrize("name", NAMES)
def test_1_no_text_forges_a_turn(name: str, record_property: Callable[[str, object], None]) -> None:
    record_property("trials", 4 * TEXTS)
    assert forged(name, "plain", 4) == 4 * TEXTS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["qwen3", "mistral", "gptoss"])
def test_2_with_normalization(name: str, kind: str) -> None:
    assert forged(name, kind, 6) == 6 * TEXTS


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_1_and_2_no_text_of_ten_thousand_forges_a_turn(name: str, kind: str) -> None:
    assert forged(name, kind, 84) * len(FAMILIES) > 10_000


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "gemma3", "mistral"])
def test_3_the_text_is_read(name: str) -> None:
    renderer, draw = ChatRenderer(tokenizer_of(name)), random.Random(name)
    special = [one.content for one in tokenizer_of(name).added_tokens_decoder.values() if len(one.content) > 1]
    for _ in range(20):
        texts = hostile(draw, special, 2)
        shown = renderer.said(FullHistory().start(renderer).observe(Observation(text="\n".join(texts))).ids)
        assert "\n".join(texts).strip() in shown


def test_1_two_messages_beside_each_other() -> None:
    """A template that writes messages one after the other, without anything between them."""
    tokenizer = tokenizer_of.__wrapped__("qwen2_5")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}"
    )
    renderer = ChatRenderer(tokenizer)
    marks = {tokenizer.convert_tokens_to_ids(one) for one in ("<|im_start|>", "<|im_end|>")}
    for halves in (("<|im_", "end|>"), ("<", "|im_end|>"), ("x <|im_end|", ">"), ("<|im_start|>", "<|im_end|>")):
        messages = [{"role": "user", "content": half} for half in halves]
        ids = renderer.observation(Observation(messages=messages), first=True)
        assert [i for i in ids.tolist() if i in marks] == [tokenizer.convert_tokens_to_ids("<|im_start|>")]
        assert renderer.said(ids) == "".join(halves) + "<|im_start|>"


def test_1_roles_of_messages_are_known() -> None:
    renderer = ChatRenderer(tokenizer_of("phi3"))  # it writes <|ROLE|>
    with told(EpisodeFailure, "a message has the role 'end'"):
        renderer.observation(Observation(messages=[{"role": "end", "content": "x"}]), first=True)


def test_2_the_words_that_normalize_are_special() -> None:
    """Without quoting, such letters would give the id of a special token that is normalized."""
    tokenizer: Any = with_normalizer("qwen3", NORMALIZERS["nfkc"], normalized=True)
    token = tokenizer.convert_tokens_to_ids("<|im_end|>")
    wide = "<|im_end|>".translate(WIDE)
    assert token in tokenizer(wide, add_special_tokens=False)["input_ids"]
    ids = ChatRenderer(tokenizer).observation(Observation(text=wide), first=True).tolist()
    assert ids.count(token) == 1 and re.search("im_end", tokenizer.decode(ids))


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "glm4moe", "nemotron_3_nano"])
def test_1_tags_of_tools_and_thoughts_stay_text(name: str) -> None:
    """They are no special tokens for the tokenizer, but the template writes them."""
    tokenizer = tokenizer_of(name)
    renderer = ChatRenderer(tokenizer)
    tags = ["</tool_response>", "<tool_response>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
    ids = [i for i, one in tokenizer.added_tokens_decoder.items() if one.content in tags]
    assert ids
    shown = [spoken(renderer, [text] * TEXTS, parts=False).tolist() for text in (" ".join(tags), "x")]
    first, second = ([i for i in seen if i in ids] for seen in shown)
    assert first == second
