"""Protocols: what a lower room needs from a higher one, and what users implement.

What need not do everything has a protocol with defaults. Inherit from it, `class Mine(Policy)`, and write what differs:
callers call its members and never look one up. `complete` refuses, by one line, an object that neither inherits nor has
all of them. The protocols of environments are in `palaestra.data.abilities`. What a part says of itself before it is
made or called is in `palaestra.registry.DECLARED`.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from torch import Tensor
from torch.nn import Module

from palaestra.data.entropy_signal import EntropyTemperature
from palaestra.data.interaction import Action, Observation
from palaestra.data.table import Row
from palaestra.data.trajectory import NextPrompt, Trajectory
from palaestra.errors import ContractError
from palaestra.former import former_names

if TYPE_CHECKING:
    from palaestra.data.iteration import Batch, Iteration  # which imports this module
    from palaestra.data.setup import RunSetup  # likewise

Made = TypeVar("Made")
Oracle = Callable[[], Awaitable[Action]]  # asks the environment's expert


def complete(made: Made, protocol: type, *, where: str) -> Made:
    """`made`, which has every member of a protocol.

    Raises: ContractError, that names the first member that is missing and where its default is.
    """
    for name in _members(protocol):
        if not hasattr(type(made), name) and not hasattr(made, name):  # of the class first: no property runs
            raise ContractError(
                where=where,
                what=f"{type(made).__name__} has no `{name}`.",
                remedy=f"Inherit its default, `class {type(made).__name__}({protocol.__name__})` with `from "
                f"{protocol.__module__} import {protocol.__name__}`, or write it.",
            )
    return made


@functools.cache
def _members(protocol: type) -> tuple[str, ...]:
    found = [name for one in protocol.__mro__ if one not in (object, Protocol) for name in _own(one)]
    return tuple(dict.fromkeys(name for name in found if not name.startswith("_")))


def _own(protocol: type) -> list[str]:
    return [*vars(protocol).get("__annotations__", {}), *vars(protocol)]


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
    """Generates the responses of one or several policies: a part of the slot `engine`, made of their models.

    A run makes one, `engine(models, device)`, for all policies that generate tokens, and one more where copies of the
    policies act. Sessions of policies call `generate`, `fork` and `close` from the event loop that plays episodes.
    A policy calls `publish` when its weights are others: after each update, a warm start and a checkpoint that was
    read. A pool of opponents calls `serve` and `dismiss`. Whoever made the engine calls `shutdown` at the end.

    Rules, which `palaestra.testing.check_engine` checks:

    1.  A response ends after a stop id, after `max_tokens`, or where the context is full, and says which.
    2.  A session remembers its prompts and responses: what is asked next continues them.
    3.  A response carries the version that was last published.
    4.  After `publish` nothing that older weights computed is used, also in sessions that go on.
    5.  A fork continues like its original, and neither hears of the other afterwards.
    6.  A request that was cancelled or has failed leaves its session as it was.
    7.  A closed session is forgotten; one of the same key begins anew. Unknown ones may be closed.
    8.  A policy that is not served is refused by name, and so are prompts that leave no room for a response.
    9.  The same seed gives the same tokens, whatever else is asked at the same time. Log-probabilities are of the
        distribution that was sampled from, up to rounding (an engine that claims no batch invariance says so).
    """

    async def generate(self, request: Request) -> Response:
        """Sample a response; the session remembers prompt and response.

        Raises: EpisodeFailure, boundary "engine": this episode cannot go on. UnknownName, for a policy that is not
            served. ContractError, for a second request of a session while its first is running.
        """
        ...

    def close(self, session: Hashable) -> None:
        """Forget a session, if there is one of this key."""
        ...

    def publish(self, policy: str, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """The policy's weights are others now: take them over and forget what the old ones computed.

        Args:
            named_tensors: names and tensors of what is trained; an engine that shares the policy's module does not
                read them. version: that responses carry from now on.

        Default: nothing is kept and the module is shared. Raises: EpisodeFailure or UnknownName.
        """
        return

    def context(self, policy: str) -> int:
        """The most ids that a session of this policy can hold, prompts and responses together."""
        ...

    def fork(self, session: Hashable, new_session: Hashable) -> None:
        """A second session that goes on from where the first one stands. Default: it cannot.

        Raises: ContractError, also if `session` is unknown or generating, or `new_session` exists.
        """
        raise ContractError(
            where=f"engine {type(self).__name__}",
            what="it cannot fork a session.",
            remedy="Use the in-process engine, or a strategy that does not branch.",
        )

    def serve(self, policy: str, model: Any, *, version: int = 0) -> None:
        """Generate for one policy more: an opponent from a pool. Default: it cannot. Raises: ContractError."""
        raise ContractError(
            where=f"engine {type(self).__name__}",
            what=f"it serves the policies that it was made with, and `{policy}` is another one.",
            remedy="Use the in-process engine.",
        )

    def dismiss(self, policy: str) -> None:
        """Serve a policy no longer. Default: nothing is held for it."""
        return

    def shutdown(self) -> None:
        """The run has ended: free what is held outside this process. May be called twice. Default: nothing is."""
        return


# ---- contexts ---------------------------------------------------------------------------------------------
class Prompt(NamedTuple):
    """Ids to append to a segment. `fresh`: the segment starts here, its ids are exactly `ids`."""

    ids: np.ndarray
    segment: int
    fresh: bool


class Conversation(Protocol):
    """One agent's history in one episode."""

    length: int  # ids in the present segment

    def observe(self, observation: Observation) -> Prompt:
        """The ids that this observation adds, or those of a new segment."""
        ...

    def respond(self, ids: np.ndarray) -> None:
        """The response to the last observation."""
        ...


