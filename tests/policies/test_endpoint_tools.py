"""Chat models behind endpoints, with tools of the protocol: (1) a role with native tools declares them in each request,
its calls run, and results go back by their ids, in OpenAI's and in Anthropic's protocol; (2) calls that the environment
answers, several calls, broken arguments and demonstrations keep every id answered; (3) Anthropic's protocol gets the
system text apart, turns that alternate, images, and no setting that is at its default; (4) a full queue is asked again
after the time that the server names; (5) a world of calls is refused without native tools; (6) a policy can be made
from an address, a model and a variable; (7) in a run, an endpoint of either style plays with a tool; (8) images inside
messages are sent at their places, also beside the results of calls, and are refused where they are not sent; (9) with
tools in words, an endpoint reads what a policy reads whose chat template has no tools; (10) calls in the messages of an
observation are sent as calls with their results, or in words."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from palaestra.chat import ChatRenderer, FullHistory, LatestOnly
from palaestra.chat.places import PLACE
from palaestra.data import Action, Observation, RunSetup
from palaestra.data.interaction import FinishReason, ToolCall
from palaestra.data.protocols import Sampling
from palaestra.errors import EpisodeFailure, RecipeError
from palaestra.policies.endpoint import EndpointPolicy, EndpointSession
from palaestra.recipe import load
from palaestra.rollout.roles import Role, RoleTools, refuse_hidden_tools
from palaestra.tools.calculator import calculator
from palaestra.training.start import train
from tests.chat.templates import tokenizer_of
from tests.chat_server import ChatServer, anthropic_message, completion
from tests.extras import needs
from tests.messages import told

pytestmark = needs("openai", "anthropic")
STYLES = ["openai", "anthropic"]
TOOLS = (calculator().declaration(),)
ASKED = Observation(text="2 + 3?", instruction="Add.", tools=TOOLS)
RESULT = Observation(text="tool: 5", messages=[{"role": "tool", "name": "calculator", "content": "5"}])


def session(server: ChatServer, style: str = "openai", **options: Any) -> EndpointSession:
    policy = EndpointPolicy.at(server.url, "m", style=style, **options)  # type: ignore[arg-type]
    return policy.session(context=FullHistory(), sampling=Sampling(max_tokens=9, temperature=0.7), key="k")


def act(talk: EndpointSession, observation: Observation) -> Action:
    return asyncio.run(talk.act(observation, seed=1)).action


def called(style: str, *calls: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    """An answer with calls of tools."""
    if style == "openai":
        return completion(None, *((f"id{n}", name, json.dumps(given)) for n, (name, given) in enumerate(calls)))
    return anthropic_message("Let me see.", *((f"id{n}", name, dict(given)) for n, (name, given) in enumerate(calls)))


# ---- (1) --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("style", STYLES)
def test_1_calls_and_results(style: str) -> None:
    with ChatServer(called(style, ("calculator", {"expression": "2 + 3"})), "5") as server:
        talk = session(server, style)
        text = act(talk, ASKED).text
        assert text is not None and '"name": "calculator"' in text and text.strip().endswith("</tool_call>")
        assert act(talk, RESULT).text == "5"
    first, second = server.requests
    name = first["tools"][0]["function"]["name"] if style == "openai" else first["tools"][0]["name"]
    assert name == "calculator" and first["tools"] == second["tools"]
    *_, call, result = second["messages"]
    if style == "openai":
        assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "id0"
        assert result == {"role": "tool", "tool_call_id": "id0", "content": "5"}
        assert first["messages"][0] == {"role": "system", "content": "Add."}
    else:
        assert [block["type"] for block in call["content"]] == ["text", "tool_use"]
        assert result["content"] == [{"type": "tool_result", "tool_use_id": "id0", "content": "5"}]
        assert first["tools"][0]["input_schema"]["properties"].keys() == {"expression"}


# ---- (2) --------------------------------------------------------------------------------------------------
def test_2_every_id_is_answered() -> None:
    calls = (("calculator", {"expression": "1"}), ("calculator", {"expression": "2"}))
    with ChatServer(called("openai", *calls), called("openai", *calls), called("openai", *calls), "end") as server:
        talk = session(server)
        text = act(talk, ASKED).text
        assert text is not None and text.count("<tool_call>") == 2
        two = [{"role": "tool", "content": "one"}, {"role": "tool", "content": "two"}]
        act(talk, Observation(text="tool: one two", messages=two))
        assert [one["content"] for one in talk.messages if one["role"] == "tool"] == ["one", "two"]
        act(talk, Observation(text="You are in the kitchen."))  # the environment answers the calls
        assert [one["content"] for one in talk.messages if one["role"] == "tool"][2:] == [
            "(see the last result)",
            "You are in the kitchen.",
        ]
        act(talk, Observation(text="tool: error", messages=[{"role": "tool", "content": "error"}]))
        assert [one["content"] for one in talk.messages if one["role"] == "tool"][4:] == ["error", "error"]
        other = talk.fork("other")
        act(other, Observation(text="and now?"))
        assert talk.messages[-1]["role"] == "assistant" and other.messages[-2]["role"] == "user"


def test_2_broken_arguments_and_words() -> None:
    broken = completion(None, ("id0", "calculator", '{"expression": '))
    with ChatServer(broken, '<tool_call>{"name": "calculator", "arguments": {}}</tool_call>', "5") as server:
        talk = session(server)
        text = act(talk, ASKED).text
        assert text == '<tool_call>\n{"name": "calculator", "arguments": {"expression": }\n</tool_call>'
        act(talk, Observation(text="tool: error: no JSON", messages=[{"role": "tool", "content": "error: no JSON"}]))
        assert talk.messages[-2] == {"role": "tool", "tool_call_id": "id0", "content": "error: no JSON"}
        act(talk, RESULT)  # a call that the server has left in the text has no id
        assert talk.messages[-2] == {"role": "user", "content": "tool: 5"}


@pytest.mark.parametrize("style", STYLES)
def test_2_demonstrations(style: str) -> None:
    with ChatServer("5") as server:
        talk = session(server, style)
        talk.record(ASKED, Action(text="", tool_calls=[ToolCall(name="calculator", arguments={"expression": "1"})]))
        assert act(talk, RESULT).text == "5"
    sent = json.dumps(server.requests[0]["messages"])
    assert sent.count("call00000") == 2 and "expression" in sent


# ---- (3) --------------------------------------------------------------------------------------------------
def test_3_anthropic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-secret")
    with ChatServer("one", anthropic_message("tw", stop="max_tokens")) as server:
        talk = session(server, "anthropic", pictures=True)
        act(talk, Observation(text="hello", instruction="Be kind.", image=np.zeros((2, 2, 3), np.uint8)))
        done = act(talk, Observation(text="and?"))
    assert done.finish is FinishReason.LENGTH and done.text == "tw"
    first, second = server.requests
    assert first["path"] == "/v1/messages" and {key.removeprefix("Bearer ") for key in server.keys} == {"a-secret"}
    assert first["system"] == "Be kind." and first["max_tokens"] == 9 and first["temperature"] == 0.7
    assert not {"top_p", "seed", "tools"} & first.keys()
    picture, words = first["messages"][0]["content"]
    assert picture["source"]["media_type"] == "image/png" and words == {"type": "text", "text": "hello"}
    assert [one["role"] for one in second["messages"]] == ["user", "assistant", "user"]
    assert talk.policy.generated == 14


# ---- (4) --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("style", STYLES)
def test_4_retry_after(style: str) -> None:
    with ChatServer((429, "full", {"retry-after-ms": "400"}), (503, "down", {"retry-after": "1"}), "5") as server:
        begin = time.monotonic()
        assert act(session(server, style, retries=2), ASKED).text == "5"
    assert time.monotonic() - begin >= 1.3 and len(server.requests) == 3
    with (
        ChatServer((429, "full", {"retry-after": "0"})) as server,
        pytest.raises(EpisodeFailure, match="RateLimit") as e,
    ):
        act(session(server, style, retries=1), ASKED)
    assert e.value.boundary == "engine" and len(server.requests) == 2


# ---- (5) and (6) ------------------------------------------------------------------------------------------
def test_5_a_world_of_calls() -> None:
    policy = EndpointPolicy.at("http://127.0.0.1:9/v1", "m")
    shown = Observation(text="Pay the bill.", tools=TOOLS)
    with told(EpisodeFailure, "tools.native"):
        refuse_hidden_tools(Role(policy=policy), "agent", shown, None)
    refuse_hidden_tools(Role(policy=policy, tools=RoleTools(native=True)), "agent", shown, None)
    refuse_hidden_tools(Role(policy=policy, instruction="Write calculator(…)."), "agent", shown, None)


def test_6_from_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "a-secret")
    with ChatServer("5") as server:
        assert act(session(server, key="MY_KEY"), ASKED).text == "5"
    assert server.keys == ["Bearer a-secret"]
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    with told(RecipeError, "variable ANTHROPIC_BASE_URL is empty"):
        EndpointPolicy("main", RunSetup(), model="m", style="anthropic")


# ---- (7) --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("style", STYLES)
def test_7_in_a_run(style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = {
        "name": "helped",
        "environment": {"echo": {"agents": ["left", "right"], "turns": 2}},
        "policies": {
            "main": {"policy": {"language": {"hidden": 32, "layers": 1, "context": 64, "vocabulary": 300}}},
            "partner": {"policy": {"endpoint": {"model": "m", "style": style}}, "trainable": False},
        },
        "agents": {
            "left": {"policy": "main", "context": "latest_only"},
            "right": {"policy": "partner", "tools": {"use": ["calculator"], "native": True}},
        },
        "rollout": {"tasks": 2, "group": 2, "response_tokens": 3},
        "advantage": {"grpo": {"by": ["group", "agent"]}},
        "training": {"iterations": 1},
        "evaluation": {"tasks": 2},
    }
    with ChatServer(called(style, ("calculator", {"expression": "2 + 3"})), "red") as server:
        monkeypatch.setenv(f"{style.upper()}_BASE_URL", server.url)
        found = load([recipe], [f"run={tmp_path / 'run'}"])
        train(found.settings, recipe=found.to_json(), quiet=True)
    answered = [body for body in server.requests if "id0" in json.dumps(body["messages"])]
    assert answered and all('"5"' in json.dumps(body["messages"]) for body in answered)
    assert all(body["tools"] for body in server.requests)


# ---- (8) --------------------------------------------------------------------------------------------------
RED, BLUE = (np.full((2, 2, 3), color, np.uint8) for color in ((255, 0, 0), (0, 0, 255)))
PICTURED = [
    {"role": "system", "content": "Look."},
    {"role": "user", "content": f"one {PLACE} two {PLACE}", "pictures": (RED, BLUE)},
    {"role": "assistant", "content": "I see."},
    {"role": "user", "content": "Which?", "pictures": (BLUE,)},
]


def colors(content: Any) -> list[Any]:
    """The parts of a content as they were sent: texts, and the color of each image."""
    found: list[Any] = []
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        if part["type"] == "text":
            found.append(part["text"])
            continue
        data = part["source"]["data"] if part["type"] == "image" else part["image_url"]["url"].partition(",")[2]
        found.append(tuple(np.asarray(Image.open(BytesIO(base64.b64decode(data))))[0, 0]))
    return found


@pytest.mark.parametrize("style", STYLES)
def test_8_images_inside_messages(style: str) -> None:
    with ChatServer("red") as server:
        talk = session(server, style, pictures=True)
        act(talk, Observation(messages=PICTURED))
        act(talk, Observation(messages=[{"role": "user", "content": "", "pictures": (RED,)}], image=BLUE))
    first, second = server.requests
    said = [one for one in first["messages"] if one["role"] != "system"]
    assert [colors(one["content"]) for one in said] == [
        ["one ", (255, 0, 0), " two ", (0, 0, 255)],
        ["I see."],
        [(0, 0, 255), "Which?"],
    ]
    assert colors(second["messages"][-1]["content"]) == [(0, 0, 255), (255, 0, 0)]


@pytest.mark.parametrize("style", STYLES)
def test_8_images_beside_results(style: str) -> None:
    with ChatServer(called(style, ("calculator", {"expression": "2"})), "red") as server:
        talk = session(server, style, pictures=True)
        act(talk, ASKED)
        act(talk, Observation(messages=[{"role": "user", "content": f"A map: {PLACE}", "pictures": (RED,)}]))
    sent = server.requests[-1]["messages"]
    if style == "openai":
        result, image = sent[-2:]
        assert result == {"role": "tool", "tool_call_id": "id0", "content": "A map: "}
        assert colors(image["content"]) == [(255, 0, 0)]
    else:
        result, *image = sent[-1]["content"]
        assert result["tool_use_id"] == "id0" and result["content"] == "A map: " and colors(image) == [(255, 0, 0)]


def test_8_images_that_are_not_sent() -> None:
    with ChatServer("red") as server:
        talk = session(server)
        with told(EpisodeFailure, "endpoint.pictures: true"):
            act(talk, Observation(messages=PICTURED))
        with told(EpisodeFailure, "endpoint.pictures: true"):
            act(talk, Observation(image=RED, messages=PICTURED[:1]))
        act(talk, Observation(text="one and two", messages=PICTURED[:2]))
    assert server.requests[-1]["messages"][-1]["content"] == "one  two "


# ---- (9) --------------------------------------------------------------------------------------------------
CALL = ToolCall(name="calculator", arguments={"expression": "2 + 3"})
IN_WORDS = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2 + 3"}}\n</tool_call>'
HALL = Observation(text="You are in a hall.", instruction="Add.", tools=TOOLS)
SAID = Observation(messages=[{"role": "user", "content": "And now?"}], instruction="Add.", tools=TOOLS)
RESULTS = Observation(text="tool: 5 6", messages=[{"role": "tool", "content": "5"}, {"role": "tool", "content": "6"}])
TALKS: dict[str, list[tuple[Observation, str]]] = {
    "results": [(ASKED, IN_WORDS), (RESULT, "5"), (HALL, "north"), (SAID, "5")],
    "two calls": [(ASKED, f"Let me see.\n{IN_WORDS}\n{IN_WORDS}"), (RESULTS, IN_WORDS), (RESULT, "5")],
    "acts": [(ASKED, IN_WORDS), (HALL, IN_WORDS), (SAID, IN_WORDS), (HALL, "5")],
    "faults": [(ASKED, "<tool_call>{"), (RESULT, "<tool_call>{"), (HALL, "5")],
    "thoughts": [(ASKED, f"<think>{IN_WORDS}</think>5"), (HALL, f"<think>so</think>{IN_WORDS}"), (RESULT, "5")],
}


@pytest.mark.parametrize("talk", TALKS)
def test_9_in_words_it_reads_what_a_template_without_tools_shows(talk: str) -> None:
    tokenizer = tokenizer_of("llama3")
    renderer = ChatRenderer(tokenizer)
    assert not renderer.support.declares
    local, shown = FullHistory().start(renderer), np.array([], np.int32)
    with ChatServer(*(reply for _, reply in TALKS[talk])) as server:
        distant = session(server, tools="words")
        for observation, reply in TALKS[talk]:
            act(distant, observation)
            shown = np.concatenate([shown, local.observe(observation).ids])
            read = server.requests[-1]["messages"]
            written = tokenizer.apply_chat_template(read, add_generation_prompt=True, tokenize=False)
            assert written == renderer.said(shown) and "tools" not in server.requests[-1]
            local.respond(renderer.action(reply))
            shown = np.concatenate([shown, renderer.action(reply)])
    assert sum("<tool_response>" in one["content"] for one in read) == sum(
        "<tool_call>" in reply.rpartition("</think>")[2] for _, reply in TALKS[talk]
    )


def test_9_demonstrations_in_words() -> None:
    with ChatServer("5") as server:
        talk = session(server, tools="words")
        talk.record(ASKED, Action(text="2 + 3", tool_calls=[CALL]))
        talk.record(HALL, Action(text="north"))
        assert act(talk, HALL).text == "5"
    *_, call, result, word, seen = server.requests[0]["messages"]
    assert call == {"role": "assistant", "content": IN_WORDS} and word["content"] == "north"
    assert "<tool_response>\nYou are in a hall.\n</tool_response>" == result["content"] != seen["content"]


def test_9_latest_only_shows_no_result_without_its_call() -> None:
    with ChatServer(IN_WORDS, "5") as server:
        policy = EndpointPolicy.at(server.url, "m", tools="words")
        talk = policy.session(context=LatestOnly(), sampling=Sampling(), key="k")
        act(talk, ASKED)
        act(talk, HALL)
    assert [one["content"] for one in server.requests[1]["messages"]][1:] == ["You are in a hall."]


def test_9_an_image_stands_beside_the_result() -> None:
    picture = np.zeros((2, 2, 3), np.uint8)
    with ChatServer(IN_WORDS, "5") as server:
        talk = session(server, tools="words", pictures=True)
        act(talk, ASKED)
        act(talk, replace(HALL, image=picture))
    last = server.requests[1]["messages"][-1]
    assert last["role"] == "user" and [one["type"] for one in last["content"]] == ["image_url", "text"]
    assert last["content"][1]["text"] == "<tool_response>\nYou are in a hall.\n</tool_response>"


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("role", ["user", "tool"])
def test_9_images_of_a_message_stand_behind_the_result(role: str, style: str) -> None:
    picture = np.zeros((2, 2, 3), np.uint8)
    said = {"role": role, "content": f"a hall {PLACE}", "pictures": (picture,)}
    with ChatServer(IN_WORDS, "5") as server:
        talk = session(server, style, tools="words", pictures=True)
        act(talk, ASKED)
        act(talk, replace(HALL, messages=[said]))
    last = server.requests[1]["messages"][-1]
    kind = "image_url" if style == "openai" else "image"
    assert last["role"] == "user" and [one["type"] for one in last["content"]] == ["text", kind]
    assert last["content"][0]["text"].split() == ["<tool_response>", "a", "hall", "</tool_response>"]


# ---- (10) -------------------------------------------------------------------------------------------------
def past_call(number: str) -> dict[str, Any]:
    return {"type": "function", "id": number, "function": {"name": "calculator", "arguments": {"expression": "2 + 3"}}}


@pytest.mark.parametrize("ids", [("a", "b"), ("", "")], ids=["named", "nameless"])
@pytest.mark.parametrize("native", [True, False], ids=["native", "words"])
def test_10_calls_in_messages(native: bool, ids: tuple[str, str]) -> None:
    calls = {"role": "assistant", "content": "I add.", "tool_calls": [past_call(ids[0]), past_call(ids[1])]}
    results = [{"role": "tool", "content": text, "tool_call_id": n} for n, text in zip(ids, ("5", "6"), strict=True)]
    seen = [{"role": "user", "content": "2 + 3?"}, calls, *results, {"role": "user", "content": "So?"}]
    with ChatServer("5") as server:
        talk = session(server, tools="api" if native else "words")
        act(talk, Observation(messages=seen, text="So?", tools=TOOLS))
        sent = server.requests[-1]["messages"]
    if not native:
        text = "\n".join(one["content"] for one in sent)
        assert text.count(IN_WORDS) == 2 and "5" in text and "6" in text and "tool" not in {one["role"] for one in sent}
        return
    assert [one["role"] for one in sent] == ["user", "assistant", "tool", "tool", "user"]
    made = sent[1]["tool_calls"]
    assert [one["function"] for one in made] == [{"name": "calculator", "arguments": '{"expression": "2 + 3"}'}] * 2
    assert [one["tool_call_id"] for one in sent[2:4]] == [one["id"] for one in made] and made[0]["id"] != made[1]["id"]
    assert [one["content"] for one in sent] == ["2 + 3?", "I add.", "5", "6", "So?"]
