"""What generates: engines, their requests and responses."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from palaestra.data.entropy_signal import EntropyTemperature
from palaestra.data.interaction import Action
from palaestra.data.ranks import Ranks
from palaestra.data.trajectory import Picture
from palaestra.errors import ContractError


@dataclass(slots=True, kw_only=True)
class Request:
    """One generation that a session asks of an engine.

    Attributes:
        policy: name of the policy that generates.
        session: key of the session; the engine stores its keys and values until `close`.
        prompt: int32 (m,), ids that are new since the session's last response.
        pictures: what stands for images in `prompt`, with `inputs`; an engine that cannot read them raises.
        seed: decides all sampling of this generation, whatever else is in the batch.
        max_tokens: the most response tokens.
        temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off.
        stop: ids that end the response; the stop id itself belongs to the response.
        entropy: ask for the entropy at each token, at `temperature`.
        entropy_temperature: a rule that changes the temperature of each token by the entropy at `temperature`.
    """

    policy: str
    session: Hashable
    prompt: np.ndarray
    seed: int
    pictures: tuple[Picture, ...] = ()
    max_tokens: int = 32
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple[int, ...] = ()
    entropy: bool = False
    entropy_temperature: EntropyTemperature | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Response:
    """The answer of an engine to a request, or of a session to an observation.

    Attributes:
        action: the action. An engine gives tokens, log-probabilities and the finish reason; a session adds the text.
        prompt: int32 (m,), ids that are new since the segment's previous step. segment: number of the segment that
            they belong to. pictures: what stands for images in `prompt`. An engine leaves these out.
        version: of the weights that drew the first token.
    """

    action: Action
    prompt: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    pictures: tuple[Picture, ...] = ()
    segment: int = 0
    version: int = 0


class Engine(Protocol):
    """Generates the responses of one or several policies: a part of the slot `engine`, made from their models.

    A run makes one, `engine(models, device)`, for all policies that generate tokens, and a second one if copies of the
    policies act. Sessions of policies call `generate`, `fork` and `close` from the event loop that plays episodes.
    The loop calls `sleep` before the updates of an iteration, `wake` after them, and `counters` once per iteration.
    A policy calls `publish` when its weights have changed: after an update, after a warm start, and after a checkpoint
    is read. A pool of opponents calls `serve` and `dismiss`. The code that made the engine calls `shutdown` at the end.

    Rules, which `palaestra.testing.check_engine` checks:

    1.  A response ends after a stop id, after `max_tokens`, or when the context is full, and says which.
    2.  A session remembers its prompts and responses. The next request continues them.
    3.  A response carries the version that was last published.
    4.  After `publish` the engine uses nothing that older weights computed, also in sessions that go on.
    5.  A fork continues like its original. Afterwards neither changes the other.
    6.  A request that was cancelled or has failed does not change its session.
    7.  A closed session is forgotten, and a new one may use its key. Closing an unknown session does nothing.
    8.  A policy that is not served is refused by name, and so is a prompt that leaves no room for a response.
    9.  The same seed gives the same tokens, whatever else is asked at the same time. Log-probabilities are of the
        distribution that was sampled from, up to rounding. An engine without batch invariance says so.
    10. After `sleep` and `wake` sessions go on. A request wakes an engine that sleeps.

    A class may declare `elsewhere(options)` (palaestra.registry.DECLARED), the name of another program that generates.
    Its numbers may then differ from the trainer's by more than rounding.
    """

    async def generate(self, request: Request) -> Response:
        """Sample a response. The session remembers the prompt and the response.

        Raises: EpisodeFailure, boundary "engine", if this episode cannot go on; UnknownName, for a policy that is not
            served; ContractError, for a second request of a session while its first is running.
        """
        ...

    def close(self, session: Hashable) -> None:
        """Forget a session, if there is one of this key."""
        ...

    def publish(self, policy: str, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take over the policy's new weights and forget what the old ones computed.

        Args:
            named_tensors: names and tensors of the trained weights; an engine that shares the policy's module does not
                read them. version: the version that responses carry from now on.

        Default: do nothing, for an engine that shares the module and stores nothing. Raises: EpisodeFailure or
        UnknownName.
        """
        return

    def share(self, ranks: Ranks) -> None:
        """Work with the engines of the run's other processes: each rank calls this once, before any request. Later all
        call `publish`, `sleep` and `wake` in the same order, and have the same weights. Default: do nothing."""
        return

    def context(self, policy: str) -> int | None:
        """The most ids that a session of this policy can hold, prompts and responses together. Default: None, as many
        as the model can read."""
        return None

    def fork(self, session: Hashable, new_session: Hashable) -> None:
        """Start a second session that continues from the present state of the first. Default: raise.

        Raises: ContractError, if the engine cannot fork, `session` is unknown or generating, or `new_session` exists.
        """
        raise ContractError(
            where=f"engine {type(self).__name__}",
            what="it cannot fork a session.",
            remedy="Use the in-process engine, or a strategy that does not branch.",
        )

    def serve(self, policy: str, model: Any, *, version: int = 0) -> None:
        """Serve a further policy, such as an opponent from a pool. Default: raise. Raises: ContractError."""
        raise ContractError(
            where=f"engine {type(self).__name__}",
            what=f"it serves only the policies that it was made with, and `{policy}` is not among them.",
            remedy="Use the in-process engine.",
        )

    def dismiss(self, policy: str) -> None:
        """Stop serving a policy. Default: do nothing."""
        return

    def sleep(self) -> None:
        """Free memory, such as cached keys and values, since updates begin. Default: do nothing."""
        return

    def wake(self) -> None:
        """Get ready for requests, since the updates are over. Default: do nothing."""
        return

    def counters(self) -> dict[str, float]:
        """Metrics of what the engine did since the last call, such as `engine/computed_tokens`. Default: nothing.

        Names begin with `engine/`. Runs write them to `timings.jsonl`.
        """
        return {}

    def shutdown(self) -> None:
        """Free what the engine holds outside this process, at the end of a run. It may be called twice."""
        return
