"""Readers take the act out of a reply, and never guess."""

from __future__ import annotations

import pytest

from palaestra.chat import reply_calls
from palaestra.chat.readers import Bare, LastLine, Reader, Tagged, ToolCalls
from palaestra.chat.reply_calls import calls_of
from palaestra.chat.thoughts import thoughts_in, without_thoughts

TAGGED = {
    "<think>a lamp <action>no</action></think>\n<action>take lamp</action>": "take lamp",
    "hm</think><Action> go north </action>": "go north",  # the template has opened the thought
    "<action>a</action> better: <action>b</action>": "b",
    "<action>go north": "go north",  # the end was the end of the turn
    "go north": None,
    "<think>never closed <action>go</action>": None,
    "<action></action>": None,
}
LAST = {
    "<think>x</think>\nSo:\n\ngo north\n\n": "go north",
    "I think.\nAction: go": "go",
    "**Answer:** 7": "7",
    "": None,
    "<think>go": None,
}
CALL = {"city": "Bern", "days": 2}
SAID = '{"name": "find", "arguments": {"city": "Bern", "days": 2}}'
FORMS = {
    "hermes": f"I look.\n<tool_call>\n{SAID}\n</tool_call>",
    "llama": '{"name": "find", "parameters": {"city": "Bern", "days": 2}}',
    "llama, python tag": '<|python_tag|>{"name": "find", "parameters": {"city": "Bern", "days": 2}}',
    "mistral": f"[TOOL_CALLS] [{SAID}]",
    "mistral, later": '[TOOL_CALLS]find[ARGS]{"city": "Bern", "days": 2}',
    "gpt-oss": '<|channel|>commentary to=functions.find <|constrain|>json<|message|>{"city": "Bern", "days": 2}',
    "qwen3-coder": "<tool_call>\n<function=find>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n2"
    "\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>find\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>2</arg_value>\n</tool_call>",
    "openai": '{"id": "1", "type": "function", "function": {"name": "find", "arguments": "{\\"city\\": \\"Bern\\", '
    '\\"days\\": 2}"}}',
}


@pytest.mark.parametrize(("reply", "act"), TAGGED.items())
def test_the_last_tag_after_the_thoughts_is_the_act(reply: str, act: str | None) -> None:
    assert Tagged().read(reply) == act


@pytest.mark.parametrize(("reply", "act"), LAST.items())
def test_the_last_line_after_the_thoughts_is_the_act(reply: str, act: str | None) -> None:
    assert LastLine().read(reply) == act


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("thought", ["", "<think>{}</think>\n", "it says <tool_call> </think>\n"])
def test_a_call_is_read_in_every_form(form: str, thought: str) -> None:
    (call,) = calls_of(thought + FORMS[form]).calls
    assert (call.name, dict(call.arguments)) == ("find", CALL)
    assert ToolCalls().read(thought + FORMS[form]) is not None


@pytest.mark.parametrize(
    "reply", ['<tool_call>{"name": "find"', "<tool_call>find</tool_call>", "[TOOL_CALLS] [{]", "no"]
)
def test_a_broken_call_is_no_act(reply: str) -> None:
    assert calls_of(reply).calls == () and ToolCalls().read(reply) is None


@pytest.mark.parametrize("reader", [Bare(), Tagged(), LastLine(), ToolCalls()], ids=lambda one: type(one).__name__)
def test_a_reader_reads_what_it_writes(reader: Reader) -> None:
    assert reader.read(reader.write(SAID)) == SAID


UNREADABLE = {
    "a text as the arguments, which is no object": '[TOOL_CALLS]find[ARGS]"[1]"',
    "a text as the arguments, far too deep": '{"name": "find", "arguments": "' + "[" * 100_000 + '"}',
    "a text as the arguments, with a key twice": '{"name": "find", "arguments": "{\\"id\\": 1, \\"id\\": 2}"}',
    "half of a character": '{"name": "find", "arguments": {"words": "\\ud83d"}}',
    "an argument in tags that is not closed": "<function=find>\n<parameter=city>\nBern\n</function>",
    "an argument of GLM that is not closed": "<tool_call>find\n<arg_key>city</arg_key>\n<arg_value>Bern\n</tool_call>",
}


