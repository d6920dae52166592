"""Large bodies: (1) one that no context holds is refused by its bytes, and its JSON is not read; (2) one with too many
characters, messages or tools is refused before it is validated; thoughts of earlier replies do not count; (3) while a
large prompt is tokenized, `/health` answers, and replies to others begin and end; (4) the memory of large bodies is
given back; (5) an episode whose agent sends one ends as one that fills its context, and others go on; (6) the bodies of
requests that are not answered yet have a limit together: others wait, and get 429 in the end; small ones and `/health`
are answered.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from palaestra.chat.lengths import Encoder
from tests.extras import absent, needs, some

pytestmark = needs("openai", "fastapi", "uvicorn", "trl")
if not absent(*pytestmark.args):
    import httpx

    from palaestra.data import StopReason
    from palaestra.gateway import app, requests
    from palaestra.gateway import limits as server_limits
    from palaestra.gateway.limits import ServerLimits
    from palaestra.gateway.sizes import ESCAPED, SPARE, Sizes
    from palaestra.http.rules import Refusal
    from tests.chat.conversations import policy_of
    from tests.gateway.served import Scripted, model_of, serving
    from tests.gateway.test_outside_agent import fault, played, setup_of

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
MB = 10**6
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return policy_of("qwen2_5", Path(tmp_path_factory.mktemp("model")))


def asked(address: str, body: Any, path: str = CHAT) -> Any:
    return httpx.post(f"{address}{path}", json=body, timeout=300)


def is_too_long(answer: Any) -> bool:
    return bool(answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the server has done with bodies."""
    noted: list[str] = []
    for module, name in ((app, "json_of"), (requests, "_checked")):
        usual = getattr(module, name)

        def call(*given: Any, usual: Any = usual, name: str = name) -> Any:
            noted.append(name)
            return usual(*given)

        monkeypatch.setattr(module, name, call)
    return noted


def test_1_by_bytes(policy: Any, calls: list[str]) -> None:
    model = model_of(policy, Scripted(policy, lambda read: "well"), context=300)
    most = SPARE + ESCAPED * 300 * policy.renderer.encoder.longest
    with serving(model) as address:
        assert is_too_long(asked(address, {"messages": [{"role": "user", "content": "x" * 15 * MB}]}))
        assert is_too_long(asked(address, {"prompt": ["x" * 15 * MB], "junk": "x" * MB}, TEXT))
        assert is_too_long(httpx.post(f"{address}{CHAT}", content=b" " * (most + 1)))
        assert calls == []
        assert httpx.post(f"{address}{CHAT}", content=b" " * most).json()["error"]["code"] == "invalid_json"
        assert asked(address, {"messages": HELLO}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "x" * 5000}]},
        {"messages": [{"role": "user", "content": "x" * 100}] * 50},
        {"messages": [{"role": "user", "content": ""}] * 301},
        {"messages": [{}] * 301},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "xy"}] * 2000}]},
        {"messages": [{"role": "user", "content": [[[[0] * 5000]]]}]},
        {"messages": [{"role": "user", "x" * 5000: 0}]},
        {"messages": HELLO, "tools": [{}] * 301},
        {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "f", "description": "x" * 5000}}]},
    ],
    ids=lambda body: str(body)[:60],
)
def test_2_before_it_is_validated(policy: Any, calls: list[str], body: Any) -> None:
    model = model_of(policy, Scripted(policy, lambda read: "well"), context=300)
    sizes = Sizes(300, 16)
    assert sizes.letters < 5000
    with pytest.raises(Refusal) as caught:
        sizes.refuse_chat(body)
    assert caught.value.code == "context_length_exceeded"
    thoughts = {"role": "assistant", "content": "x", "reasoning_content": "x" * 5000}
    sizes.refuse_chat({"messages": [*HELLO, thoughts, *HELLO]})
    with serving(model) as address:
        body = {key: [*value * (len(str(policy.renderer.encoder.longest)) * 40)] for key, value in body.items()}
        assert is_too_long(asked(address, body)) and "_checked" not in calls


