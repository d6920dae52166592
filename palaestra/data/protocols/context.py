"""What a role reads: contexts, and the conversations that they start."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from palaestra.data.interaction import Observation
from palaestra.data.trajectory import Picture


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
