"""`check_engine`: users check with it that their own engine keeps the rules of engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from palaestra.data.interaction import FinishReason
from palaestra.data.protocols import Engine, Request, Response, complete
from palaestra.errors import ContractError, EpisodeFailure, UnknownName
from palaestra.models.causal_lm import make_causal_lm

PROMPT, QUESTION = [5, 9, 40, 7, 3], [11, 2, 30]


def check_engine(
    make: Callable[..., Engine], *, model: Any = None, tolerance: float = 1e-4, batch_invariant: bool = True
) -> None:
    """Use an engine and refuse it if it breaks a rule of `palaestra.data.protocols.Engine`.

    Args:
        make: makes the engine as a recipe does, by `make({"main": model}, "cpu")`. Bind options by `functools.partial`.
        model: causal language model, whose weights are changed. None: a tiny model.
        tolerance: largest difference of log-probabilities from those of the model's forward pass without a cache.
        batch_invariant: whether the engine must give the same tokens whatever else is in the batch. False: a request
            that is alone must still give the same tokens again.

    Raises: ContractError, with the number of the rule.
    """
    if model is None:
        model = make_causal_lm(vocabulary=97, hidden=32, heads=2, context=128)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(4.0 if weight.dim() > 1 else 1.0)
    engine = complete(make({"main": model}, "cpu"), Engine, where="engine")
    try:
        asyncio.run(_Check(engine, model, tolerance).run(batch_invariant))
    finally:
        engine.shutdown()


@dataclass(slots=True)
class _Check:
    engine: Engine
    model: Any
    tolerance: float
    heard: dict[Hashable, list[int]] = field(default_factory=dict)  # session → all its ids so far
    rule: int = 2  # the rule that is broken if log-probabilities are wrong now

    async def run(self, batch_invariant: bool) -> None:
        await self.ends()
        await self.remembers()
        await self.refuses()
        if type(self.engine).fork is not Engine.fork:
            await self.forks()
        await self.is_cancelled()
        await self.repeats(4 if batch_invariant else 0)
        await self.publishes()
        await self.sleeps()

    async def say(self, session: Hashable, ids: Sequence[int], **options: Any) -> Response:
        request = Request(policy="main", session=session, prompt=np.array(ids, np.int32), **{"seed": 1} | options)
        response = await self.engine.generate(request)
        self.heard[session] = [*self.heard.get(session, ()), *ids]
        self._true(self.heard[session], response, session)
        self.heard[session] += response.action.tokens.tolist()
        return response

    def _true(self, before: list[int], response: Response, session: Hashable) -> None:
        """Check that the log-probabilities are those of the present weights after all ids of the session."""
        tokens = response.action.tokens.tolist()
        ids = torch.tensor([[*before, *tokens]], device=next(self.model.parameters()).device)
        with torch.no_grad():
            logits = self.model(input_ids=ids, use_cache=False).logits[0, len(before) - 1 : -1]
        wanted = torch.log_softmax(logits.float(), -1).cpu().gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()
        said = response.action.logprobs
        close = said is not None and said.shape == wanted.shape and np.abs(said - wanted).max() <= self.tolerance
        _rule(close, self.rule, f"session {session!r} has log-probabilities {said}, and the model says {wanted}")

    async def ends(self) -> None:
        every = tuple(range(self.model.config.get_text_config().vocab_size))
        stopped = await self.say("stop", PROMPT, stop=every)
        long = await self.say("length", PROMPT, max_tokens=3)
        room = self.engine.context("main")
        full = await self.say("full", [7] * (room - 2), max_tokens=9)
        found = [(r.action.finish, len(r.action.tokens)) for r in (stopped, long, full)]
        expected = [(FinishReason.STOP, 1), (FinishReason.LENGTH, 3), (FinishReason.CONTEXT, 2)]
        _rule(found == expected, 1, f"responses ended {found}, and should have {expected}")

    async def remembers(self) -> None:
        for turn in range(3):
            await self.say("memory", PROMPT[turn:], max_tokens=4, seed=turn)
        self.engine.close("memory")
        self.engine.close("nobody's")
        self.heard["memory"], self.rule = [], 7
        await self.say("memory", QUESTION)

    async def refuses(self) -> None:
        stranger = Request(policy="stranger", session="s", prompt=np.array(PROMPT, np.int32), seed=0)
        refused = await self._fails(stranger, UnknownName)
        _rule(refused, 8, "a request for an unknown policy does not raise UnknownName")
        await self.say("long", PROMPT)
        ids = np.full(self.engine.context("main"), 7, np.int32)
        refused = await self._fails(Request(policy="main", session="long", prompt=ids, seed=0), EpisodeFailure)
        _rule(refused, 8, "a prompt that fills the context does not raise EpisodeFailure")
        self.rule = 6
        await self.say("long", QUESTION)

    async def _fails(self, request: Request, kind: type[Exception]) -> bool:
        try:
            await self.engine.generate(request)
        except kind:
            return True
        return False

    async def forks(self) -> None:
        await self.say("root", PROMPT)
        self.rule = 5
        self.engine.fork("root", "branch")
        self.heard["branch"] = list(self.heard["root"])
        one, other = await asyncio.gather(self.say("root", QUESTION), self.say("branch", QUESTION))
        same = one.action.tokens.tolist() == other.action.tokens.tolist()
        _rule(same, 5, "a session and its fork answer differently with the same seed")
        await self.say("branch", PROMPT, seed=2)
        await self.say("root", QUESTION, seed=3)

    async def is_cancelled(self) -> None:
        await self.say("cancelled", PROMPT)
        ids = np.array(QUESTION, np.int32)
        request = Request(policy="main", session="cancelled", prompt=ids, seed=5, max_tokens=100)
        waiting = asyncio.create_task(self.engine.generate(request))
        await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        self.rule = 6
        if waiting.cancelled():
            await self.say("cancelled", PROMPT)

    async def repeats(self, others: int) -> None:
        self.rule = 9
        alone = await self.say("alone", PROMPT, max_tokens=8)
        crowd = (self.say(("other", number), QUESTION[number % 3 :], seed=number) for number in range(others))
        again, *_ = await asyncio.gather(self.say("again", PROMPT, max_tokens=8), *crowd)
        same = alone.action.tokens.tolist() == again.action.tokens.tolist()
        _rule(same, 9, "the same request with the same seed gave two different responses")

    async def publishes(self) -> None:
        before = await self.say("old", PROMPT)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.mul_(1.1)
        named: Mapping[str, Any] = dict(self.model.named_parameters())
        self.engine.publish("main", named.items(), before.version + 7)
        self.rule = 4
        after = await self.say("old", QUESTION)
        expected = before.version + 7
        _rule(after.version == expected, 3, f"version {expected} was published, a response says {after.version}")
        await self.say("new", PROMPT)  # the engine may not reuse its cache from the weights before

    async def sleeps(self) -> None:
        self.engine.counters()
        self.engine.sleep()
        self.rule = 10
        await self.say("old", QUESTION)  # a request wakes the engine
        self.engine.sleep()
        self.engine.wake()
        await self.say("old", PROMPT)


def _rule(holds: bool, number: int, fault: str) -> None:
    if not holds:
        raise ContractError(
            where=f"engine, rule {number}",
            what=f"{fault}.",
            remedy="`help(palaestra.data.protocols.Engine)` lists the rules.",
        )
