"""The renderer for tokenizers with three tags, without a chat template, and the text of an observation."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palaestra.chat.lengths import Encoder, decoded, remembered
from palaestra.chat.reply_calls import calls_of
from palaestra.chat.template_tools import call_in_words
from palaestra.data import Observation, ToolCall
from palaestra.errors import EpisodeFailure
from palaestra.models.pictures import PictureReader
from palaestra.models.tokenizer import ACTION, END, OBSERVATION
from palaestra.tools.calls import Parsed

Tools = Sequence[Mapping[str, Any]]  # as `palaestra.tools.Tool.declaration` gives them
BLIND = "the model reads no pictures"


def text_of(observation: Observation, *, blind: str = BLIND) -> str:
    """The text of an observation.

    Args:
        blind: why the policy reads no images.

    Raises: EpisodeFailure (boundary "environment"), without a text, and for messages that need their images.
    """
    if observation.text is not None:
        return observation.text
    refuse_images(observation, f"the policy cannot read it: {blind}")
    if observation.messages:
        return "\n".join(message["content"] for message in observation.messages)
    raise EpisodeFailure(
        boundary="environment",
        where="contexts",
        what="an observation has neither `text` nor `messages`, so a language policy cannot read it.",
        remedy="Fill `Observation.text`, or use a network policy, which reads `vector`.",
    )


def refuse_images(observation: Observation, why: str) -> None:
    """Refuse an observation without a text whose images nobody reads. With a text, it can be read without them.

    Raises: EpisodeFailure (boundary "environment").
    """
    inside = any(message.get("pictures") for message in observation.messages or ())
    if observation.text is not None or (observation.image is None and not inside):
        return
    has = "has images in its messages" if observation.messages else "is an image without a text"
    raise EpisodeFailure(
        boundary="environment",
        where="contexts",
        what=f"an observation {has}, and {why}.",
        remedy="Use a vision–language model, or a network policy, or let the environment fill `Observation.text`.",
    )


class TagRenderer:
    """Writes `instruction <|observation|> text <|action|>` … `<|end|>`, with three tags and without roles."""

    instructed = False
    pictures: PictureReader | None = None

    def __init__(self, tokenizer: Any, *, blind: str = BLIND) -> None:
        self._tokenizer, self.blind = tokenizer, blind
        vocabulary = tokenizer.get_vocab()
        self._open, self._close, self._end = (vocabulary[tag] for tag in (OBSERVATION, ACTION, END))
        self.stop: tuple[int, ...] = (self._end,)
        # A tag in the text of an observation stays text, so environments cannot forge turns. This needs a copy, because
        # each call of the tokenizer itself resets `encode_special_tokens`.
        plain = copy.deepcopy(tokenizer.backend_tokenizer)
        plain.encode_special_tokens = True
        self.encoder = Encoder(plain)
        self._encode = remembered(self._encode_plain)

    def _encode_plain(self, text: str) -> tuple[int, ...]:
        # A leading space makes the first word the same token as in the middle of a text.
        return tuple(self.encoder.encode(" " + text.strip()).ids)

    def instruction(self, text: str) -> np.ndarray:
        return np.array(self._encode(text), np.int32)

    def observation(self, observation: Observation, *, first: bool) -> np.ndarray:
        return np.array([self._open, *self._encode(text_of(observation, blind=self.blind)), self._close], np.int32)

    def action(self, text: str, *, prompt: np.ndarray | None = None) -> np.ndarray:
        return np.array([*self._encode(text), self._end], np.int32)

    def call(
        self, calls: Sequence[ToolCall], tools: Tools, *, said: str = "", prompt: np.ndarray | None = None
    ) -> np.ndarray:
        return self.action("\n".join(filter(None, [said, *map(call_in_words, calls)])))

    def text(self, ids: np.ndarray, *, tools: Tools = (), prompt: np.ndarray | None = None) -> str:
        return decoded(self._tokenizer, (i for i in ids if i != self._end), special=False).strip()

    def calls(self, reply: str, tools: Tools) -> Parsed:
        return calls_of(reply, tools)
