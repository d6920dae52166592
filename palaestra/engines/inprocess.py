"""The in-process engine, which sessions of policies call: continuous batching in the event loop's own thread.

A task, the pump, waits until no new request has come for a few turns of the event loop. Then it computes one more
token for every request, in as few forward passes as possible. New prompts and running responses share a pass. A
finished response is returned at once, and a new request joins the next pass. Runs repeat exactly, since no clock is
read and a session's numbers do not depend on the other sessions in the batch.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Hashable, Iterable, Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from palaestra.data.protocols import Engine, Request, Response
from palaestra.engines.blocks import BLOCK
from palaestra.engines.memory import limit_of, said
from palaestra.engines.scheduler import PolicyServer
from palaestra.engines.session import SessionState, Statistics, fault_in, refuse_fork
from palaestra.errors import ContractError, EpisodeFailure, PalaestraError, UnknownName, nearest
from palaestra.registry import PositiveInt, register

# A program needs a few turns of the event loop after a response (nested tasks, time limits) to send its next request.
QUIET_TURNS = 4


@register("engine", "in_process")
class InProcessEngine(Engine):
    """Generates in this process with the models that are trained. Their weights are shared and never copied.

    Keys and values of a session are kept from turn to turn, so every id is computed once. A prompt with which several
    sessions start is computed and stored once. The memory for keys and values has a limit in bytes.

    Attributes:
        statistics: counters of tokens and forward passes; `statistics.reset()` sets them to 0.

    Raises: ContractError, if an architecture cannot be served.
    """

    def __init__(
        self,
        models: Mapping[str, PreTrainedModel],
        device: str | torch.device | None = None,
        *,
        memory: int | float | str | None = None,
        max_sessions: PositiveInt | None = None,
        max_length: PositiveInt | None = None,
        chunk_tokens: PositiveInt = 2048,
        share: bool = True,
        graphs: bool = True,
    ) -> None:
        """
        Args:
            models: causal language models by policy name; used as they are, in place.
            device: where to move the models first; None leaves them.
            memory: most bytes of keys and values, for all policies together: a number of bytes, a text such as "4GB",
                or a share, in (0, 1), of what is free at the start; None: 0.25 on a CPU and 0.5 on a GPU. Sessions that
                do not fit give way, idle ones first, and are recomputed from their ids. Higher: less recomputed.
            max_sessions: sessions per policy whose keys and values are kept; None: as many as fit. Lower: less memory.
            max_length: most ids per session; None: the model's context.
            chunk_tokens: most new ids per forward pass; a longer prompt is read in several passes, with the same
                numbers. While a session decodes, prompts have at most so many ids between two of its tokens.
                Higher: fewer calls, more memory, longer waits. Usual: 512 to 8192.
            share: compute ids with which several sessions begin only once. The responses are the same without it.
            graphs: on a GPU, record steps in which all sessions decode as CUDA graphs, and replay them.
        """
        self.statistics = Statistics()
        self._memory, self._limit = memory, 0
        limit_of(memory, torch.device("cpu"))  # refuse a mistake at once
        self._make = functools.partial(
            PolicyServer,
            statistics=self.statistics,
            max_sessions=max_sessions,
            max_length=max_length,
            chunk_tokens=chunk_tokens,
            share=share,
            graphs=graphs,
        )
        self._servers: dict[str, PolicyServer] = {}
        for name, model in models.items():
            torch.nn.Module.to(model, device)  # in place: the trainer holds the same module
            self.serve(name, model)
        self._sessions: dict[Hashable, dict[str, SessionState]] = {}
        self._active: dict[SessionState, None] = {}  # those with a request in progress, in order of arrival
        self._arrivals = 0
        self._pump: asyncio.Task[None] | None = None

    # ---- what policies call -------------------------------------------------------------------------------
    async def generate(self, request: Request) -> Response:
        """Sample a response; the session remembers prompt and response.

        A cancelled or failed request leaves its session as it was before.

        Raises: EpisodeFailure (boundary "engine"), for a prompt that does not fit the context, ids outside the
            vocabulary, logits that are not finite, or a failing forward pass; UnknownName, for a policy that is
            not served; ContractError, for a second request while the session's first is running.
        """
        server = self._server(request.policy)
        self._start()
        sessions = self._sessions.setdefault(request.session, {})
        session = sessions.setdefault(request.policy, SessionState())
        _check(request, session, server)
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        session.begin(request, future)
        self._arrivals += 1
        self._active.pop(session, None)  # it may still be there for its last request
        self._active[session] = None
        try:
            return await future
        except asyncio.CancelledError:
            if session.future is future:
                session.undo()
            raise

    def close(self, session: Hashable) -> None:
        """Forget a session, for every policy that it used. Unknown sessions are ignored."""
        for policy, state in self._sessions.pop(session, {}).items():
            if state.request is not None:
                what = f"session {session!r} was closed while it was generating."
                state.fail(EpisodeFailure(boundary="engine", where="in-process engine", what=what))
            if policy in self._servers:
                self._servers[policy].release(state)

    def fork(self, session: Hashable, new_session: Hashable) -> None:
        """Make `new_session` continue from where `session` is, without computing anything.

        Raises: ContractError, if `session` is unknown or generating, or `new_session` exists.
        """
        states = self._sessions.get(session, {})
        refuse_fork(session, new_session, self._sessions, any(state.request is not None for state in states.values()))
        self._sessions[new_session] = {name: self._servers[name].fork(state) for name, state in states.items()}

    def serve(self, policy: str, model: PreTrainedModel, *, version: int = 0) -> None:
        """Serve one more policy from now on, with a model that is on its device.

        Raises: ContractError, if a policy of this name is served already, or if its architecture cannot be served.
        """
        if policy in self._servers:
            raise ContractError(
                where="in-process engine", what=f"policy `{policy}` is served already.", remedy="Call `dismiss` first."
            )
        if not self._limit:
            self._limit = limit_of(self._memory, next(model.parameters()).device)
        self._servers[policy] = self._make(policy, model, version=version, memory=self._limit)
        self._divide()

    def dismiss(self, policy: str) -> None:
        """Stop serving a policy, whose sessions must be closed. Unknown policies are ignored."""
        self._servers.pop(policy, None)
        self._divide()

    def _divide(self) -> None:
        """Each policy has an equal part of the memory."""
        for server in self._servers.values():
            server.store.limit = self._limit // len(self._servers)

    def sleep(self) -> None:
        """Free all keys and values and copies of weights. Open sessions are computed again at their next request."""
        for server in self._servers.values():
            server.sleep()

    def counters(self) -> dict[str, float]:
        """Tokens computed, computed again and shared, evictions, and the most bytes held, since the last call."""
        return self.statistics.report()

    def publish(self, policy: str, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Free the cached keys and values, since the shared module has changed. `named_tensors` is not read.

        Open sessions are computed again at their next request.
        """
        self._server(policy).weights_changed(version)

    def context(self, policy: str) -> int:
        """The most ids that a session of this policy can hold, prompts and responses together."""
        return self._server(policy).length

    def _server(self, policy: str) -> PolicyServer:
        if policy not in self._servers:
            raise UnknownName(
                where="in-process engine",
                what=f"the engine serves no policy `{policy}`.",
                options=nearest(policy, self._servers),
                remedy="Give its model to InProcessEngine(models={…}).",
            )
        return self._servers[policy]

    # ---- the pump -----------------------------------------------------------------------------------------
    def _start(self) -> None:
        """Start the pump in the present event loop, unless it runs."""
        loop = asyncio.get_running_loop()
        if self._pump is not None and self._pump.get_loop() is not loop:
            self._abandon(loop)
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run(), name="palaestra engine")

    def _abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Requests of an event loop that is gone will never be awaited again."""
        for session in list(self._active):
            if session.future is None or session.future.get_loop() is not loop:
                session.undo()
                session.future = None  # should its task ever wake up, it finds nothing to undo
                del self._active[session]
        self._pump = None

    async def _run(self) -> None:
        try:
            while self._alive():
                await self._settle()
                self._advance()
        except (Exception, asyncio.CancelledError) as error:
            # No request may wait forever after an error.
            for session in self._alive():
                session.fail(_stopped(error))
            if isinstance(error, asyncio.CancelledError):
                raise

    def _alive(self) -> list[SessionState]:
        """Drop sessions whose request is done or cancelled; the others in order of arrival."""
        self._active = {session: None for session in self._active if not session.done}
        return list(self._active)

    async def _settle(self) -> None:
        """Yield until no request has come for a few turns of the event loop."""
        quiet = 0
        while quiet < QUIET_TURNS:
            before = self._arrivals
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._arrivals == before else 0

    def _advance(self) -> None:
        by_policy: dict[str, list[SessionState]] = {}
        for session in self._alive():
            by_policy.setdefault(session.current.policy, []).append(session)
        for name, sessions in by_policy.items():
            self._servers[name].advance(sessions)


def _stopped(error: BaseException) -> PalaestraError:
    what = f"the engine stopped: {type(error).__name__}: {error}"
    return EpisodeFailure(boundary="engine", where="in-process engine", what=what)


def _check(request: Request, session: SessionState, server: PolicyServer) -> None:
    """Refuse what cannot be generated, before anything changes."""
    where = f"in-process engine, policy `{request.policy}`, session {request.session!r}"
    if session.request is not None:
        raise ContractError(
            where=where, what="it is generating already.", remedy="Send one request at a time, or `fork` the session."
        )
    fault = fault_in(request)
    if fault:
        raise EpisodeFailure(
            boundary="engine",
            where=where,
            what=f"{fault} cannot be sampled.",
            remedy="temperature ≥ 0, top_k ≥ 0, 0 < top_p ≤ 1, max_tokens ≥ 1, seed: a whole number.",
        )
    total = len(session.ids) + len(request.prompt)
    store, most = server.store, min(total + request.max_tokens, server.length)
    if total >= server.length:
        raise EpisodeFailure(
            boundary="engine",
            where=where,
            what=f"the prompt has {total} ids ({len(request.prompt)} new), and the context holds {server.length}: "
            "there is no room for a response.",
            remedy="Use a context that forgets (window, latest-only), fewer turns, or a model with a longer context.",
        )
    if -(-most // BLOCK) > store.most:
        raise EpisodeFailure(
            boundary="engine",
            where=where,
            what=f"prompt and response may have {most} ids, whose keys and values take "
            f"{said(-(-most // BLOCK) * store.block_bytes)}, and the policy has {said(store.limit)}.",
            remedy="Raise `memory` of engine: in_process, or lower the most tokens of a response.",
        )
    if total == 0:
        raise EpisodeFailure(boundary="engine", where=where, what="a request needs a prompt.")
    if len(request.prompt) and not 0 <= request.prompt.min() <= request.prompt.max() < server.vocabulary:
        raise EpisodeFailure(
            boundary="engine",
            where=where,
            what=f"prompt ids lie between {request.prompt.min()} and {request.prompt.max()}, "
            f"and the vocabulary has {server.vocabulary}.",
            remedy="Tokenize with the tokenizer that belongs to this model.",
        )
    if request.pictures and not server.reads_pictures:
        raise ContractError(
            where=where,
            what="the request has pictures, and the model reads none.",
            remedy="Use a vision–language model.",
        )
