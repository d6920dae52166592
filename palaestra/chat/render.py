"""Renderers, which turn instructions, observations and actions into token ids, one turn at a time."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from palaestra.chat.quoting import Quoting
from palaestra.data import Observation
from palaestra.errors import EpisodeFailure, InvalidData
from palaestra.models.tokenizer import ACTION, END, OBSERVATION


class Renderer(Protocol):
    """What contexts need: ids of an instruction, an observation and a given action, and the text of sampled ids."""

    instructed: bool  # whether a role's instruction is the environment's, unless the recipe says otherwise
    stop: tuple[int, ...]

    def instruction(self, text: str) -> np.ndarray: ...
    def observation(self, observation: Observation, *, first: bool) -> np.ndarray: ...
    def action(self, text: str) -> np.ndarray: ...
    def text(self, ids: np.ndarray) -> str: ...


def renderer_for(tokenizer: Any) -> Renderer:
    """The renderer for a tokenizer: by tags if it has them as single ids, else by its chat template.

    Raises: InvalidData, for a tokenizer with neither.
    """
    if OBSERVATION in tokenizer.get_vocab():
        return TagRenderer(tokenizer)
    if getattr(tokenizer, "chat_template", None):
        return ChatRenderer(tokenizer)
    raise InvalidData(
        where="policy language",
        what="the tokenizer has neither the tags <|observation|>, <|action|>, <|end|> nor a chat template.",
        remedy="Use an instruction-tuned model, or set `tokenizer.chat_template` before saving the folder.",
    )


def _text_of(observation: Observation) -> str:
    if observation.text is not None:
        return observation.text
    if observation.messages:
        return "\n".join(message["content"] for message in observation.messages)
    raise EpisodeFailure(
        boundary="environment",
        where="contexts",
        what="an observation has neither `text` nor `messages`, so a language policy cannot read it.",
        remedy="Fill `Observation.text`, or use a network policy, which reads `vector`.",
    )


class TagRenderer:
    """Writes `instruction <|observation|> text <|action|>` … `<|end|>`, with three tags and without roles."""

    instructed = False

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab()
        self._open, self._close, self._end = (vocabulary[tag] for tag in (OBSERVATION, ACTION, END))
        self.stop: tuple[int, ...] = (self._end,)
        # A tag in the text of an observation stays text, so environments cannot forge turns. This needs a copy, because
        # each call of the tokenizer itself resets `encode_special_tokens`.
        self._plain = copy.deepcopy(tokenizer.backend_tokenizer)
        self._plain.encode_special_tokens = True
        self._encode = lru_cache(maxsize=50_000)(self._encode_plain)

    def _encode_plain(self, text: str) -> tuple[int, ...]:
        # A leading space makes the first word the same token as in the middle of a text.
        return tuple(self._plain.encode(" " + text.strip(), add_special_tokens=False).ids)

    def instruction(self, text: str) -> np.ndarray:
        return np.array(self._encode(text), np.int32)

    def observation(self, observation: Observation, *, first: bool) -> np.ndarray:
        return np.array([self._open, *self._encode(_text_of(observation)), self._close], np.int32)

    def action(self, text: str) -> np.ndarray:
        return np.array([*self._encode(text), self._end], np.int32)

    def text(self, ids: np.ndarray) -> str:
        kept = [int(i) for i in ids if i != self._end]
        return str(self._tokenizer.decode(kept, skip_special_tokens=True)).strip()


class ChatRenderer:
    """Writes turns by the model's own chat template, one after the other.

    The ids of a later turn are the difference between the template's text for a short dialogue with the turn and
    without it, so earlier ids never change. Special tokens come from the template alone; their strings in a message
    stay text.

    Raises: InvalidData, if the template does not extend a dialogue by appending.
    """

    instructed = True

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.stop: tuple[int, ...] = (int(tokenizer.eos_token_id),)
        self._next = lru_cache(maxsize=50_000)(self._next_plain)
        self._seed = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        written = tokenizer.apply_chat_template(self._seed, tokenize=False, add_generation_prompt=False)
        self._quoting = Quoting(tokenizer, template=str(written))
        self._base = self._template(self._seed, prompt=False)
        # After the reply, the template may write an end of the turn, often a newline. It belongs to the next prompt.
        self._closing = self._base[self._base.rindex("y") + 1 :]
        self._closing = self._closing.removeprefix(self._quoting.own(tokenizer.eos_token or ""))
        self._next_plain("x")

    def _template(self, messages: list[dict[str, str]], *, prompt: bool) -> str:
        """The template's text for a dialogue, in the form that `_ids` reads (see `Quoting`)."""
        quoted = self._quoting.quote(messages)
        return self._quoting.own(
            str(self._tokenizer.apply_chat_template(quoted, tokenize=False, add_generation_prompt=prompt))
        )

    def _ids(self, text: str) -> np.ndarray:
        return np.array(self._quoting.ids(text), np.int32)

    def instruction(self, text: str) -> np.ndarray:
        """The ids of a system message: those of a dialogue that begins with it, without the first turn.

        Raises: InvalidData, if the template has no system message or mixes it with the first turn.
        """
        messages, turn = [{"role": "system", "content": text}, {"role": "user", "content": "x"}], self._opening("x")
        try:
            whole = self._template(messages, prompt=True)
        except Exception as error:  # a template may refuse a role by any exception
            raise _no_instruction(f"it refuses a system message ({error})") from error
        if not whole.endswith(turn):
            raise _no_instruction("a system message changes the turn after it")
        return self._ids(whole.removesuffix(turn))

    def _opening(self, text: str) -> str:
        """The text of a turn after which the policy speaks, without the end of the turn before."""
        return self._next(text).removeprefix(self._closing)

    def observation(self, observation: Observation, *, first: bool) -> np.ndarray:
        if not first:
            return self._ids(self._next(_text_of(observation)))
        if observation.instruction:  # `instruction` has written the head of the segment
            return self._ids(self._opening(_text_of(observation)))
        messages = [dict(m) for m in observation.messages or ()] or [{"role": "user", "content": _text_of(observation)}]
        return self._ids(self._template(messages, prompt=True))

    def _next_plain(self, text: str) -> str:
        longer = self._template([*self._seed, {"role": "user", "content": text}], prompt=True)
        if not longer.startswith(self._base):
            raise InvalidData(
                where="policy language",
                what="the chat template rewrites earlier turns, so token-exact multi-turn training is impossible.",
                remedy="Use the context `latest_only`, or a template that only appends.",
            )
        return self._closing + longer[len(self._base) :]

    def action(self, text: str) -> np.ndarray:
        return np.append(self._ids(self._quoting.quote(text)), np.int32(self.stop[0])).astype(np.int32)

    def text(self, ids: np.ndarray) -> str:
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)).strip()


def head_of(renderer: Renderer, observation: Observation) -> np.ndarray:
    """The ids at the head of a segment: those of the instruction, if there is one."""
    return renderer.instruction(observation.instruction) if observation.instruction else np.zeros(0, np.int32)


def _no_instruction(fault: str) -> InvalidData:
    return InvalidData(
        where="policy language",
        what=f"the chat template cannot put an instruction before the first turn: {fault}.",
        remedy="Use a model whose template takes system messages, or put the instruction into the observations.",
    )
