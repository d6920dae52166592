"""What the engine keeps per session and per request, and what it counts. Knows nothing of models."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, fields

import numpy as np

from palaestra.data.interaction import FinishReason
from palaestra.data.protocols import Generation, Request
from palaestra.errors import PalaestraError


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Counters since the last `reset`.

    Attributes:
        prefill_tokens: ids computed to read prompts (also the last sampled id of the turn before).
        decode_tokens: sampled ids computed to continue a response.
        recomputed_tokens: those of both that had been computed before (weights changed, slot lost).
        shared_tokens: ids taken over from a session with the same prompt instead of being computed.
        padded_tokens: ids computed for nothing.
        sampled_tokens: ids drawn.
        forward_calls: forward passes of a model.
    """

    prefill_tokens: int = 0
    decode_tokens: int = 0
    recomputed_tokens: int = 0
    shared_tokens: int = 0
    padded_tokens: int = 0
    sampled_tokens: int = 0
    forward_calls: int = 0

    @property
    def computed_tokens(self) -> int:
        """All real ids that went through a model."""
        return self.prefill_tokens + self.decode_tokens

    def reset(self) -> None:
        """All counters to 0."""
        for item in fields(self):
            setattr(self, item.name, 0)


@dataclass(slots=True, kw_only=True, eq=False)
class SessionState:
    """One conversation with one policy.

    Attributes:
        ids: prompts and responses so far.
        cached: how many leading ids have keys and values in `slot`; valid for weights of age `epoch`.
        seen: the most ids that were ever computed; what is computed again is counted.
        forked: whether another session began with the same ids, so that what comes next may be common too.
        used: when it was last worked on; the longest unused session loses its slot first.
        job: the generation in progress.
    """

    ids: list[int] = field(default_factory=list)
    cached: int = 0
    slot: int | None = None
    epoch: int = 0
    seen: int = 0
    forked: bool = False
    used: int = 0
    job: Job | None = None

    def shorten(self, length: int) -> None:
        """Back to the first `length` ids."""
        del self.ids[length:]
        self.cached = min(self.cached, length)
        self.seen = min(self.seen, length)


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A request under way; `start` is where its prompt begins in the session's ids."""

    request: Request
    session: SessionState
    start: int
    future: asyncio.Future[Generation]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def accept(self, token: int, logprob: float, entropy: float | None, *, version: int, length: int) -> None:
        """Append a sampled token; ends the job when it is the last one. `length`: most ids of the session."""
        self.versions.append(version)
        self.tokens.append(token)
        self.session.ids.append(token)
        self.logprobs.append(logprob)
        if entropy is not None:
            self.entropy.append(entropy)
        if token in self.request.stop:
            self._finish(FinishReason.STOP)
        elif len(self.tokens) >= self.request.max_tokens:
            self._finish(FinishReason.LENGTH)
        elif len(self.session.ids) >= length:
            self._finish(FinishReason.CONTEXT)

    def _finish(self, reason: FinishReason) -> None:
        self.session.job = None
        if not self.future.done():
            self.future.set_result(
                Generation(
                    tokens=np.array(self.tokens, np.int32),
                    logprobs=np.array(self.logprobs, np.float32),
                    entropy=np.array(self.entropy, np.float32) if self.request.entropy else None,
                    finish=reason,
                    version=self.versions[0],
                    versions=np.array(self.versions, np.int32) if len(set(self.versions)) > 1 else None,
                )
            )

    def fail(self, error: PalaestraError) -> None:
        """End without an answer; the session is as it was before the request."""
        self.undo()
        if not self.future.done():
            self.future.set_exception(error)

    def undo(self) -> None:
        """Put the session back to where this request began."""
        self.session.job = None
        self.session.shorten(self.start)
