"""What must hold of the formats in which calls are written:

1. Every format reads back the call that it wrote, with any JSON values.
2. A text may contain several calls. The text around them is kept; thoughts and other tags are ordinary text.
3. For a call that cannot be read, the fault says what is wrong and how to write it; then no call is made at all.
4. Words: rest of the line, quotes, names, types from the schema. Tags: bare texts. Code: positions, only literals.
5. Nothing raises and nothing takes long: deep nesting, a megabyte, unbalanced quotes, NaN, doubled keys, any character.
6. Explanations name all tools, and their examples can be read.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from palaestra.data import ToolCall
from palaestra.errors import UnknownName
from palaestra.tools import Tool, tool
from palaestra.tools.formats import FORMATS, format_of


@tool
def find(id: int, kind: Literal["order", "user"] = "order", note: str | None = None) -> str:
    """Find something.

    Args:
        id: its number.
    """
    return f"{kind} {id} {note}"


@tool
def search(query: str, k: int = 3) -> str:
    """Search texts."""
    return query * k


@tool
def put(key: str, values: list[float], deep: dict[str, int]) -> str:
    """Put values somewhere."""
    return key


@tool
def now() -> str:
    """Tell the time."""
    return "noon"


ANY = Tool(name="any", description="Takes everything.", parameters={"type": "object"}, call=dict)
TOOLS = {one.name: one for one in (find, search, put, now, ANY)}
EACH = pytest.mark.parametrize("name", FORMATS)


def call(name, **arguments):
    return ToolCall(name=name, arguments=arguments)


def read(name, text):
    """The calls of a text that has no fault."""
    parsed = FORMATS[name].parse(text, TOOLS)
    assert parsed.fault is None, parsed.fault
    return list(parsed.calls)


# ---- rule 1 -----------------------------------------------------------------------------------------------
TEXTS = st.text(max_size=30) | st.sampled_from(
    ["null", "3", "true", "<think>", "</think>", "a b", 'it\'s "x"', "k=3", "[1", "</search>", "r1\nfind 3", "\\", "{}"]
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@EACH
@settings(max_examples=60, deadline=None)
@given(query=TEXTS, k=st.integers())
@example(query="the  red\tapple ", k=1)
@example(query="3", k=1)
def test_texts_come_back(name, query, k):
    form = FORMATS[name]
    for made in (call("search", query=query), call("search", query=query, k=k)):
        assert form.parse(form.write(made, TOOLS), TOOLS).calls == (made,)
    if name != "words":  # there the schema tells which arguments need no name
        assert form.parse(form.write(made), TOOLS).calls == (made,)


@EACH
@settings(max_examples=60, deadline=None)
@given(
    id=st.integers(),
    kind=st.sampled_from(["order", "user"]),
    note=st.none() | TEXTS,
    values=st.lists(NUMBERS, max_size=3),
    deep=st.dictionaries(TEXTS, st.integers(), max_size=3),
)
def test_all_kinds_come_back(name, id, kind, note, values, deep):
    form = FORMATS[name]
    for made in (
        call("find", id=id, kind=kind, note=note),
        call("find", id=id, note=note),
        call("put", key=str(note), values=values, deep=deep),
        call("now"),
    ):
        written = form.write(made, TOOLS)
        assert "\n" not in written
        assert form.parse(written, TOOLS).calls == (made,)
        assert form.parse(f"I see.\n{written}\n{written}", TOOLS).calls == (made, made)


@pytest.mark.parametrize("name", ["json", "tagged", "code"])
@settings(max_examples=60, deadline=None)
@given(arguments=st.dictionaries(TEXTS, VALUES, max_size=4))
def test_any_arguments_come_back(name, arguments):
    form = FORMATS[name]
    made = ToolCall(name="any", arguments=arguments)
    assert form.parse(form.write(made), TOOLS).calls == (made,)


def test_words_without_a_schema_are_in_its_order():
    form = FORMATS["words"]
    for made in (call("find", id=3), call("find", id=3, kind="user"), call("put", key="a b", values=[1.5], deep={})):
        assert form.parse(form.write(made), TOOLS).calls == (made,)
    assert form.write(call("find", id=3)) == "find 3"
    assert form.write(call("search", query="red apple", k=5), TOOLS) == "search red apple k=5"


@EACH
def test_hyphens_come_back(name):
    form, tools = FORMATS[name], {"look-up": dataclasses.replace(find, name="look-up")}
    said = f"so\n{form.write(call('look-up', id=3, note='a-b'), tools)}"
    parsed = form.parse(said, tools)
    assert parsed.calls == (call("look-up", id=3, note="a-b"),) and parsed.said == "so"
    assert form.parse("well-known(1)\n<well-known>1</well-known>", tools).calls == ()


def test_ids_come_back():
    for name in ("json", "tagged"):
        made = ToolCall(name="now", id="c7")
        assert FORMATS[name].parse(FORMATS[name].write(made), TOOLS).calls == (made,)


# ---- rule 2 -----------------------------------------------------------------------------------------------
WRITTEN = {
    "json": '{"name": "find", "arguments": {"id": 3}}',
    "tagged": '<find>{"id": 3}</find>',
    "code": "find(id=3)",
    "words": "find 3",
}


@EACH
def test_text_around_calls_is_kept(name):
    one = WRITTEN[name]
    parsed = FORMATS[name].parse(f"<think>{one}</think>\nFirst this:\n{one}\nand so on.", TOOLS)
    assert parsed.calls == (call("find", id=3),)
    assert parsed.said.splitlines()[-2:] == ["First this:", "and so on."]
    assert "<think>" in parsed.said
    assert parsed.fault is None


@EACH
@pytest.mark.parametrize("text", ["", "hello", "a < b {c} (d) [e] “f”", "<answer>42</answer>", "{", "<think>find 3"])
def test_plain_text_calls_nothing(name, text):
    parsed = FORMATS[name].parse(text, TOOLS)
    assert (parsed.calls, parsed.said, parsed.fault) == ((), text, None)


def test_lists_and_fences_are_no_text():
    one = WRITTEN["json"]
    for text in (f"[{one}, {one}]", f"```json\n[\n{one},\n{one}\n]\n```", f"{one}{one}", f"{one}\n{one}"):
        parsed = FORMATS["json"].parse(text, TOOLS)
        assert len(parsed.calls) == 2 and parsed.said == "" and parsed.fault is None
    parsed = FORMATS["code"].parse("```python\nfind(id=3); search('a')\nnow()  # so\n```", TOOLS)
    assert [one.name for one in parsed.calls] == ["find", "search", "now"] and parsed.fault is None
    assert parsed.said.replace("# so", "").strip() == ""


def test_tools_that_do_not_exist_are_called_where_the_text_is_a_call():
    assert read("json", '{"name": "nope", "arguments": {}}') == [call("nope")]
    assert read("tagged", '<tool_call>{"name": "nope", "arguments": {"a": 1}}</tool_call>') == [call("nope", a=1)]
    assert read("code", "nope(a=1)") == [call("nope", a=1)]
    assert read("code", "f(x) is a function") == read("words", "nope 3") == read("tagged", "<nope>3</nope>") == []


# ---- rule 3 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("json", '{"name": "find", "arguments": {"id": 3}', "no JSON"),
        ("json", "{'name': 'find', 'arguments': {'id': 3}}", "no JSON"),
        ("json", '{"name": "find", "arguments": {"id": 3, "id": 4}}', "'id' stands twice"),
        ("json", '{"name": "find", "arguments": {"id": NaN}}', "NaN is no finite number"),
        ("json", '{"name": "find", "arguments": {"id": 1e999}}', "no finite number"),
        ("json", '{"name": "find", "arguments": [3]}', "`arguments` must be an object"),
        ("json", '{"name": 3}', "`name` must be a text"),
        ("json", '{"arguments": {"id": 3}}', "no `name`"),
        ("json", '{"name": "find", "id": "c", "limit": 3}', "found 'limit'"),
        ("tagged", "<find>3", "<find> is never closed: end it with </find>"),
        ("tagged", "<find>3</find>", "must be a JSON object"),
        ("tagged", '<find>{"id": 3</find>', "no JSON"),
        ("tagged", '<find>{"id": 3} please</find>', "found 'please</find>'"),
        ("tagged", "<search>a <find>b</find></search>", "<find> is inside <search>"),
        ("tagged", "<tool_call>find 3</tool_call>", "must contain a JSON object"),
        ("code", "find(id=3", r"close it with `\)`"),
        ("code", "find(id=[3)", "was expected"),
        ("code", "search('it's)", "never closed|not a call"),
        ("code", "find(id=x)", "must be a plain value"),
        ("code", "find(id=1+1)", "must be a plain value"),
        ("code", "find(id=__import__('os').getpid())", "must be a plain value"),
        ("code", "find(id=true)", "write True instead of true"),
        ("code", "find(id=1e999)", "must be a plain value"),
        ("code", "find(1, 2, 3, 4)", "takes 3 arguments"),
        ("code", "find(1, id=2)", "`id` is given twice"),
        ("code", "find(id=1, id=2)", "`id` is given twice"),
        ("code", "find(**3)", r"`\*\*` needs an object"),
        ("code", "find(id=3).text", "found '.text'"),
        ("words", "find three", "`id` must be an integer, found 'three'"),
        ("words", "find 3 cat", "`kind` must be one of 'order', 'user', found 'cat'"),
        ("words", "find 3 user x y", "takes no further word: 'y'"),
        ("words", "find 3 id=4", "`id` stands twice"),
        ("words", 'put "a', "no JSON"),
        ("words", "put a [1]x", "after the value of `values`"),
    ],
)
def test_faults_tell_what_is_wrong_and_how_to_write(name, text, why):
    parsed = FORMATS[name].parse(f"{WRITTEN[name]}\n{text}", TOOLS)
    assert parsed.calls == ()  # the good call before it is not made either
    assert re.search(why, parsed.fault), parsed.fault
    assert "Write: " in parsed.fault and len(parsed.fault) < 400
    assert text in parsed.said


# ---- rule 4 -----------------------------------------------------------------------------------------------
def test_words():
    assert read("words", "FIND 3") == [call("find", id=3)]
    assert read("words", "  find   3   user ") == [call("find", id=3, kind="user")]
    assert read("words", "find 3 note=null") == [call("find", id=3, note=None)]
    assert read("words", 'find 3 note="a b"') == [call("find", id=3, note="a b")]
    assert read("words", "find kind=user 3") == [call("find", kind="user", id=3)]
    assert read("words", "search red apple k=2") == [call("search", query="red apple", k=2)]
    assert read("words", 'search "red apple" k=2') == [call("search", query="red apple", k=2)]
    assert read("words", 'search "red" apple') == [call("search", query='"red" apple')]
    assert read("words", "search x=3 y") == [call("search", query="x=3 y")]
    assert read("words", 'put a [1, 2.5] {"b": 1}') == [call("put", key="a", values=[1, 2.5], deep={"b": 1})]
    assert read("words", "now\nnow") == [call("now"), call("now")]
    assert read("words", "find") == [call("find")]  # what is missing is told by the tool


def test_tags():
    assert read("tagged", "<search> red apple </search>") == [call("search", query="red apple")]
    assert read("tagged", "<now></now><now> </now>") == [call("now"), call("now")]
    assert read("tagged", '<search>{"query": "</search>"}</search>') == [call("search", query="</search>")]
    both = '<tool_call>\n{"name": "find", "arguments": {"id": 3}}\n</tool_call>'
    assert read("tagged", both) == [call("find", id=3)]


def test_code():
    assert read("code", "find(3, 'user')") == [call("find", id=3, kind="user")]
    assert read("code", "put(\n  'a',\n  [1, -2.5],\n  deep={'(': 1},\n)") == [
        call("put", key="a", values=[1, -2.5], deep={"(": 1})
    ]
    assert read("code", 'search("""a\n"b" (c""")') == [call("search", query='a\n"b" (c')]
    assert read("code", r"search('a\'b\\')") == [call("search", query="a'b\\")]
    assert read("code", "find(id=3);now()") == [call("find", id=3), call("now")]
    assert read("code", "<think>so</think>now()") == [call("now")]
    assert read("code", r"search('\d')") == [call("search", query=r"\d")]


# ---- rule 5 -----------------------------------------------------------------------------------------------
MEGA = 1 << 20
PIECES = [
    '{"name": ',
    '{"name": "find", "arguments": ',
    "<find>",
    "<search>{",
    "find(",
    "search('",
    'search("""',
    "find ",
]
PIECES += ["[", "{", "(", '"', "'", "<think>", "</think>", "\\", "\n", ";", "NaN", "1e999", "\ud800", "\x00", "=", "**"]
PIECES += [
    "</find>",
    "}",
    ")",
    "]",
    "# ",
    " ",
    "```",
    "3",
    "r1",
    "ï¿½",
    "\u2028",
    "find(id=3)",
    "-",
    "lambda: ",
    "f'{x}'",
]


