"""The network policy reads observation vectors and chooses one of a fixed number of actions. An act is one token.

The choice depends only on the seed of the act, the vectors that the agent has seen and the weights. It does not depend
on the global random state, or on other agents that act at the same time.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from palaestra.data import Action, Observation, Row, RunSetup
from palaestra.data.abilities import has, sizes_of
from palaestra.data.entropy_signal import EntropyTemperature
from palaestra.data.protocols import Policy, PolicyOutputs, Response, Sampling, Session
from palaestra.errors import CheckpointError, EpisodeFailure, RecipeError
from palaestra.models.devices import device_of
from palaestra.models.networks import Activation, ActorCritic, RecurrentActorCritic
from palaestra.models.weight_files import load_weights, save_weights
from palaestra.policies.architecture import Widths, refuse_small, stored_architecture
from palaestra.policies.drawing import Choice, draw, masked, stack_legal
from palaestra.policies.outputs import TOKEN_OUTPUTS, TokenOutput, refuse_unknown_outputs, token_columns
from palaestra.policies.vectors import NetworkSamples, collate, refuse_instruction
from palaestra.registry import register

MODULES: dict[str, Any] = {"mlp": ActorCritic, "gru": RecurrentActorCritic}
ARCHITECTURE, WEIGHTS = "network.json", "network.safetensors"
OPTIONS = ("hidden", "body", "activation", "critic", "shared")  # those in the architecture
SMALLEST = 16  # rows of a forward pass; matrix kernels round differently for very few rows


@register("policy", "network", ignores_if={"model": ("hidden", "body", "activation", "shared")})
class NetworkPolicy(Policy):
    """An actor-critic over observation vectors and discrete actions."""

    # Output → function that takes the log-probabilities (tokens, actions) and the taken actions (tokens,) and returns
    # (tokens, …). A subclass can add an output, which losses may read.
    token_outputs: ClassVar[Mapping[str, TokenOutput]] = TOKEN_OUTPUTS

    def __init__(
        self,
        name: str,
        setup: RunSetup,
        *,
        model: str | None = None,
        hidden: Widths = (64, 64),
        body: Literal["mlp", "gru"] = "mlp",
        activation: Activation = "tanh",
        critic: bool = True,
        shared: bool = False,
    ) -> None:
        """
        Args:
            name: the name in the recipe.
            setup: gives the seed, the sizes of vectors and actions, and the device.
            model: folder that `save` wrote. It decides the options below. Of these only `critic` may be given too,
                because checks before the run read it.
            hidden: widths of the layers. Higher: more capacity, slower. Usual: (64, 64).
            body: "mlp" reads the current vector; "gru" remembers the episode (last width: its memory).
            activation: "tanh", or "relu" for large inputs.
            critic: learn values.
            shared: whether actor and critic share one body, so that the value loss changes the actor too. False: each
                has its own body. Usual: False.

        Raises: RecipeError, if the environment has no vectors or no fixed number of actions; CheckpointError,
            if `model` holds no network policy or one of other sizes.
        """
        _refuse_missing_sizes(
            setup.source, setup.vector_size, setup.action_count, where=f"policies.{name}.policy: network"
        )
        self.name, self.trainable, self.version = name, True, 0
        self.size, self.actions = int(setup.vector_size or 0), int(setup.action_count or 0)
        options: dict[str, Any] = {
            "hidden": hidden,
            "body": body,
            "activation": activation,
            "critic": critic,
            "shared": shared,
        }
        self._options = options if model is None else _stored_options(model, self.size, self.actions)
        self.has_critic = bool(self._options["critic"])
        make = {key: value for key, value in self._options.items() if key != "body"}
        network = MODULES[self._options["body"]](self.size, self.actions, **make, seed=setup.seed)
        if model is not None:
            load_weights(network, Path(model) / WEIGHTS)
        self.module: Any = network.to(setup.device)
        self._batcher = TurnBatcher(self)

    @property
    def device(self) -> torch.device:
        """The device of the module."""
        return device_of(self.module)

    @property
    def choices(self) -> int:  # type: ignore[override]
        """The number of actions. The entropy of an act is at most ln(choices)."""
        return self.actions

    @staticmethod
    def no_template(options: Mapping[str, Any]) -> str:
        """Why it has no chat template."""
        return "reads no text"

    @classmethod
    def outputs_with(cls, options: Mapping[str, Any]) -> frozenset[str]:
        """The outputs of a policy with these options."""
        return frozenset({*cls.token_outputs, *(("value",) if options.get("critic", True) else ())})

    @staticmethod
    def abilities(options: Mapping[str, Any]) -> frozenset[str]:
        """The abilities that this policy gives to parts: {"critic"}, unless `critic` is False."""
        return frozenset({"critic"} if options.get("critic", True) else ())

    @staticmethod
    def fits(options: Mapping[str, Any], settings: Any, source: Any) -> None:
        """Raises: RecipeError, for an environment without vectors or without a fixed number of actions."""
        _refuse_missing_sizes(source, *sizes_of(source), where="policies.….policy: network")

    def session(self, *, context: Any, sampling: Sampling, key: Hashable) -> NetworkSession:
        """Open the session of one agent in one episode. The context is not used.

        Raises: RecipeError, for top-k or top-p, whose probabilities training could not compute.
        """
        if sampling.top_k or sampling.top_p < 1:
            raise RecipeError(
                where=f"policy {self.name}",
                what=f"a network policy cannot sample with top_k={sampling.top_k} and top_p={sampling.top_p}.",
                remedy="Leave `rollout.top_k` at 0 and `rollout.top_p` at 1. `rollout.temperature` may be changed.",
            )
        return NetworkSession(self, sampling, self.module.start(1), self._batcher)

    # ---- acting -------------------------------------------------------------------------------------------
    def act_batch(
        self,
        vectors: np.ndarray,
        seeds: Sequence[int],
        *,
        temperature: float | np.ndarray = 1.0,
        memory: Tensor | None = None,
        legal: np.ndarray | None = None,
        entropy: bool = False,
        entropy_temperature: Sequence[EntropyTemperature | None] = (),
    ) -> Choice:
        """Choose the actions of n agents in one forward pass. No row depends on another row.

        Args:
            vectors: float32 (n, size).
            seeds: n integers; each decides the draw of its row.
            temperature: one number, or (n,). 0 takes the most probable action, whose log-probability is then 0.
            memory: from the previous acts of the rows; None at the start of episodes.
            legal: bool (n, actions); None: all actions are legal.
            entropy: whether to return the entropy of each distribution, in nats.
            entropy_temperature: for each row, see `drawing.draw`.
        """
        rows = len(vectors)
        with torch.inference_mode():
            seen = _at_least(torch.from_numpy(vectors), SMALLEST).to(self.device)
            held = self.module.start(rows) if memory is None else memory
            logits, after = self.module.step(seen, None if held is None else _at_least(held, SMALLEST))
            drawn = draw(
                logits[:rows].float().cpu(),
                seeds,
                temperature=temperature,
                legal=legal,
                entropy=entropy,
                entropy_temperature=entropy_temperature,
            )
        drawn.memory = None if after is None else after[:rows]
        return drawn

    def respond(
        self, rows: Sequence[Row], seeds: Sequence[int], *, temperature: float, max_tokens: int = 1
    ) -> list[Action]:
        """Choose an action with the current weights for the observation of each row. Use it between rollouts.

        Args:
            rows: steps with vectors.
            seeds: one for each row; it decides the draw.
            max_tokens: not used, since an act is one token.

        Raises: RecipeError, for a policy with memory; EpisodeFailure, if the logits are not finite.
        """
        if self.module.start(1) is not None:
            raise RecipeError(
                where=f"policy {self.name}",
                what="a policy with memory needs whole episodes, and this call gives it single steps.",
                remedy="Use `body: mlp`, with vectors that hold all that the policy needs.",
            )
        choice = self.act_batch(
            np.stack([self.vector(row.step.observation) for row in rows]),
            seeds,
            temperature=temperature,
            legal=stack_legal([self.legal(row.step.observation) for row in rows], self.actions),
        )
        if not choice.finite.all():
            raise self._not_finite()
        return [choice.action(row) for row in range(len(rows))]

    def answer(self, questions: Sequence[Question]) -> list[Action | EpisodeFailure]:
        """Answer several questions in one forward pass, and update the memories of their sessions."""
        memories = [question.session.memory for question in questions if question.session.memory is not None]
        choice = self.act_batch(
            np.stack([question.vector for question in questions]),
            [question.seed for question in questions],
            temperature=np.array([question.session.sampling.temperature for question in questions]),
            memory=torch.cat(memories) if memories else None,
            legal=stack_legal([question.legal for question in questions], self.actions),
            entropy=any(question.session.sampling.entropy for question in questions),
            entropy_temperature=[question.session.sampling.entropy_temperature for question in questions],
        )
        if choice.memory is not None:
            for question, memory in zip(questions, choice.memory.split(1), strict=True):
                question.session.memory = memory
        return [choice.action(row) if fine else self._not_finite() for row, fine in enumerate(choice.finite)]

    def vector(self, observation: Observation) -> np.ndarray:
        """The observation's vector: float32 (size,).

        Raises: EpisodeFailure, if there is no vector of this length, or if there is an instruction in words.
        """
        refuse_instruction(observation, self.name)
        found = observation.vector
        if found is not None and np.size(found) == self.size:
            return np.asarray(found, np.float32).reshape(-1)
        what = "no `vector`" if found is None else f"a vector of {np.size(found)} numbers instead of {self.size}"
        raise EpisodeFailure(
            boundary="engine",
            where=f"policy {self.name}",
            what=f"the observation has {what}.",
            remedy="A network policy reads `Observation.vector`. Let the environment give vectors of one fixed length.",
        )

    def legal(self, observation: Observation) -> np.ndarray | None:
        """The legal actions as bool (actions,). None, if all are legal or the observation lists texts or nothing."""
        found = observation.legal
        if not found or not isinstance(found[0], int | np.integer) or len(found) >= self.actions:
            return None
        mask = np.zeros(self.actions, bool)
        mask[list(found)] = True
        return mask

    def _not_finite(self) -> EpisodeFailure:
        return EpisodeFailure(
            boundary="engine",
            where=f"policy {self.name}, version {self.version}",
            what="the network's logits are not finite.",
            remedy="Check that the vector of the observation is finite. If it is, lower the learning rate.",
        )

    def clone(self) -> NetworkPolicy:
        """A copy of the policy with its own weights."""
        other = copy.copy(self)
        other.module = copy.deepcopy(self.module)
        other._batcher = TurnBatcher(other)
        return other

    def weights_changed(self, version: int) -> None:
        """Set the version of the weights. Training calls this after each update."""
        self.version = version

    # ---- training -----------------------------------------------------------------------------------------
    def collate(self, rows: Sequence[Row], *, temperature: float) -> NetworkSamples:
        """Make training samples: one per step, or with memory one per agent and episode.

        With memory, dropped rows are read, but not trained on.
        """
        return collate(self, rows, temperature=temperature, chained=self._options["body"] == "gru")

    @property
    def outputs(self) -> frozenset[str]:  # type: ignore[override]
        """The outputs that `forward` can give: the names of `token_outputs`, and "value" with a critic."""
        return frozenset({*self.token_outputs, *(("value",) if self.has_critic else ())})

    def forward(self, samples: NetworkSamples, which: Sequence[int], outputs: Collection[str]) -> PolicyOutputs:
        """Compute outputs for the actions of these samples, with gradient.

        Args:
            samples: from `collate`.
            which: indices of the samples to read.
            outputs: names from `self.outputs`. "bootstrap_value" also gives the value after samples that were cut off.

        Raises: ContractError, for an output that the policy does not have.
        """
        refuse_unknown_outputs(outputs, self)
        batch = samples.batch(which, device=self.device)
        logits, value = self.module.read(batch.vectors, batch.lengths, values=self.has_critic and "value" in outputs)
        logits = logits[batch.taken].float() / (samples.temperature or 1.0)
        logprobs = torch.log_softmax(masked(logits, batch.legal), -1)
        wanted = [name for name in self.token_outputs if name in outputs]
        out = PolicyOutputs(
            columns=token_columns(self.token_outputs, logprobs, batch.actions, wanted, policy=self.name)
        )
        if value is not None:
            out.columns["value"] = value[batch.taken]
            if "bootstrap_value" in outputs:
                last = value[batch.lengths.cumsum(0) - 1]
                out.bootstrap_value = torch.where(batch.has_next, last, torch.nan)
        return out

    # ---- files --------------------------------------------------------------------------------------------
    def architecture(self) -> dict[str, Any]:
        """The values that must be equal before weights are loaded."""
        return {
            "kind": "network",
            "size": self.size,
            "actions": self.actions,
            **self._options,
            "hidden": list(self._options["hidden"]),
        }

    def save(self, folder: str) -> None:
        """Write `network.json` and `network.safetensors` into a folder. The option `model` reads them."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        (path / ARCHITECTURE).write_text(json.dumps(self.architecture(), indent=1))
        save_weights({key: value.contiguous() for key, value in self.module.state_dict().items()}, path / WEIGHTS)


