"""The servers of an engine and the weights that they have: hand-over, new versions, and servers that come and go."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote

import numpy as np
from torch import Tensor

from palaestra.data.protocols import Request
from palaestra.data.ranks import OneProcess, Ranks
from palaestra.engines.external import arrival
from palaestra.engines.external.dialect import Asked, Dialect
from palaestra.engines.external.folders import KINDS, scalings_of, write_adapter, write_model
from palaestra.engines.external.servers import BROKEN, Gone, Refused, Server
from palaestra.errors import PalaestraError
from palaestra.models.adapters import named_tensors
from palaestra.tools.temporary import TemporaryFolder


@dataclass(slots=True, eq=False)
class Served:
    """A policy.

    Attributes:
        model: the trainer's model. version: of its weights.
        scalings: of its additions by layer; empty for a policy with whole weights.
        adapter: name of the additions at the servers; "" before they are sent. folder: where they are written.
        versions: of a policy with whole weights, by label of the base weights.
    """

    model: Any
    version: int
    scalings: dict[str, float]
    adapter: str = ""
    folder: Path | None = None
    versions: dict[str, int] = field(default_factory=dict)


COMPARED = "compared"  # begins the salt of requests that compare log-probabilities


class BaseWeights(NamedTuple):
    """Base weights that were written: their label, their folder, and what servers with them answer.

    `expected` is None, if all policies are adapters: their own comparison shows whether the base is right.
    """

    label: str
    folder: Path
    expected: arrival.Expected | None


class Fleet:
    """Servers of one kind that serve the same policies.

    Args:
        dialect: their messages. servers: at least one.
        folder: where weights are written; None: a temporary folder. server_folder: its path at the servers.
        base: name of the base model at the servers; None: the first that they list.
        initial: whether servers get the base weights before the first request.
        patience: seconds that are told to the user. seconds: for a control message that loads weights. health_seconds:
            for the answer that a server is up. seeds: whether requests have seeds; None: unless servers refuse them.

    Attributes:
        policies: those that are served, by name. label: of the base weights that servers must have; "": their own.
        counts: of folders that were written.
    """

    def __init__(
        self,
        dialect: Dialect,
        servers: list[Server],
        *,
        folder: str | None,
        server_folder: str | None,
        base: str | None,
        initial: bool,
        patience: float,
        seconds: float,
        health_seconds: float,
        seeds: bool | None = None,
    ) -> None:
        self.dialect, self.servers, self.policies, self.label = dialect, servers, dict[str, Served](), ""
        self.counts: Counter[str] = Counter()
        self._folder, self._server_folder, self._base, self._initial = folder, server_folder, base, initial
        self._patience, self._seconds, self.health_seconds = patience, seconds, health_seconds
        self._seeds = seeds
        self._ranks: Ranks = OneProcess()
        self._temporary: TemporaryFolder | None = None
        self._id, self._count, self._lock = secrets.token_hex(4), 0, threading.Lock()
        self._whole: BaseWeights | None = None
        self._proven, self._proving = False, threading.Lock()  # whether new weights arrive, which one server shows
        self._usual: float | None = None  # difference of a server's log-probabilities, if it has the weights
        self._before: list[Path] = []  # folders of earlier base weights
        self._stale: dict[str, Path] = {}  # adapters of earlier versions, which running requests may use
        self._sent: Counter[str] = Counter()  # adapters that servers are loading
        self._asleep = False
        self._chosen = 0

    # ---- policies ---------------------------------------------------------------------------------------------
    def add(self, policy: str, model: Any, version: int) -> None:
        """Serve a policy that has the base weights of the others."""
        labels = {label for one in self.policies.values() for label in one.versions}
        self.policies[policy] = Served(model, version, scalings_of(model), versions=dict.fromkeys(labels, version))

    def remove(self, policy: str) -> None:
        """Stop serving a policy."""
        served = self.policies.pop(policy, None)
        if served is not None and served.folder is not None and self._wrote(served.adapter):
            self._stale[served.adapter] = served.folder

    def publish(self, policy: str, tensors: Mapping[str, Tensor], version: int) -> None:
        """Write new weights, and give them to all servers that answer. Those that sleep get them when they wake."""
        self._together(lambda: self._publish(policy, tensors, version))

    def _publish(self, policy: str, tensors: Mapping[str, Tensor], version: int) -> None:
        with self._lock:
            served = self.policies[policy]
            served.version = version
            if served.scalings:
                self._write_adapter(policy, served, tensors)
            else:
                self._write_whole()
        if not self._asleep:
            self._renew()

    # ---- memory -----------------------------------------------------------------------------------------------
    def sleep(self) -> None:
        """Let the servers that answer free their memory."""
        self._together(self._sleep)

    def _sleep(self) -> None:
        self._asleep = True
        for server in self.servers:
            if server.connected:
                try:
                    self._control(server, self.dialect.free, "to free its memory", self._seconds)
                    server.sleeping = True
                except Gone:
                    server.fail(server.epoch)

    def wake(self) -> None:
        """Let the servers that sleep take back their memory, and take over what was published meanwhile."""
        if self._asleep:
            self._together(self._wake)

    def _wake(self) -> None:
        self._asleep = False
        self._renew()

    # ---- several processes ------------------------------------------------------------------------------------
    def share(self, ranks: Ranks) -> None:
        """Let the first rank write and send all weights, now the first ones. The others learn their names.

        A rank whose server has lost them sends the same folders under the same names.
        """
        self._ranks = ranks
        self._together(self._begin)

    def _begin(self) -> None:
        """Give the first weights to a server. Raises: PalaestraError, if none answers for `patience` seconds."""
        deadline, why = time.monotonic() + self._patience, ""
        while not any(self.is_current(server) for server in self.servers):
            for server in self.servers:
                try:
                    self.join(server).result()
                except Gone as error:
                    why = str(error)
            if time.monotonic() > deadline:
                raise PalaestraError(
                    where=f"engine: {self.dialect.kind}",
                    what=f"{', '.join(one.url for one in self.servers)} cannot be reached for {self._patience:g} s: "
                    f"{why}.",
                    remedy=f"Start the server, or raise `engine.{self.dialect.kind}.patience`.",
                )
            time.sleep(min((server.pause for server in self.servers), default=0.0))

    def _together(self, act: Callable[[], None]) -> None:
        """Let the first rank act, and give the others what it has then. An error of the first rank is raised on all."""
        if self._ranks.world == 1:
            act()
            return
        held: dict[str, Any] = {}
        fault: Exception | None = None
        if self._ranks.main:
            try:
                act()
                held = self._held()
            except Exception as error:  # the other ranks wait
                fault, held = error, {"fault": str(error)}
        held = json.loads(self._ranks.texts(json.dumps(held))[0])
        if fault is not None:
            raise fault
        if "fault" in held:
            raise PalaestraError(where=f"engine: {self.dialect.kind}", what=f"the first process says: {held['fault']}")
        if not self._ranks.main:
            self._take(held)

    def _held(self) -> dict[str, Any]:
        """What the other ranks need, to ask the servers and to send again what they have lost."""
        with self._lock:
            return {
                "whole": None if self._whole is None else [self._whole.label, str(self._whole.folder)],
                "usual": self._usual,
                "asleep": self._asleep,
                "policies": {
                    name: [one.version, one.adapter, str(one.folder or ""), one.versions]
                    for name, one in self.policies.items()
                },
                "servers": [
                    [one.base, one.length, one.seedless, one.sleeping, one.label, one.adapters]
                    if one.connected
                    else None
                    for one in self.servers
                ],
            }

    def _take(self, held: Mapping[str, Any]) -> None:
        """Have what the first rank has."""
        model = self._trained_whole()
        with self._lock:
            self._proven, self._usual, self._asleep = True, held["usual"], held["asleep"]
            if held["whole"] is not None and held["whole"][0] != self.label:
                label, folder = held["whole"]
                expected = None if model is None else arrival.Expected(arrival.next_tokens(model), None)
                self._whole, self.label = BaseWeights(label, Path(folder), expected), label
            for name, (version, adapter, folder, versions) in held["policies"].items():
                if (one := self.policies.get(name)) is None:
                    continue
                if one.folder is not None and one.adapter != adapter and self._wrote(one.adapter):
                    self._stale[one.adapter] = one.folder
                one.version, one.adapter, one.versions = version, adapter, versions
                one.folder = Path(folder) if folder else None
        for server, known in zip(self.servers, held["servers"], strict=True):
            if known is not None:
                server.base, server.length, server.seedless, server.sleeping, server.label, server.adapters = known
                server.connected = True
        self._drop_stale()

    def close(self) -> None:
        """Unload the adapters, and remove the folders. The servers go on."""
        stale = set(self._stale)
        for server in self.servers:
            for name in {*server.adapters.values(), *stale} if server.connected else ():
                if not self._wrote(name):
                    continue
                with contextlib.suppress(Gone, Refused, PalaestraError):
                    self.dialect.unload_adapter(server, name)
            server.forget()
            server.connected = False
            server.threads.shutdown(wait=False)
        if self._temporary is not None:
            self._temporary.close()
        elif self._folder is not None:
            shutil.rmtree(Path(self._folder) / self._id, ignore_errors=True)
        self._temporary = None

    # ---- servers ----------------------------------------------------------------------------------------------
    def choose(self, before: Server | None) -> Server | None:
        """A server for a request; None, if all have just failed.

        A conversation stays at its server. Others go to the server with the fewest requests. A server that has failed
        is tried in the background, as long as another one answers.
        """
        usable = [server for server in self.servers if server.usable]
        ready = [server for server in usable if server.connected]
        if ready:
            for server in usable:
                if not server.connected:
                    self.join(server)
        if before is not None and before in (ready or usable):
            return before
        chosen = min(ready or usable, key=lambda server: (server.running.total(), server.chosen), default=None)
        if chosen is not None:
            self._chosen += 1
            chosen.chosen = self._chosen
        return chosen

    def is_current(self, server: Server) -> bool:
        """Whether the server has all weights."""
        if not server.connected or server.sleeping or (self._initial and not self.label):
            return False
        return server.label == self.label and all(
            one.adapter != "" and server.adapters.get(policy) == one.adapter
            for policy, one in self.policies.items()
            if one.scalings
        )

    def join(self, server: Server) -> Future[None]:
        """Give a server what it lacks, on its own thread. The future has no result, but may have an error."""
        if server.joining is None or server.joining.done():
            server.joining = server.threads.submit(self._hand_over, server, server.epoch)
        return server.joining

    def _renew(self) -> None:
        for _ in range(2):  # a hand-over that was under way may have missed the last weights
            for joining in [self.join(server) for server in self.servers if server.connected]:
                with contextlib.suppress(Gone):
                    joining.result()
            if all(self.is_current(server) for server in self.servers if server.connected):
                break
        while self._before:
            shutil.rmtree(self._before.pop(), ignore_errors=True)

    def _hand_over(self, server: Server, epoch: int) -> None:
        try:
            if not server.connected:
                self._connect(server)
            if server.sleeping:
                self._control(server, self.dialect.resume, "to take back its memory", self._seconds)
                server.sleeping = False
            self._write_first()
            self._send_weights(server)
            self._drop_stale()
        except Gone as error:
            server.fail(epoch)
            if not any(other.connected for other in self.servers):
                server.waits(str(error), self._patience)
            raise
        server.answered()

    def _send_weights(self, server: Server) -> None:
        with self._lock:
            whole = self._whole
        if whole is not None and server.label != whole.label:
            if self._ranks.world == 1 or self.dialect.label(server) != whole.label:  # another rank may have sent it
                self._prove(server)
                self._load(server, whole)
            server.label = whole.label
        for policy, one in list(self.policies.items()):
            with self._kept(one) as (name, folder):
                if folder is not None and server.adapters.get(policy) != name:
                    place = self._there(folder)
                    self._control(server, self.dialect.load_adapter, "to load an adapter", name, place, self._seconds)
                    server.adapters[policy] = name

    def _load(self, server: Server, whole: BaseWeights, *, test: bool = False) -> None:
        """Let a server take over base weights, and see whether they have arrived. Raises: Gone; PalaestraError."""
        place = self._there(whole.folder)
        self._control(server, self.dialect.load_weights, "to load a model's weights", place, whole.label, self._seconds)
        if whole.expected is None:
            return
        tokens, logprobs = self._sampled(server, whole.label)
        usual = None if test else self._usual or 0.0
        if fault := arrival.fault(whole.expected, tokens, logprobs, usual=usual):
            raise PalaestraError(
                where=f"engine: {self.dialect.kind}, {server.url}",
                what=f"the server says that it has taken over new weights, but its {fault}.",
                remedy="Train additions (`lora`), which arrive in another way, or use another version of the server. "
                "Its log may say which weights it did not load.",
            )
        if not test and self._usual is None:
            self._usual = arrival.difference(whole.expected, tokens, logprobs)

    def _prove(self, server: Server) -> None:
        """Send other weights than those of the run, before the first ones, and see whether they arrive.

        A server often has loaded the weights with which a run begins. So only others show what it does with new ones.
        """
        with self._proving:
            model = self._trained_whole()
            if self._proven or model is None:
                self._proven = True
                return
            plain = arrival.next_tokens(model)
            expected = arrival.Expected(arrival.next_tokens(model, factor=arrival.CHANGE), plain)
            with self._lock:
                test = BaseWeights(f"{self._id}-test", self._place("test"), expected)
            self._write(model, test.folder, change=arrival.changed)
            try:
                self._load(server, test, test=True)
            finally:
                shutil.rmtree(test.folder, ignore_errors=True)
            self._proven = True

    def _sampled(self, server: Server, label: str) -> tuple[list[int], list[float]]:
        """A token after each prompt of the comparison, and its log-probability. Raises: Gone; PalaestraError."""
        tokens, logprobs = [], []
        for number, ids in enumerate(arrival.prompts(self._trained_whole())):
            request = Request(policy="", session=None, prompt=np.array(ids, np.int32), seed=number, max_tokens=1)
            asked = Asked(ids, request, 1, 0, "", server.base, f"{COMPARED}-{label}", self.seeded(server))
            path, body = self.dialect.question(asked)
            try:
                piece = self.dialect.piece(server.send(path, body, seconds=self._seconds), asked)
                tokens.append(piece.tokens[0])
                logprobs.append(piece.logprobs[0])
            except Refused as error:
                if error.status >= BROKEN:
                    raise Gone(str(error)) from error
                self._refuse(server, "to say log-probabilities", error)
            except (LookupError, TypeError, ValueError) as error:
                raise Gone(f"its answer cannot be read: {type(error).__name__}: {error}") from error
        return tokens, logprobs

    def seeded(self, server: Server) -> bool:
        """Whether this server gets the seeds of requests."""
        return not server.seedless if self._seeds is None else self._seeds

    def _trained_whole(self) -> Any:
        """The model of a policy with whole weights. None, if all policies are adapters."""
        return next((one.model for one in list(self.policies.values()) if not one.scalings), None)

    @contextlib.contextmanager
    def _kept(self, one: Served) -> Iterator[tuple[str, Path | None]]:
        """The name and the folder of a policy's additions, which stay meanwhile, also if later ones are published."""
        with self._lock:
            name, folder = one.adapter, one.folder
            self._sent[name] += 1
        try:
            yield name, folder
        finally:
            with self._lock:
                self._sent[name] -= 1

    def _connect(self, server: Server) -> None:
        """Ask a server whether it is up, and what it serves. Raises: Gone; PalaestraError."""
        try:
            server.send(self.dialect.health, get=True, seconds=self.health_seconds)
            cards = [card for card in server.send("/v1/models", get=True)["data"] if not card.get("parent")]
            names = [str(card["id"]) for card in cards]
            base = self._base or names[0]
            length = next((card.get("max_model_len") for card in cards if card["id"] == base), None)
        except (Refused, LookupError, TypeError, AttributeError) as error:
            reason = f": {error}" if isinstance(error, Refused) else ""
            raise PalaestraError(
                where=f"engine: {self.dialect.kind}, {server.url}",
                what=f"it does not answer as a server of {self.dialect.kind}{reason}.",
                remedy="Check `url`, and which program listens there.",
            ) from error
        if base not in names:
            raise PalaestraError(
                where=f"engine: {self.dialect.kind}.model",
                what=f"{server.url} serves no model `{base}`.",
                options=names,
            )
        if self._seeds is None and not server.seedless and self.dialect.refuses_seeds(server):
            server.seedless = True
            server.tell(f"{server.url} computes on a CPU and cannot take seeds, so requests have none.")
        server.base, server.length, server.connected = base, length, True

    def _drop_stale(self) -> None:
        """Unload adapters of earlier versions that no request uses any more, and no server is just loading."""
        for name in list(self._stale):
            with self._lock:
                if self._sent[name] or any(server.running[name] for server in self.servers):
                    continue
                folder = self._stale.pop(name, None)
            for server in self.servers:
                if server.connected:
                    with contextlib.suppress(Gone, Refused, PalaestraError):
                        self.dialect.unload_adapter(server, name)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _control(self, server: Server, send: Any, what: str, *values: Any) -> None:
        """Send control messages. Raises: Gone; PalaestraError with the remedy, if the server refuses them."""
        try:
            send(server, *values)
        except Refused as error:
            self._refuse(server, what, error)

    def _refuse(self, server: Server, what: str, error: Refused) -> NoReturn:
        raise PalaestraError(
            where=f"engine: {self.dialect.kind}, {server.url}",
            what=f"the server refuses {what}: {error}.",
            remedy=self.dialect.remedy(what),
        ) from error

    # ---- folders ----------------------------------------------------------------------------------------------
    def _place(self, name: str) -> Path:
        """A new folder for weights."""
        self._count += 1
        if self._folder is not None:
            root = Path(self._folder)
        else:
            self._temporary = self._temporary or TemporaryFolder("weights")
            root = self._temporary.path
            root.chmod(0o755)  # the server may run under another name
        return root / self._id / f"{quote(name, safe='')}-{self._count}"

    def _there(self, folder: Path) -> str:
        """The path of a folder of weights at the servers."""
        if self._server_folder is None:
            return str(folder.absolute())
        return f"{self._server_folder.rstrip('/')}/{folder.parent.name}/{folder.name}"

    def _wrote(self, adapter: str) -> bool:
        """Whether this process has written an adapter, and not another rank."""
        return adapter.startswith(f"{self._id}-")

    def _write_whole(self) -> None:
        folder, model, before = self._place("model"), self._trained_whole(), self._whole
        self._write(next(iter(self.policies.values())).model, folder)
        label = f"{self._id}-{self._count}"
        for one in self.policies.values():
            one.versions[label] = one.version
        expected = None
        if model is not None:
            earlier = None if before is None or before.expected is None else before.expected.now
            expected = arrival.Expected(arrival.next_tokens(model), earlier)
        self._before += [before.folder] if before is not None else []
        self._whole, self.label = BaseWeights(label, folder, expected), label
        self.counts["written_models"] += 1

    def _write(self, model: Any, folder: Path, **options: Any) -> None:
        write_model(model, folder, where=f"engine: {self.dialect.kind}", head_apart=self.dialect.head_apart, **options)

    def _write_adapter(self, policy: str, served: Served, tensors: Mapping[str, Tensor]) -> None:
        folder = self._place(policy)
        own = {name: tensor for name, tensor in tensors.items() if name.endswith(KINDS)}
        write_adapter(own, served.scalings, folder)
        if served.folder is not None:
            self._stale[served.adapter] = served.folder
        served.adapter, served.folder = f"{self._id}-{folder.name}", folder
        self.counts["written_adapters"] += 1

    def _write_first(self) -> None:
        """Write what servers need and what was not published."""
        with self._lock:
            if self._initial and not self.label:
                self._write_whole()
            for name, one in list(self.policies.items()):
                if one.scalings and not one.adapter:
                    self._write_adapter(name, one, dict(named_tensors(one.model)))
