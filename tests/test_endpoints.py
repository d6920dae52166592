"""What must hold of clients of OpenAI's protocol: (1) address and key come from environment variables, and a missing
one is refused by its name; (2) a request carries the key, and the settings of attempts and time are kept; (3) errors
become failures of the caller's boundary; (4) no error, traceback or printed object shows a key or a password, even
where the endpoint repeats it; (5) equal settings are equal endpoints."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

from palaestra.endpoints import Endpoint, endpoint_from
from palaestra.errors import EpisodeFailure, RecipeError
from tests.chat_server import ChatServer
from tests.extras import needs
from tests.messages import told

pytestmark = needs("openai")
SECRET = "sk-of-the-test-0123456789"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("MY_KEY", SECRET)


def made(**options: Any) -> Endpoint:
    return endpoint_from("MY_URL", "MY_KEY", **{"timeout_s": 30.0, "retries": 0, "where": "the test"} | options)


def at(server: ChatServer, **options: Any) -> Endpoint:
    return Endpoint(**{"url": server.url, "key": SECRET, "timeout_s": 30.0, "retries": 0} | options)


def ask(endpoint: Endpoint) -> str:
    with endpoint.failures(boundary="judge", where="the test", what="nobody spoke"):
        messages = [{"role": "user", "content": "hi"}]
        done = endpoint.client().chat.completions.create(model="m", messages=messages)
    return str(done.choices[0].message.content)


def test_1_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (made().url, made().key) == ("http://127.0.0.1:9/v1", SECRET)
    monkeypatch.delenv("MY_KEY")
    assert made().key == ""
    with told(RecipeError, "variable MY_KEY is empty"):
        made(key_required=True)
    monkeypatch.setenv("MY_URL", "")
    with told(RecipeError, "variable MY_URL is empty"):
        made()


def test_2_requests() -> None:
    with ChatServer(500, "hello") as server:
        assert ask(at(server, retries=1)) == "hello"
        assert server.keys == [f"Bearer {SECRET}"] * 2
        ask(at(server, key=""))
        assert server.keys[-1] == "Bearer none"

        async def later() -> str:
            async with at(server).async_client() as client:
                done = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            return str(done.choices[0].message.content)

        assert asyncio.run(later()) == "hello"


@pytest.mark.parametrize(("answer", "word"), [(500, "InternalServerError"), (1.0, "Timeout")])
def test_3_failures(answer: int | float, word: str) -> None:
    with ChatServer(answer) as server, told(EpisodeFailure, word) as raised:
        ask(at(server, timeout_s=0.2 if word == "Timeout" else 30.0))
    assert raised.value.boundary == "judge" and raised.value.where == "the test"
    assert raised.value.what.startswith("nobody spoke: ") and "the endpoint is up" in raised.value.remedy


def test_3_other_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), made().failures(boundary="judge", where="the test", what="nobody spoke"):
        1 / 0


def test_4_secrets() -> None:
    padding = "x" * 150  # the message is cut in the middle of the key
    for said in (f"wrong key {SECRET}", f"{padding}{SECRET}"):
        with ChatServer((401, said)) as server, pytest.raises(EpisodeFailure) as raised:
            ask(at(server))
        shown = str(raised.value) + "".join(traceback.format_exception(raised.value))
        assert "AuthenticationError" in shown and "***" in shown and SECRET[:6] not in shown
    with ChatServer((401, "no entry with pass-4711")) as server, pytest.raises(EpisodeFailure) as raised:
        ask(at(server, url=server.url.replace("//", "//me:pass-4711@")))
    assert "pass-4711" not in str(raised.value) and "no entry with ***" in str(raised.value)
    assert SECRET not in repr(made()) and "127.0.0.1" not in repr(made())


def test_5_equality() -> None:
    assert made() == made() and hash(made()) == hash(made())
    assert made() != made(retries=1)
