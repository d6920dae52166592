"""A stand-in for servers of vLLM and SGLang: it speaks their messages, and the in-process engine generates.

    python -m palaestra.testing.stand_in --kind vllm --model FOLDER --port 8000

It reads real weights and gives real log-probabilities, so a recipe with `engine: vllm` or `engine: sglang` can be tried
on a machine without these servers. It keeps keys and values as they do: after new weights it would use old ones, unless
the cache is emptied or requests carry another salt. It fails where it is told to.

It refuses what vLLM 0.32 refuses, and does what that version does on a CPU: the output layer keeps its weights, if new
ones come without it, and answers do not name the weights that drew them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import torch
from safetensors.torch import load_file

from palaestra.data.protocols import Request
from palaestra.engines import InProcessEngine, wire
from palaestra.engines.external.fleet import COMPARED
from palaestra.errors import EpisodeFailure, PalaestraError
from palaestra.http.addresses import LOOPBACK, bound
from palaestra.http.rules import Limits, Rules
from palaestra.http.streams import Asked, Streams, answer_bytes
from palaestra.models.adapters import load_adapter, named_tensors
from palaestra.models.causal_lm import load_causal_lm
from palaestra.testing.refusals import refusal

KINDS = ("vllm", "sglang")
FAULTS = ("hang", "freeze", "drop", "late", "garbage", "error", "busy", "die")
BASE = "base"  # the base model's name in the engine
MODEL = "stand-in"  # its name in messages
LATE = 0.5  # seconds that a late answer takes, after its last token
KEPT = 64  # conversations in the cache
RESERVED = 6  # ids of the context that SGLang keeps for itself
Answer = tuple[int, Any]


class _Dropped(ConnectionError):
    """The connection ends without an answer."""


@dataclass(slots=True, eq=False)
class _Running:
    """A request that is under way. `spans`: labels of weights with the first token that they drew."""

    task: asyncio.Task[Any]
    session: Any
    policy: str
    spans: list[tuple[str, int]]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    aborted: bool = False


class StandIn:
    """A server on this machine. `start` lets a thread serve, and `with` also ends it.

    Args:
        kind: "vllm" or "sglang". folder: of the model that it loads.
        port: 0: any free port. key: the secret that every message must carry; empty: none.
        slow_start: seconds from the start to the first answer.
        max_length: most ids of a request; None: the model's context.
        scaled: log-probabilities follow temperature, top-k and top-p, as with `--logprobs-mode processed_logprobs`.
        features: what it was started with: "weights", "adapters" and "memory"; and "versions", if answers name the
            weights that drew them, as later versions of vLLM do.
        cpu: it says that it computes on a CPU, and ends at a request with a seed, as vLLM may.
        defects: for tests of tests: "unsalted" ignores salts, "unreset" keeps its cache, "deaf" ignores new weights,
            "tied" ignores the output layer, and "numb" ignores adapters.

    Attributes:
        faults: each of the next requests for tokens meets one of them. requests: path and body of the last 1,000.
    """

    def __init__(
        self,
        kind: str,
        folder: str | Path,
        *,
        port: int = 0,
        key: str = "",
        slow_start: float = 0.0,
        max_length: int | None = None,
        scaled: bool = True,
        features: Iterable[str] = ("weights", "adapters", "memory"),
        cpu: bool = False,
        defects: Iterable[str] = (),
    ) -> None:
        if kind not in KINDS:
            raise PalaestraError(where="StandIn", what=f"there is no kind `{kind}`.", options=KINDS)
        self.kind, self.folder, self.port, self.key = kind, Path(folder), port, key
        self.slow_start, self.scaled, self.max_length = slow_start, scaled, max_length
        self.features, self.defects, self.cpu = set(features), set(defects), cpu
        self.faults: deque[str] = deque()
        self.requests: deque[tuple[str, Any]] = deque(maxlen=1000)
        self.on_death: Callable[[], None] = self._close
        self._models: dict[str, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # ---- life -------------------------------------------------------------------------------------------------
    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{LOOPBACK}:{self.port}"

    def __enter__(self) -> StandIn:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Load the model from the folder, and serve from another thread. It may have been killed before."""
        self._load()  # in this thread, since loading a model in two threads at once fails
        bound = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(bound,), daemon=True, name="stand-in")
        self._thread.start()
        bound.wait()

    def kill(self) -> None:
        """Cut all connections and end, as if the process had been killed."""
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._close)
        if self._thread is not None:
            self._thread.join()

    def _serve(self, bound: threading.Event) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self.listen(lambda _: bound.set()))

    async def listen(self, told: Callable[[int], None]) -> None:
        """Serve until `kill`. `told` is called with the port when it is known, before the model is loaded."""
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        limits = Limits(head_bytes=wire.LARGEST_HEAD, body_bytes=wire.LARGEST_BODY)
        self._streams = Streams(self._connected, Rules(secret=self.key, limits=limits))
        self._running: list[_Running] = []
        with bound(LOOPBACK, self.port, listens=False) as place:
            self.port = place.getsockname()[1]
            self._starting = True
            early = self.kind == "sglang"  # it listens early and says that it is not ready
            server = await self._streams.start(place) if early else None
            told(self.port)
            await asyncio.sleep(self.slow_start)
            if not self._models:
                self._load()
            self._starting = False
            server = server or await self._streams.start(place)
            async with server:
                await server.serve_forever()

    def _close(self) -> None:
        self._streams.cut()
        if self._main is not None:
            self._main.cancel()

    def _load(self) -> None:
        self.model = load_causal_lm(self.folder).eval().requires_grad_(False)
        if self.kind == "vllm":
            head = self.model.get_output_embeddings()
            head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        self._models = {BASE: self.model}
        self.engine = InProcessEngine({BASE: self.model}, share=False, max_length=self.max_length)
        self.label, self.adapters = "default", dict[str, str]()
        self._cached: deque[tuple[tuple[str, str], Any, list[int]]] = deque()
        self._count, self._paused, self._asleep, self._frozen = 0, False, False, False

    # ---- messages ---------------------------------------------------------------------------------------------
    async def _connected(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering = asyncio.create_task(self._answer(asked.method, urlsplit(asked.target), asked.body))
        leaving = asyncio.create_task(_left(reader))  # a client that leaves does not want its answer
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                await self._streams.send(writer, answer_bytes(*answering.result()))
        finally:
            answering.cancel()
            leaving.cancel()

    async def _answer(self, method: str, place: Any, said: Any) -> Answer:
        if self._starting:
            return 503, {}
        while self._frozen:  # it takes connections and answers nothing
            await asyncio.sleep(3600)
        said = {**dict(parse_qsl(place.query)), **said}
        self.requests.append((place.path, said))
        kinds = self._vllm() if self.kind == "vllm" else self._sglang()
        if place.path not in kinds:
            return 404, {"detail": "Not Found"}
        try:
            compared = str(said.get("cache_salt") or said.get("extra_key")).startswith(COMPARED)
            if place.path in ("/v1/completions", "/generate") and not compared:
                return await self._with_fault(functools.partial(kinds[place.path], said))
            return await kinds[place.path](said)
        except PalaestraError as error:
            return 400, {"error": {"message": f"{error.what}", "type": "BadRequestError", "code": 400}}
        except ConnectionError:
            raise
        except (LookupError, TypeError, ValueError, OSError) as error:  # as a server's own fault
            return 500, {"error": {"message": f"{type(error).__name__}: {error}", "code": 500}}

    def _vllm(self) -> dict[str, Callable[[Any], Any]]:
        known: dict[str, Callable[[Any], Any]] = {
            "/health": self._healthy,
            "/v1/models": self._cards,
            "/v1/completions": self._completions,
        }
        if "weights" in self.features:
            known |= {
                "/pause": self._pause,
                "/resume": self._go_on,
                "/collective_rpc": self._reload,
                "/reset_prefix_cache": self._reset,
                "/update_weight_version": self._relabel,
                "/weight_info": self._which,
                "/server_info": self._described,
            }
        if "memory" in self.features:
            known |= {"/sleep": self._sleep, "/wake_up": self._wake}
        if "adapters" in self.features:
            known |= {"/v1/load_lora_adapter": self._add_adapter, "/v1/unload_lora_adapter": self._remove_adapter}
        return known

    def _sglang(self) -> dict[str, Callable[[Any], Any]]:
        known: dict[str, Callable[[Any], Any]] = {
            "/health_generate": self._healthy,
            "/v1/models": self._cards,
            "/generate": self._generate,
        }
        if "weights" in self.features:
            known |= {"/update_weights_from_disk": self._update}
        if "memory" in self.features:
            known |= {"/release_memory_occupation": self._sleep, "/resume_memory_occupation": self._wake}
        if "adapters" in self.features:
            known |= {"/load_lora_adapter": self._add_adapter, "/unload_lora_adapter": self._remove_adapter}
        return known

    async def _healthy(self, said: Any) -> Answer:
        return 200, {}

    async def _which(self, said: Any) -> Answer:
        return 200, {"weight_version": self.label}

    async def _described(self, said: Any) -> Answer:
        return 200, {"vllm_config": f"model='{self.folder}', device_config={'cpu' if self.cpu else 'cuda'}, seed=0"}

    async def _cards(self, said: Any) -> Answer:
        room = self.engine.context(BASE)
        base = {"id": MODEL, "object": "model", "max_model_len": room, "parent": None}
        return 200, {"data": [base, *({"id": name, "parent": MODEL} for name in self.adapters)]}

    # ---- requests for tokens ----------------------------------------------------------------------------------
    async def _completions(self, said: Any) -> Answer:
        """vLLM's `/v1/completions`, for one prompt of token ids."""
        name = said["model"]
        if name != MODEL and name not in self.adapters:
            return 404, {"error": {"message": f"The model `{name}` does not exist.", "code": 404}}
        if self._paused:
            return 503, {"error": {"message": "The engine is paused.", "code": 503}}
        if why := refusal(said):
            return 400, {"error": {"message": why, "type": "BadRequestError", "code": 400}}
        if self.cpu and said.get("seed") is not None:
            self.on_death()
        stop = set(said.get("stop_token_ids") or ()) | (set() if said.get("ignore_eos") else self._ends())
        request = Request(
            policy=BASE if name == MODEL else name,
            session=None,
            prompt=np.array(said["prompt"], np.int32),
            seed=int(said.get("seed") or 0),
            max_tokens=int(said.get("max_tokens", 16)),
            temperature=float(said.get("temperature", 1.0)),
            top_k=max(0, int(said.get("top_k") or 0)),
            top_p=float(said.get("top_p", 1.0)),
            stop=tuple(sorted(stop)),
        )
        if len(request.prompt) + request.max_tokens > self.engine.context(BASE):
            return 400, {"error": {"message": "This model's maximum context length is exceeded.", "code": 400}}
        done, finish, cached = await self._sampled(request, str(said.get("cache_salt")))
        processed = self.scaled and request.temperature > 0
        values = done.logprobs if processed else self._plain(request, done.tokens, 1.0)
        spans = _spans(done.spans, len(done.tokens))
        choice = {
            "index": 0,
            "text": "",
            "token_ids": done.tokens if said.get("return_token_ids") else None,
            "logprobs": None if said.get("logprobs") is None else {"token_logprobs": values},
            "finish_reason": finish,
            "weight_versions": spans if said.get("return_weight_versions") and "versions" in self.features else None,
        }
        usage = {"prompt_tokens": len(request.prompt), "prompt_tokens_details": {"cached_tokens": cached}}
        return 200, {"object": "text_completion", "choices": [choice], "usage": usage}

    async def _generate(self, said: Any) -> Answer:
        """SGLang's `/generate`, for one prompt of token ids."""
        name, sampling = said.get("lora_path"), said["sampling_params"]
        if name is not None and name not in self.adapters:
            return 400, {"error": {"message": f"The following requested LoRA adapters are not loaded: {name}"}}
        top_k = int(sampling.get("top_k", -1))
        stop = set() if sampling.get("ignore_eos") else {*(sampling.get("stop_token_ids") or ()), *self._ends()}
        ids, room = said["input_ids"], self.engine.context(BASE)
        if len(ids) > room - RESERVED:
            return 400, {"error": {"message": f"The input ({len(ids)} tokens) is longer than the context length."}}
        request = Request(
            policy=name or BASE,
            session=None,
            prompt=np.array(ids, np.int32),
            seed=int(sampling.get("sampling_seed") or 0),
            max_tokens=min(int(sampling.get("max_new_tokens", 128)), room - 2 - len(ids)),
            temperature=float(sampling.get("temperature", 1.0)),
            top_k=0 if top_k == -1 else top_k,
            top_p=float(sampling.get("top_p", 1.0)),
            stop=tuple(sorted(stop)),
        )
        done, finish, cached = await self._sampled(request, str(said.get("extra_key")))
        scale = request.temperature if self.scaled and request.temperature > 0 else 1.0
        plain = request.temperature == scale and not request.top_k and request.top_p == 1
        values = done.logprobs if plain else self._plain(request, done.tokens, scale)
        spans = _spans(done.spans, len(done.tokens))
        meta: dict[str, Any] = {
            "finish_reason": {"type": finish},
            "weight_version": spans[-1]["version"],
            "prompt_tokens": len(ids),
            "completion_tokens": len(done.tokens),
            "cached_tokens": cached,
        }
        if said.get("return_logprob"):
            meta["output_token_logprobs"] = [
                [value, token, None] for value, token in zip(values, done.tokens, strict=True)
            ]
        if said.get("return_sampling_mask"):
            meta["output_token_sampling_logprobs"] = done.logprobs
        if len(spans) > 1:
            meta["weight_versions"] = spans
        return 200, {"text": "", "output_ids": done.tokens, "meta_info": meta}

    async def _sampled(self, request: Request, salt: str) -> tuple[_Running, str, int]:
        """What is sampled, why it ended, and how many ids were cached. Raises: PalaestraError; _Dropped."""
        if self._asleep:
            raise EpisodeFailure(boundary="engine", where="", what="The engine is sleeping.")
        request, ids = self._opened(request, salt)
        task = asyncio.create_task(self.engine.generate(request))
        running = _Running(task, request.session, request.policy, [(self.label, 0)])
        self._running.append(running)
        finish, whole = "abort", [*ids, *request.prompt.tolist()]
        try:
            action = (await task).action
            assert action.tokens is not None and action.logprobs is not None
            running.tokens, running.logprobs = action.tokens.tolist(), action.logprobs.tolist()
            finish = "stop" if running.tokens[-1] in request.stop else "length"
        except asyncio.CancelledError:
            if not running.aborted:
                task.cancel()  # the client has left
                raise
        except BaseException:
            self.engine.close(request.session)
            raise
        finally:
            self._running.remove(running)
        key = (request.policy, "" if "unsalted" in self.defects else salt)
        if finish == "abort":
            self.engine.close(request.session)
        else:
            self._cached.append((key, request.session, whole + running.tokens))
        while len(self._cached) > KEPT:
            self.engine.close(self._cached.popleft()[1])
        return running, finish, len(ids)

    def _opened(self, request: Request, salt: str) -> tuple[Request, list[int]]:
        """The request in a session that begins with the longest conversation in the cache, and its ids."""
        self._count += 1
        key, whole = (request.policy, "" if "unsalted" in self.defects else salt), request.prompt.tolist()
        found: list[int] = []
        before: Any = None
        for known, session, ids in self._cached:
            if known == key and len(found) < len(ids) < len(whole) and whole[: len(ids)] == ids:
                found, before = ids, session
        if before is not None:
            self.engine.fork(before, self._count)
        return replace(request, session=self._count, prompt=request.prompt[len(found) :]), found

    async def _with_fault(self, answer: Callable[[], Any]) -> Answer:
        """What the next fault answers, or the answer, if there is none. Raises: _Dropped."""
        fault = self.faults.popleft() if self.faults else ""
        if fault == "die":
            self.on_death()
        self._frozen = fault == "freeze"
        if fault in ("die", "hang", "freeze"):
            await asyncio.sleep(3600)
        if fault == "drop":
            raise _Dropped
        answers: dict[str, Answer] = {
            "garbage": (200, {"choices": []}),
            "error": (500, {"error": {"message": "Internal server error", "code": 500}}),
            "busy": (503, {"error": {"message": "The server is busy.", "code": 503}}),
        }
        said = answers.get(fault) or await answer()
        await asyncio.sleep(LATE if fault == "late" else 0)
        return said

    def _ends(self) -> set[int]:
        ends = self.model.generation_config.eos_token_id
        return set() if ends is None else {ends} if isinstance(ends, int) else set(ends)

    def _plain(self, request: Request, tokens: list[int], temperature: float) -> list[float]:
        """Log-probabilities of the tokens over the whole vocabulary, by a pass without a cache."""
        if not tokens:
            return []
        model = self._models[request.policy]
        ids = [*request.prompt.tolist(), *tokens]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -len(tokens) - 1 : -1].float()
        found = torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(tokens)[:, None])
        return [float(value) for value in found[:, 0]]

    # ---- weights ----------------------------------------------------------------------------------------------
    async def _pause(self, said: Any) -> Answer:
        self._paused = True
        await self._abort()
        return 200, {"status": "paused"}

    async def _go_on(self, said: Any) -> Answer:
        self._paused = False
        return 200, {"status": "resumed"}

    async def _reload(self, said: Any) -> Answer:
        if said.get("method") != "reload_weights" or self._asleep:
            return 500, {"error": {"message": "Internal server error", "code": 500}}
        self._take(said["kwargs"]["weights_path"])
        return 200, {"results": [None]}

    async def _reset(self, said: Any) -> Answer:
        if self._running:
            return 200, {"success": False}
        self._empty()
        return 200, {"success": True}

    async def _relabel(self, said: Any) -> Answer:
        self._name_weights(said["new_version"])
        return 200, {"success": True, "new_version": self.label}

    async def _update(self, said: Any) -> Answer:
        if self._asleep:
            return 400, {"success": False, "message": "The engine is sleeping."}
        if said.get("abort_all_requests"):
            await self._abort()
        if not list(Path(said["model_path"]).glob("*.safetensors")):
            return 400, {"success": False, "message": f"Failed to get weights iterator: {said['model_path']}."}
        self._take(said["model_path"])
        if said.get("flush_cache", True):
            self._empty()
        self._name_weights(said.get("weight_version") or self.label)
        return 200, {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}

    def _take(self, folder: str) -> None:
        """Copy the weights of a folder into the model. Keys and values stay as they are."""
        if "deaf" in self.defects:
            return
        places = dict(named_tensors(self.model))
        for file in sorted(Path(folder).glob("*.safetensors")):
            for name, tensor in load_file(file).items():
                if name.startswith("lm_head.") and "tied" in self.defects:
                    continue
                if name not in places or places[name].shape != tensor.shape:
                    raise ValueError(f"The model has no weight {name} of the shape {tuple(tensor.shape)}.")
                places[name].copy_(tensor)
        for server in self.engine._servers.values():
            server.read_weights()

    def _name_weights(self, label: str) -> None:
        self.label = label
        for running in self._running:
            running.spans.append((label, len(self._so_far(running)[0])))

    def _so_far(self, running: _Running) -> tuple[list[int], list[float]]:
        """What the engine has drawn for a request that is under way."""
        state = self.engine._sessions.get(running.session, {}).get(running.policy)
        return (list(state.tokens), list(state.logprobs)) if state is not None else ([], [])

    async def _abort(self) -> None:
        """End all requests under way. Their answers have what was drawn."""
        for running in self._running:
            running.tokens, running.logprobs = self._so_far(running)
            running.aborted = True
            running.task.cancel()
        while self._running:
            await asyncio.sleep(0)

    def _empty(self) -> None:
        while self._cached and "unreset" not in self.defects:
            self.engine.close(self._cached.popleft()[1])

    async def _add_adapter(self, said: Any) -> Answer:
        name, folder = said["lora_name"], said["lora_path"]
        if not (Path(folder) / "adapter_config.json").is_file():
            return 400, {"error": {"message": f"No adapter found for {folder}", "code": 400}}
        if name in self.adapters:
            if not said.get("load_inplace"):
                return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded.", "code": 400}}
            self._drop_adapter(name)
        made = self.model if "numb" in self.defects else load_adapter(self.model, folder).get_base_model()
        self.engine.serve(name, made)
        self._models[name] = made
        self.adapters[name] = folder
        return 200, {"success": True}

    async def _remove_adapter(self, said: Any) -> Answer:
        if said["lora_name"] not in self.adapters:
            return 404, {"error": {"message": f"The lora adapter '{said['lora_name']}' cannot be found.", "code": 404}}
        self._drop_adapter(said["lora_name"])
        return 200, {"success": True}

    def _drop_adapter(self, name: str) -> None:
        for entry in [entry for entry in self._cached if entry[0][0] == name]:
            self._cached.remove(entry)
            self.engine.close(entry[1])
        self.engine.dismiss(name)
        del self.adapters[name], self._models[name]

    async def _sleep(self, said: Any) -> Answer:
        await self._abort()
        self._empty()
        self.engine.sleep()
        self._asleep = True
        return 200, {"status": "sleeping"}

    async def _wake(self, said: Any) -> Answer:
        self._asleep = False
        return 200, {"status": "awake"}