class Context(Protocol):
    """How an agent's history becomes prompt ids, a part of the slot `context`. Holds options, no state.

    A policy calls `start_for` for each agent of each episode; `renderer` is a `palaestra.chat.Renderer`.
    """

    def start(self, renderer: Any) -> Conversation:
        """A conversation of an episode that nobody named."""
        ...

    def start_for(self, renderer: Any, key: Hashable) -> Conversation:
        """The conversation of the episode and agent that `key` names. Default: as `start`, the same for all."""
        return self.start(renderer)

    @property
    def phrases(self) -> Sequence[str]:
        """Words that it puts before a policy, for a tokenizer that is made for the run. Default: none."""
        return ()

    @property
    def uncompressed(self) -> Context | None:
        """The same context with nothing left out, for `dual_branch`. Default: None, nothing is left out."""
        return None


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

    async def act(self, observation: Observation, *, seed: int) -> Response:
        """The policy's action; `seed` decides all that is drawn. Raises: EpisodeFailure."""
        ...

    def record(self, observation: Observation, action: Action) -> Response:
        """Take `action` as if the policy had chosen it: demonstrations, and actions from outside."""
        ...

    def end(self, observation: Observation | None) -> NextPrompt | None:
        """Close the session; the prompt ids that `observation` would have had (None without tokens)."""
        ...

    def replay(self, observation: Observation, action: Action) -> Response:
        """Take an action of this very policy again, token by token. Default: as `record`."""
        return self.record(observation, action)

    def fork(self, key: Hashable) -> Session:
        """A copy that goes on by itself under another key: an episode branches off. Default: it cannot be copied.

        Raises: ContractError.
        """
        raise ContractError(
            where="a branch",
            what=f"a {type(self).__name__} cannot be copied.",
            remedy="Give it a method `fork(key)` that returns a copy, or play without a strategy that branches.",
        )

    def hear_expert(self, ask: Oracle) -> None:
        """How to ask the environment's expert; episodes say it once, before the first act. Default: nobody asks."""
        return

    def remembers(self) -> bool:
        """Whether an act depends on earlier ones by more than the prompt that is recorded. Default: no."""
        return False

    def history(self) -> Conversation | None:
        """The conversation that makes its prompts. Default: None, as for policies that read no tokens."""
        return None


