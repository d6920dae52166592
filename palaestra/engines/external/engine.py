"""What engines of vLLM and SGLang share: sessions, and requests that outlive their server.

This side keeps the ids of each session. So a session can go on at any server.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import socket
import statistics
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol
from urllib.parse import urlsplit

import numpy as np
from torch import Tensor

from palaestra.data.interaction import Action, FinishReason
from palaestra.data.protocols import Engine, Request, Response
from palaestra.data.ranks import Ranks
from palaestra.engines.external.arrival import prompts
from palaestra.engines.external.dialect import Asked, Dialect, Piece
from palaestra.engines.external.fleet import Fleet, Served
from palaestra.engines.external.servers import (
    BROKEN,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Gone,
    Refused,
    Server,
    address,
    package,
)
from palaestra.engines.remote import first_weight
from palaestra.engines.scheduler import length_of
from palaestra.engines.session import refuse_fork
from palaestra.errors import ContractError, EpisodeFailure, PalaestraError, RecipeError, UnknownName, nearest

LOCAL = ("127.0.0.1", "::1", "localhost")
FLAT = 1e-2  # log-probabilities that must be the same differ by less than this
SHORTEST_CHECK = 2.0  # seconds in which a server that is up says so; SGLang generates a token for it
SHORT = 0.02  # seconds between two looks whether a server may be asked again
ABORTED = "abort"  # why a server ended a response: it takes over new weights
CUT = "length"  # why a server ended a response: it was as long as the server allows


class _Foreign(Exception):
    """The server has base weights that this engine did not send."""


class _Unsure(Exception):
    """New weights came just when a response ended, and nobody knows which ones have drawn it."""


@dataclass(slots=True, eq=False)
class _Session:
    """One conversation with one policy. `server`: where its ids are probably in the cache."""

    ids: list[int] = field(default_factory=list)
    server: Server | None = None
    busy: bool = False


@dataclass(slots=True, eq=False)
class _Response:
    """A response that grows by pieces. `finish`: why its last piece ended. `deadline`: when nobody waits any longer for
    a server. `why`: nobody has answered. `faults`: errors with which servers have answered."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: str = ""
    deadline: float | None = None
    why: str = "no server answers"
    faults: int = 0