@EACH
@settings(max_examples=120, deadline=None)
@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=25).map("".join))
def test_nothing_raises(name, text):
    parsed = FORMATS[name].parse(text, TOOLS)
    assert parsed.fault is None or not parsed.calls
    assert parsed.fault is None or len(parsed.fault) < 600


@EACH
@pytest.mark.parametrize(
    "piece", [*PIECES, "find(\n", "search('\n", '{"name": "a"}', "<find>{}</find>", 'f("""\n', "f(-"]
)
def test_a_megabyte_takes_no_time(name, piece):
    text = piece * (MEGA // len(piece.encode("utf-8", "replace")))
    began = time.process_time()
    parsed = FORMATS[name].parse(text, TOOLS)
    assert time.process_time() - began < 5
    assert parsed.fault is None or len(parsed.fault) < 600


@EACH
@pytest.mark.parametrize("opened", ["[", '{"a":', "(", "-", "~", "not ", "[[", "f("])
def test_deep_nesting_is_a_fault(name, opened):
    inner = opened * 100_000
    heads = {"json": '{"name": "any", "arguments": {"a": %s', "tagged": '<any>{"a": %s', "code": "any(a=%s"}
    text = heads.get(name, "put a %s") % inner
    parsed = FORMATS[name].parse(text, TOOLS)
    assert parsed.calls == () and len(parsed.fault) < 600


def test_depth_has_a_limit():
    for depth, fine in ((30, True), (60, False), (900, False)):
        text = json.dumps({"name": "any", "arguments": {"a": 1}}).replace("1", "[" * depth + "]" * depth)
        parsed = FORMATS["json"].parse(text, TOOLS)
        assert (parsed.fault is None) == fine
        assert fine or "40 deep" in parsed.fault


# ---- rule 6 -----------------------------------------------------------------------------------------------
@EACH
def test_explanations(name):
    form = FORMATS[name]
    text = form.explain(list(TOOLS.values()))
    assert all(f"{one}" in text for one in TOOLS)
    assert "Find something." in text
    assert form.explain([])
    example = form.write(find.sample(), TOOLS)
    assert form.parse(example, TOOLS).calls[0].name == "find"
    assert (example in text) == (name != "words")


def test_unknown_formats_are_refused():
    assert format_of("json") is FORMATS["json"]
    with pytest.raises(UnknownName, match="no format is called `jason`") as caught:
        format_of("jason")
    assert "json" in caught.value.options
