"""The settings of a run: the sections, keys and defaults of a recipe.

The options of a part are not listed here, since the part's signature is their schema. This module does not import
torch, so that a recipe can be explained without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

import pydantic

from palaestra.registry import Count, Fraction, NonNegative, Positive, PositiveInt, Section
from palaestra.registry.bound import BoundPart, bind
from palaestra.registry.options import Aggregation
from palaestra.rollout.settings import RolloutSettings

TOKEN_BUDGET = 8192  # of models that are made on the spot, and the most that the start of a run chooses
BUDGET = "training.token_budget"
CHOSEN = "chosen at the start"  # the origin of a value that the recipe leaves to the run
NEED_CONSTANT = ("sequence-sum-norm", "constant-length")  # values of `aggregate.how` that divide by a constant


def _around_text(prompt: str) -> str:
    """Refuse a prompt without the place of the observation. Raises: ValueError."""
    if "{text}" not in prompt:
        raise ValueError("a prompt must contain {text}, the place of the observation")
    return prompt


Prompt = Annotated[str, pydantic.AfterValidator(_around_text)]


class ToolSettings(Section):
    """The tools that only this role may call, and the limits of its calls."""

    IGNORES_IF = {"use=[]": ("format", "rounds", "max_calls", "max_chars", "repeat"), "native=True": ("format",)}

    use: list[BoundPart] = []
    format: Literal["json", "tagged", "code", "words"] = "json"  # how the role writes a call
    native: bool = False  # the chat template declares the tools, those of the environment too, and writes calls
    rounds: PositiveInt = 2  # most texts in a row whose calls are answered; the next text is the response
    max_calls: PositiveInt | None = None  # in one episode; None: no limit
    max_chars: PositiveInt = 1000  # of one result
    repeat: bool = False  # show the observation and the calls so far above each result, for contexts without history


class RoleSettings(Section):
    """One role: its policy, its context, its prompt, its tools, and how its responses are sampled and read."""

    policy: str = "main"
    context: BoundPart = BoundPart(name="full_history")
    prompt: Prompt | None = None  # a text around each observation; "{text}" is the observation, "{tools}" its tools
    instruction: str | None = None  # "environment", "none" or a text; None: by the policy
    reader: BoundPart = BoundPart(name="bare")  # what of its replies is the act
    parser: BoundPart | None = None  # reads its responses, in place of the program's own parser
    tools: ToolSettings = ToolSettings()
    acts_for: str | None = None  # the environment's agent that it acts for; None: the only one
    frozen: bool = False  # its acts are never learned from; acts of other roles of its policy may be
    # None in the next four: the value of `rollout`. Evaluations use none of these temperatures.
    temperature: NonNegative | None = None
    top_k: Annotated[int, pydantic.Field(ge=0)] | None = None
    top_p: Annotated[float, pydantic.Field(gt=0, le=1)] | None = None
    response_tokens: PositiveInt | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """The options of sampling that this role sets itself."""
        own = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        return {name: value for name, value in {**own, "max_tokens": self.response_tokens}.items() if value is not None}


def default_role(policy: str = "main") -> RoleSettings:
    """The settings of a role of which a recipe says nothing, with bound parts."""
    unbound = RoleSettings()
    return RoleSettings(policy=policy, context=bind("context", unbound.context), reader=bind("reader", unbound.reader))


class PolicySettings(Section):
    """One policy. The keys that are left out have the values of the recipe's top level."""

    IGNORES_IF = {
        "trainable=False": ("optimizer", "loss", "regularizers", "epochs", "minibatches", "every", "reference")
    }

    policy: BoundPart
    trainable: bool = True
    optimizer: BoundPart | None = None
    loss: BoundPart | None = None
    regularizers: list[BoundPart] | None = None
    epochs: PositiveInt | None = None
    minibatches: PositiveInt | None = None
    every: PositiveInt = 1  # 2: learn only in every second iteration
    reference: Literal["start"] | None = None
    load: str | None = None  # folder with weights: written by `palaestra export`, or a policy's folder in a checkpoint


class WarmStartSettings(Section):
    """Behavior cloning from the environment's expert, or from a teacher, before reinforcement learning."""

    IGNORES_IF = {"teacher": ("noise", "guidance"), "teacher=None": ("least",)}

    teacher: BoundPart | None = None  # a policy that answers in words; its successful episodes are cloned
    least: float = 1.0  # least outcome of an episode of the teacher that is cloned
    episodes: Count = 256
    epochs: PositiveInt = 2
    batch_tokens: PositiveInt = 4096
    guidance: Fraction = 0.0  # share of episodes with the environment's guidance, so that policies learn to use it
    noise: Fraction = 0.0  # share of expert actions that a random legal action replaces
    frozen: bool = False  # clone also policies that are not trained afterwards
    keep: str | None = None  # folder for the cloned weights; a run with the same warm start loads them from there
    optimizer: BoundPart = BoundPart(name="adamw", options={"lr": 1e-3})


class AggregateSettings(Section):
    """How the losses of tokens become one number."""

    IGNORES_IF = {f"how={how}": ("constant",) for how in get_args(Aggregation) if how not in NEED_CONSTANT}

    how: str = "token-mean"
    constant: Positive | None = None


