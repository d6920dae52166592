"""Protocols: what a lower room needs from a higher one, and what users implement.

Override these: Environment (or AsyncEnvironment). The rest is for authors of new kinds of policies.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor
from torch.nn import Module

from palaestra.data.entropy_signal import EntropyTemperature
from palaestra.data.interaction import Action, Observation, StepResult
from palaestra.data.table import Row
from palaestra.data.task import Task
from palaestra.data.trajectory import NextPrompt, Trajectory
from palaestra.former import former_names


# ---- environments -----------------------------------------------------------------------------------------
@runtime_checkable
class Environment(Protocol):
    """One episode at a time; several agents by name, one is not special."""

    agents: tuple[str, ...]

    def reset(self, task: Task) -> StepResult: ...
    def step(self, actions: Mapping[str, Action]) -> StepResult: ...
    def close(self) -> None: ...


@runtime_checkable
class AsyncEnvironment(Protocol):
    """The same, when acting means waiting."""

    agents: tuple[str, ...]

    async def reset(self, task: Task) -> StepResult: ...
    async def step(self, actions: Mapping[str, Action]) -> StepResult: ...
    async def close(self) -> None: ...


@runtime_checkable
class HasTasks(Protocol):
    """Gives tasks. The same (split, n, seed) gives the same tasks; splits never share a content hash."""

    def tasks(self, split: str, n: int, seed: int) -> list[Task]: ...


@runtime_checkable
class HasExpert(Protocol):
    """Knows a good action for the present state."""

    def expert(self, agent: str) -> Action: ...


@runtime_checkable
class HasSnapshot(Protocol):
    """Can be put back into an earlier state."""

    def snapshot(self) -> Any: ...
    def restore(self, state: Any) -> None: ...


@runtime_checkable
class HasGlobalState(Protocol):
    """Shows a centralized critic what no agent sees."""

    def global_state(self) -> np.ndarray: ...


@runtime_checkable
class HasTools(Protocol):
    """Offers tools beside plain actions."""

    def tools(self) -> Sequence[Any]: ...


@runtime_checkable
class HasGuidance(Protocol):
    """Has a teacher who knows the answer and helps without giving it away.

    `guidance` says something to who made this attempt ("" or None: nothing); an attempt without steps is yet to be
    made. `reference`, optional, is the whole answer of a task, as guidance must not hold it.
    """

    def guidance(self, trajectory: Trajectory, *, seed: int) -> str | None: ...


# ---- generation -------------------------------------------------------------------------------------------
@dataclass(slots=True, kw_only=True)
class Request:
    """One generation for one session.

    Attributes:
        policy: name of the policy whose weights answer.
        session: the engine keeps this session's keys and values until `close`.
        prompt: int32 (m,), ids that are new since the session's last response.
        seed: decides all sampling of this generation, whatever else is in the batch.
        max_tokens: most response tokens.
        temperature: 0 is greedy. top_k: 0 is off. top_p: 1 is off.
        stop: ids that end the response; the stop id itself belongs to the response.
        entropy: ask for per-token entropy, at `temperature`.
        entropy_temperature: a temperature of its own for each token, decided by the entropy at `temperature`.
    """

    policy: str
    session: Hashable
    prompt: np.ndarray
    seed: int
    max_tokens: int = 32
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop: tuple[int, ...] = ()
    entropy: bool = False
    entropy_temperature: EntropyTemperature | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Response:
    """What answers: an engine a request, a session an observation.

    Attributes:
        action: what was done. An engine gives tokens, log-probabilities and why they ended; a session adds the text.
        prompt: int32 (m,), ids that are new since the segment's previous step. segment: which token sequence they are
            of. An engine leaves both out.
        version: of the weights that drew the first token.
    """

    action: Action
    prompt: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    segment: int = 0
    version: int = 0


class Engine(Protocol):
    """Serves generations of one or several policies."""

    async def generate(self, request: Request) -> Response: ...
    def close(self, session: Hashable) -> None: ...


# ---- policies ---------------------------------------------------------------------------------------------
@dataclass(slots=True, kw_only=True)
class Sampling:
    """How an agent's actions are drawn; the fields are those of a Request.

    `exact`: it holds for every role, whatever the role's own temperature is (evaluation).
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

    async def act(self, observation: Observation, *, seed: int) -> Response: ...
    def record(self, observation: Observation, action: Action) -> Response:
        """Take `action` as if the policy had chosen it: demonstrations, and actions from outside."""
        ...

    def end(self, observation: Observation | None) -> NextPrompt | None:
        """Close the session; the prompt ids that `observation` would have had (None without tokens)."""
        ...


class Policy(Protocol):
    """Maps observations to actions."""

    name: str
    trainable: bool
    version: int

    def session(self, *, context: Any, sampling: Sampling, key: Hashable) -> Session: ...


@dataclass(slots=True, kw_only=True, eq=False)
class Current:
    """What the policy under training says now about given samples. All are where the policy's module is.

    Attributes:
        logprob: (tokens,) of the response tokens, in the order of the samples, with gradient.
        entropy: (tokens,), if asked for. value: (tokens,), V before the token, if asked for.
        end_value: (samples,), V after the sample's end where it has a next prompt, NaN elsewhere.
    """

    logprob: Tensor
    entropy: Tensor | None = None
    value: Tensor | None = None
    end_value: Tensor | None = None


@runtime_checkable
class Samples(Protocol):
    """Training samples of one policy, ready to be cut into batches. A sample is one model input.

    Attributes:
        cost: int64 (samples,), tokens that the model reads for each.
        token_index: int64 (tokens,), positions of the samples' response tokens in the table's flat order.
        token_start: int64 (samples + 1,): tokens of sample i are token_index[token_start[i]:token_start[i + 1]].
        end_row: int64 (samples,), the table row whose `value_end` the sample's next prompt gives; −1 without one.
    """

    cost: np.ndarray
    token_index: np.ndarray
    token_start: np.ndarray
    end_row: np.ndarray


class TrainablePolicy(Policy, Protocol):
    """A policy that the training room can update. `module` holds everything with gradients."""

    module: Module
    has_critic: bool

    def respond(
        self, rows: Sequence[Row], seeds: Sequence[int], *, temperature: float, max_tokens: int
    ) -> list[Action]: ...
    def collate(self, rows: Sequence[Row], *, temperature: float) -> Samples: ...
    def forward(self, samples: Any, which: Sequence[int], *, values: bool, entropy: bool) -> Current: ...
    def weights_changed(self, version: int) -> None: ...
    def save(self, folder: str) -> None: ...


# ---- parts with state -------------------------------------------------------------------------------------
class StatefulPart(Protocol):
    """A part of the slots reward, selection, advantage or weights that learns or remembers: a class.

    A run makes one object of it and calls it in every iteration with what a function of its slot gets, and a
    `Look`. All methods but `__call__` and the two for checkpoints are optional.

        start(setup, policies)    once, after the warm start, before the first iteration or a checkpoint is read
        choose(trajectories, iteration)  which episodes the update learns from; others may come from a memory
        learn(table, iteration)          after all advantages are there; returns metrics
        warming                     True while it wants no update; such iterations do not count as without signal
    """

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


if not TYPE_CHECKING:  # a type checker finds a misspelled name
    __getattr__ = former_names(
        __name__,
        {"Setting": "`palaestra.data.RunSetup` now", "Acted": "`Response` now", "Generation": "`Response` now"},
    )
