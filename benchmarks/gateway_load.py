"""A served model under load: `palaestra serve` beside `transformers serve`, or beside a plain loop over `generate`.

    python benchmarks/gateway_load.py --streams 64 --seconds 600
    python benchmarks/gateway_load.py --servers palaestra plain --streams 16 --seconds 60

Each server runs alone, one after the other, with the same model in the same type. `streams` clients ask at once: each
sends a chat, reads its stream to the end, and sends the next one, until `seconds` are over. All prompts differ. A reply
has at most `tokens` tokens, and its tokens are counted by the model's own tokenizer. Memory is that of the server's
process. `grown` is its median in the last tenth of the time, less that in the second tenth, and `grown_late` less that
in the sixth: a server without a leak may grow at first, and is flat later. `by_minute` is the median of each minute.
The clients run on the same machine and take some of its time, the same for all servers.

`transformers` is `transformers serve` as it starts by default, and `transformers-batching` that with continuous
batching. `plain` answers one request after the other with `generate`, as a small FastAPI program does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from machine import describe
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

from palaestra.models.pretrained import located

RESULT = Path(__file__).parent / "results" / "gateway_load.json"
START_S, TICK_S = 300.0, 0.5
SUBJECTS = (
    "a garden",
    "the sea",
    "an old clock",
    "bread",
    "a train",
    "winter",
    "a lighthouse",
    "chess",
    "bees",
    "rain",
)
SERVERS = ("palaestra", "transformers", "transformers-batching", "plain")


# ---- servers ------------------------------------------------------------------------------------------------
def command(server: str, model: str, port: int, dtype: str) -> list[str]:
    """The words that start a server."""
    theirs = [str(Path(sys.executable).with_name("transformers")), "serve", model, "--device", "cpu"]
    words = {
        "palaestra": [sys.executable, "-m", "palaestra", "serve", model, "--name", model],
        "transformers": theirs,
        "transformers-batching": [*theirs, "--continuous-batching"],
        "plain": [sys.executable, str(Path(__file__).resolve()), "--as-plain", "--model", model],
    }
    return [*words[server], "--port", str(port), "--dtype", dtype]


def free_port() -> int:
    """A port that no program uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def serve_plain(model: str, port: int, dtype: str) -> None:
    """A server that answers one request after the other by `generate`."""
    import torch
    import uvicorn
    from fastapi import FastAPI, Request
    from fastapi.responses import StreamingResponse

    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    causal = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), trust_remote_code=False).eval()
    app, turn = FastAPI(), asyncio.Lock()

    async def answer(request: Request) -> Any:
        asked = await request.json()
        text = tokenizer.apply_chat_template(asked["messages"], tokenize=False, add_generation_prompt=True)
        given = tokenizer(text, return_tensors="pt", add_special_tokens=False)

        async def events() -> AsyncIterator[str]:
            async with turn:
                streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
                options = {"max_new_tokens": asked["max_tokens"], "do_sample": True, "top_k": 0, "top_p": 1.0}
                threading.Thread(target=causal.generate, kwargs={**given, **options, "streamer": streamer}).start()
                loop, pieces = asyncio.get_running_loop(), iter(streamer)
                while (piece := await loop.run_in_executor(None, next, pieces, None)) is not None:
                    yield f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': piece}}]})}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    app.add_route("/v1/chat/completions", answer, methods=["POST"])
    app.add_api_route("/health", lambda: {"status": "ok"})
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical")


