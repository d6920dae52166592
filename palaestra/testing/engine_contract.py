"""Contract tests for the engines `vllm` and `sglang`: against a real server, or against the stand-in.

    python -m palaestra.testing.engine_contract --kind vllm --url http://127.0.0.1:8000 --model FOLDER

The server must have loaded the same folder. The checks change its weights and restore them at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.data.interaction import FinishReason
from palaestra.data.protocols import Engine, Request, Response
from palaestra.engines.external.arrival import CHANGE
from palaestra.engines.external.engine import ServedEngine
from palaestra.engines.external.sglang import SGLangEngine
from palaestra.engines.external.vllm import VLLMEngine
from palaestra.engines.sampling import log_distribution
from palaestra.errors import ContractError, EpisodeFailure, PalaestraError
from palaestra.models.adapters import add_adapter, named_tensors
from palaestra.models.causal_lm import load_causal_lm

ENGINES: dict[str, type[ServedEngine]] = {"vllm": VLLMEngine, "sglang": SGLangEngine}
# Largest mean difference of log-probabilities in nats, by the type of numbers in which the server computes. They have
# 24, 11 or 8 binary digits, each layer rounds, and unlikely tokens differ most. With SmolLM2-135M the checks showed
# 1e-4 in float32 and 0.06 in bfloat16; after random prompts of five ids, bfloat16 differs by 0.1.
TOLERANCES = {"float32": 0.01, "float16": 0.05, "bfloat16": 0.25}
CROWD, LONG = 16, 64  # requests at once, and tokens of a response that new weights interrupt
SKIPPABLE = ("weights", "adapters", "memory", "temperature")


@dataclass(slots=True)
class _Checks:
    """The checks of one engine. `main` has the base weights; `low` has additions."""

    kind: str
    engine: Engine
    model: Any
    adapter: Any | None
    tolerance: float
    rounds: bool  # whether the server computes with few digits
    tell: Callable[[str], None]
    worst: float = 0.0
    version: int = 0
    turn: int = 0
    heard: dict[Any, list[int]] = field(default_factory=dict)

    # ---- one request ------------------------------------------------------------------------------------------
    async def say(self, session: Any, prompt: Sequence[int], *, policy: str = "main", **options: Any) -> Response:
        """A response, whose log-probabilities are compared with those of the trainer's model."""
        self.turn += 1
        ids = np.array(prompt, np.int32)
        request = Request(policy=policy, session=session, prompt=ids, **{"seed": self.turn, "max_tokens": 6} | options)
        response = await self.engine.generate(request)
        before = [*self.heard.get((policy, session), ()), *prompt]
        self.heard[policy, session] = [*before, *response.action.tokens.tolist()]
        self.compare(request, before, response)
        return response

    def compare(self, request: Request, before: Sequence[int], response: Response) -> None:
        """Refuse log-probabilities that are not those of the present weights."""
        assert response.action.logprobs is not None
        found = self.expected(request, before, response.action.tokens) - response.action.logprobs
        if self.rounds:  # then it cuts off other tokens than the trainer where several are almost equally likely
            kept = found[np.isfinite(found)]
            found = kept if 2 * len(kept) >= len(found) else found
        apart = float(np.abs(found).mean())
        self.worst = max(self.worst, apart)
        _must(
            apart <= self.tolerance,
            f"log-probabilities of policy `{request.policy}` differ from those of its weights by {apart:.2g} nats on "
            f"average, and {self.tolerance:g} is allowed",
        )

    def expected(self, request: Request, before: Sequence[int], tokens: np.ndarray | None) -> np.ndarray:
        """Log-probabilities of the tokens by a pass of the model over all ids."""
        assert tokens is not None
        model = self.model if request.policy == "main" else self.adapter
        ids = torch.tensor([[*before, *tokens.tolist()]])
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, len(before) - 1 : -1].float()
        count = len(logits)
        logprobs = log_distribution(
            logits,
            temperature=[request.temperature] * count,
            top_k=[request.top_k] * count,
            top_p=[request.top_p] * count,
        )
        picked: np.ndarray = logprobs.gather(1, torch.tensor(tokens.tolist())[:, None])[:, 0].numpy()
        return picked

    def prompt(self, length: int = 12) -> list[int]:
        """Ids that no other prompt has."""
        self.turn += 1
        size = self.model.config.get_text_config().vocab_size
        drawn: list[int] = np.random.default_rng(self.turn).integers(3, size, length).tolist()
        return drawn

    def publish(self, policy: str, tensors: Any) -> None:
        self.version += 1
        self.engine.publish(policy, tensors, self.version)

    # ---- the checks -------------------------------------------------------------------------------------------
    async def log_probabilities(self) -> None:
        """Log-probabilities are those of the trainer's model."""
        for _ in range(4):
            await self.say(("plain", self.turn), self.prompt(), max_tokens=8)

    async def conversations(self) -> None:
        """A conversation goes on from turn to turn, and so does its copy."""
        for _ in range(3):
            await self.say("talk", self.prompt(5))
        self.engine.fork("talk", "copy")
        self.heard["main", "copy"] = list(self.heard["main", "talk"])
        await asyncio.gather(self.say("talk", self.prompt(3)), self.say("copy", self.prompt(4)))

    async def ends(self) -> None:
        """Responses end after a stop id, after the most tokens, and when the context is full."""
        every = tuple(range(self.model.config.get_text_config().vocab_size))
        likely = (await self.say("likely", question := self.prompt(), temperature=0.0, max_tokens=1)).action.tokens
        stopped = await self.say(
            "stop", question, temperature=0.0, stop=every if likely is None else tuple(likely.tolist())
        )
        long = await self.say("length", self.prompt(), max_tokens=3)
        room = self.engine.context("main")
        full = await self.say("full", self.prompt(room - 2), max_tokens=9)
        found = [(one.action.finish, len(one.action.tokens)) for one in (stopped, long, full)]  # type: ignore[arg-type]
        expected = [(FinishReason.STOP, 1), (FinishReason.LENGTH, 3), (FinishReason.CONTEXT, 2)]
        _must(found == expected, f"responses ended {found}, and should have {expected}")
        try:
            await self.say("over", self.prompt(room))
        except EpisodeFailure:
            return
        _must(False, "a prompt that fills the context was answered")

    async def crowd(self) -> None:
        """Requests at once do not mix."""
        asked = [self.prompt(4 + number % 5) for number in range(CROWD)]
        await asyncio.gather(*(self.say(("crowd", number), ids) for number, ids in enumerate(asked)))

    async def cancelled(self) -> None:
        """A request that was cancelled leaves its conversation as it was."""
        await self.say("left", self.prompt())
        ids = np.array(self.prompt(4), np.int32)
        request = Request(policy="main", session="left", prompt=ids, seed=1, max_tokens=LONG)
        waiting = asyncio.create_task(self.engine.generate(request))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if waiting.cancelled():
            await self.say("left", self.prompt(3))

    async def temperature(self) -> None:
        """Log-probabilities are of the distribution that was sampled from."""
        await self.say("warm", self.prompt(), temperature=0.7)
        await self.say("cut", self.prompt(), temperature=1.3, top_k=5)
        await self.say("cut", self.prompt(3), top_p=0.8)

    async def weights(self) -> None:
        """The next request sees new weights, also in a conversation that goes on, and nothing that is cached."""
        await self.say("old", begin := self.prompt(40))
        with self.changed(self.model):
            before = self.version
            self.publish("main", dict(self.model.named_parameters()).items())
            for response in [await self.say("old", self.prompt(4)), await self.say("new", begin)]:
                _must(response.version == before + 1, f"version {before + 1} was published, not {response.version}")
            await self.interrupted()
        self.publish("main", dict(self.model.named_parameters()).items())
        await self.say("old", self.prompt(4))
        await self.say("new", self.prompt(4))

    async def interrupted(self) -> None:
        """A response that new weights interrupt goes on with them, and each token has its version."""
        room = self.engine.context("main")
        ids, kept = self.prompt(8), {name: p.detach().clone() for name, p in self.model.named_parameters()}
        most = min(LONG, room - len(ids))
        requests = [
            Request(policy="main", session=("long", n), prompt=np.array(ids, np.int32), seed=n, max_tokens=most)
            for n in range(2)
        ]
        waiting = [asyncio.create_task(self.engine.generate(request)) for request in requests]
        await asyncio.sleep(0.1)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(CHANGE)
        await asyncio.to_thread(self.publish, "main", dict(self.model.named_parameters()).items())
        now = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        for request, response in zip(requests, await asyncio.gather(*waiting), strict=True):
            action = response.action
            assert action.tokens is not None and action.logprobs is not None
            count = len(action.tokens)
            versions = np.full(count, response.version) if action.versions is None else action.versions
            _must(bool((np.diff(versions) >= 0).all()), f"versions of the tokens are {versions.tolist()}")
            _must(versions[-1] <= self.version, f"version {versions[-1]} was never published")
            for version, weights in ((self.version - 1, kept), (self.version, now)):
                which = versions == version
                _put(self.model, weights)
                found = self.expected(request, ids, action.tokens)[which] - action.logprobs[which]
                apart = float(np.abs(found).mean()) if which.any() else 0.0
                _must(apart <= self.tolerance, f"tokens of version {version} have log-probabilities of another one")
        _put(self.model, now)

    async def adapters(self) -> None:
        """The next request sees new additions, and the base is not changed by them."""
        assert self.adapter is not None
        tensors = [(n, t) for n, t in named_tensors(self.adapter) if n.endswith(("lora_A", "lora_B"))]
        await self.say("low", begin := self.prompt(40), policy="low")
        draw = torch.Generator().manual_seed(0)
        for _ in range(2):
            with torch.no_grad():
                for _, tensor in tensors:
                    tensor.copy_(torch.randn(tensor.shape, generator=draw) * 0.2)
            self.publish("low", iter(tensors))
            response = await self.say("low", self.prompt(4), policy="low")
            _must(response.version == self.version, f"version {self.version} was published, not {response.version}")
            await self.say(("low", self.turn), begin, policy="low")
            await self.say(("base", self.turn), begin)

    async def memory(self) -> None:
        """Conversations go on after the server has freed its memory, with weights that were published meanwhile."""
        await self.say("sleeper", self.prompt())
        self.engine.sleep()
        with self.changed(self.model):
            self.publish("main", dict(self.model.named_parameters()).items())
            self.engine.wake()
            await self.say("sleeper", self.prompt(4))
            self.engine.sleep()
            await self.say("sleeper", self.prompt(4))  # a request wakes the server
            self.engine.wake()
        self.publish("main", dict(self.model.named_parameters()).items())

    @contextmanager
    def changed(self, model: Any) -> Iterator[None]:
        """Other weights, for a while."""
        kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(CHANGE)
        try:
            yield
        finally:
            _put(model, kept)