# ---- sessions ---------------------------------------------------------------------------------------------
class Question(NamedTuple):
    """A session's request for an action: its vector, the legal actions (None: all) and the seed of the draw."""

    session: NetworkSession
    vector: np.ndarray
    legal: np.ndarray | None
    seed: int


class Batcher(Protocol):
    """Answers the questions of several sessions together."""

    async def ask(self, question: Question) -> Action: ...


@dataclass(slots=True, eq=False)
class NetworkSession(Session):
    """The session of one agent in one episode, with the memory of the network."""

    policy: NetworkPolicy
    sampling: Sampling
    memory: Tensor | None
    batcher: Batcher

    async def act(self, observation: Observation, *, seed: int) -> Response:
        """Choose an action. All sessions that wait for this policy share one forward pass.

        Raises: EpisodeFailure, if the observation has no fitting vector or the logits are not finite.
        """
        vector, legal = self.policy.vector(observation), self.policy.legal(observation)
        action = await self.batcher.ask(Question(self, vector, legal, seed))
        return Response(action=action, version=self.policy.version)

    def record(self, observation: Observation, action: Action) -> Response:
        """Take a given action. Its index becomes the token, and the memory is updated as after an act."""
        index = _index_of(action, observation, self.policy)
        if self.memory is not None:
            vectors = self.policy.vector(observation)[None]
            self.memory = self.policy.act_batch(vectors, [0], memory=self.memory).memory
        taken = Action(text=action.text, value=action.value, tokens=np.array([index], np.int32), finish=action.finish)
        return Response(action=taken, version=self.policy.version)

    def fork(self, key: Hashable) -> NetworkSession:
        """A copy with the same memory. Both can share the tensor, since an act replaces it and never changes it."""
        return replace(self)

    def remembers(self) -> bool:
        """Whether the network has a memory."""
        return self.memory is not None

    def end(self, observation: Observation | None) -> None:
        """Return None: no prompt is needed, since training reads the observation itself."""


