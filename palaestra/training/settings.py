"""The settings of a run: the sections, keys and defaults of a recipe.

The options of a part are not listed here, since the part's signature is their schema. This module does not import
torch, so that a recipe can be explained without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

import pydantic

from palaestra.bound import BoundPart
from palaestra.options import Aggregation
from palaestra.registry import Fraction, NonNegative, Positive, PositiveInt, Section
from palaestra.rollout.settings import RolloutSettings

NEED_CONSTANT = ("sequence-sum-norm", "constant-length")  # values of `aggregate.how` that divide by a constant


def _around_text(prompt: str) -> str:
    """Refuse a prompt without the place of the observation. Raises: ValueError."""
    if "{text}" not in prompt:
        raise ValueError("a prompt must contain {text}, the place of the observation")
    return prompt


Prompt = Annotated[str, pydantic.AfterValidator(_around_text)]


class ToolSettings(Section):
    """What one role alone may call, and how."""

    IGNORES_IF = {"use=[]": ("format", "rounds", "max_calls", "max_chars", "repeat")}

    use: list[BoundPart] = []
    format: Literal["json", "tagged", "code", "words"] = "json"
    rounds: PositiveInt = 2  # how often in a row calls are answered; what it says then is its response
    max_calls: PositiveInt | None = None  # of an episode
    max_chars: PositiveInt = 1000  # of a result
    repeat: bool = False  # what it was shown stands above each result: for contexts that show the latest only


class RoleSettings(Section):
    """One role: which policy plays it, what it is shown, how it speaks and how that is read."""

    policy: str = "main"
    context: BoundPart = BoundPart(name="full_history")
    prompt: Prompt | None = None  # stands around whatever it is shown, "{text}"; "{tools}" explains its tools
    parser: BoundPart | None = None  # what its responses mean, in place of the program's own
    tools: ToolSettings = ToolSettings()
    acts_for: str | None = None  # the environment's agent that it acts for; None: the only one
    frozen: bool = False  # its acts are never learned from; those of other roles of its policy are
    temperature: NonNegative | None = None  # these four: None as in `rollout`; no temperature counts in evaluations
    top_k: Annotated[int, pydantic.Field(ge=0)] | None = None
    top_p: Annotated[float, pydantic.Field(gt=0, le=1)] | None = None
    response_tokens: PositiveInt | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """What of its sampling is its own."""
        own = {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        return {name: value for name, value in {**own, "max_tokens": self.response_tokens}.items() if value is not None}


class PolicySettings(Section):
    """One policy; what is left out comes from the recipe's top level."""

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
    every: PositiveInt = 1  # learn in each so-many-th iteration only
    reference: Literal["start"] | None = None
    load: str | None = None  # a folder written by `palaestra export` or a checkpoint's policy folder


class WarmStartSettings(Section):
    """Behavior cloning from the environment's expert before reinforcement learning."""

    episodes: PositiveInt = 256
    epochs: PositiveInt = 2
    batch_tokens: PositiveInt = 4096
    guidance: Fraction = 0.0  # share of episodes under the environment's guidance, so that policies know what it means
    noise: Fraction = 0.0  # share of expert actions exchanged for a random legal one in the environment
    frozen: bool = False  # clone policies too that are not trained afterwards
    keep: str | None = None  # folder for the clones: a run that begins alike takes them instead of cloning again
    optimizer: BoundPart = BoundPart(name="adamw", options={"lr": 1e-3})


class AggregateSettings(Section):
    """How per-token losses become one number."""

    IGNORES_IF = {f"how={how}": ("constant",) for how in get_args(Aggregation) if how not in NEED_CONSTANT}

    how: str = "token-mean"
    constant: Positive | None = None


class TrainingSettings(Section):
    """The loop."""

    IGNORES_IF = {"max_staleness=0": ("stale",)}

    iterations: PositiveInt = 100
    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1
    token_budget: PositiveInt = 8192  # tokens the model reads at once, padding included
    checkpoint_every: PositiveInt | None = None  # iterations; None: only at the end
    keep_checkpoints: PositiveInt = 2
    max_failed: Fraction = 0.5  # a larger share of failed episodes in one iteration stops the run
    max_empty: PositiveInt = 20  # iterations in a row without any learning signal before the run stops
    stop_at: float | None = None  # stop when an evaluation's success (or return) reaches this
    save_episodes: Annotated[int, pydantic.Field(ge=0)] = 4  # episodes kept as text each evaluation
    shard: bool = False  # of several processes, each holds a slice of weights, gradients and optimizer state (FSDP2)
    stop_kl: Positive | None = None  # end an iteration's updates once policy/kl is larger
    agent_gradients: bool = False  # log the gradient norm of each agent's share; costs a pass per agent
    threads: PositiveInt | None = None
    max_staleness: Annotated[int, pydantic.Field(ge=0)] = 0  # batches that are played ahead of the updates; 0: none
    stale: Literal["wait", "drop"] = "wait"  # for the slowest episode of a batch, or take what is done and drop the old
    lag: Annotated[int, pydantic.Field(ge=0)] = 0  # act with weights this many updates old, to study what it does
    actor_noise: NonNegative = 0.0  # act with weights this much off, as a share of their deviation; likewise


class EvaluationSettings(Section):
    """Evaluations while a run trains, and at its ends."""

    environment: BoundPart | None = None  # default: the training environment
    panel: str | None = None  # a committed panel; None: the first `tasks` of split "eval"
    tasks: PositiveInt = 256
    every: PositiveInt | None = None  # iterations; None: before and after
    temperature: NonNegative = 0.0
    metric: Literal["success", "return"] = "success"


class RunSettings(Section):
    """A whole recipe."""

    name: str = "run"
    seed: int = 0
    run: str | None = None  # run folder; default runs/<name>
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"  # of the policies' weights
    strict: bool = False  # refuse what else has a silent default: lone peers, rows that occur twice
    environment: BoundPart
    program: BoundPart = BoundPart(name="play")
    agents: dict[str, RoleSettings] = {"*": RoleSettings()}
    policies: dict[str, PolicySettings]
    engine: BoundPart = BoundPart(name="in_process")  # what generates for policies of tokens
    reference: Literal["start"] | None = None  # weights that KL terms refer to: those after the warm start
    warm_start: WarmStartSettings | None = None
    experience: BoundPart = BoundPart(name="rollout")
    sampler: BoundPart = BoundPart(name="uniform")
    strategy: list[
        BoundPart
    ] = []  # what stands between the plays of an iteration and its trajectories, outermost first
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

    _other_role: RoleSettings = pydantic.PrivateAttr(default_factory=RoleSettings)  # of agents that no key names

    def role(self, agent: str) -> RoleSettings:
        """The settings of one role: its own, else those of `*`."""
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
        """Those of these policies that improve in iteration `step`, counted from 0; some wait several."""
        return [name for name in policies if (step + 1) % self.policies[name].every == 0]


# Where parts stand in a recipe: path → slot; a list in the model means that a list is allowed.
PART_SLOTS: dict[str, str] = {
    "rollout.runner": "rollout",
    "environment": "environment",
    "program": "program",
    "agents.*.context": "context",
    "agents.*.parser": "parser",
    "agents.*.tools.use": "tool",
    "policies.*.policy": "policy",
    "policies.*.optimizer": "optimizer",
    "policies.*.loss": "loss",
    "policies.*.regularizers": "regularizer",
    "engine": "engine",
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
