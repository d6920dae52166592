"""The remote engine, which sessions call as any engine. It calls `engines/serve.py` in another process, which may die.

It is the model for engines such as vLLM or SGLang. This side keeps the ids of each session and the weights. A new
process gets both again, so that a run continues with the same numbers as without the interruption.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor

import palaestra
from palaestra.data.protocols import Engine, Request, Response
from palaestra.engines import wire
from palaestra.engines.scheduler import length_of
from palaestra.engines.session import refuse_fork
from palaestra.errors import ContractError, EpisodeFailure, PalaestraError, RecipeError, UnknownName, nearest
from palaestra.models.adapters import named_tensors
from palaestra.registry import Positive, PositiveInt, register
from palaestra.tools.temporary import TemporaryFolder

PAUSE = 0.2  # seconds between two attempts to reach the process
FIRST_LINE = 120.0  # seconds in which a process must print its first line


class _Gone(Exception):
    """The process did not answer, or another one has taken its place."""


@dataclass(slots=True, eq=False)
class _Served:
    """A policy: its model, the version of its weights, and how often they have changed or the engine has slept."""

    model: Any
    version: int
    changes: int = 0


@dataclass(slots=True, eq=False)
class _Session:
    """One conversation with one policy: all that a new process needs to continue it.

    Attributes:
        place: the session's name in `process`. Both are "" if no process has the session.
        before: ids from before the last change of the weights. A new process reads them together with the first turn.
        turns: requests and response tokens since that change.
        changes: how often the weights had changed before these turns.
        busy: whether a request is under way.
    """

    place: str = ""
    process: str = ""
    before: list[int] = field(default_factory=list)
    turns: list[tuple[Request, list[int]]] = field(default_factory=list)
    changes: int = 0
    busy: bool = False

    def read_at_once(self, changes: int) -> None:
        """Move the ids of all turns to `before`: after a change of the weights, all ids are read again at once."""
        for request, tokens in self.turns:
            self.before = [*self.before, *request.prompt.tolist(), *tokens]
        self.turns, self.changes = [], changes


@register("engine", "remote")
class RemoteEngine(Engine):
    """Another process generates: one that the run starts and ends, or one that listens at a URL.

    With the same processor and number of threads, the numbers are those of the in-process engine, bit for bit. Weights
    go through a folder that both processes can reach. If the process dies, the engine starts it again, or waits until
    somebody has started it. The environment variable PALAESTRA_ENGINE_TOKEN holds the secret of a process at a URL.

    Raises: RecipeError, if neither `start` nor `url` is given, or both.
    """

    def __init__(
        self,
        models: Mapping[str, Any],
        device: str,
        *,
        start: bool = False,
        url: str | None = None,
        folder: str | None = None,
        patience: Positive = 120.0,
        response_seconds: Positive = 600.0,
        max_sessions: PositiveInt = 1024,
        max_length: PositiveInt | None = None,
        chunk_tokens: PositiveInt = 2048,
    ) -> None:
        """
        Args:
            models: policy name → causal language model. device: the device of a started process.
            start: start a process on this machine, and end it with the run.
            url: address of a running `python -m palaestra.engines.serve`, such as `http://127.0.0.1:8760`.
            folder: path of the weights' folder on this side, if it differs from the path that the process uses. A
                started process has its own folder.
            patience: seconds that a request waits for a process that does not answer. Then its episode fails.
            response_seconds: seconds that one response may take.
            max_sessions, max_length, chunk_tokens: options of the in-process engine, for a started process.
        """
        if start == (url is not None):
            raise RecipeError(
                where="engine: remote",
                what="it needs either `start` or `url`.",
                remedy="Write `engine: {remote: {start: true}}` or `engine: {remote: {url: http://127.0.0.1:8760}}`.",
            )
        place = urlsplit(url or "http://127.0.0.1:0")
        if place.scheme != "http" or place.hostname is None or place.port is None:
            raise RecipeError(where="engine: remote.url", what=f"`{url}` is not like http://127.0.0.1:8760.")
        self._host, self._port, self._start = place.hostname, place.port, start
        self._token = secrets.token_hex(16) if start else os.environ.get(wire.TOKEN, "")
        self._patience, self._seconds, self._max_length = patience, response_seconds, max_length
        given = {"--device": device, "max_sessions": max_sessions, "chunk_tokens": chunk_tokens}
        given |= {} if max_length is None else {"max_length": max_length}
        self._options = [f"{name}={value}" for name, value in given.items()]
        self._folder = None if folder is None else Path(folder)
        self._own_folder: TemporaryFolder | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._process = ""  # name of the process that serves the policies; "": not connected
        self._lock = threading.Lock()  # only one thread connects at a time
        self._id = secrets.token_hex(4)  # other clients of the process may have policies of the same names
        self._count = 0
        self._served: dict[str, _Served] = {}
        self._sessions: dict[Hashable, dict[str, _Session]] = {}
        self._closing: list[str] = []  # places that are closed with the next request
        for name, model in models.items():
            self.serve(name, model)

    # ---- what policies call -------------------------------------------------------------------------------
    async def generate(self, request: Request) -> Response:
        """Sample a response. The session keeps the prompt and the response.

        Raises: as the in-process engine; EpisodeFailure also if the process does not answer for `patience` seconds, or
            if a response takes longer than `response_seconds`; PalaestraError, for a request with pictures.
        """
        if request.pictures:
            raise PalaestraError(
                where="engine: remote",
                what="the prompt shows an image, and the messages to the engine's process carry token ids alone.",
                remedy="Use `engine: in_process`, or set `policies.….policy.language.pictures: false`.",
            )
        served = self._known(request.policy)
        states = self._sessions.setdefault(request.session, {})
        session = states.setdefault(request.policy, _Session(changes=served.changes))
        if session.busy:
            where = f"remote engine, session {request.session!r}"
            raise ContractError(where=where, what="it is generating already.", remedy="Send one request at a time.")
        if session.changes != served.changes:
            session.read_at_once(served.changes)
        session.busy = True
        try:
            response = await self._persistently(request, session)
        except BaseException:
            self._lose(session)  # the process may have received this request
            raise
        finally:
            session.busy = False
        if self._sessions.get(request.session) is not states:
            raise self._failure(f"session {request.session!r} was closed while it was generating.")
        session.turns.append((request, response.action.tokens.tolist()))
        return response

    def close(self, session: Hashable) -> None:
        """Forget a session. The process closes it with the next request."""
        for state in self._sessions.pop(session, {}).values():
            self._lose(state)

    def fork(self, session: Hashable, new_session: Hashable) -> None:
        """Make `new_session` with the history of `session`. The process copies its cache.

        Raises: ContractError, if `session` is unknown or generating, or `new_session` exists.
        """
        states = self._sessions.get(session, {})
        refuse_fork(session, new_session, self._sessions, any(state.busy for state in states.values()))
        self._sessions[new_session] = {policy: self._copied(state) for policy, state in states.items()}

    def _copied(self, state: _Session) -> _Session:
        copied = replace(state, place="", process="", turns=list(state.turns))
        if state.place and state.process == self._process:
            with contextlib.suppress(_Gone, PalaestraError):  # after a failure, the copy's history is sent again
                place = self._new_place()
                self._send("/fork", state.process, session=state.place, new_session=place)
                copied.place, copied.process = place, state.process
        return copied

    def publish(self, policy: str, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Write the tensors into the folder, and let the process read them. A later process gets all weights."""
        served = self._known(policy)
        served.version, served.changes = version, served.changes + 1
        if self._process:
            with contextlib.suppress(_Gone):
                self._send_file("/publish", self._process, policy, version, named_tensors)

    def serve(self, policy: str, model: Any, *, version: int = 0) -> None:
        """Serve one more policy. Raises: ContractError, if a policy of this name is served already."""
        if policy in self._served:
            raise ContractError(
                where="remote engine", what=f"policy `{policy}` is served already.", remedy="Call `dismiss` first."
            )
        self._served[policy] = _Served(model, version)
        if self._process:
            with contextlib.suppress(_Gone):
                self._hand_over(policy, self._process)

    def dismiss(self, policy: str) -> None:
        """Stop serving a policy. Its sessions must be closed before. An unknown name has no effect."""
        if self._served.pop(policy, None) is not None and self._process:
            with contextlib.suppress(_Gone):
                self._send("/dismiss", self._process, policies=[self._name(policy)])

    def sleep(self) -> None:
        """Let the process free all keys and values. Then all ids of a session are read again at once."""
        for served in self._served.values():
            served.changes += 1
        if self._process:
            with contextlib.suppress(_Gone):
                self._send("/sleep", self._process)

    def counters(self) -> dict[str, float]:
        """What the process has counted since the last call, for all its clients. {}, if it does not answer."""
        with contextlib.suppress(_Gone):
            return dict(self._send("/counters", self._process)) if self._process else {}
        return {}

    def context(self, policy: str) -> int:
        """The most ids that a session of this policy can hold, prompts and responses together."""
        return length_of(self._known(policy).model, self._max_length)

    def shutdown(self) -> None:
        """End the process, if this engine has started it. Otherwise let the process dismiss the policies."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
        elif self._process:
            with contextlib.suppress(_Gone, PalaestraError):
                self._send("/dismiss", self._process, policies=[self._name(policy) for policy in self._served])
        if self._own_folder is not None:
            self._own_folder.close()
        self._child, self._own_folder, self._process = None, None, ""

    # ---- one request --------------------------------------------------------------------------------------
    async def _persistently(self, request: Request, session: _Session) -> Response:
        """Send the request until a process answers or `patience` ends. A new process gets the session's history."""
        deadline: float | None = None
        while True:
            try:
                async with asyncio.timeout(self._seconds):
                    return await self._ask(request, session)
            except TimeoutError:
                raise self._failure(f"there was no response within {self._seconds:g} s.") from None
            except _Gone as error:
                self._lose(session)
                deadline = deadline or time.monotonic() + self._patience
                if time.monotonic() > deadline:
                    raise self._failure(f"it has not answered for {self._patience:g} s: {error}.") from None
                await asyncio.sleep(PAUSE)

    async def _ask(self, request: Request, session: _Session) -> Response:
        process = self._process or await asyncio.to_thread(self._connect)
        if session.process != process:
            session.place, session.process = self._new_place(), process
            for number, (past, tokens) in enumerate(session.turns):
                again = await self._generate(session, past, first=number == 0)
                if again.action.tokens.tolist() != tokens:  # for example on another machine
                    self._lose(session)
                    session.read_at_once(session.changes)
                    session.place, session.process = self._new_place(), process
                    break
            fresh = not session.turns
        else:
            fresh = False
        return await self._generate(session, request, first=fresh)

    async def _generate(self, session: _Session, request: Request, *, first: bool) -> Response:
        if first:
            request = replace(request, prompt=np.array([*session.before, *request.prompt.tolist()], np.int32))
        closing, self._closing = self._closing, []
        asked = wire.request_json(request, session.place, self._name(request.policy))
        body = {"process": session.process, "request": asked, "close": closing}
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port)
            with contextlib.closing(writer):
                writer.write(wire.message("/generate", body, host=self._place(), token=self._token))
                await writer.drain()
                words, _, said = await wire.read_answer(reader)
        except OSError as error:
            self._disconnect(session.process)
            raise _Gone(f"{type(error).__name__}: {error}") from error
        except asyncio.CancelledError:
            self._closing += closing
            raise
        return wire.response_of(self._answer(int(words[1]), said, session.process))

    def _lose(self, session: _Session) -> None:
        """Let the process forget a session. If the session continues, its history is sent again."""
        if session.place and session.process == self._process:
            self._closing.append(session.place)
        session.place = session.process = ""

    def _answer(self, status: int, said: Any, process: str) -> Any:
        """The content of an answer. Raises: the error in the answer; _Gone, if it comes from another process."""
        if status == wire.OTHER_PROCESS:
            self._disconnect(process)
            raise _Gone("another process has taken its place")
        if status == wire.UNAUTHORIZED:
            raise self._failure(
                "the process has another secret.",
                f"Set the environment variable {wire.TOKEN} to one value on both sides.",
            )
        if status == wire.REFUSED and isinstance(said.get("error"), str):
            raise wire.error_of(said)
        if status != wire.OK:  # from the server before the engine, such as for a message that is too large
            raise self._failure(f"the process answers with status {status}: {said['error']['message']}")
        return said

    # ---- the process --------------------------------------------------------------------------------------
    def _connect(self) -> str:
        """Connect to the process and hand over all policies. Returns its name.

        A process that this engine must start is started first.

        Raises: _Gone, if the process cannot be started or does not answer.
        """
        with self._lock:
            if self._process:
                return self._process
            if self._start and (self._child is None or self._child.poll() is not None):
                self._start_process()
            state = self._post("/state", {})
            if self._folder is None or self._start:
                self._folder = Path(state["folder"])
            for policy in self._served:
                self._hand_over(policy, state["process"])
            self._closing, self._process = [], state["process"]
            return self._process

    def _disconnect(self, process: str) -> None:
        if self._process == process:
            self._process = ""

    def _start_process(self) -> None:
        """Start a process and wait for its first line. Raises: _Gone, if the process ends before."""
        self._own_folder = self._own_folder or TemporaryFolder("engine")
        if self._child is not None:
            self._child.communicate()
        folder = self._own_folder.path
        root = Path(palaestra.__file__).parents[1]
        paths = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
        options = [f"--folder={folder}", "--port=0", f"--threads={torch.get_num_threads()}", "--with-parent"]
        with (folder / "log").open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "palaestra.engines.serve", *options, *self._options],
                env=os.environ | {wire.TOKEN: self._token, "PYTHONPATH": paths},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._child.stdout is not None
        late = threading.Timer(FIRST_LINE, self._child.kill)
        late.start()
        line = self._child.stdout.readline()
        late.cancel()
        if not line:
            said = (folder / "log").read_text(errors="replace").strip()
            raise _Gone(f"it ended during its start: {said.rpartition(chr(10))[2] or 'its log is empty'}")
        self._port = json.loads(line)["port"]

    def _hand_over(self, policy: str, process: str) -> None:
        """Let the process serve a policy.

        If an earlier policy has the same base weights, only the low-rank additions are sent.
        """
        served = self._served[policy]
        known: dict[int, str] = {}
        for other in self._served:
            if other == policy:
                break
            known.setdefault(first_weight(self._served[other].model), other)
        base = known.get(first_weight(served.model))
        config, additions = wire.describe(served.model)
        tensors = named_tensors(served.model)
        if base is not None:
            tensors = ((name, tensor) for name, tensor in tensors if name.rpartition(".")[2] in ("lora_A", "lora_B"))
            base = self._name(base)
        said = {"model": config, "additions": additions, "base": base}
        self._send_file("/serve", process, policy, served.version, tensors, **said)

    def _send_file(
        self, path: str, process: str, policy: str, version: int, tensors: Iterable[tuple[str, Tensor]], **said: Any
    ) -> None:
        assert self._folder is not None
        file = wire.write_tensors(self._folder, self._name(policy), version, tensors)
        try:
            self._send(path, process, policy=self._name(policy), version=version, file=file.name, **said)
        finally:
            file.unlink(missing_ok=True)

    def _send(self, path: str, process: str, **said: Any) -> Any:
        """Send a message to this process. Raises: _Gone; the error in the answer."""
        return self._post(path, {**said, "process": process})

    def _post(self, path: str, said: Mapping[str, Any]) -> Any:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._seconds)
        try:
            secret = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request("POST", path, json.dumps(said), secret)
            answer = connection.getresponse()
            status, body = answer.status, json.loads(answer.read(wire.LARGEST_BODY) or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._disconnect(said.get("process", ""))
            raise _Gone(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        return self._answer(status, body, said.get("process", ""))

    # ---- names --------------------------------------------------------------------------------------------
    def _known(self, policy: str) -> _Served:
        if policy not in self._served:
            raise UnknownName(
                where="remote engine",
                what=f"the engine serves no policy `{policy}`.",
                options=nearest(policy, self._served),
                remedy="Give its model to the engine, or call `serve`.",
            )
        return self._served[policy]

    def _name(self, policy: str) -> str:
        return f"{policy}.{self._id}"

    def _place(self) -> str:
        """The process's address without the scheme, as the header Host has it."""
        return f"[{self._host}]:{self._port}" if ":" in str(self._host) else f"{self._host}:{self._port}"

    def _new_place(self) -> str:
        self._count += 1
        return f"{self._id}-{self._count}"

    def _failure(self, what: str, remedy: str = "") -> EpisodeFailure:
        where = f"remote engine at {self._host}:{self._port}"
        return EpisodeFailure(boundary="engine", where=where, what=what, remedy=remedy)


def first_weight(model: Any) -> int:
    """The memory address of a model's first weight. Models that share their base weights have the same address."""
    return next(tensor.data_ptr() for name, tensor in named_tensors(model) if ".lora_" not in name)
