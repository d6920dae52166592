"""Protocols of what users can write: engines, contexts, policies, optimizers, learners and other parts with state.

A protocol has defaults for the members that an implementation may leave out. Inherit from it, `class Mine(Policy)`,
and write the members that differ. `complete` refuses an object that neither inherits them nor has all of them. The
protocols of environments are in `palaestra.data.abilities`. What a part declares before it is made or called is in
`palaestra.registry.DECLARED`.
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
from palaestra.data.ranks import Ranks
from palaestra.data.table import Row
from palaestra.data.trajectory import NextPrompt, Picture, Trajectory
from palaestra.errors import ContractError
from palaestra.former import former_names

if TYPE_CHECKING:
    from palaestra.data.iteration import Batch, Iteration  # which imports this module
    from palaestra.data.setup import RunSetup  # likewise

Made = TypeVar("Made")
Oracle = Callable[[], Awaitable[Action]]  # asks the environment's expert


def complete(made: Made, protocol: type, *, where: str) -> Made:
    """Return `made` if it has every member of the protocol.

    Raises: ContractError, which names the first missing member and the class that has its default.
    """
    for name in _members(protocol):
        if not hasattr(type(made), name) and not hasattr(made, name):  # the class first, so that no property runs
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


# ---- contexts ---------------------------------------------------------------------------------------------
class Prompt(NamedTuple):
    """Ids to append to a segment. `fresh`: the segment starts here, so that `ids` are all its ids. `pictures`: what
    stands for images in `ids`, with `inputs`."""

    ids: np.ndarray
    segment: int
    fresh: bool
    pictures: tuple[Picture, ...] = ()


class Conversation(Protocol):
    """One agent's history in one episode."""

    length: int  # ids in the present segment

    def observe(self, observation: Observation) -> Prompt:
        """The ids that this observation adds to the present segment, or all ids of a new segment."""
        ...

    def respond(self, ids: np.ndarray) -> None:
        """Append the ids of the response to the last observation."""
        ...


class Context(Protocol):
    """Makes prompt ids from an agent's history: a part of the slot `context`. It has options and no state.

    A policy calls `start_for` for each agent of each episode. `renderer` is a `palaestra.chat.Renderer`.
    """

    def start(self, renderer: Any) -> Conversation:
        """Start a conversation of an episode without a name."""
        ...

    def start_for(self, renderer: Any, key: Hashable) -> Conversation:
        """Start the conversation of the episode and agent that `key` names. Default: as `start`, the same for all."""
        return self.start(renderer)

    @property
    def phrases(self) -> Sequence[str]:
        """Texts that the context itself adds to prompts, for a tokenizer that is made for the run. Default: none."""
        return ()

    @property
    def uncompressed(self) -> Context | None:
        """The same context with the full history, for `dual_branch`. Default: None, for one that leaves nothing out."""
        return None


# ---- policies ---------------------------------------------------------------------------------------------
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


# ---- optimizers -------------------------------------------------------------------------------------------
class Optimizer(Protocol):
    """Updates parameters by their gradients: a part of the slot `optimizer`, one for each trained policy.

    It is made from the policy's parameters, or from its module if its first argument is called `module`.

    Attributes:
        lr: the learning rate of the next step.
        metrics: further numbers of the last step, by their names in the log. Default: none.
    """

    metrics: Mapping[str, float] = MappingProxyType({})

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        ...

    def zero(self) -> None:
        """Clear the gradients before a new batch."""
        ...

    def step(self) -> float:
        """Take one step. Returns the gradient's norm before clipping; if it is not finite, no parameter changes."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The whole state that a resumed run needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. Raises: CheckpointError, if it belongs to other parameters."""
        ...


