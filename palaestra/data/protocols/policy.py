"""What acts: policies, the sessions in which they act, and what training asks of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor
from torch.nn import Module

from palaestra.data.entropy_signal import EntropyTemperature
from palaestra.data.interaction import Action, Observation
from palaestra.data.protocols.context import Conversation
from palaestra.data.protocols.engine import Engine, Response
from palaestra.data.table import Row
from palaestra.data.trajectory import NextPrompt
from palaestra.errors import ContractError

Oracle = Callable[[], Awaitable[Action]]  # asks the environment's expert


@dataclass(slots=True, kw_only=True)
class Sampling:
    """How an agent's actions are drawn. The fields are those of a `Request`.

    `exact`: use it for every role in place of the role's own temperature, as evaluations do.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int = 32
    entropy: bool = False
    entropy_temperature: EntropyTemperature | None = None
    exact: bool = False


class Session(Protocol):
    """One agent's conversation with its policy during one episode."""

    async def act(self, observation: Observation, *, seed: int) -> Response:
        """The policy's action. `seed` decides all random draws. Raises: EpisodeFailure."""
        ...

    def record(self, observation: Observation, action: Action) -> Response:
        """Record `action` as if the policy had chosen it, for demonstrations and actions from outside."""
        ...

    def end(self, observation: Observation | None) -> NextPrompt | None:
        """Close the session. Returns the prompt ids that `observation` would have had; None without tokens."""
        ...

    def replay(self, observation: Observation, action: Action) -> Response:
        """Repeat an earlier action of this policy, token by token. Default: as `record`."""
        return self.record(observation, action)

    def fork(self, key: Hashable) -> Session:
        """A copy of the session under another key, for a branch of the episode. Default: raise.

        Raises: ContractError, if the session cannot be copied.
        """
        raise ContractError(
            where="a branch",
            what=f"a {type(self).__name__} cannot be copied.",
            remedy="Give it a method `fork(key)` that returns a copy, or play without a strategy that branches.",
        )

    def hear_expert(self, ask: Oracle) -> None:
        """Get the function that asks the environment's expert, once and before the first act. Default: ignore it."""
        return

    def remembers(self) -> bool:
        """Whether an act depends on earlier acts in a way that the recorded prompt does not show. Default: no."""
        return False

    def history(self) -> Conversation | None:
        """The conversation that makes the session's prompts. Default: None, for policies that read no tokens."""
        return None


class Policy(Protocol):
    """Maps observations to actions: a part of the slot `policy`, made once for a run.

    Attributes:
        name: as in the recipe. trainable: whether the run updates it. version: of its weights, 0 at the start.
        module: the torch module with all trained weights; None: it has no weights.
        model: the causal language model that an engine generates with; None: it generates no tokens.
        engine: the engine that generates, set before the first act; None: not set yet, or it generates no tokens.
        base: for an adapter, the name of the policy whose model it adapts; else None.
        source: the model folder whose weights it has loaded; None: it was made with new weights, or is an adapter.
        notes: lines that training shows once at the start, such as that the policy is slower than it could be.
        choices: number of possible tokens or actions, so that entropies are at most ln(choices); None: unknown.
        renderer: turns observations into token ids, a `palaestra.chat.Renderer`; None: it reads no tokens.
        limit: the most ids of a prompt and its response; None: any number.
        network: the module that `forward` calls, if its weights can be spread over processes. The policy then has a
            method `train_through(network)`, which replaces the module by such a copy. None: every process has all
            weights.
        outputs: names that `forward` can be asked for, such as "logprob", "entropy" and "value"; empty: it has no
            log-probabilities of tokens, and a learner of its own trains it.

    A policy with weights also has the members of `TrainablePolicy`.

    A class may also declare (palaestra.registry.DECLARED) `abilities(options)`, what parts may use of a policy with
    these options; `outputs_with(options)`, the outputs that it has; `stands_on(options)`, the policy that must be made
    before it; and `chat_model`.
    """

    name: str
    trainable: bool = False
    version: int = 0
    module: Any = None
    model: Any = None
    engine: Engine | None = None
    base: str | None = None
    source: str | None = None
    notes: tuple[str, ...] = ()
    choices: int | None = None
    renderer: Any = None
    limit: int | None = None
    network: Any = None
    outputs: frozenset[str] = frozenset()

    def session(self, *, context: Any, sampling: Sampling, key: Hashable) -> Session:
        """A session for one agent in one episode. `key` names both."""
        ...

    def check_numbers(self) -> None:
        """Called once, before a run begins, when the engine is set. Raises: ContractError, for wrong numbers."""
        return

    def as_trained(self) -> Policy:
        """The policy that a run uses in place of this one, such as an adapter on it. Default: itself."""
        return self


@dataclass(slots=True, kw_only=True, eq=False)
class PolicyOutputs:
    """The outputs of one forward pass of a policy. All tensors are on the device of the policy's module.

    Attributes:
        columns: output → (tokens, …) of the response tokens, in the order of the samples, with gradient: "logprob" of
            the token, "entropy" of its distribution, "value" before the token, and further outputs that were asked for.
        bootstrap_value: (samples,), the value after the last token of a sample that was cut off, NaN for other samples;
            None, if it was not asked for.
    """

    columns: dict[str, Tensor]
    bootstrap_value: Tensor | None = None

    def __getitem__(self, output: str) -> Tensor:
        return self.columns[output]


@runtime_checkable
class Samples(Protocol):
    """Training samples of one policy, ready to be cut into batches. A sample is one model input.

    Attributes:
        cost: int64 (samples,), number of tokens that the model reads for each sample.
        token_index: int64 (tokens,), positions of the samples' response tokens in the table's flat order.
        token_start: int64 (samples + 1,): tokens of sample i are token_index[token_start[i]:token_start[i + 1]].
        end_row: int64 (samples,), the table row whose `bootstrap_value` the sample's next prompt gives; −1 without
            one.
        beginnings: a `palaestra.data.batches.Beginnings`, if the policy computes equal beginnings of a batch once.
    """

    cost: np.ndarray
    token_index: np.ndarray
    token_start: np.ndarray
    end_row: np.ndarray
    beginnings: Any = None


class TrainablePolicy(Policy, Protocol):
    """A policy that a learner can update.

    Attributes:
        module: the torch module with all trained weights. has_critic: whether the policy has the output "value".
    """

    module: Module
    has_critic: bool

    def clone(self) -> TrainablePolicy:
        """A copy with its own weights and without an engine, for a reference or for acting beside training."""
        ...

    def architecture(self) -> dict[str, Any]:
        """JSON values that must be equal in two policies that exchange weights."""
        ...

    def respond(
        self, rows: Sequence[Row], seeds: Sequence[int], *, temperature: float, max_tokens: int
    ) -> list[Action]: ...
    def collate(self, rows: Sequence[Row], *, temperature: float) -> Samples: ...
    def forward(self, samples: Any, which: Sequence[int], outputs: Collection[str]) -> PolicyOutputs: ...
    def weights_changed(self, version: int) -> None: ...
    def save(self, folder: str) -> None: ...
