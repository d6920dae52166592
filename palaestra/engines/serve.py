"""An engine as a process of its own: the in-process engine behind HTTP, for policies that a client hands over.

    python -m palaestra.engines.serve --folder weights --port 8760

It listens on this machine alone. With `--host` it listens elsewhere too, and then `PALAESTRA_ENGINE_TOKEN` must hold a
secret that clients know. Weights come as files in the folder, which its clients write.
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
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import torch

from palaestra.engines.inprocess import InProcessEngine
from palaestra.engines.wire import (
    FAILED,
    LARGEST_HEAD,
    OK,
    OTHER_PROCESS,
    REFUSED,
    TOKEN,
    UNAUTHORIZED,
    empty_model,
    error_json,
    message,
    read_message,
    read_tensors,
    request_of,
    response_json,
    with_additions,
)
from palaestra.errors import ContractError, PalaestraError


class EngineServer:
    """Answers the messages of `palaestra.engines.wire`.

    Args:
        folder: where clients put weights. device: of the models. token: a secret that every message must carry; empty:
            none. options: of the in-process engine.
    """

    def __init__(self, folder: Path, *, device: str = "cpu", token: str = "", **options: Any) -> None:
        self.folder, self.device, self.token = folder, device, token
        self.process = secrets.token_hex(8)
        self.engine = InProcessEngine(models={}, **options)
        self._models: dict[str, Any] = {}
        self._bases: dict[str, Any] = {}  # the same models, without additions
        self._answers: dict[str, Callable[..., Awaitable[Any]]] = {
            "/state": self.state,
            "/serve": self.serve,
            "/publish": self.publish,
            "/generate": self.generate,
            "/fork": self.fork,
            "/dismiss": self.dismiss,
        }

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's message. If the other side goes away before, what it asked for is given up."""
        with contextlib.suppress(ConnectionError):
            words, headers, said = await read_message(reader)
            work = asyncio.ensure_future(self._answer(words, headers, said))
            gone = asyncio.ensure_future(reader.read(1))
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if work.done():
                status, body = work.result()
                writer.write(message(f"HTTP/1.1 {status} -", body))
                await writer.drain()
            else:
                work.cancel()
        writer.close()

    async def _answer(self, words: list[str], headers: dict[str, str], said: Any) -> tuple[int, Any]:
        path = words[1] if len(words) > 1 else ""
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if self.token and not secrets.compare_digest(given.encode(), self.token.encode()):
            return UNAUTHORIZED, {}
        if path not in self._answers:
            return REFUSED, error_json(ContractError(where=f"engine process, {path}", what="there is no such message."))
        if path != "/state" and said.pop("process", None) != self.process:
            return OTHER_PROCESS, {}
        try:
            return OK, await self._answers[path](**said)
        except PalaestraError as error:
            return REFUSED, error_json(error)
        except Exception as error:
            what = f"it failed: {type(error).__name__}: {error}."
            return FAILED, error_json(PalaestraError(where=f"engine process, {path}", what=what))

    async def state(self) -> dict[str, Any]:
        """Which process this is, and where it reads weights."""
        return {"process": self.process, "folder": str(self.folder)}

    async def serve(
        self,
        policy: str,
        version: int,
        file: str,
        model: dict[str, Any],
        additions: dict[str, float],
        base: str | None,
    ) -> dict[str, Any]:
        """Generate for a policy. `base`: a policy that is served, whose weights it shares; the file has the rest."""
        await self.dismiss([policy])
        path = self._file(file)
        whole = empty_model(model).to(self.device) if base is None else self._bases[base]
        made = with_additions(whole, additions, path) if additions else whole
        read_tensors(path, made)
        self.engine.serve(policy, made, version=version)
        self._models[policy], self._bases[policy] = made, whole
        return {}

    async def publish(self, policy: str, version: int, file: str) -> dict[str, Any]:
        """Take a policy's weights from a file."""
        read_tensors(self._file(file), self._models[policy])
        self.engine.publish(policy, (), version)
        return {}

    async def generate(self, request: dict[str, Any], close: list[str]) -> dict[str, Any]:
        """A response, after these sessions were closed."""
        for session in close:
            self.engine.close(session)
        return response_json(await self.engine.generate(request_of(request)))

    async def fork(self, session: str, new_session: str) -> dict[str, Any]:
        """A session that goes on from where another one stands."""
        self.engine.fork(session, new_session)
        return {}

    async def dismiss(self, policies: list[str]) -> dict[str, Any]:
        """Serve these policies no longer."""
        for policy in policies:
            self.engine.dismiss(policy)
            self._models.pop(policy, None)
            self._bases.pop(policy, None)
        return {}

    def _file(self, name: str) -> Path:
        if Path(name).name != name:
            raise ContractError(where="engine process", what=f"{name!r} is no name of a file in its folder.")
        return self.folder / name


async def listen(server: EngineServer, host: str, port: int) -> None:
    """Answer until the process ends; the first line of output tells port and process as JSON."""
    listening = await asyncio.start_server(server.answer, host, port, limit=LARGEST_HEAD)
    print(json.dumps({"port": listening.sockets[0].getsockname()[1], "process": server.process}), flush=True)
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
    parser = argparse.ArgumentParser(prog="python -m palaestra.engines.serve", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where clients put weights")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8760, help="0: any that is free")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of one product of matrices; numbers depend on it")
    parser.add_argument("--max-sessions", type=int, default=1024)
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--chunk-tokens", type=int, default=2048)
    parser.add_argument("--with-parent", action="store_true", help="end when standard input does")
    given = vars(parser.parse_args())
    host, port, token = given.pop("host"), given.pop("port"), os.environ.get(TOKEN, "")
    if not token and not _is_loopback(host):
        parser.error(f"--host {host} lets other machines in: set {TOKEN} to a secret that clients know.")
    if (threads := given.pop("threads")) is not None:
        torch.set_num_threads(threads)
    if given.pop("with_parent"):
        threading.Thread(target=_end_with_parent, daemon=True).start()
    given["folder"].mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(listen(EngineServer(**given, token=token), host, port))


if __name__ == "__main__":
    main()