@dataclass(slots=True, eq=False)
class TurnBatcher:
    """Collects questions and answers them together, as soon as one turn of the event loop brings no new question."""

    policy: NetworkPolicy
    loop: asyncio.AbstractEventLoop | None = None
    waiting: list[tuple[Question, asyncio.Future[Action]]] = field(default_factory=list)
    counted: int = 0

    async def ask(self, question: Question) -> Action:
        loop = asyncio.get_running_loop()
        if loop is not self.loop:  # questions of an interrupted loop need no answer
            self.loop, self.waiting = loop, []
        future: asyncio.Future[Action] = loop.create_future()
        self.waiting.append((question, future))
        if len(self.waiting) == 1:
            self.counted = 0
            loop.call_soon(self._turn, loop)
        return await future

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if len(self.waiting) > self.counted:
            self.counted = len(self.waiting)
            loop.call_soon(self._turn, loop)
            return
        asked = [(question, future) for question, future in self.waiting if not future.done()]
        self.waiting, self.loop = [], None  # hold no loop between batches, so that the policy can be copied
        try:
            answers: Sequence[Action | Exception] = self.policy.answer([question for question, _ in asked])
        except Exception as error:  # goes to the episodes that asked, not to the loop's error handler
            answers = [error] * len(asked)
        for (_, future), answer in zip(asked, answers, strict=True):
            future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(answer)


