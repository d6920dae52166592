"""The state of an engine's session with its request in progress, and the engine's counters."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Container, Hashable, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real

import numpy as np

from palaestra.data.interaction import Action, FinishReason
from palaestra.data.protocols import Request, Response
from palaestra.data.trajectory import Picture, digest_of
from palaestra.errors import ContractError, PalaestraError


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Counters since the last `reset`.

    Attributes:
        prefill_tokens: ids computed to read prompts (also the last sampled id of the turn before).
        decode_tokens: sampled ids computed to continue a response.
        recomputed_tokens: those of both that had been computed before (weights changed, memory lost).
        shared_tokens: ids taken over from a session with the same prompt instead of being computed.
        padded_tokens: ids computed as padding only.
        sampled_tokens: ids drawn.
        forward_calls: forward passes of a model.
        replayed_calls: those of them that a GPU replayed as a graph.
        evictions: how often a session lost its keys and values to another one.
        held_bytes: keys and values that sessions hold now; what several share counts once. `reset` leaves it.
        peak_bytes: the most of them since the last `reset`.
    """

    prefill_tokens: int = 0
    decode_tokens: int = 0
    recomputed_tokens: int = 0
    shared_tokens: int = 0
    padded_tokens: int = 0
    sampled_tokens: int = 0
    forward_calls: int = 0
    replayed_calls: int = 0
    evictions: int = 0
    held_bytes: int = 0
    peak_bytes: int = 0

    @property
    def computed_tokens(self) -> int:
        """All real ids that went through a model."""
        return self.prefill_tokens + self.decode_tokens

    def reset(self) -> None:
        """All counters to 0; `peak_bytes` to what is held now."""
        held = self.held_bytes
        for item in fields(self):
            setattr(self, item.name, 0)
        self.held_bytes = self.peak_bytes = held

    def report(self) -> dict[str, float]:
        """The counters as metrics of a run. They are set to 0 afterwards."""
        counted = {
            "engine/computed_tokens": self.computed_tokens,
            "engine/recomputed_tokens": self.recomputed_tokens,
            "engine/shared_tokens": self.shared_tokens,
            "engine/evictions": self.evictions,
            "engine/peak_bytes": self.peak_bytes,
        }
        self.reset()
        return {name: float(value) for name, value in counted.items()}

    def hold(self, change: int) -> None:
        """Sessions hold so many bytes more, or less."""
        self.held_bytes += change
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)