class TrainingSettings(Section):
    """The training loop: its length, its updates, its limits and its checkpoints."""

    IGNORES_IF = {"max_staleness=0": ("stale",)}

    iterations: PositiveInt = 100
    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1
    # Most tokens in one pass of the model, padding included. None: `TOKEN_BUDGET`, or less for a pretrained model, as
    # the start of the run chooses by the memory that is free (palaestra.training.memory).
    token_budget: PositiveInt | None = None
    checkpoint_every: PositiveInt | None = None  # iterations; None: by time, and at the end
    keep_checkpoints: PositiveInt = 2
    max_failed: Fraction = 0.5  # a larger share of failed episodes in one iteration stops the run; 1: none
    max_empty: PositiveInt = 20  # so many iterations in a row without a learning signal stop the run
    stop_at: float | None = None  # stop once the success (or return) of an evaluation reaches this
    save_episodes: Annotated[int, pydantic.Field(ge=0)] = 4  # episodes that are kept as text at each evaluation
    shard: bool = False  # each of several processes holds a part of weights, gradients and optimizer state (FSDP2)
    stop_kl: Positive | None = None  # stop the iteration's updates once policy/kl exceeds this
    agent_gradients: bool = False  # log the gradient norm of each agent's share of the loss; costs a pass per agent
    threads: PositiveInt | None = None  # of torch; None: torch decides
    max_staleness: Annotated[int, pydantic.Field(ge=0)] = 0  # batches that are played ahead of the updates; 0: none
    stale: Literal["wait", "drop"] = "wait"  # wait for the slowest episode of a batch, or drop episodes when too old
    lag: Annotated[int, pydantic.Field(ge=0)] = 0  # act with weights that are this many updates old, for experiments
    actor_noise: NonNegative = 0.0  # act with noise on the weights, as a share of their deviation, for experiments

    @property
    def tokens_at_once(self) -> int:
        """The token budget, or the one of models that are made on the spot."""
        return self.token_budget or TOKEN_BUDGET


class EvaluationSettings(Section):
    """Evaluations before, during and after training."""

    environment: BoundPart | None = None  # None: the training environment
    panel: str | None = None  # name of a committed panel; None: the first `tasks` of the split "eval"
    tasks: Count = 256
    every: PositiveInt | None = None  # iterations; None: only before and after training
    temperature: NonNegative = 0.0
    metric: Literal["success", "return"] = "success"


class RunSettings(Section):
    """A whole recipe."""

    name: str = "run"
    seed: int = 0
    run: str | None = None  # run folder; None: runs/<name>
    device: str = "cpu"
    # Of weights; with bfloat16, updates are in float32. auto: bfloat16 if the device multiplies faster in it.
    dtype: Literal["float32", "float64", "bfloat16", "auto"] = "float32"
    strict: bool = False  # refuse cases that a default would hide: trajectories without peers, rows that occur twice
    environment: BoundPart
    program: BoundPart = BoundPart(name="play")
    agents: dict[str, RoleSettings] = {"*": RoleSettings()}
    policies: dict[str, PolicySettings]
    engine: BoundPart = BoundPart(name="in_process")  # generates for policies of tokens
    reference: Literal["start"] | None = None  # "start": KL terms refer to the weights after the warm start
    warm_start: WarmStartSettings | None = None
    experience: BoundPart = BoundPart(name="rollout")
    sampler: BoundPart = BoundPart(name="uniform")
    strategy: list[BoundPart] = []  # the first is the outermost
    rollout: RolloutSettings = RolloutSettings()
    reward: list[BoundPart] = [BoundPart(name="environment")]
    selection: list[BoundPart] = []
    advantage: list[BoundPart] = [BoundPart(name="grpo")]
    weights: list[BoundPart] = []
    learner: list[BoundPart] = [BoundPart(name="policy_gradient")]
    loss: BoundPart = BoundPart(name="ppo_clip")
    aggregate: AggregateSettings = AggregateSettings()
    regularizers: list[BoundPart] = []
    optimizer: BoundPart = BoundPart(name="adamw", options={"lr": 3e-4})
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()

    _other_role: RoleSettings = pydantic.PrivateAttr(default_factory=RoleSettings)  # for agents without a key

    def role(self, agent: str) -> RoleSettings:
        """The settings of one role: its own, those of `*`, or the defaults."""
        return self.agents.get(agent) or self.agents.get("*") or self._other_role

    @property
    def several_updates(self) -> bool:
        """Whether an iteration makes several updates, or learns from episodes of older weights."""
        training = self.training
        older = training.max_staleness + training.lag + training.actor_noise > 0
        trained = [policy for policy in self.policies.values() if policy.trainable]
        updates = [(own.epochs or training.epochs) * (own.minibatches or training.minibatches) for own in trained]
        return older or any(number > 1 for number in updates)

    def due(self, step: int, policies: Iterable[str]) -> list[str]:
        """Those of these policies that learn in iteration `step`, counted from 0 (`policies.*.every`)."""
        return [name for name in policies if (step + 1) % self.policies[name].every == 0]


# The places of parts in a recipe: path → slot. If the field in `RunSettings` is a list, the recipe may give a list.
PART_SLOTS: dict[str, str] = {
    "rollout.runner": "rollout",
    "environment": "environment",
    "program": "program",
    "agents.*.context": "context",
    "agents.*.reader": "reader",
    "agents.*.parser": "parser",
    "agents.*.tools.use": "tool",
    "policies.*.policy": "policy",
    "policies.*.optimizer": "optimizer",
    "policies.*.loss": "loss",
    "policies.*.regularizers": "regularizer",
    "engine": "engine",
    "warm_start.teacher": "policy",
    "warm_start.optimizer": "optimizer",
    "experience": "experience",
    "sampler": "sampler",
    "strategy": "strategy",
    "reward": "reward",
    "selection": "selection",
    "advantage": "advantage",
    "weights": "weights",
    "learner": "learner",
    "loss": "loss",
    "regularizers": "regularizer",
    "optimizer": "optimizer",
    "evaluation.environment": "environment",
}
