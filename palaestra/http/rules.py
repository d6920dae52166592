"""The rules for requests: the secret, sizes and times, and which web pages may ask. All servers check them here."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from palaestra.http.addresses import is_loopback

try:
    import resource
except ImportError:  # other systems than Unix, which have no such limit of files
    resource = None  # type: ignore[assignment]

INVALID = "invalid_request_error"
KIB, MIB = 2**10, 2**20
BODY_S = 60.0  # seconds for a body
LONGEST = 2000  # letters of a refusal
NOT_AWAITED = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.SERVICE_UNAVAILABLE)  # refused clients that need not be read


class Refusal(Exception):
    """A request that gets no reply.

    Args:
        status: of the HTTP answer. message: what is wrong, and what to do.
        code: a word that programs can compare. param: the key of the request that is wrong.
        kind: the class of the error, `type` in the body.
        wait: seconds after which the client may ask again; None: asking again does not help.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        kind: str = INVALID,
        wait: int | None = None,
    ) -> None:
        if len(message) > LONGEST:  # it repeats what the client has sent
            message = f"{message[:LONGEST]} …"
        self.status, self.message, self.code, self.param, self.kind = status, message, code, param, kind
        self.wait = wait
        super().__init__(message)

    @property
    def body(self) -> dict[str, Any]:
        """The body of the answer, in the form of OpenAI's errors."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Further headers of the answer."""
        return {} if self.wait is None else {"retry-after": str(self.wait)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of connections and requests.

    Attributes:
        connections: most that are open at once. More get status 503. At most half the files that the process may open.
        head_bytes: most bytes of the first line and the headers. head_s: seconds until they have arrived.
        body_bytes: most bytes of the body. body_s: seconds until it has arrived.
        held_bytes: most bytes of all bodies that are held at once, or twice `body_bytes`, if that is more.
        idle_s: seconds that a connection stays open without a request.
    """

    connections: int = 4096
    head_bytes: int = 32 * KIB
    head_s: float = 20.0
    body_bytes: int = 16 * MIB
    body_s: float = BODY_S
    held_bytes: int = 256 * MIB
    idle_s: int = 75

    @property
    def most_connections(self) -> int:
        """The limit of connections, which leaves half the files of the process for everything else."""
        if resource is None:
            return self.connections
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return self.connections if files == resource.RLIM_INFINITY else max(1, min(self.connections, files // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a request must have.

    Attributes:
        secret: "" if everybody on this machine may ask. header: that carries it, in lower case.
        open_paths: answered without the secret.
        limits: of connections and requests.
    """

    secret: str = field(default="", repr=False)
    header: str = "authorization"
    open_paths: tuple[str, ...] = ()
    limits: Limits = Limits()

    def check(self, path: str, query: str, headers: Mapping[str, str]) -> None:
        """Check the head of a request. A server without a secret answers only for names of this machine.

        Otherwise a web page could have its own name lead to this machine (DNS rebinding), and use the server.

        Args:
            headers: by names in lower case.

        Raises: Refusal.
        """
        size = len(path) + len(query) + sum(len(name) + len(value) + 4 for name, value in headers.items())
        if size > self.limits.head_bytes:
            raise large_head(self.limits.head_bytes)
        host = headers.get("host", "")
        if not self.secret and not _is_here(host):
            raise Refusal(f"the server does not answer for the host {host[:100]!r}.", status=403, code="wrong_host")
        self._check_page(host, headers)
        if self.secret and path not in self.open_paths:
            given = _secret_of(headers.get(self.header, ""))
            if not secrets.compare_digest(given.encode(), self.secret.encode()):
                raise Refusal("the request has not the server's key.", status=401, code="invalid_api_key")
        if "content-length" in headers and "transfer-encoding" in headers:  # a proxy may read another one than we do
            raise Refusal("the request says the length of its body in two ways.", code="malformed")
        _check_length(headers.get("content-length"), self.limits.body_bytes)

    def _check_page(self, host: str, headers: Mapping[str, str]) -> None:
        """Raises: Refusal, for a request that a web page of another address makes."""
        origin, relation = headers.get("origin"), headers.get("sec-fetch-site", "none")
        with contextlib.suppress(ValueError):
            own = origin is None or (bool(host) and urlsplit(origin).netloc.lower() == host.lower())
            if own and relation in ("none", "same-origin"):
                return
        raise Refusal("the server does not answer web pages of other addresses.", status=403, code="wrong_origin")


def headers_of(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers by names in lower case. Of several with one name, all values count: none can hide behind another."""
    found: dict[str, str] = {}
    for name, value in pairs:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def _secret_of(value: str) -> str:
    """The secret in a header: what follows the word Bearer, in any case, or the whole."""
    scheme, _, rest = value.partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else value


def _is_here(host: str) -> bool:
    """Whether a Host header names this machine."""
    if "@" in host:
        return False
    with contextlib.suppress(ValueError):
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    return False


def _check_length(given: str | None, most: int) -> None:
    if given is None:
        return
    if not (given.isascii() and given.isdigit()):
        raise Refusal("the length of the body is no number.")
    if len(given) > 18 or int(given) > most:
        raise large_body(most)


def large_head(most: int) -> Refusal:
    """The refusal of a head that is too large."""
    return Refusal(f"the headers have more than {most} bytes.", status=431, code="headers_too_large")


def large_body(most: int) -> Refusal:
    """The refusal of a body that is too large."""
    return Refusal(f"the body has more than {most} bytes.", status=413, code="request_too_large")


def slow(what: str, seconds: float) -> Refusal:
    """The refusal of a request of which a part did not arrive."""
    return Refusal(f"the {what} did not arrive within {seconds:g} s.", status=408, code="request_timeout")


def crowded(most: int) -> Refusal:
    """The refusal of a connection too many."""
    return Refusal(
        f"{most} connections are open, which is the most. Ask again later.",
        status=503,
        code="too_many_connections",
        kind="server_error",
        wait=1,
    )


def full(most: int) -> Refusal:
    """The refusal of a body for which there is no room."""
    return Refusal(
        f"the bodies of the requests that the server holds have {most // MIB} MiB together, which is the most. "
        "Ask again later.",
        status=429,
        code="too_many_bytes",
        kind="rate_limit_error",
        wait=1,
    )


def many_values(most: int, what: str) -> Refusal:
    """The refusal of a body with too many values."""
    return Refusal(f"the body has more than {most} {what}.", status=413, code="request_too_large")
