"""What passes between an agent and an environment: observations, actions, step results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from palaestra.errors import ContractError


class FinishReason(str, Enum):
    """Why one generation ended."""

    STOP = "stop"  # the policy emitted its end-of-turn token
    LENGTH = "length"  # the token limit of one generation was reached
    CONTEXT = "context"  # the prompt and the response fill the model's context
    CHOICE = "choice"  # a policy that writes no tokens chose an action


@dataclass(slots=True, kw_only=True, eq=False)
class Observation:
    """What one agent sees before it acts.

    Attributes:
        text: the observation as text. None, with an image or messages: it cannot be read without its images.
        messages: the observation as chat messages (`role`, `content`), instead of `text` or with it. Policies with a
            chat template read them in place of `text`. Messages of the role `tool` answer the calls of the last reply.
            A message of the user may have `pictures`, a tuple of uint8 arrays (height, width, 3). They stand before
            its `content`, or where the content has the character `palaestra.chat.places.PLACE`.
        vector: float32 array, for network policies.
        image: uint8 array (height, width, channels), for network policies and for language models that read pictures.
        legal: the legal actions, if they are known: texts, or indices for discrete spaces.
        state_key: equal if, and only if, the agent's situation is the same.
        instruction: the task's instruction; contexts put it at the start of each segment.
        tools: the tools that the agent may call in its reply, each as `palaestra.tools.Tool.declaration` gives it. Chat
            templates declare them to the model where the role says `tools.native`.
        manual: the part of `instruction` that explains `tools` and how to call them. It is left out where a chat
            template declares the tools, since the template says this, too.
    """

    text: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    vector: np.ndarray | None = None
    image: np.ndarray | None = None
    legal: Sequence[Any] | None = None
    state_key: str | None = None
    instruction: str | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    manual: str | None = None

    def __post_init__(self) -> None:
        found = np.asarray(self.image)
        if self.image is not None and (found.dtype != np.uint8 or found.ndim != 3):
            raise ContractError(
                where="Observation.image",
                what=f"an image is a uint8 array (height, width, channels), and this is {found.dtype} {found.shape}.",
                remedy="Convert it: `np.asarray(image, np.uint8)`, with `[:, :, None]` for one channel.",
            )


@dataclass(slots=True, kw_only=True)
class ToolCall:
    """A parsed request to run a tool."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class Action:
    """What one agent did.

    Attributes:
        text: the action as text (decoded response, end-of-turn token removed). A role's reader takes it out of `reply`.
        value: what the environment receives: a string, an index or an array. Defaults to `text`.
        tool_calls: parsed tool calls, if any.
        reply: the whole response as text, where a role's reader took `text` out of it; None: `text` is the response.
        tokens: int32 (n,), exactly the sampled response tokens, end-of-turn token included.
        logprobs: float32 (n,), log-probabilities of the distribution that was sampled from.
        entropy: float32 (n,), per-token entropy in nats, if asked for.
        versions: int32 (n,), version of the weights that drew each token; None: the step's version for all tokens.
        finish: why the generation ended.
    """

    text: str | None = None
    value: Any = None
    tool_calls: Sequence[ToolCall] = ()
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    logprobs: np.ndarray | None = None
    entropy: np.ndarray | None = None
    versions: np.ndarray | None = None
    finish: FinishReason = FinishReason.CHOICE
    reply: str | None = None

    def __post_init__(self) -> None:
        if self.value is None:
            self.value = self.text


@dataclass(slots=True, kw_only=True, eq=False)
class StepResult:
    """What `reset` and `step` of an environment return.

    Attributes:
        observations: one for each agent who acts next, and for no other; empty when the episode is over.
        rewards: reward per agent for this step; an agent that is left out gets 0.
        terminated: agents whose episode ended by the rules of the task.
        truncated: agents whose episode was cut off, for instance by a time limit; rewards could still have followed.
        last: the next observation of each truncated agent; a critic gives the bootstrap value there.
        info: JSON values. Evaluation reads `success: bool`, the raw outcome, never shaped. `invalid: {agent: True}`
            marks an action which the environment could not read. Any entry that is a dict over agents describes their
            acts of this step. `invocation` and `parent` say to which call an act belongs and in which turn that was
            made. Numbers become columns of the table, unless the library has a column of that name (`Marks`, and the
            outputs of policies).
        replaced: set by the library; how much was replaced because no file can hold it. None: not yet cleaned.
    """

    observations: Mapping[str, Observation]
    rewards: Mapping[str, float] = field(default_factory=dict)
    terminated: frozenset[str] = frozenset()
    truncated: frozenset[str] = frozenset()
    last: Mapping[str, Observation] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    replaced: Counter[str] | None = None