def check_served_engine(
    kind: str,
    url: str | tuple[str, ...],
    model: str | Path,
    *,
    skip: Sequence[str] = (),
    dtype: str = "bfloat16",
    tolerance: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> float:
    """Use a server by its engine, and refuse it if it breaks a rule.

    Args:
        kind: "vllm" or "sglang". url: of the server. model: the folder that it has loaded.
        skip: checks to leave out, of "weights", "adapters", "memory" and "temperature", for a server that was started
            without what they need.
        dtype: the type of numbers in which the server computes: "float32", "float16" or "bfloat16".
        tolerance: largest mean difference of the log-probabilities of a response from the trainer's, in nats. None:
            that of `dtype`.
        tell: gets a line about each check.
        options: of the engine, such as `folder`.

    Returns: the largest mean difference that was found.

    Raises: ContractError, which names the check.
    """
    unknown = [name for name in skip if name not in SKIPPABLE]
    if kind not in ENGINES or unknown:
        options_ = SKIPPABLE if unknown else ENGINES
        raise PalaestraError(
            where="check_served_engine", what=f"there is no `{[*unknown, kind][0]}`.", options=list(options_)
        )
    base = load_causal_lm(Path(model)).eval().requires_grad_(False)
    models, adapter = {"main": base}, None
    if "adapters" not in skip:
        adapter = add_adapter(base, rank=4, alpha=8.0, targets=None, seed=0).get_base_model()
        models["low"] = adapter
    own = {"initial_weights": "weights" not in skip, "free_memory": "memory" not in skip}
    engine = ENGINES[kind](models, "cpu", url=url, **own | options)
    tolerance = TOLERANCES[dtype] if tolerance is None else tolerance
    checks = _Checks(kind, engine, base, adapter, tolerance, rounds=dtype != "float32", tell=tell)
    try:
        asyncio.run(_all(checks, [name for name in SKIPPABLE if name in skip]))
    finally:
        engine.shutdown()
    return checks.worst


async def _all(checks: _Checks, skip: Sequence[str]) -> None:
    steps = (
        checks.log_probabilities,
        checks.conversations,
        checks.ends,
        checks.crowd,
        checks.cancelled,
        checks.temperature,
        checks.weights,
        checks.adapters,
        checks.memory,
    )
    for step in steps:
        name, does = step.__name__, (step.__doc__ or "").strip()
        if name in skip or (name == "memory" and "weights" in skip):
            checks.tell(f"left out  {name}: {does}")
            continue
        try:
            await step()
        except ContractError as error:
            where = f"engine {checks.kind}, check `{name}`"
            raise ContractError(where=where, what=error.what, remedy=error.remedy) from None
        checks.tell(f"holds     {name}: {does}")


def _put(model: Any, weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise ContractError(
            where="engine", what=f"{what}.", remedy="`help(palaestra.data.protocols.Engine)` has the rules."
        )


def main() -> None:
    """Check a server from the command line."""
    parser = argparse.ArgumentParser(prog="python -m palaestra.testing.engine_contract")
    parser.add_argument("--kind", choices=sorted(ENGINES), required=True)
    parser.add_argument("--url", required=True, nargs="+")
    parser.add_argument("--model", required=True, help="the folder that the server has loaded")
    parser.add_argument("--folder", help="where both sides see weights; default: a temporary folder on this machine")
    parser.add_argument("--server-folder", help="the same folder at the server, if its path differs")
    parser.add_argument("--skip", nargs="*", default=[], choices=SKIPPABLE)
    parser.add_argument(
        "--dtype", choices=TOLERANCES, default="bfloat16", help="the numbers that the server computes in"
    )
    parser.add_argument("--tolerance", type=float, help="largest mean difference in nats")
    given = parser.parse_args()
    try:
        worst = check_served_engine(
            given.kind,
            tuple(given.url),
            given.model,
            skip=given.skip,
            dtype=given.dtype,
            tolerance=given.tolerance,
            tell=lambda line: print(line, flush=True),
            folder=given.folder,
            server_folder=given.server_folder,
            patience=60.0,
        )
    except PalaestraError as error:
        sys.exit(f"\n{error}\n")
    print(f"The server keeps the contract. Its log-probabilities differ by at most {worst:.2g} nats on average.")


if __name__ == "__main__":
    main()
