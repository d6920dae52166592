"""Two hundred clients at once, which also send broken and too large bodies, ask at wrong addresses, and leave: (1) each
episode of a run has its own chats, id for id what its model has read, and nothing stays; (2) each client of a served
model gets the reply that it gets alone, and nothing stays.
"""

from __future__ import annotations

import functools
import os
import random
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palaestra.data import Play, Task
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from tests.extras import absent, needs

pytestmark = [needs("openai", "fastapi", "uvicorn", "trl"), pytest.mark.slow]
if not absent(*pytestmark[0].args):
    import httpx

    from palaestra.gateway import gate
    from palaestra.gateway.limits import ServerLimits
    from tests.chat.conversations import policy_of
    from tests.gateway.served import Scripted, engine_of, model_of, serving
    from tests.gateway.test_outside_agent import differences, fault, setup_of
    from tests.gateway.test_serving import kept

CLIENTS = 200
LARGE = 50_000  # bytes of a body that are too many here


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return policy_of("qwen2_5", Path(tmp_path_factory.mktemp("model")))


def until(right: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not right() and time.monotonic() < deadline:
        time.sleep(0.05)
    return right()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# ---- (1) ----------------------------------------------------------------------------------------------------
def test_episodes_of_a_run(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "LIMITS", replace(gate.LIMITS, body_bytes=LARGE))
    monkeypatch.setattr("palaestra.gateway.program.GATE", own := gate.Gate())

    def repeats(read: str) -> str:
        return read.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]

    engine = policy.engine = Scripted(policy, repeats, seconds=0.02)
    engine.slow = "slow"
    runner = EpisodeRunner(
        setup_of(policy, "disorderly", seconds=300.0),
        RolloutSettings(response_tokens=400, in_flight=CLIENTS, stuck_seconds=None),
    )
    before = threading.active_count(), open_files()
    for _ in range(3):
        engine.read.clear()
        plays = [
            Play(task=Task(env="questions", seed=n, params={"text": f"question {n}."}), group=f"g{n}", sample=0, seed=n)
            for n in range(CLIENTS)
        ]
        trajectories = runner.collect(plays)
        assert not differences(policy, engine.read, trajectories)
        for number, trajectory in enumerate(trajectories):
            assert not fault(trajectory)
            said = trajectory.info["said"][0].splitlines()
            assert said == [f"question {number}.", f"question {number}. 1", f"question {number}. 2"]
            for step in trajectory.steps:
                read = policy.tokenizer.decode(trajectory.sequence("player", step.segment).tolist())
                assert set(re.findall(r"question (\d+)\.", read)) == {str(number)}
        assert not own._chats and until(lambda: not engine.left), "every session was closed"
    assert until(lambda: not own.is_open)
    # An agent has a thread, and its pool a connection, which the next episodes use again.
    assert threading.active_count() - before[0] < 1.5 * CLIENTS
    assert open_files() - before[1] < 1.5 * CLIENTS, "600 episodes have asked more than 2,000 times"


# ---- (2) ----------------------------------------------------------------------------------------------------
def test_clients_of_a_model(policy: Any) -> None:
    engine = engine_of(policy)

    def chat(number: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"chat {number}"}]
        return {"messages": messages, "max_tokens": 4 + number % 12, "seed": number}

    def ask(url: str, number: int) -> str:
        answer = http.post(url, json=chat(number))
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    def disturbs(url: str, number: int) -> None:
        what = number % 4
        if what == 0:
            assert http.post(url, content=b'{"messages": [').status_code == 400
        elif what == 1:
            large = {"messages": [{"role": "user", "content": "x" * LARGE}]}
            assert http.post(url, json=large).status_code == 413
        elif what == 2:
            with suppress(httpx.TimeoutException):  # unless the model ends its reply at once
                http.post(url, json=chat(number) | {"max_tokens": 30_000}, timeout=0.3)
        else:
            with http.stream("POST", url, json=chat(number) | {"stream": True, "max_tokens": 20_000}) as answer:
                next(answer.iter_raw())

    def one(url: str, number: int) -> str:
        first = random.Random(number).random() < 0.5
        if first:
            disturbs(url, number)
        said = ask(url, number)
        if not first:
            disturbs(url, number)
        return said

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    with (
        httpx.Client(timeout=300, limits=limits) as http,
        serving(model_of(policy, engine), limits=ServerLimits(body_bytes=LARGE)) as address,
    ):
        url = f"{address}/v1/chat/completions"
        with ThreadPoolExecutor(CLIENTS) as pool:
            together = list(pool.map(functools.partial(one, url), range(CLIENTS)))
        alone = [ask(url, number) for number in range(0, CLIENTS, 9)]
        assert together[::9] == alone and len(set(together)) > CLIENTS * 0.8
        idle = {"status": "ok", "running": 0, "waiting": 0}
        assert until(lambda: http.get(f"{address}/health").json() == idle)
        assert until(lambda: not kept(engine)), kept(engine)
