"""The server: (1) OpenAI's client gets chats, streams, tools, thoughts, completions, choices and log-probabilities, and
a stream says what a whole answer says; (2) a reply ends before a text of `stop`; (3) what cannot be answered gets
OpenAI's error with its numbers, and the server goes on; (4) bodies, times, and requests at once are limited; (5) a
client that leaves ends its reply, and nothing of it stays; (6) sixty chats at once get the replies that each gets
alone, and nothing of them stays; (7) the secret; (8) models without a chat template; (9) a key that may change the
reply and is not followed gets 400, and the neutral value of such a key is taken; (10) a number that no reply can have
gets 400, and the replies of others go on; (11) a 404 for another API says which one the server has, and how libraries
select it.
"""

from __future__ import annotations

import copy
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tokenizers import processors

from tests.extras import absent, needs

pytestmark = needs("openai", "fastapi", "uvicorn", "trl")
if not absent(*pytestmark.args):
    import httpx
    import openai

    from palaestra.engines import InProcessEngine
    from palaestra.gateway.limits import ServerLimits
    from tests.chat.conversations import policy_of
    from tests.gateway.served import Scripted, client, collected, engine_of, model_of, serving

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny random model with the template of Qwen3."""
    return policy_of("qwen3", Path(tmp_path_factory.mktemp("model")))


def said(policy: Any, text: str, **options: Any) -> Any:
    return model_of(policy, Scripted(policy, lambda read: text), **options)


@pytest.fixture(scope="module")
def address(policy: Any) -> Iterator[str]:
    """A server whose model repeats the last message of the user, or calls the tool if there is one."""

    def reply(read: str) -> str:
        last = read.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
        if "<tool_response>" in last:
            return f"it is {last.partition('<tool_response>')[2].partition('</tool_response>')[0].strip()}"
        return f"I add. {CALL}" if "# Tools" in read else last

    with serving(model_of(policy, Scripted(policy, reply))) as address:
        yield address


# ---- (1) ----------------------------------------------------------------------------------------------------
def test_a_chat(address: str) -> None:
    made = client(address).chat.completions.create(
        model="tiny", messages=[*HELLO, {"role": "user", "content": "é ü 7"}]
    )
    (choice,) = made.choices
    assert (choice.message.content, choice.finish_reason) == ("é ü 7", "stop")
    assert made.usage.completion_tokens == len("é ü 7".encode()) + 1  # bytes, and the end
    assert made.usage.total_tokens == made.usage.prompt_tokens + made.usage.completion_tokens > 20
    assert [model.id for model in client(address).models.list()] == ["tiny"]
    assert client(address).models.retrieve("tiny").id == "tiny"
    assert httpx.get(f"{address}/health").json()["status"] == "ok"


def test_a_stream(address: str) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "one é two\nthree <4>"}]}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = collected(client(address).chat.completions.create(**asked, **options))
    whole = client(address).chat.completions.create(**asked)
    assert streamed["text"] == whole.choices[0].message.content == "one é two\nthree <4>"
    assert streamed["finish"] == "stop" and streamed["usage"] == whole.usage and streamed["pieces"] > 3


def test_tools(address: str) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": list(HELLO), "tools": [ADD]}
    message = client(address).chat.completions.create(**asked).choices[0].message
    streamed = collected(client(address).chat.completions.create(**asked, stream=True))
    assert streamed["text"] == message.content == "I add." and streamed["finish"] == "tool_calls"
    assert streamed["calls"] == [("add", '{"a": 2, "b": 3}')]
    (call,) = message.tool_calls
    asked["messages"] += [message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "5"}]
    answer = client(address).chat.completions.create(**asked).choices[0]
    assert (answer.message.content, answer.message.tool_calls, answer.finish_reason) == ("it is 5", None, "stop")
    none = client(address).chat.completions.create(**(asked | {"messages": HELLO}), tool_choice="none")
    assert none.choices[0].message.content == "hello", "the model does not read the tools"


def test_thoughts(policy: Any) -> None:
    with serving(said(policy, "<think>\nhm < hm\n</think>\n\nyes")) as address:
        asked: dict[str, Any] = {"model": "tiny", "messages": HELLO}
        message = client(address).chat.completions.create(**asked).choices[0].message
        streamed = collected(client(address).chat.completions.create(**asked, stream=True))
    assert (message.content, message.reasoning_content) == ("yes", "hm < hm")
    assert (streamed["text"], streamed["thinking"]) == ("yes", "hm < hm")


def test_choices_and_logprobs(policy: Any) -> None:
    with serving(model_of(policy, engine_of(policy))) as address:
        ask = client(address).chat.completions.create
        asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 9, "seed": 5}
        made = ask(**asked, n=3, logprobs=True)
        again = ask(**asked, n=3)
    texts = [choice.message.content for choice in made.choices]
    assert texts == [choice.message.content for choice in again.choices] and len(set(texts)) == 3
    rows = made.choices[0].logprobs.content
    assert len(rows) == 9 and all(row.logprob < 0 for row in rows) and made.choices[0].finish_reason == "length"
    assert made.usage.completion_tokens == 27, "the prompt is counted once"
    assert made.usage.prompt_tokens == again.usage.prompt_tokens < 60


def test_completions(policy: Any) -> None:
    with serving(model_of(policy, engine_of(policy))) as address:
        ask = client(address).completions.create
        asked: dict[str, Any] = {"model": "tiny", "prompt": ["ab", "cd"], "max_tokens": 6, "seed": 1, "logprobs": 0}
        made = ask(**asked)
        chunks = list(ask(**asked, stream=True))
        ids = policy.tokenizer("ab")["input_ids"]
        same = ask(model="tiny", prompt=ids, max_tokens=6, seed=1)
    assert [choice.index for choice in made.choices] == [0, 1] and made.usage.completion_tokens == 12
    parts = ["".join(c.choices[0].text for c in chunks if c.choices[0].index == place) for place in (0, 1)]
    assert parts == [choice.text for choice in made.choices]
    assert same.choices[0].text == made.choices[0].text and same.usage.prompt_tokens == len(ids)
    assert len(made.choices[0].logprobs.tokens) == 6


# ---- (2) ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stream", [False, True])
def test_stops(policy: Any, stream: bool) -> None:
    with serving(said(policy, "one two. Observation: three")) as address:
        asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "stop": ["Observation:", "zzz"], "stream": stream}
        made = client(address).chat.completions.create(**asked)
        text = collected(made)["text"] if stream else made.choices[0].message.content
    assert text == "one two."


# ---- (3) ----------------------------------------------------------------------------------------------------
FAULTY = {"name": "f", "arguments": "["}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"content": "x"}]}, "role"),
    ({"messages": [{"role": "king", "content": "x"}]}, "role"),
    ({"messages": [{"role": "user"}]}, "content"),
    ({"messages": [{"role": "user", "content": 7}]}, "content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}, "image_url"),
    ({"messages": [{"role": "tool", "content": "5", "tool_call_id": "c"}]}, "call"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}, *HELLO]},
        "tool_call_id",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "["}}]}]},
        "JSON",
    ),
    ({"messages": HELLO, "temperature": -1}, "temperature"),
    ({"messages": HELLO, "temperature": "hot"}, "temperature"),
    ({"messages": HELLO, "top_p": 0}, "top_p"),
    ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
    ({"messages": HELLO, "n": 1000}, "n"),
    ({"messages": HELLO, "stop": [""]}, "stop"),
    ({"messages": HELLO, "stop": ["x"] * 17}, "stop"),
    ({"messages": HELLO, "tools": [{"type": "web"}]}, "tools.0"),
    ({"messages": HELLO, "tools": [ADD], "tool_choice": "required"}, "Use auto, and ask for the call in the messages."),
    ({"messages": HELLO, "tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "add"}}}, "Use auto"),
    ({"messages": HELLO, "response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": HELLO, "frequency_penalty": 0.5}, "frequency_penalty"),
    ({"messages": HELLO, "top_logprobs": 3}, "top_logprobs"),
    ({"messages": HELLO, "chat_template_kwargs": {"enable_thoughts": True}}, "enable_thoughts"),
]


@pytest.mark.parametrize(("body", "word"), WRONG, ids=[f"{n}-{word}" for n, (_, word) in enumerate(WRONG)])
def test_wrong_requests(address: str, body: dict[str, Any], word: str) -> None:
    answer = httpx.post(f"{address}/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["type"] == "invalid_request_error" and word in error["message"]


def test_null_is_as_if_it_were_not_there(address: str) -> None:
    nothing = dict.fromkeys(["temperature", "top_p", "max_tokens", "stop", "n", "tools", "seed", "stream", "user"])
    answer = httpx.post(f"{address}/v1/chat/completions", json={"messages": HELLO, **nothing})
    assert answer.json()["choices"][0]["message"]["content"] == "hello"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":' * 100_000, b'{"messages": "\\ud800"}']
)
def test_bodies_that_are_no_json(address: str, content: bytes) -> None:
    answer = httpx.post(f"{address}/v1/chat/completions", content=content)
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_half_a_surrogate_is_answered(address: str) -> None:
    content = b'{"messages": [{"role": "user", "content": "a\\ud800b"}]}'
    answer = httpx.post(f"{address}/v1/chat/completions", content=content)
    assert answer.status_code in (200, 400) and answer.json()
    for prompt in ('"\\ud800"', '["a", "b\\udfff"]'):
        answer = httpx.post(f"{address}/v1/completions", content=f'{{"prompt": {prompt}}}')
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"


UNFOLLOWED = [
    {"min_tokens": 3}, {"guided_json": {"type": "object"}}, {"structured_outputs": {"regex": "x"}},
    {"ignore_eos": True}, {"stop_token_ids": [5]}, {"min_p": 0.5}, {"repetition_penalty": 1.3}, {"bad_words": ["a"]},
    {"chat_template": "X"}, {"add_generation_prompt": False}, {"logit_bias": {"5": 1}}, {"functions": [{"name": "f"}]},
    {"continue_final_message": True, "add_generation_prompt": False}, {"response_format": {"type": "json_object"}},
    {"reasoning_effort": "low"}, {"best_of": 3}, {"echo": True}, {"stream_options": {"continuous_usage_stats": True}},
    {"top_logprobs": 2}, {"prompt_logprobs": 0}, {"cache_salt": "x"}, {"priority": 7}, {"frequency_penalty": False},
    {"options": {"seed": 3}}, {"grammar": "root ::= x"}, {"modalities": ["audio"]}, {"suffix": "x"},
]  # fmt: skip
NEUTRAL = [
    {"top_k": -1}, {"top_k": 0}, {"min_p": 0}, {"min_p": 0.0}, {"repetition_penalty": 1}, {"frequency_penalty": 0.0},
    {"presence_penalty": 0}, {"n": 1}, {"logit_bias": {}}, {"response_format": {"type": "text"}}, {"best_of": 1},
    {"stop_token_ids": []}, {"ignore_eos": False}, {"add_generation_prompt": True}, {"min_tokens": 0},
    {"skip_special_tokens": True}, {"tool_choice": "auto"}, {"functions": []}, {"guided_json": None},
    {"user": "u"}, {"metadata": {"a": "b"}}, {"store": True}, {"service_tier": "flex"}, {"prompt_cache_key": "k"},
    {"safety_identifier": "u"}, {"stream_options": {"include_obfuscation": True}}, {"logprobs": False},
    {"seed": -(2**63)}, {"seed": 2**63 - 1},
]  # fmt: skip


# ---- (9) ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("keys", UNFOLLOWED, ids=lambda keys: next(iter(keys)))
def test_keys_that_are_not_followed(address: str, keys: dict[str, Any]) -> None:
    answer = httpx.post(f"{address}/v1/chat/completions", json={"messages": HELLO, **keys})
    assert answer.status_code == 400 and next(iter(keys)) in answer.json()["error"]["message"]


@pytest.mark.parametrize("keys", NEUTRAL, ids=str)
def test_values_that_ask_for_nothing(address: str, keys: dict[str, Any]) -> None:
    answer = httpx.post(f"{address}/v1/chat/completions", json={"messages": HELLO, **keys})
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == "hello", answer.text


def test_special_tokens_of_a_completion(policy: Any) -> None:
    tokenizer = copy.deepcopy(policy.tokenizer)
    first = tokenizer.convert_ids_to_tokens(0)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=[first, "$A"], special_tokens=[(first, 0)]
    )
    with serving(said(policy, "hello", tokenizer=tokenizer)) as address:
        ask = lambda **keys: httpx.post(f"{address}/v1/completions", json={"prompt": "a", **keys}).json()  # noqa: E731
        counts = [ask(**keys)["usage"]["prompt_tokens"] for keys in ({}, {"add_special_tokens": False})]
    assert counts == [2, 1]


def test_keys_that_nobody_knows(address: str) -> None:
    ask = lambda **keys: httpx.post(f"{address}/v1/chat/completions", json={"messages": HELLO, **keys}).json()["error"]  # noqa: E731
    assert ask(temprature=0.5)["message"] == (
        "the server does not know `temprature`. Did you mean `temperature`? Leave it out: it might change the reply."
    )
    assert ask(temprature=0.5)["param"] == "temprature" and ask(temprature=0.5)["code"] == "unknown_parameter"
    assert ask(prompt="x")["param"] == "prompt", "a key of the other address"
    assert ask(tools=[ADD | {"defer_loading": True}])["param"] == "tools.0.defer_loading"
    assert len(ask(**{"x" * 100_000: 1})["message"]) < 300


# ---- (10) ---------------------------------------------------------------------------------------------------
BAD_NUMBERS = [
    ("top_k", "2147483648"), ("top_k", "1" + "0" * 400), ("top_k", "-2"), ("top_k", "5.0"), ("top_k", "true"),
    ("top_k", '"5"'), ("top_k", "1e999"), ("temperature", "NaN"), ("temperature", "Infinity"), ("temperature", "1e999"),
    ("temperature", "-1e-9"), ("temperature", "true"), ("temperature", '"1"'), ("temperature", "101"), ("top_p", "1.1"),
    ("top_p", "0"), ("top_p", "-1"), ("top_p", "true"), ("max_tokens", "0"), ("max_tokens", "1e3"),
    ("max_tokens", "true"),
    ("max_tokens", str(2**63)), ("max_completion_tokens", str(2**31)), ("n", "0"), ("n", "true"), ("n", "65"),
    ("seed", str(2**63)), ("seed", str(-(2**63) - 1)), ("seed", "1.5"), ("seed", "true"), ("logprobs", "1"),
    ("top_logprobs", "21"), ("min_p", "1e999"), ("priority", "-1"), ("stream", "1"), ("parallel_tool_calls", "0"),
    ("frequency_penalty", "1e999"), ("chat_template_kwargs", '{"enable_thinking": NaN}'),
    ("chat_template_kwargs", '{"enable_thinking": 1e999}'), ("stop", "[1]"), ("stop", '"' + "x" * 2000 + '"'),
]  # fmt: skip


@pytest.mark.parametrize(("key", "number"), BAD_NUMBERS, ids=lambda one: one[:20])
def test_numbers_that_no_reply_can_have(address: str, key: str, number: str) -> None:
    content = f'{{"messages": [{{"role": "user", "content": "hello"}}], "{key}": {number}}}'
    answer = httpx.post(f"{address}/v1/chat/completions", content=content.encode())
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error", answer.text


@pytest.mark.parametrize("prompt", ["[true]", "[1.0]", "[[1], [-1]]", "[99999999999999999999]", "[]", "[[]]", "[{}]"])
def test_ids_that_no_model_has(address: str, prompt: str) -> None:
    content = f'{{"prompt": {prompt}, "max_tokens": 2}}'
    answer = httpx.post(f"{address}/v1/completions", content=content.encode())
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt", answer.text


def test_others_go_on(policy: Any) -> None:
    wide: dict[str, Any] = {"messages": HELLO, "max_tokens": 60, "seed": 3}
    with serving(model_of(policy, engine_of(policy))) as address, ThreadPoolExecutor(12) as pool:
        ask = lambda keys: httpx.post(f"{address}/v1/chat/completions", json=wide | keys, timeout=60)  # noqa: E731
        alone = ask({}).json()["choices"][0]["message"]
        extreme = {"top_k": 2**31 - 1, "temperature": 1e-300, "top_p": 5e-324, "seed": 2**63 - 1}
        hostile = [{key: value} for key, value in extreme.items()] + [extreme, {"top_k": 2**70}]
        answers = list(pool.map(ask, [one for keys in hostile for one in (keys, {})]))
    assert [answer.status_code for answer in answers] == [200] * 10 + [400, 200]
    assert all(answer.json()["choices"][0]["message"] == alone for answer in answers[1::2])


# ---- (11) ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/responses", ["Responses API", "/v1/chat/completions", "OpenAIChatCompletionsModel", "OpenAIChatModel"]),
        ("/v1/messages", ["Anthropic", "/v1/chat/completions", "LiteLLM"]),
        ("/api/chat", ["Ollama", "/v1/chat/completions", "OpenAILike"]),
        ("/v1/embeddings", ["no embeddings"]),
        ("/v1/audio/speech", ["texts alone"]),
        ("/chat/completions", ["`base_url` must be /v1"]),
        ("/v1/v1/chat/completions", ["`base_url` must be /v1"]),
        ("/s/KEY/v1/responses/resp_1", ["POST /s/KEY/v1/chat/completions"]),
        ("/tokenize", ["usage.prompt_tokens"]),
        ("/elsewhere", ["POST /v1/chat/completions"]),
    ],
)
def test_other_apis(address: str, path: str, words: list[str]) -> None:
    answer = httpx.post(address + path, json={})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 404 and message.startswith(f"there is no address {path}. ")
    assert all(word in message for word in words), message


def test_the_default_api_of_openai(address: str) -> None:
    with pytest.raises(openai.NotFoundError, match="set_default_openai_api"):
        client(address).responses.create(model="tiny", input="hello")


def test_addresses(address: str) -> None:
    for path, method, status in [
        ("/v1/embeddings", "POST", 404), ("/v1/models/other", "GET", 404), ("/v1/chat/completions", "GET", 405),
        ("/act", "POST", 404), ("/docs", "GET", 404),
    ]:  # fmt: skip
        answer = httpx.request(method, address + path, json={})
        assert answer.status_code == status and answer.json()["error"]["message"], path
    with pytest.raises(openai.NotFoundError, match="The server has: tiny"):
        client(address).chat.completions.create(model="gpt", messages=HELLO)


def test_what_does_not_fit_the_context(policy: Any) -> None:
    with serving(said(policy, "x", context=64)) as address:
        ask = client(address).chat.completions.create
        with pytest.raises(openai.BadRequestError, match=r"holds 64 tokens. The messages have \d+, and the reply may"):
            ask(model="tiny", messages=HELLO, max_tokens=60)
        with pytest.raises(openai.BadRequestError, match="no reply fits") as caught:
            ask(model="tiny", messages=[{"role": "user", "content": "x" * 100}])
        assert caught.value.code == "context_length_exceeded"
        assert ask(model="tiny", messages=HELLO).choices[0].message.content == "x"


# ---- (4) ----------------------------------------------------------------------------------------------------
def test_large_bodies(policy: Any) -> None:
    with serving(said(policy, "x"), limits=ServerLimits(body_bytes=2000)) as address:
        url = f"{address}/v1/chat/completions"
        large = {"messages": [{"role": "user", "content": "x" * 3000}]}
        assert httpx.post(url, json=large).status_code == 413
        pieces = (b"x" * 500 for _ in range(100))  # without a length
        try:
            assert httpx.post(url, content=pieces).status_code == 413
        except httpx.WriteError:
            pass  # the server has closed the connection before all was sent
        assert httpx.post(url, json={"messages": HELLO}).status_code == 200


def test_many_requests(policy: Any) -> None:
    engine = Scripted(policy, lambda read: "x")
    engine.gate = threading.Event()
    limits = ServerLimits(running=2, waiting=1)
    with serving(model_of(policy, engine), limits=limits) as address, ThreadPoolExecutor(16) as pool:
        ask = lambda _: httpx.post(f"{address}/v1/chat/completions", json={"messages": HELLO})  # noqa: E731
        asked = [pool.submit(ask, number) for number in range(16)]
        refusals = list(itertools.islice(as_completed(asked), 13))  # the others wait for the gate
        engine.gate.set()
        answers = [answer.result() for answer in asked]
        assert {one.result().status_code for one in refusals} == {429}
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(refused) == 13 and sum(answer.status_code == 200 for answer in answers) == 3
        assert {answer.headers["retry-after"] for answer in refused} == {"1"}
        assert ask(0).status_code == 200


def test_slow_replies(policy: Any) -> None:
    engine = Scripted(policy, lambda read: "x" * 100, seconds=0.1)
    with serving(model_of(policy, engine), limits=ServerLimits(seconds=0.35)) as address:
        answer = httpx.post(f"{address}/v1/chat/completions", json={"messages": HELLO})
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
        with pytest.raises(openai.APIError, match="longer than"):
            collected(client(address).chat.completions.create(model="tiny", messages=HELLO, stream=True))
        deadline = time.monotonic() + 5
        while len(engine.closed) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(engine.closed) == 2


def test_a_body_that_never_ends(policy: Any) -> None:
    with serving(said(policy, "x"), limits=ServerLimits(seconds=0.3)) as address:
        place = urlsplit(address)
        with socket.create_connection((place.hostname, place.port), timeout=5) as connection:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            assert b" 408 " in connection.recv(100)


# ---- (5) ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves(policy: Any, stream: bool) -> None:
    engine = Scripted(policy, lambda read: "x" * 4000, seconds=0.05)
    with serving(model_of(policy, engine, usual_most=5000)) as address:
        place = urlsplit(address)
        body = json.dumps({"messages": HELLO, "stream": stream}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((place.hostname, place.port)) as connection:
            connection.sendall(head.encode() + body)
            while len(engine.requests) < 3:
                time.sleep(0.01)
        deadline = time.monotonic() + 5
        while not engine.closed and time.monotonic() < deadline:
            time.sleep(0.01)
        asked = len(engine.requests)
        time.sleep(0.3)
        assert engine.closed and len(engine.requests) == asked, "nobody reads on"
        assert httpx.get(f"{address}/health").json()["running"] == 0


# ---- (6) ----------------------------------------------------------------------------------------------------
def test_sixty_chats_at_once(policy: Any) -> None:
    engine = engine_of(policy)

    def ask(number: int, *, stream: bool = False) -> str:
        made = client(address).chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": f"chat {number}"}],
            max_tokens=5 + number % 20,
            seed=number,
            stream=stream,
        )
        return collected(made)["text"] if stream else made.choices[0].message.content

    with serving(model_of(policy, engine)) as address:
        with ThreadPoolExecutor(60) as pool:
            together = list(pool.map(lambda n: ask(n, stream=n % 2 == 0), range(60)))
        alone = [ask(number) for number in range(0, 60, 7)]
        assert together[::7] == alone and len(set(together)) > 50
    assert not kept(engine)


def kept(engine: InProcessEngine) -> list[Any]:
    """Sessions and blocks that the engine still holds."""
    blocks = [held for server in engine._servers.values() for held in server.store._holders if held]
    return [*engine._sessions, *engine._active, *blocks]


# ---- (7) ----------------------------------------------------------------------------------------------------
def test_the_secret(policy: Any) -> None:
    with serving(said(policy, "x"), token="a-secret") as address:
        for key in ("other", "é"):
            answer = httpx.get(f"{address}/v1/models", headers={"authorization": f"Bearer {key}".encode()})
            assert answer.status_code == 401 and "a-secret" not in answer.text
        with pytest.raises(openai.AuthenticationError):
            client(address).chat.completions.create(model="tiny", messages=HELLO)
        right = client(address, api_key="a-secret")
        assert right.chat.completions.create(model="tiny", messages=HELLO).choices[0].message.content == "x"
        assert httpx.get(f"{address}/health").status_code == 200


# ---- (8) ----------------------------------------------------------------------------------------------------
def test_a_model_without_a_template(tiny: Any) -> None:
    engine = Scripted(tiny, lambda read: "red")
    talk = [{"role": "system", "content": "be brief"}, *HELLO, {"role": "assistant", "content": "blue"}, *HELLO]
    with serving(model_of(tiny, engine)) as address:
        made = client(address).chat.completions.create(model="tiny", messages=talk)
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            client(address).chat.completions.create(model="tiny", messages=HELLO, tools=[ADD])
    assert made.choices[0].message.content == "red"
    read = tiny.tokenizer.decode(engine.requests[0].prompt.tolist())
    assert read.count("<|observation|>") == 2 and read.endswith("<|action|>")