class Policy(Protocol):
    """Maps observations to actions: a part of the slot `policy`, made once for a run.

    Attributes:
        name: as in the recipe. trainable: whether the run updates it. version: of its weights, 0 at the start.
        module: everything with gradients, as a torch module; None: it has no weights.
        model: the causal language model that an engine generates with; None: it generates no tokens.
        engine: what generates, set before the first act; None: nothing yet, or it generates no tokens.
        base: name of the policy that it stands on, an adapter's; None: on none.
        choices: how many there are at each token, so that entropies are at most ln(choices); None: unknown.
        renderer: how observations become token ids, a `palaestra.chat.Renderer`; None: it reads no tokens.
        limit: most ids of a prompt and its response; None: any number.
        network: what `forward` calls, where its weights can be spread over processes; the policy then has a method
            `train_through(network)`, which puts such a copy in its place. None: every process has all weights.
        outputs: names that `forward` can be asked for, such as "logprob", "entropy" and "value"; empty: it has no
            log-probabilities of tokens, and a learner of its own trains it.

    A policy with weights also has what `TrainablePolicy` names.

    A class may say beside it (palaestra.registry.DECLARED) `abilities(options)`, what parts may use of a policy with
    these options, `outputs_with(options)`, the outputs that it has, and `stands_on(options)`, the policy that must be
    made before it.
    """

    name: str
    trainable: bool = False
    version: int = 0
    module: Any = None
    model: Any = None
    engine: Engine | None = None
    base: str | None = None
    choices: int | None = None
    renderer: Any = None
    limit: int | None = None
    network: Any = None
    outputs: frozenset[str] = frozenset()

    def session(self, *, context: Any, sampling: Sampling, key: Hashable) -> Session:
        """A session for one agent in one episode; `key` tells both."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class PolicyOutputs:
    """What a policy says about given samples. All tensors are where the policy's module is.

    Attributes:
        columns: output → (tokens, …) of the response tokens, in the order of the samples, with gradient: "logprob" of
            the token, "entropy" of its distribution, "value" before the token, and what else was asked for.
        bootstrap_value: (samples,), the value of what follows the sample where it was cut off, NaN elsewhere; None, if
            it was not asked for.
    """

    columns: dict[str, Tensor]
    bootstrap_value: Tensor | None = None

    def __getitem__(self, output: str) -> Tensor:
        return self.columns[output]


@runtime_checkable
class Samples(Protocol):
    """Training samples of one policy, ready to be cut into batches. A sample is one model input.

    Attributes:
        cost: int64 (samples,), tokens that the model reads for each.
        token_index: int64 (tokens,), positions of the samples' response tokens in the table's flat order.
        token_start: int64 (samples + 1,): tokens of sample i are token_index[token_start[i]:token_start[i + 1]].
        end_row: int64 (samples,), the table row whose `bootstrap_value` the sample's next prompt gives; −1 without
            one.
    """

    cost: np.ndarray
    token_index: np.ndarray
    token_start: np.ndarray
    end_row: np.ndarray


class TrainablePolicy(Policy, Protocol):
    """A policy that the training room can update.

    Attributes:
        module: holds everything with gradients. has_critic: whether it gives "value".
    """

    module: Module
    has_critic: bool

    def clone(self) -> TrainablePolicy:
        """The same policy with weights of its own, and no engine yet: a reference, or a copy that acts."""
        ...

    def architecture(self) -> dict[str, Any]:
        """JSON values that must agree before weights are exchanged."""
        ...

    def respond(
        self, rows: Sequence[Row], seeds: Sequence[int], *, temperature: float, max_tokens: int
    ) -> list[Action]: ...
    def collate(self, rows: Sequence[Row], *, temperature: float) -> Samples: ...
    def forward(self, samples: Any, which: Sequence[int], outputs: Collection[str]) -> PolicyOutputs: ...
    def weights_changed(self, version: int) -> None: ...
    def save(self, folder: str) -> None: ...


# ---- optimizers -------------------------------------------------------------------------------------------
class Optimizer(Protocol):
    """Moves parameters: a part of the slot `optimizer`, one for each trained policy.

    It is made of the parameters, or of the module if its first parameter is called so.

    Attributes:
        lr: the learning rate of the next step.
        metrics: what the last step tells beside its norm, by the names of the log. Default: nothing.
    """

    metrics: Mapping[str, float] = MappingProxyType({})

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        ...

    def zero(self) -> None:
        """Forget the gradients: a new batch begins."""
        ...

    def step(self) -> float:
        """Move the parameters. Returns the gradient's norm before clipping; one that is not finite moves nothing."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken. Raises: CheckpointError, if it belongs to other parameters."""
        ...


