"""Exported weights in plain transformers: do they succeed as often as the run they come from?

    palaestra train models/smollm2-words.yaml
    python benchmarks/exported.py runs/smollm2-words

The run's evaluation tasks are played twice with equal sampling: by `palaestra eval RUN`, and with a server in place of
the policy. It loads the folder that `palaestra export` writes, makes the text by the folder's own chat template, and
answers by `generate`: no token passes through Palaestra. It works for recipes of one policy with a chat template. Tools
of a role, their calls and results stand in messages as the engine writes them for a template without tools.

Two independent draws differ by chance. So the exported model also reads the episodes of the run id by id, in one plain
forward pass, and each is weighed by its probability: `reading.py` says how. This is left out at temperature 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from machine import describe
from numpy.typing import NDArray
from reading import weighed
from transformers import AutoModelForCausalLM, AutoTokenizer

from palaestra.commands import evaluate, export
from palaestra.commands.runs import resolve, run_folder
from palaestra.evaluation.statistics import paired_bootstrap
from palaestra.recipe.players import player_of, with_players
from palaestra.registry.bound import BoundPart, bind
from palaestra.training.settings import RunSettings

TOGETHER = 64  # chats in one batch
WAIT = 0.05  # seconds in which further chats may join a batch
NAME = "exported"


class Said(NamedTuple):
    """An answer. `cut`: it ended at the limit of its tokens."""

    text: str
    cut: bool


class Asked(NamedTuple):
    """A chat that waits for its answer."""

    messages: list[dict[str, str]]
    tokens: int
    temperature: float
    answer: Future[Said]


class Generator(threading.Thread):
    """Answers chats by `generate` of transformers, those that come together in one batch."""

    def __init__(self, folder: str, dtype: str) -> None:
        super().__init__(daemon=True)
        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left", trust_remote_code=False)
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), trust_remote_code=False
        ).eval()
        self.asked: queue.Queue[Asked] = queue.Queue()

    def run(self) -> None:
        torch.manual_seed(0)
        while True:
            together = [self.asked.get()]
            time.sleep(WAIT)
            with contextlib.suppress(queue.Empty):
                while len(together) < TOGETHER:
                    together.append(self.asked.get_nowait())
            try:
                said = self._answers(together)
            except Exception as error:
                for one in together:
                    one.answer.set_exception(error)
            else:
                for one, answer in zip(together, said, strict=True):
                    one.answer.set_result(answer)

    def _answers(self, together: list[Asked]) -> list[Said]:
        (tokens,), (temperature,) = {one.tokens for one in together}, {one.temperature for one in together}
        read = self._tokenizer.apply_chat_template(
            [one.messages for one in together],
            add_generation_prompt=True,
            padding=True,
            return_dict=True,
            return_tensors="pt",
        )
        drawn: dict[str, Any] = {"do_sample": False}
        if temperature:
            drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        with torch.no_grad():
            written = self._model.generate(**read, **drawn, max_new_tokens=tokens)
        written = written[:, read["input_ids"].shape[1] :]
        texts = self._tokenizer.batch_decode(written, skip_special_tokens=True)
        cut = (written != self._tokenizer.eos_token_id).all(dim=1).tolist()
        return [Said(text.strip(), one) for text, one in zip(texts, cut, strict=True)]  # policies strip replies, too


@contextlib.contextmanager
def served(folder: str, dtype: str) -> Iterator[str]:
    """The address of a server with the folder's model, which has no more than the two paths that are asked for."""
    generator = Generator(folder, dtype)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send({"object": "list", "data": [{"id": NAME, "object": "model", "created": 0, "owned_by": "me"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            tokens = body.get("max_completion_tokens") or body["max_tokens"]
            asked = Asked(body["messages"], tokens, body["temperature"], Future())
            generator.asked.put(asked)
            said = asked.answer.result()
            message = {"role": "assistant", "content": said.text}
            choice = {"index": 0, "message": message, "finish_reason": "length" if said.cut else "stop"}
            self._send(
                {"id": "1", "object": "chat.completion", "created": 0, "model": NAME, "choices": [choice]},
            )

        def _send(self, said: Mapping[str, Any]) -> None:
            data = json.dumps(said).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *given: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    generator.start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()


def asking(settings: RunSettings, url: str) -> RunSettings:
    """The settings with the server in place of the policy."""
    settings = with_players(settings, [player_of(url)], model=NAME)
    policies = {}
    for name, policy in settings.policies.items():
        options = {**policy.policy.options, "tools": "words", "in_flight": TOGETHER, "timeout_s": 3600.0}
        endpoint = bind("policy", BoundPart(name="endpoint", options=options))
        policies[name] = policy.model_copy(update={"policy": endpoint})
    return settings.model_copy(update={"policies": policies})


def solved(played: evaluate.PlayedPanel) -> NDArray[np.float64]:
    """1 for each episode that succeeded, else 0: (tasks, samples)."""
    outcomes = [task["outcomes"] for task in played.to_json()["per_task"]]
    return np.array([[float(one is not None and one >= 1.0) for one in task] for task in outcomes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument("--samples", type=int, default=1, help="episodes of each task")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of plain transformers")
    parser.add_argument("--only-read", action="store_true", help="no second play: only read the episodes of the run")
    parser.add_argument("--out", type=Path, help="a file for the result, as JSON")
    chosen = parser.parse_args()
    if chosen.only_read and not chosen.temperature:
        parser.error("--only-read needs a temperature above 0: without chance, no episode has a probability.")
    result = {key: getattr(chosen, key) for key in ("run", "temperature", "tasks", "samples", "dtype")}
    result |= compare(chosen)
    if chosen.out is not None:
        chosen.out.write_text(json.dumps(result | {"machine": describe()}, indent=1) + "\n", encoding="utf-8")


def compare(chosen: argparse.Namespace) -> dict[str, Any]:
    """Play, read and print the results. Returns: the results as JSON values."""
    overrides = (f"evaluation.tasks={chosen.tasks}", f"evaluation.temperature={chosen.temperature}")
    settings = resolve([chosen.run, *overrides]).settings
    wanted = evaluate.Wanted(samples=chosen.samples)
    played = {"palaestra eval": evaluate.play_wanted(settings, wanted, run_folder([chosen.run]))}
    ours = solved(played["palaestra eval"])
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        export.export(folder=chosen.run, out=folder)
        if chosen.temperature:
            episodes = played["palaestra eval"].episodes
            read = weighed(folder, chosen.dtype, episodes, ours, chosen.temperature)
            print(f"the run's episodes, read by transformers: {read}")
            result["read"] = read.to_json()
        if not chosen.only_read:
            with served(folder, chosen.dtype) as url:
                played["transformers"] = evaluate.play_wanted(asking(settings, url), wanted)
            difference = paired_bootstrap(solved(played["transformers"]).mean(axis=1), ours.mean(axis=1))
            print(f"difference of two plays, by task: {difference}")
            result["difference"] = [difference.value, difference.low, difference.high]
    for name, one in played.items():
        print(f"{name}: {one.evaluation.successes} of {one.evaluation.episodes}, {one.evaluation.success}")
    result["right"] = {name: one.evaluation.successes for name, one in played.items()}
    result["failed"] = {name: one.evaluation.failed for name, one in played.items()}
    return result


if __name__ == "__main__":
    main()