# ---- what has state ---------------------------------------------------------------------------------------
class StatefulPart(Protocol):
    """The base class of a part with state in one of the slots reward, selection, advantage and weights.

    A part that keeps or learns something from one iteration to the next is such a class; any other part is a function.
    A run makes one object of the class and calls it in every iteration with the arguments of a function of the slot.
    So the class must define `__call__`. Each member below has a default; write those that differ.

    An iteration calls `choose` with the episodes, then the object itself in its stage, then `update`.

    Attributes:
        ready: False while the part wants no update. Such iterations do not count as iterations without signal.
            Default: True.
        made: optimizer steps of the policies in the last `update`; `updates` of the log is their sum. Default: 0.
    """

    ready: bool = True
    made: int = 0

    def start(self, setup: RunSetup, policies: Mapping[str, Any]) -> None:
        """Prepare for a run. Called once, after the warm start and before a checkpoint is read. Default: nothing.

        Args:
            setup: the run's setup. policies: the trained policies, by name.
        """
        return

    def choose(self, trajectories: list[Trajectory], iteration: Iteration) -> list[Trajectory]:
        """Choose the episodes that the update learns from, for instance from a buffer. Default: those that were played.

        Called before the table is made, for all parts in the order of the slots.
        """
        return trajectories

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """Learn from the batch, whose table is complete. Called after the slot `weights`. Default: nothing.

        Returns: metrics for the log.
        """
        return {}

    def has_signal(self, batch: Batch, iteration: Iteration) -> bool:
        """Whether a policy can learn its task from this batch; a run stops after long without signal. Default: no."""
        return False

    def modules(self) -> Mapping[str, Module]:
        """The modules that the part trains, such as critics, and their target networks. Default: none.

        A run moves them to its device and writes their weights in checkpoints, a file for each name.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint stores beside the weights of `modules`. Default: nothing.

        It consists of tensors, numbers, texts, lists and dicts. A resumed run must be the same byte for byte.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`. Called after `start`. Default: nothing is read."""
        return


class Learner(StatefulPart, Protocol):
    """Updates policies: a part of the slot `learner`, a class whose options the recipe gives.

    A run makes one object of it and calls `start` once. It calls `update` at the end of each iteration, for several
    learners in the order of the recipe. A learner uses the policies themselves: `policy.module`,
    `policy.forward(iteration.samples(name), …)`. After it has changed a policy's weights it calls
    `policy.weights_changed(policy.version + 1)`.

    The columns that its registration names in `reads` are computed before it is called, such as "advantage" and outputs
    of policies like "logprob_reference". Estimators run only if a learner, or a part that it runs, reads "advantage".
    A learner that runs further parts of the recipe, such as a loss, declares a static method `runs(settings, policy)`
    that returns them, so that their columns are computed too (`palaestra.registry.DECLARED`).
    """

    def has_signal(self, batch: Batch, iteration: Iteration) -> bool:
        """Whether a policy can learn its task from this batch. Default: True."""
        return True


class Experience(Protocol):
    """Gives the trajectories of each iteration: a part of the slot `experience`, made from the run's setup and options.

    Attributes:
        instruction: an instruction that evaluations give to every policy, if the policies train with it. Default: None.
        notes: lines that a run prints at its start, such as what of a file is not read. Default: none.
    """

    instruction: str | None = None
    notes: Sequence[str] = ()

    def collect(self, number: int) -> Batch:
        """The trajectories of iteration `number`, from 0. They may be played, or come from files or a buffer."""
        ...

    def publish(self, batch: Batch, number: int) -> dict[str, float]:
        """Give the updated weights to copies that act. Called after the learners. Returns metrics. Default: nothing."""
        return {}

    def stateful(self) -> Mapping[str, Any]:
        """Objects with `state_dict` and `load_state_dict`, by their names in checkpoints. Default: none.

        They are loaded in this order.
        """
        return {}

    def close(self) -> None:
        """End what the experience started, at the end of a run. Default: nothing."""
        return


if not TYPE_CHECKING:  # a type checker finds a misspelled name
    __getattr__ = former_names(
        __name__,
        {"Setting": "`palaestra.data.RunSetup` now", "Acted": "`Response` now", "Generation": "`Response` now"},
    )
