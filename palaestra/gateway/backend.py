"""What answers the requests of a server: served models, or an episode in training."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from palaestra.gateway.replies import Delta, Reply
from palaestra.gateway.requests import ChatBody, CompletionBody
from palaestra.gateway.sizes import Sizes

Event = tuple[int, Delta | Reply]  # the number of a choice, and what is new of it; a reply ends the choice


class Backend(Protocol):
    """Gives the replies. Its methods are called in the event loop of the server."""

    def names(self) -> Sequence[str]:
        """The models, by the names that requests use."""
        ...

    def sizes(self) -> Sizes:
        """The most of a prompt; of several models, that of the one that takes most."""
        ...

    def chat(self, body: ChatBody) -> AsyncIterator[Event]:
        """The next message of a chat, in `body.sampled.n` choices. Deltas come only if `body.sampled.stream` is true.

        Raises: Refusal.
        """
        ...

    def complete(self, body: CompletionBody) -> AsyncIterator[Event]:
        """Continuations of each prompt. The choices of the first prompt have the first numbers.

        Raises: Refusal.
        """
        ...