async def _left(reader: asyncio.StreamReader) -> None:
    """Wait until the client leaves. What it sends after its request is not read."""
    while await reader.read(4096):
        pass


def _spans(starts: list[tuple[str, int]], count: int) -> list[dict[str, Any]]:
    ends = [start for _, start in starts[1:]] + [count]
    spans = zip(starts, ends, strict=True)
    found = [{"version": label, "start": start, "end": end} for (label, start), end in spans if end > start]
    return found or [{"version": starts[-1][0], "start": 0, "end": 0}]


def main() -> None:
    """Run the stand-in from the command line. Its first line of output is JSON with the port."""
    parser = argparse.ArgumentParser(prog="python -m palaestra.testing.stand_in")
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--model", type=Path, required=True, help="folder in Hugging Face format")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--key", default="", help="name of the environment variable that holds the key")
    parser.add_argument("--slow-start", type=float, default=0.0, help="seconds before the first answer")
    parser.add_argument("--max-length", type=int, help="most ids of a request")
    parser.add_argument("--raw", action="store_true", help="log-probabilities are those of temperature 1")
    parser.add_argument("--fault", choices=FAULTS, help="what goes wrong")
    parser.add_argument("--after", type=int, default=0, help="requests for tokens before the fault")
    given = parser.parse_args()
    server = StandIn(
        given.kind,
        given.model,
        port=given.port,
        key=os.environ.get(given.key, "") if given.key else "",
        slow_start=given.slow_start,
        max_length=given.max_length,
        scaled=not given.raw,
    )
    server.on_death = lambda: os._exit(1)
    if given.fault:
        server.faults.extend([*[""] * given.after, given.fault])
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(server.listen(lambda port: print(json.dumps({"port": port}), flush=True)))
    sys.exit(0)


if __name__ == "__main__":
    main()