def _at_least(rows: Tensor, count: int) -> Tensor:
    return rows if len(rows) >= count else torch.nn.functional.pad(rows, (0, 0, 0, count - len(rows)))


# ---- refusals ---------------------------------------------------------------------------------------------
def _index_of(action: Action, observation: Observation, policy: NetworkPolicy) -> int:
    value = action.value if action.value is not None else action.text
    if isinstance(value, str) and observation.legal and value in observation.legal:
        # A text has an index only if the list holds all actions, in their fixed order.
        value = list(observation.legal).index(value) if len(observation.legal) == policy.actions else value
    if isinstance(value, int | np.integer) or (isinstance(value, str) and value.isdigit()):
        if 0 <= int(value) < policy.actions:
            return int(value)
    raise EpisodeFailure(
        boundary="engine",
        where=f"policy {policy.name}",
        what=f"the given action {value!r} is not an index from 0 to {policy.actions - 1}.",
        remedy="Give the index of the action as `Action.value`.",
    )


def _refuse_missing_sizes(source: Any, vector_size: int | None, action_count: int | None, *, where: str) -> None:
    if vector_size is None or action_count is None:
        if vector_size is not None and has(source, "box"):
            raise RecipeError(
                where=where,
                what="a network policy chooses actions by index, and this environment takes vectors as actions.",
                remedy="Use a policy for vectors, such as `sac_actor` with the learner `sac` (`palaestra train sac`).",
            )
        lacks = "vectors" if vector_size is None else "fixed number of actions"
        raise RecipeError(
            where=where,
            what=f"a network policy reads vectors and chooses actions by index, and the environment has no {lacks}.",
            remedy="Give `Observation.vector` and a fixed number of actions, or use the policy `language`.",
        )


def _stored_options(folder: str, size: int, actions: int) -> dict[str, Any]:
    """The options of a network that `save` wrote. Raises: CheckpointError, if there is none, or one of other sizes."""
    file = Path(folder) / ARCHITECTURE
    if not file.exists():
        raise CheckpointError(where=folder, what=f"it holds no network policy: there is no file {ARCHITECTURE}.")
    stored = stored_architecture(file, NetworkPolicy, sizes=("size", "actions"), options=OPTIONS)
    there = stored["size"], stored["actions"]
    if there != (size, actions):
        raise CheckpointError(
            where=folder,
            what=f"its network has vectors of {there[0]} numbers and {there[1]} actions; the environment has {size} "
            f"numbers and {actions} actions.",
            remedy="Use it with the environment that it was trained in.",
        )
    refuse_small(Path(folder) / WEIGHTS, (size, *stored["hidden"], actions))
    return {key: stored[key] for key in OPTIONS}
