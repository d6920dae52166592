"""Thoughts in chat templates: (1) dialogues with thoughts, words, calls and results are those of
`apply_chat_template`, id for id, in training, at the gateway and as demonstrations, for every template that TRL
ships, but for the differences that `trl_templates.yaml` gives reasons for; where the template only adds, no segment
begins; (2) the key is found by a probe; (3) a template that reads thoughts apart gets them so, also those that a
limit cut or that a file has inside the words; (4) where it keeps a thought inside the words as it is, so does the
segment; (5) `keep` shows each thought once, in windows, too; (6) demonstrations write thoughts as the template does;
(7) thoughts in channels are thoughts: no reader takes them for words or calls; (8) words beside a call and its
thought are not lost where a template refuses them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trl
import yaml

from palaestra.chat import ChatRenderer, FullHistory, Window
from palaestra.chat.template_thoughts import form_of, in_place
from palaestra.chat.template_tools import result_of
from palaestra.data import Observation, ToolCall
from tests.chat.compared import DECLARED, FIND, MOVE, row_of
from tests.chat.templates import FOLDER, OWN, tokenizer_of

TABLE = yaml.safe_load((OWN / "trl_templates.yaml").read_text())
ROWS = TABLE["templates"]
SHIPPED = sorted(path.stem for path in FOLDER.glob("*.jinja"))
APART = [name for name, row in ROWS.items() if row["thoughts"] == "apart"]
CUT = "I add"


def ids_of(renderer: ChatRenderer, said: str) -> np.ndarray:
    """The ids of a reply in which special tokens are what they are."""
    return np.array(renderer._tokenizer(said, add_special_tokens=False)["input_ids"], np.int32)


def spoken(name: str, *replies: str, context: Any = None, tools: Any = None) -> tuple[bool, str]:
    """Whether the prompt after these sampled replies begins a segment, and the segment."""
    renderer = ChatRenderer(tokenizer_of(name))
    talk = (context or FullHistory()).start(renderer)
    prompt = talk.observe(Observation(text="2+2?", tools=tools))
    shown = renderer.said(prompt.ids)
    for place, reply in enumerate(replies):
        talk.respond(ids_of(renderer, reply))
        prompt = talk.observe(Observation(text=f"go on {place}"))
        said = renderer.said(prompt.ids)
        shown = said if prompt.fresh else shown + reply + said
    return prompt.fresh, shown


def applied(name: str, *messages: dict[str, Any]) -> str:
    return tokenizer_of(name).apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def replied(text: str, thought: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "reasoning_content": thought}


@pytest.mark.parametrize("name", SHIPPED)
def test_1_a_dialogue_is_what_the_template_writes(name: str) -> None:
    row, other = row_of(name), ROWS.get(name, {})
    assert set(row.pop("differs", {})) == set(other.get("differs", {})), row
    assert row.items() <= other.items() or trl.__version__ != TABLE["trl"]


def test_1_every_template_has_a_row() -> None:
    assert list(ROWS) == SHIPPED or trl.__version__ != TABLE["trl"]
    assert sum("differs" not in row for row in ROWS.values()) >= 67 and len(APART) >= 30


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking", ""])
@pytest.mark.parametrize("calls_alone", [False, True])
def test_2_the_probe_finds_the_key(key: str, calls_alone: bool) -> None:
    def write(messages: Any, tools: Any, **options: Any) -> str:
        return " ".join(str(m.get(key)) for m in messages if "tool_calls" in m or not calls_alone)

    assert form_of(write, "[THINK] x", as_text=False)[:3] == (key, "[THINK]", "[/THINK]")
    assert form_of(write, "[THINK] <think>", as_text=False).opening == "<think>\n"


def test_3_a_thought_that_the_prompt_opens_goes_back_apart() -> None:
    fresh, shown = spoken("qwen3_8", "I add.\n</think>\n\n4<|im_end|>")
    assert not fresh and shown == applied("qwen3_8", user("2+2?"), replied("4", "I add."), user("go on 0"))


@pytest.mark.parametrize("name", ["qwen3_8", "qwen3", "qwen3_5_think", "nemotron_3_nano", "glm4moe"])
def test_3_a_thought_that_a_limit_cut_goes_apart_without_words(name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    opened = renderer.opened(renderer.written([user("x")]))[1]
    fresh, shown = spoken(name, CUT if opened else f"<think>\n{CUT}")
    assert fresh is (name != "qwen3_8")  # which closes the thought, and so only adds
    assert shown == applied(name, user("2+2?"), replied("", CUT), user("go on 0"))


@pytest.mark.parametrize("name", ["qwen3_8", "gptoss", "gemma4_v5", "muse_glimmer"])
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking", None])
def test_3_messages_of_a_file_follow_the_same_rule(name: str, key: str | None) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    said = {"role": "assistant", "content": "4" if key else "<think>\nI add.\n</think>\n\n4"}
    told = [user("2+2?"), said | ({key: "I add."} if key else {}), user("3+3?")]
    shown = renderer.said(FullHistory().start(renderer).observe(Observation(messages=told)).ids)
    assert shown == applied(name, user("2+2?"), replied("4", "I add."), user("3+3?"))


@pytest.mark.parametrize("name", ["qwen2_5", "gemma4_v2", "mistral"])
def test_3_a_template_that_reads_none_apart_gets_it_inside_the_words(name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    shown = renderer.written([user("2+2?"), replied("four", "I add."), user("3+3?")])
    assert shown.count("I add.") == (name != "gemma4_v2") and shown.count("four") == 1


def test_4_a_thought_inside_the_words_keeps_its_white_space() -> None:
    context = FullHistory(template={"truncate_history_thinking": False})
    fresh, shown = spoken("nemotron_3_nano", "I add. </think>4<|im_end|>", context=context)
    assert not fresh and "<think>\nI add. </think>4<|im_end|>" in shown
    assert spoken("qwen3_8", "I add. </think>4<|im_end|>")[0]  # the template writes other white space


@pytest.mark.parametrize("name", [one for one in ROWS if one not in ("gptoss", "gptoss_training")])
def test_5_keep_shows_each_thought_once(name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    opened = renderer.opened(renderer.written([user("x")]))[1]
    opening, closing = renderer.thoughts.opening, renderer.thoughts.closing
    end = renderer.said(np.array(renderer.stop[:1], np.int32))
    channels = {"I add": " to=self<|message|>I add.<|eom|><|start|>assistant to=user<|message|>4"}
    reply = channels["I add"] if name.startswith("muse") else f"{opening}I add.{closing}4".removeprefix(opened)
    _, shown = spoken(name, *[f"{reply}{end}"] * 4, context=Window(turns=3, thoughts="keep"))
    assert shown.count("I add.") == 2 and "go on 1" in shown and "2+2" not in shown
    bare = shown.replace(" ", "").replace("\n", "")
    closed = bare.rpartition("goon3")[0].count("<think></think>")
    assert closed == (2 if opened.rstrip().endswith("</think>") else 0)  # as the prompts had it


def test_5_the_place_of_a_thought_is_found_in_linear_time() -> None:
    before = f"x{' ' * 200_000}<think>{' ' * 200_000}</think>\n"
    assert in_place(f"{before}@4", "@", "\nhm", [("<think>", "</think>")]) == "x\nhm4"
    assert in_place(f"x{' ' * 200_000}y", "@", "hm", [("<think>", "</think>")])[-1] == "y"


DEMONSTRATED = {  # what a demonstration with a thought is after the prompt of a template
    "qwen3": "<think>\nI add.\n</think>\n\n4<|im_end|>",
    "qwen3_8": "I add.\n</think>\n\n4<|im_end|>",
    "nemotron_3_ultra": "I add.</think>4<|im_end|>",
    "gemma4_v5": "<|channel>thought\nI add.\n<channel|>4<turn|>",
    "gptoss": "<|channel|>analysis<|message|>I add.<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>",
    "muse_glimmer": " to=self<|message|>I add.<|eom|><|start|>assistant to=user<|message|>4<|eot|>",
}
WITHOUT = {
    "qwen3_8": "\n</think>\n\n4<|im_end|>",
    "nemotron_3_ultra": "</think>4<|im_end|>",
    "muse_glimmer": " to=user<|message|>4<|eot|>",
}


@pytest.mark.parametrize("name", DEMONSTRATED)
def test_6_demonstrations_write_thoughts_as_the_template_does(name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    prompt = FullHistory().start(renderer).observe(Observation(text="2+2?", tools=DECLARED)).ids
    ids = renderer.action("<think>\nI add.\n</think>\n\n4", prompt=prompt)
    assert renderer.said(ids) == DEMONSTRATED[name] and ids.tolist() == ids_of(renderer, DEMONSTRATED[name]).tolist()
    assert renderer.said(renderer.action("4", prompt=prompt)) == WITHOUT.get(name, renderer.said(renderer.action("4")))
    called = renderer.call([FIND], DECLARED, said="<think>\nI look.\n</think>\n\n", prompt=prompt)
    read = renderer.calls(renderer.text(called, tools=DECLARED, prompt=prompt), DECLARED)
    assert [call.name for call in read.calls] == ["find"] and "I look." in renderer.said(called)
    assert read.said.replace("\n", "").removeprefix("<think>") == "I look.</think>"


def test_6_a_demonstration_closes_what_the_prompt_has_opened() -> None:
    """Otherwise all of its words would be a thought."""
    for name in ("qwen3_8_training", "qwen3_6_training", "qwen3_5_think_training"):
        renderer = ChatRenderer(tokenizer_of(name))
        talk = FullHistory().start(renderer)
        talk.respond(renderer.action("4", prompt=talk.observe(Observation(text="2+2?")).ids))
        assert not talk.observe(Observation(text="3+3?")).fresh and talk._reply.thoughts == []


INSIDE = '<atem:invoke name="find">\n<atem:parameter name="id">1</atem:parameter>\n</atem:invoke>'
CHANNELS = {
    "muse_glimmer": f" to=self<|message|>I call {INSIDE}<|eom|><|start|>assistant to=",
    "gptoss": '<|channel|>analysis<|message|>I call {"name": "find", "arguments": {}}<|end|><|start|>assistant',
}
THEN = {
    "muse_glimmer": ("user<|message|>4<|eot|>", INSIDE.replace("1", "7").join(["find<|message|>", "<|eot|>"])),
    "gptoss": (
        "<|channel|>final<|message|>4<|return|>",
        ' to=functions.find<|channel|>commentary json<|message|>{"id": 7}<|call|>',
    ),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_7_a_thought_in_a_channel_is_no_act(name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    words, call = (ids_of(renderer, CHANNELS[name] + then) for then in THEN[name])
    text = renderer.text(words, tools=DECLARED)
    assert text.startswith("<think>I call") and text.endswith("</think>4")
    assert not renderer.calls(renderer.said(words), DECLARED).calls
    read = renderer.calls(renderer.text(call, tools=DECLARED), DECLARED)
    assert [dict(one.arguments) for one in read.calls] == [{"id": 7}]
    assert read.said.startswith("<think>I call") and read.said.endswith("</think>") and "<|" not in read.said


@pytest.mark.parametrize("name", ["gptoss", "qwen3_8", "qwen2_5"])
def test_8_words_beside_a_call_and_its_thought_stay(name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(name))
    message = renderer.calling(replied("I look.\n\nNow.", "It is new."), [FIND], DECLARED)
    assert message is not None
    shown = renderer.said(renderer.ids(renderer.written([user("x"), message, result_of("7", "find")], tools=DECLARED)))
    assert "It is new." in shown and "I look.\n\nNow." in shown
    call = ToolCall(name=MOVE.name, arguments=MOVE.arguments, id="past00001")
    assert (renderer.calling(replied("", "x"), [FIND, call], DECLARED) is None) is (name == "gptoss")