# ---- what has state ---------------------------------------------------------------------------------------
class StatefulPart(Protocol):
    """What a part of the slots reward, selection, advantage or weights inherits that remembers or learns something.

    A run makes one object of such a class. It calls the object in every iteration with what a function of the slot
    gets, so that the class itself has to write `__call__`. Each member below has a default; write those that differ.
    A part that remembers nothing from one iteration to the next is a function.

    One iteration calls `choose` with the episodes, then the stages, the object among them, then `update`.

    Attributes:
        ready: False while the part wants no update. Such iterations do not count as without signal. Default: True.
        made: optimizer steps of the policies in the last `update`; `updates` of the log is their sum. Default: 0.
    """

    ready: bool = True
    made: int = 0

    def start(self, setup: RunSetup, policies: Mapping[str, Any]) -> None:
        """Prepare for a run: called once, after the warm start and before a checkpoint is read. Default: nothing.

        Args:
            setup: what the run's policies were made with. policies: the trained ones, by name.
        """
        return

    def choose(self, trajectories: list[Trajectory], iteration: Iteration) -> list[Trajectory]:
        """The episodes that the update learns from, such as those of a buffer. Default: those that were played.

        Called before the table is made, for all parts in the order of the slots.
        """
        return trajectories

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """Learn from the batch, whose table has all its columns; called after the weights. Default: nothing.

        Returns: metrics for the log.
        """
        return {}

    def has_signal(self, batch: Batch, iteration: Iteration) -> bool:
        """Whether this batch teaches a policy its task. Without it for long, the run stops. Default: False."""
        return False

    def modules(self) -> Mapping[str, Module]:
        """The modules that it trains beside the policies, such as critics, and slow copies of them. Default: none.

        A run moves them to its device and writes their weights in checkpoints, a file for each name.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the weights of `modules`, so that a resumed run is the same byte for byte:
        tensors, numbers, texts, lists and dicts. Default: nothing.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; `start` came before. Default: nothing is read."""
        return


class Learner(StatefulPart, Protocol):
    """What improves policies: a part of the slot `learner`, a class with the options of the recipe.

    A run makes one object of it, calls `start`, and `update` at the end of each iteration, in the order of the recipe.
    Whatever it needs of the policies it asks them for: `policy.module`, `policy.forward(iteration.samples(name), …)`.
    After it has moved a policy's weights it calls `policy.weights_changed(policy.version + 1)`.

    What its registration names in `reads` is computed before it is called: columns such as "advantage", and outputs of
    policies such as "logprob_reference". Estimators run only where a learner or a part that it runs reads "advantage".
    A learner that runs further parts of the recipe, such as a loss, declares a static method `runs(settings, policy)`
    that gives them, so that what they read is computed too (`palaestra.registry.DECLARED`).
    """

    def has_signal(self, batch: Batch, iteration: Iteration) -> bool:
        """Whether this batch teaches a policy its task. Default: True."""
        return True


class Experience(Protocol):
    """What iterations learn from: a part of the slot `experience`, made with the run's setup and its own options.

    Attributes:
        instruction: what evaluations say to every policy, for one that trains under an instruction. Default: None.
    """

    instruction: str | None = None

    def collect(self, number: int) -> Batch:
        """The trajectories of this iteration, counted from 0. They may come from play, from files or from a buffer."""
        ...

    def publish(self, batch: Batch, number: int) -> dict[str, float]:
        """The policies have learned: hand their weights to copies that act. Returns metrics. Default: nothing."""
        return {}

    def stateful(self) -> Mapping[str, Any]:
        """Objects with `state_dict` and `load_state_dict`, by their names in checkpoints. Default: none.

        They are put back in this order.
        """
        return {}

    def close(self) -> None:
        """The run is over: end what it began. Default: nothing."""
        return


if not TYPE_CHECKING:  # a type checker finds a misspelled name
    __getattr__ = former_names(
        __name__,
        {"Setting": "`palaestra.data.RunSetup` now", "Acted": "`Response` now", "Generation": "`Response` now"},
    )
