"""The messages of one kind of server: what `palaestra.engines.external.vllm` and `….sglang` define."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from palaestra.data.protocols import Request
from palaestra.engines.external.servers import Refused, Server

SIGNED = 1 << 63


class Asked(NamedTuple):
    """What a server is asked for.

    Attributes:
        ids: all ids of the session. request: the request that they belong to. max_tokens: the most new tokens.
        begun: tokens of the response that are in `ids` already.
        adapter: its name at the server; "" for the base model. base: the name of the base model at the server.
        salt: two requests with different salts share no cache. seeded: whether the server gets the request's seed.
    """

    ids: list[int]
    request: Request
    max_tokens: int
    begun: int
    adapter: str
    base: str
    salt: str
    seeded: bool = True

    @property
    def seed(self) -> int | None:
        """The seed as servers read it, in [−2⁶³, 2⁶³). A response that goes on after an interruption has another."""
        if not self.seeded:
            return None
        seed = (self.request.seed + self.begun) % (2 * SIGNED)
        return seed - 2 * SIGNED if seed >= SIGNED else seed

    @property
    def cuts_off(self) -> bool:
        """Whether unlikely tokens are never drawn."""
        return self.request.top_k > 0 or self.request.top_p < 1


class Piece(NamedTuple):
    """What a server has sampled: a whole response, or the part before it was interrupted.

    Attributes:
        tokens, logprobs: of the response. finish: "stop", "length" or "abort".
        labels: pairs of a label of base weights and the first token that they drew; empty, if the server does not say.
        cached: ids of the prompt that were in the server's cache.
    """

    tokens: list[int]
    logprobs: list[float]
    finish: str
    labels: Sequence[tuple[str, int]] = ()
    cached: int = 0


class Dialect(Protocol):
    """The messages of one kind of server.

    Attributes:
        kind: name of the engine. health: path of the question whether the server is up.
        key: environment variable that holds the servers' key.
        reserved: ids of its context that the server keeps for itself.
        unscaled: what to do if log-probabilities do not follow the temperature.
        hottest: the highest temperature that it accepts.
        even: options of a request whose tokens all have the same log-probability, if these are of the distribution that
            was sampled from.
        head_apart: whether a model's folder holds the output layer even if it shares its weights with the embeddings.
    """

    kind: ClassVar[str]
    health: ClassVar[str]
    key: ClassVar[str]
    reserved: ClassVar[int]
    unscaled: ClassVar[str]
    hottest: ClassVar[float]
    even: ClassVar[Mapping[str, float]]
    head_apart: ClassVar[bool]

    @abstractmethod
    def question(self, asked: Asked) -> tuple[str, dict[str, Any]]:
        """The path and the body of a request for tokens."""

    @abstractmethod
    def piece(self, answer: Any, asked: Asked) -> Piece:
        """What an answer says. Raises: LookupError, TypeError or ValueError, if it is not one."""

    @abstractmethod
    def has_lost(self, error: Refused, adapter: str) -> bool:
        """Whether the error says that the server does not have the adapter."""

    def refuses_seeds(self, server: Server) -> bool:
        """Whether the server says that it cannot answer requests with seeds. Default: no."""
        return False

    def label(self, server: Server) -> str | None:
        """The label of the base weights that the server has now. Default: None, it does not say."""
        return None

    @abstractmethod
    def load_weights(self, server: Server, folder: str, label: str, seconds: float) -> None:
        """Let the server take over a model's folder, end the requests under way, and forget its cache."""

    @abstractmethod
    def load_adapter(self, server: Server, name: str, folder: str, seconds: float) -> None:
        """Let the server serve an adapter under this name."""

    @abstractmethod
    def unload_adapter(self, server: Server, name: str) -> None:
        """Let the server forget an adapter."""

    @abstractmethod
    def free(self, server: Server, seconds: float) -> None:
        """Let the server free its memory."""

    @abstractmethod
    def resume(self, server: Server, seconds: float) -> None:
        """Let the server take back what it has freed."""

    @abstractmethod
    def remedy(self, what: str) -> str:
        """How the server must be started, so that it does not refuse `what`."""