def wait_for(process: subprocess.Popen[bytes], url: str) -> None:
    """Wait until a server answers. Raises: RuntimeError, if it ends before, or takes too long."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server has ended with status {process.returncode}")
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"the server has not answered within {START_S:g} s")


# ---- clients ------------------------------------------------------------------------------------------------
async def one_chat(client: httpx.AsyncClient, url: str, model: str, number: int, tokens: int) -> dict[str, Any]:
    """One stream: seconds until the first text, between two texts, and until the end; the text; the error, if any."""
    subject = SUBJECTS[number % len(SUBJECTS)]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Write story number {number} about {subject}."}],
        "max_tokens": tokens,
        "temperature": 1.0,
        "stream": True,
    }
    began, last, gaps, text, first = time.monotonic(), 0.0, [], "", None
    try:
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                piece = _text_in(line)
                if piece:
                    now = time.monotonic()
                    first = now - began if first is None else first
                    gaps += [now - last] if last else []
                    text, last = text + piece, now
    except httpx.HTTPError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"first": first, "gaps": gaps, "whole": time.monotonic() - began, "text": text}


def _text_in(line: str) -> str:
    """The text in one line of a stream."""
    if not line.startswith("data: {"):
        return ""
    choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
    return str((choices[0].get("delta") or {}).get("content") or "")


async def load(url: str, model: str, *, streams: int, seconds: float, tokens: int) -> list[dict[str, Any]]:
    """The chats that `streams` clients have ended within the time."""
    ends, chats, numbers = time.monotonic() + seconds, list[dict[str, Any]](), iter(range(10**9))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=httpx.Timeout(None), limits=limits) as client:

        async def follow() -> None:
            while time.monotonic() < ends:
                chat = await one_chat(client, url, model, next(numbers), tokens)
                if time.monotonic() < ends or not chats:
                    chats.append(chat)

        tasks = [asyncio.create_task(follow()) for _ in range(streams)]
        await asyncio.wait(tasks, timeout=seconds)
        while not chats and not all(task.done() for task in tasks):  # the time is too short for a single chat
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return chats


class Memory(threading.Thread):
    """Notes the memory of a process and of its children while it runs."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process, self._over = psutil.Process(pid), threading.Event()
        self.bytes: list[int] = []

    def run(self) -> None:
        while not self._over.wait(TICK_S):
            try:
                family = [self._process, *self._process.children(recursive=True)]
                self.bytes.append(sum(one.memory_info().rss for one in family))
            except psutil.Error:
                return

    def stop(self) -> dict[str, Any]:
        """Megabytes: early, at most, growth since early and in the second half, and the median of each minute."""
        self._over.set()
        self.join()
        values = np.array(self.bytes or [0]) / 1e6
        tenth = max(1, len(values) // 10)
        starts = [int(share * len(values)) for share in (0.1, 0.5, 0.9)]
        early, middle, late = (float(np.median(values[start : start + tenth])) for start in starts)
        minute = round(60 / TICK_S)
        return {
            "early": round(early, 1),
            "most": round(float(values.max()), 1),
            "grown": round(late - early, 1),
            "grown_late": round(late - middle, 1),
            "by_minute": [round(float(np.median(values[at : at + minute])), 1) for at in range(0, len(values), minute)],
        }


# ---- the measurement ----------------------------------------------------------------------------------------
def measured(server: str, model: str, given: argparse.Namespace, tokenizer: Any) -> dict[str, Any]:
    """Start a server, ask it, and end it. Returns the row of the table."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        command(server, model, port, given.dtype), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        try:
            wait_for(process, url)
            asyncio.run(load(url, model, streams=1, seconds=0.0, tokens=2))  # what happens once, at the first request
            memory = Memory(process.pid)
            memory.start()
            began = time.monotonic()
            chats = asyncio.run(load(url, model, streams=given.streams, seconds=given.seconds, tokens=given.tokens))
            seconds = time.monotonic() - began
            used = psutil.Process(process.pid).cpu_times()
            held = memory.stop()
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
    return {"server": server, **summary(chats, seconds, tokenizer), "memory_mb": held,
            "processor_s": round(used.user + used.system, 1)}  # fmt: skip


def summary(chats: list[dict[str, Any]], seconds: float, tokenizer: Any) -> dict[str, Any]:
    """Numbers of the chats that were answered, and of those that were not."""
    answered = [chat for chat in chats if "error" not in chat]
    tokens = [len(tokenizer(chat["text"], add_special_tokens=False)["input_ids"]) for chat in answered]
    errors = [chat["error"] for chat in chats if "error" in chat]
    found: dict[str, Any] = {
        "chats": len(answered),
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
        "tokens": sum(tokens),
        "tokens_per_second": round(sum(tokens) / seconds, 1),
    }
    gaps = [gap for chat in answered for gap in chat["gaps"]]
    for name, values in {
        "first_text_s": [chat["first"] for chat in answered if chat["first"] is not None],
        "between_texts_s": gaps,
        "whole_s": [chat["whole"] for chat in answered],
    }.items():
        found[name] = {
            f"p{share}": round(float(np.percentile(values, share)), 4) if values else None for share in (50, 99)
        }
    return found


def main() -> None:
    """Measure the servers one after the other, print a line for each, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="a folder or the name of a model")
    parser.add_argument("--servers", nargs="+", choices=SERVERS, default=["palaestra", "transformers"])
    parser.add_argument("--streams", type=int, default=64, help="chats at the same time")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each server")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of a reply")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=1, help="how often the servers take turns")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--as-plain", action="store_true", help="be the server `plain`")
    parser.add_argument("--port", type=int, default=0, help="of the server `plain`")
    given = parser.parse_args()
    model = located(given.model)
    if given.as_plain:
        serve_plain(model, given.port, given.dtype)
        return
    tokenizer, rows = AutoTokenizer.from_pretrained(model, trust_remote_code=False), []
    for number in range(given.rounds):
        for server in given.servers:
            rows.append({"round": number, **measured(server, model, given, tokenizer)})
            print(json.dumps(rows[-1]), flush=True)
    settings = {key: getattr(given, key) for key in ("streams", "seconds", "tokens", "dtype")}
    speeds = {
        server: statistics.median(row["tokens_per_second"] for row in rows if row["server"] == server)
        for server in given.servers
    }
    packages = ("transformers", "fastapi", "uvicorn")
    found = {"model": given.model, **settings, "tokens_per_second": speeds, "rows": rows, "machine": describe(packages)}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
