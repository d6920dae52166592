"""The reader of messages:

1. It knows the roles of OpenAI's protocol, and the older form with `function_call` and the role `function`.
2. Parts with texts are joined by line breaks, and images stay parts.
3. Results of tools find their calls: by ids, else by names, else in order.
4. Thoughts, names and weights are read; other keys with a value are noted.
5. What cannot be read is refused with its place.
6. Tools are a list or the same as a JSON text, also without `type` around a function.
7. Replies are fitted to a template: calls that it does not write become words, and ids that it refuses are replaced.
8. The words beside the calls of an action are what its text says besides.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from palaestra.chat import ChatRenderer
from palaestra.chat.messages import MessageFault, MessageReader, fit_replies, read_tools, reply_of, words_beside
from palaestra.data import Action, Observation, ToolCall
from tests.chat.conversations import find, move
from tests.extras import absent, needs

pytestmark = needs("trl")
if not absent(*pytestmark.args):
    from tests.chat.templates import tokenizer_of

TOOLS = (find.declaration(), move.declaration())


def call(name: str = "find", number: str | None = "a", **arguments: Any) -> dict[str, Any]:
    return ({} if number is None else {"id": number}) | {
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }


def calling(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


def result(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text, **fields}


USER = {"role": "user", "content": "x"}


def read(*messages: Any, **options: Any) -> list[dict[str, Any]]:
    return [one.as_given() for one in MessageReader(**options).read(list(messages))]


# ---- rule 1 -----------------------------------------------------------------------------------------------
def test_1_roles() -> None:
    for role in ("system", "developer", "user", "assistant"):
        assert read({"role": role, "content": "x"}) == [{"role": role, "content": "x"}]
    former = {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": '{"id": 3}'}}
    made = read(USER, former, {"role": "function", "name": "find", "content": "7"})
    assert made[1]["tool_calls"][0]["function"] == {"name": "find", "arguments": {"id": 3}}
    assert made[2] == {"role": "tool", "content": "7", "name": "find", "tool_call_id": "call00000"}


@pytest.mark.parametrize("content", ["Let me look.", "", None])
def test_1_calls_with_and_without_words(content: str | None) -> None:
    (made,) = read(calling(call(id=3), content=content))
    assert made["content"] == (content or "") and made["tool_calls"][0]["function"]["arguments"] == {"id": 3}


# ---- rule 2 -----------------------------------------------------------------------------------------------
def test_2_parts() -> None:
    parts: list[Any] = [{"type": "text", "text": "2 +", "image": None}, {"type": "text", "text": "2?"}]
    assert read({"role": "user", "content": parts}) == [{"role": "user", "content": "2 +\n2?"}]
    picture = {"type": "image", "image": "a.png", "text": None}
    (made,) = read({"role": "user", "content": [*parts, picture]})
    assert made["content"][2] == {"type": "image", "image": "a.png"}
    with pytest.raises(MessageFault, match="type 'image', and texts alone") as caught:
        read({"role": "user", "content": [picture]}, images=False)
    assert caught.value.unsupported and caught.value.place == "0.content.0"


# ---- rule 3 -----------------------------------------------------------------------------------------------
def test_3_results() -> None:
    two = calling(call("find", "a"), call("move", "b"))
    for results in (
        [result("moved", tool_call_id="b"), result("found", tool_call_id="a")],
        [result("moved", name="move"), result("found")],
        [result("found"), result("moved")],
    ):
        made = read(USER, two, *results)
        assert [(one["content"], one["name"], one["tool_call_id"]) for one in made[2:]] == [
            ("found", "find", "a"),
            ("moved", "move", "b"),
        ]
    without = calling(call("find", None), call("find", None))
    made = read(USER, without, result("1", tool_call_id="odd"), result("2"), without)  # the last calls may wait
    assert [one["id"] for one in made[1]["tool_calls"]] == ["call00000", "call00001"]
    assert [one["id"] for one in made[4]["tool_calls"]] == ["call00002", "call00003"]


# ---- rule 4 -----------------------------------------------------------------------------------------------
def test_4_further_keys() -> None:
    reader = MessageReader()
    thought = {"role": "assistant", "content": "4", "reasoning_content": "2 + 2", "weight": 0, "audio": {"id": "a"}}
    user, reply, other = reader.read([{**USER, "name": "Ann", "id": 3, "note": None}, thought, USER])
    assert (user.name, reply.thinking, reply.learned, other.learned) == ("Ann", "2 + 2", False, True)
    assert user.as_given()["name"] == "Ann" and reply.as_given()["reasoning_content"] == "2 + 2"
    assert reader.unread == {"audio", "id"}
    assert MessageReader().read([{"role": "assistant", "content": "4", "thinking": "hm"}])[0].thinking == "hm"


# ---- rule 5 -----------------------------------------------------------------------------------------------
BAD: dict[str, tuple[list[Any], str, str]] = {
    "a stranger": ([{"role": "judge", "content": "x"}], "0", "`role` is 'judge'"),
    "no object": (["x"], "0", "'x' is no message"),
    "no content": ([USER, {"role": "user"}], "1", "`content` is missing"),
    "a reply without words": ([USER, {"role": "assistant", "content": None}], "1", "`content` is missing"),
    "a number": ([{"role": "user", "content": 3}], "0", "a text or a list of parts"),
    "a sound": ([{"role": "user", "content": [{"type": "input_audio"}]}], "0.content.0", "'input_audio'"),
    "a result alone": ([USER, result("x")], "1", "answers a call, which the reply before it does not make"),
    "another result": ([calling(call()), result("x", tool_call_id="b")], "1", "the call 'b'"),
    "a result of another tool": ([calling(call()), result("x", name="move")], "1", "a call of `move`"),
    "no result": ([calling(call()), USER], "", "These have none before message 1: a"),
    "half of the results": ([calling(call(number="a"), call(number="b")), result("x")], "", "before the end: b"),
    "two ids": ([calling(call(), call())], "0", "two of its calls have the same id"),
    "broken arguments": (
        [calling({"function": {"name": "find", "arguments": "{"}})],
        "0.tool_calls.0",
        "`arguments`: this is no JSON",
    ),
    "a key twice": (
        [calling({"function": {"name": "find", "arguments": '{"a": 1, "a": 2}'}})],
        "0.tool_calls.0",
        "the key 'a' stands twice",
    ),
    "no call": ([calling({"type": "function"})], "0.tool_calls.0", "no call of a function"),
    "two thoughts": (
        [{"role": "assistant", "content": "x", "reasoning": "a", "thinking": "b"}],
        "0",
        "`reasoning` and `thinking` differ",
    ),
    "a weight": ([{"role": "assistant", "content": "x", "weight": 0.5}], "0", "`weight` is 0.5"),
}


@pytest.mark.parametrize("name", BAD)
def test_5_refused(name: str) -> None:
    messages, place, fault = BAD[name]
    with pytest.raises(MessageFault) as caught:
        read(*messages)
    assert fault in caught.value.what and caught.value.place == place


def test_5_ids_that_are_demanded() -> None:
    for messages in ([calling(call(number=None))], [calling(call()), result("x")], [calling(call())]):
        read(*messages)
        with pytest.raises(MessageFault):
            read(*messages, ids="demanded")


# ---- rule 6 -----------------------------------------------------------------------------------------------
def test_6_tools() -> None:
    plain = [tool["function"] for tool in TOOLS]
    texts = [{**one, "parameters": json.dumps(one["parameters"])} for one in plain]
    for given in (list(TOOLS), json.dumps(TOOLS), plain, texts, [json.dumps(tool) for tool in TOOLS]):
        assert read_tools(given) == TOOLS
    assert read_tools(None) == read_tools([]) == read_tools("") == ()
    (bare,) = read_tools([{"type": "function", "function": {"name": "now", "strict": True}}])
    assert bare["function"] == {"name": "now", "strict": True, "parameters": {"type": "object", "properties": {}}}
    for bad in ("[", 3, ["find"], [{"type": "web_search"}], [TOOLS[0], TOOLS[0]], [{"type": "function"}]):
        with pytest.raises(MessageFault):
            read_tools(bad)


# ---- rule 7 -----------------------------------------------------------------------------------------------
def test_7_templates_without_calls_get_words() -> None:
    messages = read(USER, calling(call(id=3), content="Wait."), result("7", tool_call_id="a"))
    shown = {}
    for name in ("qwen3", "llama3", "mistral"):
        renderer = ChatRenderer(tokenizer_of(name))
        observation = Observation(text="x", messages=messages, tools=TOOLS)
        shown[name] = renderer.written(renderer.turn(observation, first=True), tools=TOOLS)
        assert ("Wait." in shown[name]) is (name != "mistral")  # its template writes no words beside a call
        assert shown[name].count('"id": 3') == 1, shown[name]
    assert '<tool_call>\n{"name": "find", "arguments": {"id": 3}}\n</tool_call>' in shown["llama3"]
    assert '"call_id": "past00000"' in shown["mistral"] and "past00000" not in shown["qwen3"]
    kept = fit_replies(
        read(USER, calling(call(number="aB3dE6gH9", id=3))), ChatRenderer(tokenizer_of("mistral")), TOOLS
    )
    assert kept[1]["tool_calls"][0]["id"] == "aB3dE6gH9"


# ---- rule 8 -----------------------------------------------------------------------------------------------
def test_8_words_beside_calls() -> None:
    calls = (ToolCall(name="find", arguments={"id": 3}),)
    spelled = 'Wait.\n<tool_call>\n{"name": "find", "arguments": {"id": 3}}\n</tool_call>'
    for text, words in ((spelled, "Wait."), ("Wait.", "Wait."), ('{"name": "find", "arguments": {"id": 3}}', "")):
        assert words_beside(Action(text=text, tool_calls=calls), TOOLS) == words
    acted = reply_of(Action(text='{"name": "find", "arguments": {"id": 3}}', reply=spelled, tool_calls=calls), 4)
    assert (acted.content, acted.calls[0].id) == ("Wait.", "call00004")
