"""An engine as a process of its own: the in-process engine behind HTTP, for policies that a client hands over.

    python -m palaestra.engines.serve --folder weights --port 8760 max_sessions=256

The last words are options of the in-process engine. The process listens on this machine alone. With `--host` it listens
elsewhere too, and then `PALAESTRA_ENGINE_TOKEN` must hold a secret that clients know. Weights come as files in the
folder, which its clients write.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import json
import os
import secrets
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from palaestra.engines import wire
from palaestra.engines.inprocess import InProcessEngine
from palaestra.errors import ContractError, PalaestraError


class EngineServer:
    """Answers the messages of `palaestra.engines.wire`.

    Args:
        folder: where clients put weights. device: of the models. token: a secret that every message must carry; empty:
            none. options: of the in-process engine.
    """

    def __init__(self, folder: Path, *, device: str = "cpu", token: str = "", options: Mapping[str, Any]) -> None:
        self.folder, self.device, self.token = folder, device, token
        self.process = secrets.token_hex(8)
        self.engine = InProcessEngine({}, **options)
        self._models: dict[str, Any] = {}
        self._bases: dict[str, Any] = {}  # the same models, without additions

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's message."""
        answer: Any = {}
        with contextlib.suppress(ConnectionError):
            words, headers, said = await wire.read_message(reader)
            given = headers.get("authorization", "").removeprefix("Bearer ")
            if self.token and not secrets.compare_digest(given.encode(), self.token.encode()):
                status = wire.UNAUTHORIZED
            else:
                status, answer = await self._answer(words[1], said)
            writer.write(wire.message(f"HTTP/1.1 {status} -", answer))
            await writer.drain()
        writer.close()

    async def _answer(self, path: str, said: dict[str, Any]) -> tuple[int, Any]:
        kinds = (self.state, self.serve, self.publish, self.generate, self.fork, self.dismiss)
        answers: dict[str, Any] = {f"/{kind.__name__}": kind for kind in kinds}
        try:
            if path not in answers:
                raise ContractError(where="engine process", what=f"no message is called {path}.", options=answers)
            if path != "/state" and said.pop("process", None) != self.process:
                return wire.OTHER_PROCESS, {}
            return wire.OK, await answers[path](**said) or {}
        except PalaestraError as error:
            return wire.REFUSED, wire.error_json(error)
        except Exception as error:
            what = f"it failed: {type(error).__name__}: {error}."
            return wire.REFUSED, wire.error_json(PalaestraError(where=f"engine process, {path}", what=what))

    async def state(self) -> dict[str, Any]:
        """Which process this is, and where it reads weights."""
        return {"process": self.process, "folder": str(self.folder.absolute())}

    async def serve(
        self, policy: str, version: int, file: str, model: Any, additions: dict[str, float], base: str | None
    ) -> None:
        """Generate for a policy. `base`: a policy that is served, whose weights it shares; the file has the rest."""
        await self.dismiss([policy])
        whole = wire.empty_model(model).to(self.device) if base is None else self._bases[base]
        made = wire.with_additions(whole, additions, self._file(file)) if additions else whole
        wire.read_tensors(self._file(file), made)
        self.engine.serve(policy, made, version=version)
        self._models[policy], self._bases[policy] = made, whole

    async def publish(self, policy: str, version: int, file: str) -> None:
        """Take a policy's weights from a file."""
        wire.read_tensors(self._file(file), self._models[policy])
        self.engine.publish(policy, (), version)

    async def generate(self, request: dict[str, Any], close: list[str]) -> dict[str, Any]:
        """A response, after these sessions were closed."""
        for session in close:
            self.engine.close(session)
        return wire.response_json(await self.engine.generate(wire.request_of(request)))

    async def fork(self, session: str, new_session: str) -> None:
        """A session that goes on from where another one stands."""
        self.engine.fork(session, new_session)

    async def dismiss(self, policies: list[str]) -> None:
        """Serve these policies no longer."""
        for policy in policies:
            self.engine.dismiss(policy)
            self._models.pop(policy, None)
            self._bases.pop(policy, None)

    def _file(self, name: str) -> Path:
        if Path(name).name != name:
            raise ContractError(where="engine process", what=f"{name!r} is no name of a file in its folder.")
        return self.folder / name


async def listen(server: EngineServer, host: str, port: int) -> None:
    """Answer until the process ends; the first line of output tells the port as JSON."""
    listening = await asyncio.start_server(server.answer, host, port, limit=wire.LARGEST_HEAD)
    print(json.dumps({"port": listening.sockets[0].getsockname()[1]}), flush=True)
    async with listening:
        await listening.serve_forever()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # until whoever started the process closes the pipe, or has died
    os._exit(0)


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m palaestra.engines.serve")
    parser.add_argument("--folder", type=Path, required=True, help="where clients put weights")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8760, help="0: any that is free")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of one product of matrices; numbers depend on it")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input does")
    parser.add_argument("options", nargs="*", help="of the in-process engine: max_sessions=256")
    given, token = parser.parse_args(), os.environ.get(wire.TOKEN, "")
    if not token and not _is_loopback(given.host):
        parser.error(f"--host {given.host} lets other machines in: set {wire.TOKEN} to a secret that clients know.")
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    if given.with_parent:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    given.folder.mkdir(parents=True, exist_ok=True)
    options = {name: value for name, _, value in (word.partition("=") for word in given.options)}
    server = EngineServer(given.folder, device=given.device, token=token, options=options)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(listen(server, given.host, given.port))


if __name__ == "__main__":
    main()