@pytest.mark.parametrize(("path", "key"), [(CHAT, "messages"), (TEXT, "prompt")])
def test_3_while_it_is_tokenized(policy: Any, monkeypatch: pytest.MonkeyPatch, path: str, key: str) -> None:
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []
    encode = Encoder.encode

    def slow(self: Any, text: str, **options: Any) -> Any:
        if len(text) > MB:
            begun.set()
            order.append("begun" if go_on.wait(60) else "late")
        return encode(self, text, **options)

    monkeypatch.setattr(Encoder, "encode", slow)
    model = model_of(policy, Scripted(policy, lambda read: "well"))
    text = "x" * (MB + 1)
    monkeypatch.setattr(Encoder, "longest", 1000)  # as if one token could have so many characters
    monkeypatch.setitem(vars(policy.renderer.encoder), "longest", 1000)
    with serving(model) as address, ThreadPoolExecutor(1) as pool:
        large = {
            key: [{"role": "user", "content": text}] if path == CHAT else text,
            "metadata": {"note": "x" * 14 * MB},
        }
        waits = pool.submit(asked, address, large, path)
        assert begun.wait(60)
        assert httpx.get(f"{address}/health", timeout=300).json()["running"] == 1
        order.append("health")
        assert asked(address, {"messages": HELLO}).json()["choices"][0]["message"]["content"] == "well"
        assert asked(address, {"prompt": "hello"}, TEXT).status_code == 200
        order.append("others")
        assert not waits.done()
        go_on.set()
        assert is_too_long(waits.result())
    assert order == ["health", "others", "begun"]


def test_4_memory_is_given_back(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    came = threading.Event()
    monkeypatch.setattr(app, "SOON_S", 0.2)
    monkeypatch.setattr(app, "give_back", came.set)
    model = model_of(policy, Scripted(policy, lambda read: "well"), context=300)
    with serving(model) as address:
        asked(address, {"messages": HELLO})
        assert not came.wait(0.5), "a small body leaves nothing"
        asked(address, {"messages": [{"role": "user", "content": "x" * 2 * MB}]})
        assert came.wait(300)


def test_6_together(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_limits, "BODY_S", 0.5)
    engine = Scripted(policy, lambda read: "again" if "again" in read else "well")
    engine.gate = threading.Event()
    large = {"messages": HELLO, "user": "x" * 900_000}
    limits = ServerLimits(body_bytes=MB, held_bytes=2 * MB)
    with serving(model_of(policy, engine), limits=limits) as address, ThreadPoolExecutor(1) as pool:
        first = pool.submit(asked, address, large)
        while not engine.requests:
            time.sleep(0.01)
        refusal = asked(address, large)
        assert (refusal.status_code, refusal.headers["retry-after"]) == (429, "1")
        assert refusal.json()["error"]["code"] == "too_many_bytes"
        assert httpx.get(f"{address}/health", timeout=300).json()["running"] == 1
        small = pool.submit(asked, address, {"messages": HELLO})
        engine.gate.set()
        assert first.result().status_code == small.result().status_code == asked(address, large).status_code == 200


@pytest.mark.parametrize("kind", some(("book", "crowd", "spaces"), fast=1))
def test_5_in_episodes(policy: Any, kind: str) -> None:
    policy.engine = Scripted(policy, lambda read: "well")
    texts = [f"first {kind}", f"later {kind}", f"careful {kind}", "fine"]
    first, later, careful, fine = played(setup_of(policy, "sends_a_book"), texts)
    assert "The messages have more" in fault(first), "it has nothing to learn from"
    assert later.stop is StopReason.CONTEXT_OVERFLOW and not fault(later) and len(later.steps) == 1
    assert careful.info["said"] == ["context_length_exceeded"]
    assert fine.outcome == 1 and not fault(fine)
