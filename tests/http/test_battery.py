"""Every server: (1) only this machine reaches it; (2) the secret, compared in constant time, and told to nobody;
(3) bodies and headers that are too large, alone or together; (4) requests that never end, and connections without one;
(5) what is no HTTP; (6) hosts and web pages of other names; (7) paths that lead outside; (8) many connections; (9)
clients that leave; (10) the page on security has the limits of the code.
After each attack the server answers as before, keeps no connection, no file and no thread, and has logged no fault.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from palaestra.errors import PalaestraError
from palaestra.http import bodies, rules
from palaestra.http.addresses import LOOPBACK, bound, secret_in
from tests.extras import absent, needs

pytestmark = needs("fastapi", "uvicorn")
if not absent(*pytestmark.args):
    from palaestra.gateway.gate import LIMITS
    from palaestra.gateway.limits import ServerLimits
    from tests.http.subjects import SECRET, SUBJECTS, Place

SHORT = {"head_s": 0.6, "body_s": 0.8, "idle_s": 1, "body_bytes": 5000, "held_bytes": 10_000, "connections": 300}
HEAD_S, BODY_S, BODY_BYTES = 0.6, 0.8, 5000
FEW = 20  # connections
PROCESS = psutil.Process()
ENOUGH = 30.0  # seconds within which a server must have let go of everything


def servers(secret: str = "", **limits: Any) -> pytest.MarkDecorator:
    """A test for each server, with these limits."""
    given = [(name, secret, limits) for name in SUBJECTS]
    return pytest.mark.parametrize("place", given, ids=[made.__name__ for made in SUBJECTS.values()], indirect=True)


def threads() -> int:
    return sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate())


def sinks_to(count: Callable[[], int], most: int) -> bool:
    deadline, waits = time.monotonic() + ENOUGH, 0
    while count() > most and time.monotonic() < deadline:
        time.sleep(0.02)
        waits += 1
        if waits % 10 == 0:  # it takes long in a process that has run many tests
            gc.collect()
    return count() <= most


@pytest.fixture
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Place]:
    """A server with short times. Afterwards it must answer as before, and have let go of everything."""
    name, secret, limits = request.param
    whole = rules.Limits.__init__

    def short(self: Any, **given: Any) -> None:
        whole(self, **(given | SHORT | limits))

    monkeypatch.setattr(rules.Limits, "__init__", short)
    monkeypatch.setattr("palaestra.gateway.gate.IDLE_S", 0.1)
    monkeypatch.setattr("palaestra.gateway.gate.TICK_S", 0.02)
    before = PROCESS.num_fds(), threads()
    with caplog.at_level(logging.WARNING):
        with SUBJECTS[name](tmp_path, secret) as made:
            assert asked(made) == 200
            assert sinks_to(lambda: connections(made), 0)
            busy = PROCESS.num_fds(), threads()
            yield made
            assert asked(made) == 200, "the server answers no more"
            assert sinks_to(lambda: connections(made), 0), "connections stay open"
            assert sinks_to(PROCESS.num_fds, busy[0]) and sinks_to(threads, busy[1])
        assert sinks_to(PROCESS.num_fds, before[0]), "files stay open after the end"
        assert sinks_to(threads, before[1]), threading.enumerate()
        faults = [record.getMessage() for record in caplog.records]
    assert not faults and SECRET not in caplog.text


def connections(place: Place) -> int:
    """Connections that the server holds."""
    held = [one for one in PROCESS.net_connections("tcp") if one.laddr and one.laddr.port == place.port]
    return sum(one.status not in (psutil.CONN_LISTEN, psutil.CONN_NONE) for one in held)


def message(place: Place, *, body: bytes | None = None, **changed: Any) -> bytes:
    """The request of a server, with other headers; None leaves one out."""
    content = place.body if body is None else body
    named = {"Host": f"localhost:{place.port}", "Content-Length": str(len(content)), "Connection": "close"}
    named |= place.headers | {name.replace("_", "-"): value for name, value in changed.items() if name != "path"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items() if value is not None)
    path = changed.get("path", place.path)
    return f"{place.method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + content


def said(place: Place, *pieces: bytes, pause: float = 0.0, patience: float = ENOUGH) -> bytes:
    """What the server answers to these bytes until it closes the connection. Raises: TimeoutError, if it does not."""
    answer = b""
    with socket.create_connection((LOOPBACK, place.port), timeout=patience) as connection:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(2**16):
                answer += piece
    return answer


def status(answer: bytes) -> int:
    """The status of an answer; 0, if the connection was closed without one."""
    return int(answer.split(b" ", 2)[1]) if answer else 0


def asked(place: Place, **changed: Any) -> int:
    return status(said(place, message(place, **changed)))


# ---- (1) ----------------------------------------------------------------------------------------------------
@servers()
def test_1_only_this_machine(place: Place) -> None:
    listening = [one for one in PROCESS.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    assert [one.laddr.ip for one in listening if one.laddr.port == place.port] == [LOOPBACK]


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_1_other_machines_need_a_secret(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PalaestraError, match="no secret") as raised:
        bound(host, 0, variable="THE_SECRET")
    assert "export THE_SECRET=" in str(raised.value)
    with contextlib.suppress(PalaestraError):  # a machine without IPv6
        bound(host, 0, secret=SECRET).close()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", ("198.51.100.7", 0))])
    with pytest.raises(PalaestraError, match="no secret"):
        bound("localhost", 0)  # where the name leads counts, and not the name


def test_1_the_engine_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from palaestra.engines import serve

    monkeypatch.delenv(serve.wire.TOKEN, raising=False)
    monkeypatch.setattr("sys.argv", ["serve", f"--folder={tmp_path}", "--host=0.0.0.0", "--port=0"])
    with pytest.raises(SystemExit, match="no secret"):
        serve.main()


# ---- (2) ----------------------------------------------------------------------------------------------------
@servers(SECRET)
def test_2_the_secret(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if not place.secret:  # the gate: the secret is in the address
        paths = ("/s/guessed/v1/models", "/s//v1/models", "/v1/models")
        assert [asked(place, path=path) for path in paths] == [404, 404, 404]
        return
    compared, compare = [], rules.secrets.compare_digest
    monkeypatch.setattr(rules.secrets, "compare_digest", lambda a, b: compared.append(1) or compare(a, b))
    right = next(iter(place.headers.values()))
    name = next(iter(place.headers))
    answers = [
        said(place, message(place, **{name: value})) for value in (None, "", "guessed", right[:-1], "é", right * 2)
    ]
    assert [status(answer) for answer in answers] == [401] * 6 and len(compared) == 6
    assert not [answer for answer in answers if right.removeprefix("Bearer ").encode() in answer]
    assert asked(place) == 200
    if right.startswith("Bearer "):
        schemes = [right.replace("Bearer", scheme) for scheme in ("bearer", "BEARER", "beareR", "Bearer ")]
        assert [asked(place, **{name: value}) for value in schemes] == [200] * 4
        assert asked(place, **{name: right.replace("Bearer", "Basic")}) == 401


def test_2_the_secret_is_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SECRET not in repr(rules.Rules(secret=SECRET))
    for bad in ("two words", "line\nbreak", "schlüssel"):
        monkeypatch.setenv("THE_SECRET", bad)
        with pytest.raises(PalaestraError, match="Clients cannot send it") as raised:
            secret_in("THE_SECRET")
        assert bad not in str(raised.value)
    monkeypatch.delenv("THE_SECRET")
    assert secret_in("THE_SECRET") == ""


# ---- (3) ----------------------------------------------------------------------------------------------------
@servers()
def test_3_large_bodies(place: Place) -> None:
    assert asked(place, Content_Length=str(BODY_BYTES + 1)) == 413
    assert asked(place, Content_Length="9" * 40) in (400, 413)
    chunk = b"%x\r\n%s\r\n" % (1000, b"x" * 1000)
    head = message(place, body=b"", Content_Length=None, Transfer_Encoding="chunked")
    assert status(said(place, head, *[chunk] * 20, b"0\r\n\r\n")) in (413, 0)
    endless = said(place, head, *[chunk * 100] * 60)
    assert status(endless) in (413, 0)


@servers()
def test_3_large_bodies_together(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "LARGE", 1000)
    give, held = bodies.Room._give, [0]

    def noting(room: bodies.Room, size: int) -> None:
        give(room, size)
        held.append(room._held)

    monkeypatch.setattr(bodies.Room, "_give", noting)
    begun = message(place, body=b"{", Content_Length=str(BODY_BYTES))
    with ThreadPoolExecutor(FEW) as pool:
        silent = [pool.submit(said, place, begun) for _ in range(FEW)]
        assert asked(place) == 200, "it answers small requests while large bodies wait for others"
        statuses = {status(one.result()) for one in silent}
    assert statuses <= {408, 429} and 408 in statuses
    assert BODY_BYTES <= max(held) <= 2 * BODY_BYTES


@servers()
def test_3_large_headers(place: Place) -> None:
    assert asked(place, X_Large="x" * 100_000) in (400, 431)
    assert asked(place, **{f"X_{number}": "x" * 50 for number in range(2000)}) in (400, 431)
    assert asked(place, path=place.path + "?" + "x" * 100_000) in (400, 431)
    assert status(said(place, b"GET /", *[b"x" * 10_000] * 50)) in (400, 431, 0)
    assert status(said(place, b"GET / HTTP/1.1\r\n", *[b"A: " + b"b" * 10_000 + b"\r\n"] * 50)) in (400, 431, 0)


# ---- (4) ----------------------------------------------------------------------------------------------------
def seconds_of(ask: Callable[[], bytes]) -> tuple[float, int]:
    start = time.monotonic()
    found = status(ask())
    return time.monotonic() - start, found


@servers()
def test_4_slow_heads_and_bodies(place: Place) -> None:
    letters = [bytes([letter]) for letter in message(place)[:40]]
    assert len(letters) * 0.1 > 3 * HEAD_S
    seconds, found = seconds_of(lambda: said(place, *letters, pause=0.1))
    assert found in (408, 0)
    begun = message(place, Connection="keep-alive")[:30]
    seconds, found = seconds_of(lambda: said(place, begun))
    assert HEAD_S / 2 < seconds < 20 and found == 408
    seconds, found = seconds_of(lambda: said(place, message(place, body=b"{", Content_Length="100")))
    assert BODY_S / 2 < seconds < 20 and found == 408


@servers()
def test_4_connections_without_a_request(place: Place) -> None:
    seconds, found = seconds_of(lambda: said(place))
    assert HEAD_S / 2 < seconds < 20 and found in (408, 0)
    alive = message(place, Connection="keep-alive")
    seconds, found = seconds_of(lambda: said(place, alive))
    assert found == 200 and seconds < 20, "a connection that is kept alive ends, too"
    seconds, found = seconds_of(lambda: said(place, alive + alive[:20]))
    assert found == 200 and seconds < 20
    silent = [socket.create_connection((LOOPBACK, place.port)) for _ in range(50)]
    assert asked(place) == 200, "it answers while others say nothing"
    for one in silent:
        one.close()


# ---- (5) ----------------------------------------------------------------------------------------------------
NO_HTTP = {
    "binary": bytes(range(256)) * 10,
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500 + b"\r\n\r\n",
    "words": b"hello\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "version": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "length": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    "length in words": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: five\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n123456",
    "coding": b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
    "chunk": b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nxx\r\n0\r\n\r\n",
    "NUL": b"GET /\0 HTTP/1.1\r\nHost: localhost\r\nA: \0\r\n\r\n",
    "folded": b"GET / HTTP/1.1\r\nHost: localhost\r\nA : b\r\n\r\n",
    "bytes": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "method": b"G" * 9000 + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "lines": b"\r\n" * 2000,
}


@servers()
def test_5_no_http(place: Place) -> None:
    statuses = {name: status(said(place, content, b"\r\n\r\n")) for name, content in NO_HTTP.items()}
    assert not {name: found for name, found in statuses.items() if found != 0 and not 400 <= found < 500}
    both = message(place, Transfer_Encoding="chunked") + b"0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"
    assert said(place, both).count(b"HTTP/1.1 2") <= 1
    assert asked(place, Upgrade="websocket", Connection="Upgrade") < 500
    deep = said(place, message(place, body=b"[" * 2000 + b"]" * 2000))
    assert status(deep) < 500


# ---- (6) ----------------------------------------------------------------------------------------------------
@servers()
def test_6_hosts(place: Place) -> None:
    names = "evil.example localhost.evil.example 127.0.0.1.evil.example 0.0.0.0 2130706433 198.51.100.7"
    joined = ("localhost@evil.example", "evil.example@localhost")
    bad = (*names.split(), *joined, f"evil.example:{place.port}", "[::", " ", "a" * 300)
    if place.secret:  # a web page does not know it, and a proxy may pass its own name on
        assert asked(place, Host="proxy.example") == 200
        return
    answers = {host: asked(place, Host=host) for host in bad}
    assert not {host: found for host, found in answers.items() if found not in (403, 400)}
    for host in ("localhost", "127.0.0.1", f"127.0.0.1:{place.port}", "[::1]:80", "LOCALHOST"):
        assert asked(place, Host=host) == 200, host


@servers()
def test_6_web_pages(place: Place) -> None:
    own = f"localhost:{place.port}"
    other = f"http://localhost:{place.port + 1}"
    for origin in ("http://evil.example", "null", other, "http://localhost", "", "http://[", "file://"):
        assert asked(place, Origin=origin) == 403, origin
    for relation in ("cross-site", "same-site"):
        assert asked(place, Sec_Fetch_Site=relation) == 403
    assert asked(place, Origin=f"http://{own}", Sec_Fetch_Site="same-origin") == 200
    assert b"access-control-allow" not in said(place, message(place, Origin=f"http://{own}")).lower()


# ---- (7) ----------------------------------------------------------------------------------------------------
@servers()
def test_7_paths(place: Place) -> None:
    above = "../" * 12 + "etc/passwd"
    coded = ("/..%2f..%2f..%2fetc%2fpasswd", "/%2e%2e/%2e%2e/etc/passwd", "/%00", "/%ff%fe")
    paths = [f"/{above}", f"{place.path}/{above}", f"/v1/models/{above}", "//etc/passwd", "/\\..\\etc", "*", *coded]
    for path in (*paths, "http://evil.example/x"):
        answer = said(place, message(place, path=path))
        assert 400 <= status(answer) < 500 and b"root:" not in answer, (path, answer)


# ---- (8) ----------------------------------------------------------------------------------------------------
@servers()
def test_8_many_connections(place: Place) -> None:
    content, answers = message(place), list[int]()

    def one() -> None:
        answers.append(status(said(place, content, patience=60)))

    held = [threading.Thread(target=one) for _ in range(200)]
    for thread in held:
        thread.start()
    for thread in held:
        thread.join()
    assert answers == [200] * 200


@servers(connections=FEW, head_s=20.0)
def test_8_too_many_connections(place: Place) -> None:
    held = [socket.create_connection((LOOPBACK, place.port)) for _ in range(FEW)]
    assert [asked(place) for _ in range(3)] == [503] * 3
    for one in held:
        one.close()


# ---- (9) ----------------------------------------------------------------------------------------------------
@servers()
def test_9_clients_that_leave(place: Place) -> None:
    content = message(place)
    for length in (1, len(content) // 2, len(content) - 1, len(content)):
        for reset in (False, True):
            for _ in range(5):
                with socket.create_connection((LOOPBACK, place.port)) as connection:
                    connection.sendall(content[:length])
                    if reset:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with socket.create_connection((LOOPBACK, place.port)) as connection:
        connection.sendall(message(place, body=b"x" * 10, Content_Length="1000"))
        connection.shutdown(socket.SHUT_WR)


def test_refusals_are_told_in_the_form_of_openai() -> None:
    refusal = rules.crowded(3)
    assert json.loads(json.dumps(refusal.body))["error"]["code"] == "too_many_connections"
    assert refusal.headers == {"retry-after": "1"}


# ---- (10) ---------------------------------------------------------------------------------------------------
def test_10_the_page_has_the_limits() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    gateway, beside, plain = ServerLimits(), LIMITS, rules.Limits()
    rows = {
        "connections (503)": (
            gateway.of_connections().connections,
            beside.of_connections().connections,
            plain.connections,
        ),
        "requests that run": (gateway.running, beside.running),
        "requests that wait (429)": (gateway.waiting, beside.waiting),
        "seconds of a request (504)": (gateway.seconds, beside.seconds),
        "bytes of the body (413)": (gateway.body_bytes // rules.MIB, beside.body_bytes // rules.MIB),
        "bytes of all bodies (429)": (
            gateway.held_bytes // rules.MIB,
            beside.held_bytes // rules.MIB,
            plain.held_bytes // rules.MIB,
        ),
    }
    for name, numbers in rows.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
        cells = [cell.replace(",", "").split()[0].rstrip(":;") for cell in line.split("|")[2:] if cell.strip()]
        assert cells[: len(numbers)] == [f"{number:g}" if number < 1e4 else str(number) for number in numbers], name