@pytest.mark.parametrize("reply", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_reading_never_raises_and_never_drops_an_argument(reply: str) -> None:
    parsed = calls_of(reply)
    assert not parsed.calls and parsed.fault is not None


MANY = {
    "gemma": ("<|tool_call>call:x{", ""),
    "closed": ("<|tool_call>call:x{", "<tool_call|>"),
    "harmony": ("to=functions.x ", ""),
    "deepseek": ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>x", ""),
    "functions": ("<function=a>", "</tool_call>"),
    "parameters": ("<parameter=a>", "</function></tool_call>"),
    "pairs": ("<arg_key>a</arg_key>", "</tool_call>"),
    "invoke": ('<invoke name="a">', ""),
    "python": ("a(b=1),", "]<|tool_call_end|>"),
}
BEFORE = {"functions": "<tool_call>", "parameters": "<tool_call><function=a>", "pairs": "<tool_call>x"}
BEFORE |= {"python": "<|tool_call_start|>["}


@pytest.mark.parametrize("form", MANY)
def test_a_reply_of_openings_alone_is_refused_at_once(form: str) -> None:
    """Reading each of them to the end of the reply takes minutes."""
    piece, end = MANY[form]
    parsed = calls_of(BEFORE.get(form, "") + piece * (reply_calls.MOST + 1) + end)
    assert parsed.calls == () and parsed.fault and str(reply_calls.MOST) in parsed.fault


def test_many_calls_are_read() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert len(calls_of(call * reply_calls.MOST).calls) == reply_calls.MOST
    assert not calls_of(call * (reply_calls.MOST + 1)).calls


def test_a_name_with_hyphens_is_read() -> None:
    declared = ({"type": "function", "function": {"name": "look-up-2", "parameters": {}}},)
    listed = "<|tool_call_start|>[look-up-2(id=3), look-up-2(id=-4)]<|tool_call_end|>"
    assert [(one.name, one.arguments) for one in calls_of(listed, declared).calls] == [
        ("look-up-2", {"id": 3}),
        ("look-up-2", {"id": -4}),
    ]


def test_a_whole_character_is_read() -> None:
    (call,) = calls_of('{"name": "find", "arguments": {"words": "\\ud83d\\ude00"}}').calls
    assert call.arguments == {"words": "😀"}


@pytest.mark.parametrize(
    "thought",
    [
        "<thinking>{}</thinking>",
        "[THINK]{}[/THINK]",
        "<|START_THINKING|>{}<|END_THINKING|>",
        "<|channel>thought\n{}<channel|>",
    ],
)
def test_no_call_in_a_thought_is_made(thought: str) -> None:
    for form in FORMS.values():
        parsed = calls_of(thought.replace("{}", form))
        assert not parsed.calls and parsed.fault is None
        assert len(calls_of(thought.replace("{}", form) + FORMS["hermes"]).calls) == 1


def test_an_answer_in_json_is_no_call() -> None:
    declared = ({"type": "function", "function": {"name": "find", "parameters": {}}},)
    for answer in ('{"id": 3, "type": "city"}', '{"name": "Bern", "size": 3}'):
        parsed = calls_of(answer, declared)
        assert not parsed.calls and parsed.fault is None and parsed.said == answer
    assert calls_of('{"name": "fly", "arguments": {}}', declared).calls[0].name == "fly"  # it is answered by an error


def test_a_thought_of_gpt_oss_that_names_a_tool_calls_nothing() -> None:
    said = "<|channel|>analysis<|message|>maybe to=functions.find<|end|><|start|>assistant<|channel|>final<|message|>no"
    parsed = calls_of(said)
    assert not parsed.calls and parsed.fault is None


MARK = "<｜tool▁call▁begin｜>"
BLANK = {
    "spaces": "{}",
    "lines before a thought": "{}<think>",
    "after an opening": "<action{}",
    "deepseek": MARK + "function<｜tool▁sep｜>x\n```json{}",
    "deepseek, short": MARK + "x<｜tool▁sep｜>{}",
    "list": "[{}",
    "python tag": "<|python_tag|>{}",
    "block": "<tool_call>{}</tool_call>",
    "invoke": "<invoke name='a'>{}",
    "thoughts": "{}<think></think>{}",
}


@pytest.mark.timeout(100)  # it took ten minutes
@pytest.mark.parametrize("form", BLANK)
@pytest.mark.parametrize("blank", [" ", "\n", "\n \t"], ids=repr)
def test_blanks_without_end_are_read_at_once(form: str, blank: str) -> None:
    """A policy that has collapsed writes such replies."""
    reply = BLANK[form].replace("{}", blank * (200_000 // len(blank)))
    assert Tagged().read(reply) is None and ToolCalls().read(reply) is None
    assert len(LastLine().read(reply) or "") <= len(reply)
    assert len(without_thoughts({"role": "assistant", "content": reply})["content"]) <= len(reply)


@pytest.mark.timeout(100)
@pytest.mark.parametrize("tag", ["<think>", "<thinking>", "</think>", "<action>", "<think></think>"])
def test_many_tags_are_read_at_once(tag: str) -> None:
    for reader in (Tagged(), LastLine(), ToolCalls(), ToolCalls(text=True)):
        assert reader.read(tag * 50_000) in (None, "<action>" * 50_000)
    assert thoughts_in({"role": "assistant", "content": tag * 50_000}) == []
