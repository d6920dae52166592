"""The engine process. `RemoteEngine` calls it over HTTP; it calls the in-process engine.

    python -m palaestra.engines.serve --folder weights --port 8760 max_sessions=256

The last arguments are options of the in-process engine. By default, only programs on this machine can connect. With
`--host`, other machines can connect too, and the environment variable `PALAESTRA_ENGINE_TOKEN` must hold a secret that
clients know. Clients write weights as files into the folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import secrets
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from palaestra.engines import wire
from palaestra.engines.inprocess import InProcessEngine
from palaestra.errors import ContractError, PalaestraError
from palaestra.http.addresses import LOOPBACK, bound, secret_in
from palaestra.http.rules import Limits, Rules
from palaestra.http.streams import Asked, Streams, answer_bytes


class EngineServer:
    """Answers the messages of `palaestra.engines.wire`.

    Args:
        folder: clients write weights into it. device: of the models.
        options: of the in-process engine.
    """

    def __init__(self, folder: Path, *, device: str = "cpu", options: Mapping[str, Any]) -> None:
        self.folder, self.device = folder, device
        self.process = secrets.token_hex(8)
        self.engine = InProcessEngine({}, **options)
        self._models: dict[str, Any] = {}
        self._bases: dict[str, Any] = {}  # the same models, without low-rank additions

    async def answer(self, asked: Asked) -> bytes:
        """The answer to a message."""
        return answer_bytes(*await self._answer(asked.target, asked.body))

    async def _answer(self, path: str, said: dict[str, Any]) -> tuple[int, Any]:
        messages = (self.state, self.serve, self.publish, self.generate, self.fork, self.dismiss)
        kinds: tuple[Any, ...] = (*messages, self.sleep, self.counters)
        answers: dict[str, Any] = {f"/{kind.__name__}": kind for kind in kinds}
        try:
            if path not in answers:
                raise ContractError(where="engine process", what=f"there is no message {path}.", options=answers)
            if path != "/state" and said.pop("process", None) != self.process:
                return wire.OTHER_PROCESS, {}
            return wire.OK, await answers[path](**said) or {}
        except PalaestraError as error:
            return wire.REFUSED, wire.error_json(error)
        except Exception as error:
            what = f"the message failed: {type(error).__name__}: {error}."
            return wire.REFUSED, wire.error_json(PalaestraError(where=f"engine process, {path}", what=what))

    async def state(self) -> dict[str, Any]:
        """The name of this process, and the folder from which it reads weights."""
        return {"process": self.process, "folder": str(self.folder.absolute())}

    async def serve(
        self, policy: str, version: int, file: str, model: Any, additions: dict[str, float], base: str | None
    ) -> None:
        """Serve a policy from now on.

        Args:
            file: with the weights. model: the configuration. additions: scaling of the low-rank additions by layer.
            base: a served policy that has the same base weights. The file then holds only the additions.
        """
        await self.dismiss([policy])
        whole = wire.empty_model(model).to(self.device) if base is None else self._bases[base]
        made = wire.with_additions(whole, additions, self._file(file)) if additions else whole
        wire.read_tensors(self._file(file), made)
        self.engine.serve(policy, made, version=version)
        self._models[policy], self._bases[policy] = made, whole

    async def publish(self, policy: str, version: int, file: str) -> None:
        """Read new weights of a policy from a file."""
        wire.read_tensors(self._file(file), self._models[policy])
        self.engine.publish(policy, (), version)

    async def generate(self, request: dict[str, Any], close: list[str]) -> dict[str, Any]:
        """Close these sessions, and then generate a response."""
        for session in close:
            self.engine.close(session)
        return wire.response_json(await self.engine.generate(wire.request_of(request)))

    async def fork(self, session: str, new_session: str) -> None:
        """Make a session with the same history as another one."""
        self.engine.fork(session, new_session)

    async def dismiss(self, policies: list[str]) -> None:
        """Stop serving these policies."""
        for policy in policies:
            self.engine.dismiss(policy)
            self._models.pop(policy, None)
            self._bases.pop(policy, None)

    async def sleep(self) -> None:
        """Free all keys and values."""
        self.engine.sleep()

    async def counters(self) -> dict[str, float]:
        """The counters since the last such message."""
        return self.engine.counters()

    def _file(self, name: str) -> Path:
        if Path(name).name != name:
            raise ContractError(where="engine process", what=f"{name!r} is a path, and only a file name is allowed.")
        return self.folder / name


def streams(server: EngineServer, secret: str) -> Streams:
    """The server that gives the engine process its messages."""
    limits = Limits(head_bytes=wire.LARGEST_HEAD, body_bytes=wire.LARGEST_BODY)

    async def answer(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await made.send(writer, await server.answer(asked))

    made = Streams(answer, Rules(secret=secret, limits=limits))
    return made


async def listen(server: EngineServer, listening: socket.socket, secret: str) -> None:
    """Answer messages until the process ends. The first line of output is JSON with the port."""
    serving = await streams(server, secret).start(listening)
    print(json.dumps({"port": listening.getsockname()[1]}), flush=True)
    async with serving:
        await serving.serve_forever()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # returns when the parent process closes the pipe or dies
    os._exit(0)


def main() -> None:
    """Run the engine process from the command line."""
    parser = argparse.ArgumentParser(prog="python -m palaestra.engines.serve")
    parser.add_argument("--folder", type=Path, required=True, help="clients write weights into it")
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int, default=8760, help="0: any free port")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="threads of torch; the generated numbers depend on it")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input ends")
    parser.add_argument("options", nargs="*", help="options of the in-process engine, such as max_sessions=256")
    given = parser.parse_args()
    try:
        secret = secret_in(wire.TOKEN)
        listening = bound(given.host, given.port, secret=secret, variable=wire.TOKEN)
    except PalaestraError as error:
        sys.exit(str(error))
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    if given.with_parent:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    given.folder.mkdir(parents=True, exist_ok=True)
    options = {name: value for name, _, value in (word.partition("=") for word in given.options)}
    server = EngineServer(given.folder, device=given.device, options=options)
    gc.freeze()  # as in `palaestra.http.asgi`
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(listen(server, listening, secret))


if __name__ == "__main__":
    main()
