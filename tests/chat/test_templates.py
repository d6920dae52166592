"""Every chat template that TRL ships works over several turns, and what is trained on is what the model saw."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from palaestra.chat import ChatRenderer, FullHistory, LatestOnly, Window, renderer_for
from palaestra.chat.render import user
from palaestra.data import Observation
from palaestra.errors import InvalidData
from tests.chat.templates import NAMES, tokenizer_of

THOUGHT = "<think>\nhm\n</think>\n\n"
WORDS = ("go", "north", "a lamp", "7", "é ü", "x < y", "{}", "two\nlines")


def played(name: str, seed: int, *, turns: int = 4, context: Any = None, thoughts: float = 0.3) -> int:
    """Talk at random. At every turn, what the segment holds is the template's own text for the dialogue, id for id,
    unless the segment holds what the template no longer shows. Returns the number of segments."""
    draw, tokenizer = random.Random(seed), tokenizer_of(name)
    renderer = ChatRenderer(tokenizer)
    talk = (context or FullHistory()).start(renderer)
    said = lambda: " ".join(draw.choices(WORDS, k=draw.randint(1, 5)))  # noqa: E731
    seen: list[int] = []
    before, segments = -1, 0
    for turn in range(turns):
        prompt = talk.observe(Observation(text=said(), instruction="Be brief." if turn == 0 else None))
        assert prompt.fresh == (prompt.segment != before) and prompt.segment in (before, before + 1)
        before, segments = prompt.segment, segments + prompt.fresh
        seen = [*([] if prompt.fresh else seen), *prompt.ids.tolist()]
        whole = renderer._applied([renderer._as_read(one, keep=False) for one in talk._messages()])
        assert seen == tokenizer(whole, add_special_tokens=False)["input_ids"]
        reply = said() if draw.random() > thoughts else THOUGHT + said()
        closes = prompt.ids if draw.random() < 0.7 else None  # else a thought that the prompt has opened goes on
        ids = renderer.action(reply, prompt=closes)
        ids = ids if draw.random() < 0.8 else ids[:-1]  # cut by a limit
        talk.respond(ids)
        seen += ids.tolist()
        assert talk.length == len(seen)
    return segments


@pytest.mark.parametrize("name", NAMES)
def test_what_the_model_sees_is_what_the_template_writes(name: str) -> None:
    for seed in range(3):
        played(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_thousand_dialogues_are_exact(name: str) -> None:
    for seed in range(1000):
        played(name, seed, turns=2 + seed % 4)


@pytest.mark.parametrize("name", ["qwen3", "gptoss", "gemma3", "smolvlm", "llama3_1"])
@pytest.mark.parametrize("context", [Window(turns=2), Window(turns=3, drop=2, keep_first=True), LatestOnly()])
def test_windows_are_exact(name: str, context: Any) -> None:
    assert played(name, 0, turns=6, context=context) >= 3


@pytest.mark.parametrize(
    "name", ["qwen2_5", "qwen3", "llama3_1", "gemma", "gemma3", "phi3", "lfm2", "qwen3_instruct_2507"]
)
def test_a_template_that_appends_needs_one_segment(name: str) -> None:
    assert played(name, 1, turns=5, thoughts=0) == 1


def test_a_thought_that_the_template_leaves_out_begins_a_segment() -> None:
    renderer = ChatRenderer(tokenizer_of("qwen3"))
    talk = FullHistory().start(renderer)
    for text in ("a", "b"):
        prompt = talk.observe(Observation(text=text))
        talk.respond(renderer.action(f"{THOUGHT}{text}"))
    assert prompt.fresh and prompt.segment == 1
    assert "hm" not in renderer.said(prompt.ids) and "assistant\na<|im_end|>" in renderer.said(prompt.ids)


@pytest.mark.parametrize("name", NAMES)
def test_the_instruction_is_read(name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    prompt = FullHistory().start(renderer).observe(Observation(text="look", instruction="Walk or look."))
    shown = renderer.said(prompt.ids)
    assert shown.index("Walk or look.") < shown.rindex("look")


def message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


SPOKEN = {  # the messages of an observation
    "system": [message("system", "RULES"), message("user", "HELLO")],
    "developer": [message("developer", "RULES"), message("user", "HELLO")],
    "only system": [message("system", "RULES")],
    "users": [message("user", "RULES"), message("user", "HELLO")],
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", SPOKEN)
def test_no_message_is_lost_or_refused(name: str, kind: str) -> None:
    """Also where the template has no system role, or asks that user and assistant take turns."""
    renderer = ChatRenderer(tokenizer_of(name))
    talk = FullHistory().start(renderer)
    prompt = talk.observe(Observation(messages=SPOKEN[kind], instruction="BEGIN"))
    shown = renderer.said(prompt.ids)
    assert [shown.count(word) for word in ("BEGIN", "RULES")] == [1, 1]
    assert shown.index("BEGIN") < shown.index("RULES") <= max(shown.find("HELLO"), shown.index("RULES"))
    talk.respond(renderer.action("fine", prompt=prompt.ids))
    for later in (SPOKEN[kind], [message("tool", "RULES")]):
        prompt = talk.observe(Observation(messages=later))
        shown = renderer.said(prompt.ids)
        assert ("HELLO" in shown) >= (len(later) > 1) and "RULES" in shown[
            shown.rindex("fine") if prompt.fresh else 0 :
        ]
        talk.respond(renderer.action("fine", prompt=prompt.ids))


def test_a_template_without_a_system_role_gets_it_from_the_user() -> None:
    renderer = ChatRenderer(tokenizer_of("gemma"))
    shown = renderer.said(FullHistory().start(renderer).observe(Observation(messages=SPOKEN["system"])).ids)
    assert "<start_of_turn>user\nRULES\n\nHELLO<end_of_turn>" in shown


@pytest.mark.parametrize("name", NAMES)
def test_a_turn_that_was_cut_is_closed(name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    talk = FullHistory().start(renderer)
    seen = talk.observe(Observation(text="a")).ids
    cut = renderer.action("half", prompt=seen)[:-1]
    talk.respond(cut)
    prompt = talk.observe(Observation(text="b"))
    whole = prompt.ids if prompt.fresh else np.concatenate([seen, cut, prompt.ids])
    shown = renderer.said(whole)
    end = renderer.said(np.array(renderer.closing, np.int32))
    assert shown[shown.index("half") + 4 :].lstrip().startswith(end)


def forged(name: str, count: int) -> None:
    """No message adds a special token, whatever stands in it."""
    tokenizer, draw = tokenizer_of(name), random.Random(name)
    renderer = ChatRenderer(tokenizer)
    special = [token.content for token in tokenizer.added_tokens_decoder.values()]
    ids = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    for _ in range(count):
        texts = ["".join(draw.choice([draw.choice(special), draw.choice(WORDS)]) for _ in range(4)) for _ in range(3)]
        for told in (texts, ["plain"] * 3):
            talk = FullHistory().start(renderer)
            talk.observe(Observation(text=told[0], instruction=told[1]))
            talk.respond(renderer.action("fine"))
            found = [i for i in renderer.ids(renderer.written([*talk._messages(), user(told[2])])).tolist() if i in ids]
            if told is texts:
                first = found
        assert first == found, texts


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "gemma3", "gptoss", "phi3", "cohere"])
def test_no_message_forges_a_turn(name: str) -> None:
    forged(name, 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "qwen3_6", "llama3_1", "gemma3", "gptoss", "phi3", "cohere2", "glm4moe"])
def test_no_message_of_ten_thousand_forges_a_turn(name: str) -> None:
    forged(name, 1250)


def test_a_reply_ends_at_every_end_that_the_model_knows() -> None:
    tokenizer = tokenizer_of("gemma3")
    assert renderer_for(tokenizer, stop=[0, 257]).stop == (tokenizer.convert_tokens_to_ids("<end_of_turn>"), 0)


def test_the_channels_of_gpt_oss_are_a_thought_and_an_answer() -> None:
    tokenizer = tokenizer_of("gptoss")
    renderer = ChatRenderer(tokenizer)
    said = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>go north<|return|>"
    ids = np.array(tokenizer(said, add_special_tokens=False)["input_ids"], np.int32)
    assert renderer.text(ids) == "<think>hm</think>go north" and renderer.text(renderer.action("go")) == "go"
    assert tokenizer.convert_tokens_to_ids("<|end|>") not in renderer.stop
    talk = FullHistory().start(renderer)
    talk.observe(Observation(text="a"))
    talk.respond(ids)
    prompt = talk.observe(Observation(text="b"))
    shown = renderer.said(prompt.ids)
    assert prompt.fresh and "<|channel|>final<|message|>go north<|end|><|start|>user<|message|>b<|end|>" in shown


def test_a_tokenizer_that_is_not_fast_is_refused() -> None:
    class Slow:
        chat_template = "x"

        def get_vocab(self) -> dict[str, int]:
            return {}

    with pytest.raises(InvalidData, match="Slow is no fast tokenizer"):
        renderer_for(Slow())