@dataclass(slots=True, kw_only=True, eq=False)
class SessionState:
    """One conversation with one policy, and its request in progress.

    Attributes:
        ids: prompts and responses so far. pictures: what stands for images in them. axes: int64 (3, length), time,
            height and width of the ids up to the end of the last picture; None: not computed.
        cached: how many leading ids have keys and values in `blocks`.
        whole: how many leading blocks were computed in pieces of 64 ids, as any session with these ids computes them.
        seen: the most ids that were ever computed; what is computed again is counted.
        forked: whether another session began with the same ids, so that what comes next may be common too.
        born: its place in the order of first requests, from 1; 0: it had none. A session waits for no younger one.
        used: the step of the engine at which it was last worked on.
        request: in progress; None between two requests. start: where its prompt begins in `ids`.
        future: resolves to the response.
        tokens, logprobs, entropy, versions: of the response so far.
    """

    ids: list[int] = field(default_factory=list)
    pictures: tuple[Picture, ...] = ()
    axes: np.ndarray | None = None
    cached: int = 0
    blocks: list[int] = field(default_factory=list)
    whole: int = 0
    seen: int = 0
    forked: bool = False
    born: int = 0
    used: int = 0
    request: Request | None = None
    start: int = 0
    future: asyncio.Future[Response] | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def current(self) -> Request:
        """The request in progress."""
        assert self.request is not None
        return self.request

    @property
    def contents(self) -> Sequence[int]:
        """The ids, with numbers that belong to an image in place of those that stand for it.

        Two sessions whose contents begin alike compute the same keys and values.
        """
        if not self.pictures:
            return self.ids
        contents = list(self.ids)
        for picture in self.pictures:
            image = -1 - (int.from_bytes(digest_of(picture.image)[:8]) >> 1)  # no id is negative
            contents[picture.start : picture.stop] = [image - i for i in range(picture.stop - picture.start)]
        return contents

    @property
    def decodes(self) -> bool:
        """Whether one id alone is to be computed, as for every token of a response but its first."""
        return len(self.ids) - self.cached == 1

    @property
    def done(self) -> bool:
        """Whether nobody waits for a response any more."""
        return self.future is None or self.future.done()

    def begin(self, request: Request, future: asyncio.Future[Response]) -> None:
        """Read the prompt of a new request."""
        self.request, self.future, self.start = request, future, len(self.ids)
        self.tokens, self.logprobs, self.entropy, self.versions = [], [], [], []
        if request.pictures:
            shown = (picture.moved(self.start) for picture in request.pictures)
            self.pictures, self.axes = (*self.pictures, *shown), None
        self.ids.extend(request.prompt.tolist())

    def accept(self, token: int, logprob: float, entropy: float | None, *, version: int, length: int) -> None:
        """Append a sampled token; ends the request when it is the last one. `length`: most ids of the session."""
        self.versions.append(version)
        self.tokens.append(token)
        self.ids.append(token)
        self.logprobs.append(logprob)
        if entropy is not None:
            self.entropy.append(entropy)
        if token in self.current.stop:
            self._finish(FinishReason.STOP)
        elif len(self.tokens) >= self.current.max_tokens:
            self._finish(FinishReason.LENGTH)
        elif len(self.ids) >= length:
            self._finish(FinishReason.CONTEXT)

    def _finish(self, reason: FinishReason) -> None:
        request, self.request = self.current, None
        if self.future is not None and not self.future.done():
            action = Action(
                tokens=np.array(self.tokens, np.int32),
                logprobs=np.array(self.logprobs, np.float32),
                entropy=np.array(self.entropy, np.float32) if request.entropy else None,
                versions=np.array(self.versions, np.int32) if len(set(self.versions)) > 1 else None,
                finish=reason,
            )
            self.future.set_result(Response(action=action, version=self.versions[0]))

    def fail(self, error: PalaestraError) -> None:
        """End the request without a response; the session is as it was before it."""
        self.undo()
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)

    def undo(self) -> None:
        """Restore the state before the request."""
        self.request = None
        del self.ids[self.start :]
        if self.pictures and self.pictures[-1].start >= self.start:
            self.pictures, self.axes = tuple(one for one in self.pictures if one.start < self.start), None
        self.cached = min(self.cached, self.start)
        self.whole = min(self.whole, self.cached // 64)
        self.seen = min(self.seen, self.start)


def fault_in(request: Request) -> str:
    """Which number of a request cannot be sampled; empty, if all can. A bad one could stop the batch of all others."""
    least = {"top_k": 0, "max_tokens": 1, "seed": -math.inf}
    for name, lowest in least.items():
        value = getattr(request, name)
        if not isinstance(value, Integral) or isinstance(value, bool) or value < lowest:
            return f"{name}={value!r}"
    temperature, top_p = request.temperature, request.top_p
    if not isinstance(temperature, Real) or isinstance(temperature, bool) or not 0 <= temperature < math.inf:
        return f"temperature={temperature!r}"
    if not isinstance(top_p, Real) or not 0 < top_p <= 1:
        return f"top_p={top_p!r}"
    return ""


def refuse_fork(session: Hashable, new_session: Hashable, known: Container[Hashable], busy: bool) -> None:
    """Raises: ContractError, if `session` is unknown or generating (`busy`), or `new_session` exists."""
    fault = f"there is no session {session!r}." if session not in known else ""
    fault = fault or (f"session {new_session!r} exists; close it first." if new_session in known else "")
    fault = fault or ("it is generating; wait for `generate` to return." if busy else "")
    if fault:
        raise ContractError(where=f"Engine.fork({session!r}, {new_session!r})", what=fault)