class ServedEngine(Engine, Protocol):
    """Generates by servers that somebody has started. Subclasses have the messages of one kind of server.

    Sessions are spread over the servers that answer. A response that new weights interrupt goes on with them.
    """

    dialect: ClassVar[Dialect]
    _fleet: Fleet
    _sessions: dict[Hashable, dict[str, _Session]]
    _counts: Counter[str]
    _frees: bool
    _patience: float
    _seconds: float
    _every: float
    _retries: int
    _in_flight: int
    _max_length: int | None

    def connect(
        self,
        models: Mapping[str, Any],
        *,
        url: str | tuple[str, ...],
        folder: str | None,
        server_folder: str | None,
        key: str | None,
        model: str | None,
        initial_weights: bool,
        free_memory: bool,
        patience: float,
        response_seconds: float,
        check_seconds: float,
        retries: int,
        in_flight: int,
        max_length: int | None,
        seeds: bool | None,
    ) -> None:
        """Serve these models. The constructor of a subclass calls this with its options.

        Raises: RecipeError; MissingExtra; ContractError, for models with different base weights.
        """
        package()
        where, variable = f"engine: {self.dialect.kind}", key or self.dialect.key
        urls = list(dict.fromkeys(address(one, where=where) for one in ((url,) if isinstance(url, str) else url)))
        if not urls:
            raise RecipeError(where=f"{where}.url", what="the list of addresses is empty.")
        if folder is None and any(urlsplit(one).hostname not in LOCAL for one in urls):
            raise RecipeError(
                where=f"{where}.folder",
                what="a server on another machine reads weights from a folder that both machines see.",
                remedy="Set `folder` to such a folder, and `server_folder` if it has another path there.",
            )
        secret = os.environ.get(variable, "")
        self._fleet = Fleet(
            self.dialect,
            [Server(one, kind=self.dialect.kind, key=secret, key_variable=variable) for one in urls],
            folder=folder,
            server_folder=server_folder,
            base=model,
            initial=initial_weights,
            patience=patience,
            seconds=response_seconds,
            health_seconds=max(SHORTEST_CHECK, 3 * check_seconds),
            seeds=seeds,
        )
        self._frees, self._patience, self._seconds, self._every = free_memory, patience, response_seconds, check_seconds
        self._retries, self._in_flight, self._max_length = retries, in_flight, max_length
        self._sessions, self._counts = {}, Counter()
        for name, one in models.items():
            self.serve(name, one)

    @classmethod
    def elsewhere(cls, options: Mapping[str, Any]) -> str:
        """Which program generates with these options."""
        urls = (options["url"],) if isinstance(options["url"], str) else options["url"]
        return f"{cls.dialect.kind} at {', '.join(urls)}"

    # ---- what policies call -----------------------------------------------------------------------------------
    async def generate(self, request: Request) -> Response:
        """Sample a response. The session keeps the ids of the prompt and the response.

        Raises: EpisodeFailure, if the prompt leaves no room, if a server refuses the request, if no server answers for
            `patience` seconds, or if one response takes longer than `response_seconds`; PalaestraError, for a request
            that these servers cannot answer, and if they cannot take the weights; UnknownName; ContractError.
        """
        served = self._known(request.policy)
        self._refuse(request)
        states = self._sessions.setdefault(request.session, {})
        state = states.setdefault(request.policy, _Session())
        if state.busy:
            where = f"engine {self.dialect.kind}, session {request.session!r}"
            raise ContractError(where=where, what="it is generating already.", remedy="Send one request at a time.")
        ids = [*state.ids, *request.prompt.tolist()]
        state.busy = True
        try:
            said = await self._respond(request, served, state, ids)
        finally:
            state.busy = False
        if self._sessions.get(request.session) is not states:
            raise self._failure(f"session {request.session!r} was closed while it was generating.")
        state.ids = ids + said.tokens
        self._counts["requests"] += 1
        self._counts["generated_tokens"] += len(said.tokens)
        return Response(action=self._action(request, said, len(state.ids)), version=said.versions[0])

    def close(self, session: Hashable) -> None:
        """Forget a session."""
        self._sessions.pop(session, None)

    def fork(self, session: Hashable, new_session: Hashable) -> None:
        """Make `new_session` with the ids of `session`.

        Raises: ContractError, if `session` is unknown or generating, or `new_session` exists.
        """
        states = self._sessions.get(session, {})
        refuse_fork(session, new_session, self._sessions, any(state.busy for state in states.values()))
        self._sessions[new_session] = {name: replace(state, ids=list(state.ids)) for name, state in states.items()}

    def publish(self, policy: str, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Write the new weights into the folder, and let all servers that answer take them over.

        Servers that have freed their memory take them over when they wake, and others when they answer again.
        """
        self._known(policy)
        self._fleet.publish(policy, dict(named_tensors), version)

    def share(self, ranks: Ranks) -> None:
        """Let the first rank alone give weights to the servers, and all ranks know them by the same names.

        Raises: RecipeError, if the ranks are on several machines, and an address names another server on each.
        """
        hosts = sorted(set(ranks.texts(socket.gethostname())))
        local = [server.url for server in self._fleet.servers if urlsplit(server.url).hostname in LOCAL]
        if len(hosts) > 1 and local:
            raise RecipeError(
                where=f"engine: {self.dialect.kind}.url",
                what=f"the processes of the run are on {', '.join(hosts)}, and {local[0]} is another server on each.",
                remedy="Set `url` to an address that all machines reach, and `folder` to a folder that all see.",
            )
        self._fleet.share(ranks)

    def serve(self, policy: str, model: Any, *, version: int = 0) -> None:
        """Serve one more policy: an adapter on the base, or a policy with the weights of the base.

        Raises: ContractError, if a policy of this name is served already, or if the policy has other base weights.
        """
        served = self._fleet.policies
        if policy in served:
            raise ContractError(
                where=f"engine {self.dialect.kind}",
                what=f"policy `{policy}` is served already.",
                remedy="Call `dismiss` first.",
            )
        others = [name for name, one in served.items() if first_weight(one.model) != first_weight(model)]
        if others:
            raise ContractError(
                where=f"engine: {self.dialect.kind}",
                what=f"a server serves one base model, and the policies `{others[0]}` and `{policy}` have two.",
                remedy="Make them adapters on one base, or use `engine: in_process` or `engine: remote`.",
            )
        self._fleet.add(policy, model, version)

    def dismiss(self, policy: str) -> None:
        """Stop serving a policy. Its adapter is unloaded later. An unknown name has no effect."""
        self._fleet.remove(policy)

    def sleep(self) -> None:
        """With `free_memory`, let the servers free their memory."""
        if self._frees:
            self._fleet.sleep()

    def wake(self) -> None:
        """Let the servers that sleep take back their memory, and take over weights that were published meanwhile."""
        self._fleet.wake()

    def context(self, policy: str) -> int:
        """The most ids that a session of this policy can hold, prompts and responses together."""
        longest = length_of(self._known(policy).model, self._max_length)
        said = [server.length - self.dialect.reserved for server in self._fleet.servers if server.length]
        return min([longest, *said])

    def counters(self) -> dict[str, float]:
        """What was asked, answered and lost since the last call."""
        counted = self._counts + self._fleet.counts
        self._counts.clear()
        self._fleet.counts.clear()
        return {f"engine/{name}": float(value) for name, value in sorted(counted.items())}

    def shutdown(self) -> None:
        """Unload the adapters, and remove the folders. The servers go on."""
        self._fleet.close()

    # ---- one response -----------------------------------------------------------------------------------------
    async def _respond(self, request: Request, served: Served, state: _Session, ids: list[int]) -> _Response:
        """Ask servers until the response is whole."""
        said = _Response()
        while not self._is_whole(request, said, len(ids)):
            server = self._fleet.choose(state.server)
            if server is None:
                self._expire(said)
                await asyncio.sleep(SHORT)
                continue
            state.server, epoch = server, server.epoch
            try:
                await self._ready(server)
                losses = server.losses
                await self._refuse_unscaled(server, request, served)
                version, label = served.version, server.label
                piece = await self._send(server, self._asked(server, request, served, ids, said))
                if self._fleet.label and not piece.labels:
                    piece = await self._labeled(server, served, piece, label)
                versions = self._versions(served, piece, version)
            except Gone as error:
                await self._lost(server, epoch, error, said)
            except Refused as error:
                await self._judge(server, losses, error, served, said)
            except _Unsure:
                continue
            except _Foreign:
                server.forget(losses)
                self._count_fault(said, f"{server.url} has other weights again and again, as if two runs used it.")
            else:
                said.deadline = None
                said.tokens += piece.tokens
                said.logprobs += piece.logprobs if request.temperature > 0 else [0.0] * len(piece.tokens)
                said.versions += versions
                said.finish = piece.finish
                if not piece.tokens and self._fleet.is_current(server):
                    self._count_fault(said, f"{server.url} gives no tokens ({piece.finish}).")
                self._counts["prompt_tokens"] += len(ids)
                self._counts["cached_tokens"] += piece.cached
        return said

    def _is_whole(self, request: Request, said: _Response, before: int) -> bool:
        """Whether nothing is left to sample. A response that a server has interrupted goes on.

        Raises: EpisodeFailure, if there is no room for a response.
        """
        context = self.context(request.policy)
        if before >= context or request.max_tokens < 1 or not before:
            raise self._failure(
                f"the prompt has {before} ids, and the context holds {context}: there is no room for a response.",
                "Use a context that forgets (window, latest-only), or fewer turns. If the server's context is shorter "
                "than the model's, start it with a longer one.",
            )
        count = len(said.tokens)
        stopped = count > 0 and said.tokens[-1] in request.stop
        # A stop id of the server alone, such as the end of text in its settings, does not end the response.
        return stopped or count >= min(request.max_tokens, context - before) or (count > 0 and said.finish == CUT)

    def _asked(self, server: Server, request: Request, served: Served, ids: list[int], said: _Response) -> Asked:
        room = min(request.max_tokens, self.context(request.policy) - len(ids))
        return Asked(
            ids=ids + said.tokens,
            request=request,
            max_tokens=max(1, room - len(said.tokens)),
            begun=len(said.tokens),
            adapter=served.adapter,
            base=server.base,
            salt=hashlib.sha256(f"{self._fleet.label} {served.adapter}".encode()).hexdigest(),
            seeded=self._fleet.seeded(server),
        )

    async def _ready(self, server: Server) -> None:
        """Wait until a server has all weights. Raises: Gone; PalaestraError."""
        while not self._fleet.is_current(server):
            await _ended(self._fleet.join(server))

    async def _send(self, server: Server, asked: Asked) -> Piece:
        """Send a request. A server that takes long is asked now and then whether it is up.

        Raises: Gone; Refused; EpisodeFailure, after `response_seconds`; PalaestraError, for an answer that is none.
        """
        path, body = self.dialect.question(asked)
        server.running[asked.adapter] += 1
        task = asyncio.create_task(server.ask(path, body, in_flight=self._in_flight, seconds=self._seconds))
        try:
            async with asyncio.timeout(self._seconds):
                while not (await asyncio.wait({task}, timeout=self._every))[0]:
                    if not await self._is_up(server, every=self._every):
                        raise Gone("it does not answer any more")
            return self._read(server, task.result(), asked)
        except TimeoutError:
            raise self._failure(f"{server.url} has given no response within {self._seconds:g} s.") from None
        finally:
            task.cancel()
            server.running[asked.adapter] -= 1

    def _read(self, server: Server, answer: Any, asked: Asked) -> Piece:
        try:
            piece = self.dialect.piece(answer, asked)
            fault = "" if len(piece.tokens) == len(piece.logprobs) else "it has another number of log-probabilities"
            fault = fault or ("" if all(map(math.isfinite, piece.logprobs)) else "a log-probability is not finite")
        except (LookupError, TypeError, ValueError) as error:
            fault = f"{type(error).__name__}: {error}"
        if fault:
            raise self._failure(
                f"the answer of {server.url} cannot be read: {fault}.",
                f"Use a version of the server that `help(palaestra.engines.external.{self.dialect.kind})` names.",
            )
        return piece

    async def _labeled(self, server: Server, served: Served, piece: Piece, before: str) -> Piece:
        """The piece with its label, of a server whose answers do not name it: the server is asked now.

        Args:
            before: the label when the request was sent.

        Raises: _Unsure; Gone; Refused.
        """
        now = await asyncio.to_thread(self.dialect.label, server)
        if now is not None and now != before and now in served.versions:  # new weights came meanwhile
            if piece.finish != ABORTED:
                raise _Unsure
            now = before
        return piece._replace(labels=[(now, 0)] if now else ())

    def _versions(self, served: Served, piece: Piece, version: int) -> list[int]:
        """The version that drew each token. Raises: _Foreign, if the base weights are not those that were sent."""
        if not self._fleet.label:
            return [version] * len(piece.tokens)
        if any(label not in served.versions for label, _ in piece.labels):
            raise _Foreign
        versions = [version] * len(piece.tokens)
        for label, start in piece.labels if not served.scalings else ():
            versions[start:] = [served.versions[label]] * len(versions[start:])
        return versions

    def _action(self, request: Request, said: _Response, length: int) -> Action:
        finish = FinishReason.STOP
        if said.tokens[-1] not in request.stop:
            finish = FinishReason.LENGTH if len(said.tokens) >= request.max_tokens else FinishReason.CONTEXT
        versions = np.array(said.versions, np.int32)
        return Action(
            tokens=np.array(said.tokens, np.int32),
            logprobs=np.array(said.logprobs, np.float32),
            versions=versions if len(set(said.versions)) > 1 else None,
            finish=finish,
        )

    # ---- what goes wrong --------------------------------------------------------------------------------------
    async def _lost(self, server: Server, epoch: int, error: Gone, said: _Response) -> None:
        """A server has not answered a request.

        While it takes over weights, it refuses requests, and nothing is lost. If it is up, it may be busy, or the
        request may be at fault. Otherwise another server is asked, or this one later.
        """
        joining = server.joining
        if joining is not None and not joining.done():
            with contextlib.suppress(Gone):
                await _ended(joining)
            return
        self._counts["lost_requests"] += 1
        said.why = str(error)
        if epoch == server.epoch and server.connected and await self._is_up(server):
            if not error.busy:
                self._count_fault(said, f"{server.url} cuts the connection: {error}.")
            self._expire(said)
            await asyncio.sleep(min(LONGEST_PAUSE, FIRST_PAUSE * 2**said.faults))
            return
        server.fail(epoch)
        self._expire(said)
        if not any(other.connected for other in self._fleet.servers):
            server.waits(str(error), self._patience)

    async def _is_up(self, server: Server, *, every: float = 0.0) -> bool:
        return await server.healthy(self.dialect.health, every=every, seconds=self._fleet.health_seconds)

    def _expire(self, said: _Response) -> None:
        """Raises: EpisodeFailure, if this was called for `patience` seconds."""
        now = time.monotonic()
        said.deadline = said.deadline or now + self._patience
        if now > said.deadline:
            urls = ", ".join(server.url for server in self._fleet.servers)
            raise self._failure(
                f"{urls} cannot be reached for {self._patience:g} s: {said.why}.",
                f"Start the server, or raise `engine.{self.dialect.kind}.patience`.",
            )

    async def _judge(self, server: Server, losses: int, error: Refused, served: Served, said: _Response) -> None:
        """A server has answered with an error. Raises: EpisodeFailure, if asking again cannot help."""
        if self.dialect.has_lost(error, served.adapter):
            server.forget(losses)
        elif error.status < BROKEN:
            raise self._failure(f"{server.url} refuses the request: {error}.") from error
        elif not await self._is_up(server):
            await self._lost(server, server.epoch, Gone(str(error)), said)
            return
        self._count_fault(said, f"{server.url} answers with an error: {error}.")
        await asyncio.sleep(SHORT * 2**said.faults)

    def _count_fault(self, said: _Response, what: str) -> None:
        said.faults += 1
        self._counts["faults"] += 1
        if said.faults > self._retries:
            raise self._failure(what)

    async def _refuse_unscaled(self, server: Server, request: Request, served: Served) -> None:
        """Refuse a request whose log-probabilities would be of another distribution than that of its tokens.

        With the options `Dialect.even`, all tokens have the same log-probability. If the server's log-probabilities
        differ then, they are those of temperature 1. The server is asked once, with ids that leave it uncertain.
        """
        plain = request.temperature in (0.0, 1.0) and not request.top_k and request.top_p == 1
        if plain or request.temperature == 0:
            return
        if server.scaled is None:
            even: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "stop": ()} | dict(self.dialect.even)
            probe = replace(request, max_tokens=1, **even)
            first: list[float] = []
            for prompt in prompts(served.model):
                asked = self._asked(server, probe, served, prompt, _Response())._replace(max_tokens=1)
                first += (await self._send(server, asked)).logprobs
            server.scaled = max(first) - statistics.median(first) < FLAT  # in bfloat16 tokens may tie
        if not server.scaled:
            raise PalaestraError(
                where=f"engine: {self.dialect.kind}, {server.url}",
                what=f"its log-probabilities are those of temperature 1 and of all tokens, and temperature "
                f"{request.temperature:g}, top_p {request.top_p:g} and top_k {request.top_k} were asked for.",
                remedy=self.dialect.unscaled,
            )

    def _known(self, policy: str) -> Served:
        if policy not in self._fleet.policies:
            raise UnknownName(
                where=f"engine {self.dialect.kind}",
                what=f"the engine serves no policy `{policy}`.",
                options=nearest(policy, self._fleet.policies),
                remedy="Give its model to the engine, or call `serve`.",
            )
        return self._fleet.policies[policy]

    def _refuse(self, request: Request) -> None:
        """Refuse what no such server can answer. Raises: PalaestraError; EpisodeFailure."""
        remedy = "Use `engine: in_process` or `engine: remote`."
        fault = ""
        if request.pictures:
            fault = "the prompt shows an image, and requests to a server carry token ids alone"
            remedy = "Use `engine: in_process`, or set `policies.….policy.language.pictures: false`."
        elif request.entropy_temperature is not None:
            fault = "the temperature of each token shall depend on its entropy"
        elif request.temperature > self.dialect.hottest:
            fault = (
                f"the highest temperature that the server accepts is {self.dialect.hottest:g}, and "
                f"{request.temperature:g} was asked for"
            )
        elif request.entropy:
            fault = "a part of the recipe reads the entropy of each sampled token, which servers do not return"
        if fault:
            raise PalaestraError(where=f"engine: {self.dialect.kind}", what=f"{fault}.", remedy=remedy)
        vocabulary = self._fleet.policies[request.policy].model.config.get_text_config().vocab_size
        if len(request.prompt) and not 0 <= request.prompt.min() <= request.prompt.max() < vocabulary:
            raise self._failure(
                f"prompt ids lie between {request.prompt.min()} and {request.prompt.max()}, and the vocabulary has "
                f"{vocabulary}.",
                "Tokenize with the tokenizer that belongs to this model.",
            )

    def _failure(self, what: str, remedy: str = "") -> EpisodeFailure:
        return EpisodeFailure(boundary="engine", where=f"engine {self.dialect.kind}", what=what, remedy=remedy)


async def _ended(joining: Future[None]) -> None:
    """Wait for a hand-over, which goes on if the waiting request is cancelled. Raises: its error."""
    ended = asyncio.wrap_future(joining)
    ended.add_done_callback(lambda one: one.cancelled() or one.exception())  # somebody else may show it
    await asyncio.wait({ended})
    ended.result()
