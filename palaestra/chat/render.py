"""Renderers, which turn instructions, observations and actions into token ids, one turn at a time."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np

from palaestra.chat.quoting import Quoting
from palaestra.data import Observation
from palaestra.errors import EpisodeFailure, InvalidData
from palaestra.models.tokenizer import ACTION, END, OBSERVATION

SAID = "Zq7reply7qZ"  # a reply that occurs nowhere else in what a template writes
PAST = ({"role": "user", "content": "x"}, {"role": "assistant", "content": SAID})
THOUGHT_TAGS = ("<think>", "</think>")
TAGS = re.compile(r"(</?think>)")
CHANNEL = "<|channel|>"  # gpt-oss writes thoughts and answers into channels


class Renderer(Protocol):
    """What contexts need: ids of an instruction, an observation and a given action, and the text of sampled ids."""

    instructed: bool  # whether a role's instruction is the environment's, unless the recipe says otherwise
    stop: tuple[int, ...]

    def instruction(self, text: str) -> np.ndarray: ...
    def observation(self, observation: Observation, *, first: bool) -> np.ndarray: ...
    def action(self, text: str) -> np.ndarray: ...
    def text(self, ids: np.ndarray) -> str: ...


def renderer_for(tokenizer: Any, *, stop: Iterable[int] = ()) -> Renderer:
    """The renderer for a tokenizer: by tags if it has them as single ids, else by its chat template.

    Args:
        stop: further ids that end a reply, of the model's generation config.

    Raises: InvalidData, for a tokenizer with neither.
    """
    if OBSERVATION in tokenizer.get_vocab():
        return TagRenderer(tokenizer)
    if getattr(tokenizer, "chat_template", None):
        return ChatRenderer(tokenizer, stop=stop)
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


def end_ids(model: Any) -> tuple[int, ...]:
    """The ids at which a model's generation config ends a reply."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return () if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (int(ends),)


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
    """Writes dialogues by the model's own chat template.

    `written` renders a whole dialogue, as `Dialogue` needs it. `instruction`, `observation` and `action` give the ids
    of one turn alone, in the form that the template gives to turns of the past, for contexts that put turns together.
    Special tokens come from the template alone; their strings in a message stay text.

    Args:
        stop: further ids that end a reply, such as those of the model's generation config.

    Raises: InvalidData, if the template cannot write a dialogue of two turns.
    """

    instructed = True

    def __init__(self, tokenizer: Any, *, stop: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._next = lru_cache(maxsize=50_000)(self._next_plain)
        # Some templates of models that see images read only contents that are lists of parts.
        self._parts, written = self._form()
        self._quoting = Quoting(tokenizer, template=written)
        past = self.written([*PAST, user("x")])
        after = past[past.rindex(SAID) + len(SAID) :]
        run = self._quoting.leading(after)
        eos = tokenizer.eos_token_id
        if eos in run:
            run = run[: run.index(eos) + 1]
        self.closing: tuple[int, ...] = tuple(run if eos in run else run[:1])  # ids at the end of a reply
        vocabulary = tokenizer.get_vocab()
        self._channels = CHANNEL in vocabulary and "<|return|>" in vocabulary
        ended = [vocabulary["<|return|>"], vocabulary.get("<|call|>")] if self._channels else self.closing[-1:]
        ends = [i for i in (*ended, eos, *stop) if i is not None]
        self.stop: tuple[int, ...] = tuple(dict.fromkeys(int(i) for i in ends))
        self._closing = self.closed(len(self.closing))
        self._system = self._has_system()

    def _form(self) -> tuple[bool, str]:
        """Whether contents are lists of parts, and a dialogue as text."""
        fault = ""
        for parts in (False, True):
            dialogue = [_in_parts(message) if parts else message for message in [*PAST, user("x")]]
            try:
                written = str(self._tokenizer.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True))
            except Exception as error:  # a template may raise anything
                fault = f"{type(error).__name__}: {error}"
                continue
            if SAID in written:
                last = str(self._tokenizer.apply_chat_template(dialogue[:2], tokenize=False))
                return parts, written + last
            fault = "it leaves out the reply"
        raise InvalidData(
            where="policy language",
            what=f"the chat template cannot write a second turn after a reply: {fault}.",
            remedy="Set `tokenizer.chat_template` to a template that writes dialogues, and save the folder anew.",
        )

    def _has_system(self) -> bool:
        try:
            return SAID in self.written([{"role": "system", "content": SAID}, user("x")])
        except Exception:  # a template may refuse a role by any exception
            return False

    def written(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The template's text for a dialogue after which the policy speaks, in the form that `ids` reads.

        Replies may have thoughts in `<think>` tags, which the template keeps or leaves out.
        """
        quoted = [self._quoted(message) for message in messages]
        if self._parts:
            quoted = [_in_parts(message) for message in quoted]
        return self._quoting.own(
            str(self._tokenizer.apply_chat_template(quoted, tokenize=False, add_generation_prompt=True))
        )

    def _quoted(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message["role"] == "assistant":
            return {name: said if name == "role" else self.quoted_reply(said) for name, said in message.items()}
        return dict(self._quoting.quote(dict(message)))

    def quoted_reply(self, reply: str) -> str:
        """A reply in which the tags of its thoughts are the only special tokens."""
        return "".join(one if one in THOUGHT_TAGS else self._quoting.quote(one) for one in TAGS.split(reply))

    def as_written(self, reply: str) -> str:
        """A reply in the form that `written` gives it, if the template does not change it."""
        return self._quoting.own(self.quoted_reply(reply))

    def closed(self, count: int) -> str:
        """The text of the first `count` ids of `closing`, in the form of `written`."""
        return self._quoting.named(self.closing[:count])

    def thinking(self, written: str) -> bool:
        """Whether a prompt ends inside a thought, which the template has opened."""
        return written.rstrip().endswith(self._quoting.own("<think>"))

    def ids(self, text: str) -> np.ndarray:
        """The ids of a text that `written` gave, or of a part of it."""
        return np.array(self._quoting.ids(text), np.int32)

    def opening(self, instruction: str | None, observation: Observation) -> list[dict[str, Any]]:
        """The messages of a first turn."""
        messages = [dict(m) for m in observation.messages or ()] or [user(_text_of(observation))]
        return self.led(instruction, messages)

    def led(self, instruction: str | None, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A dialogue with its instruction. Without a system role, it stands before the first message."""
        if not instruction:
            return messages
        first = messages[0]
        if first["role"] == "system" or not self._system:
            return [{**first, "content": f"{instruction}\n\n{first['content']}"}, *messages[1:]]
        return [{"role": "system", "content": instruction}, *messages]

    def turn(self, observation: Observation) -> dict[str, Any]:
        """The message of a later turn."""
        return user(_text_of(observation))

    # ---- one turn alone -----------------------------------------------------------------------------------
    def instruction(self, text: str) -> np.ndarray:
        """The ids of a system message: those of a dialogue that begins with it, without the first turn.

        Raises: InvalidData, if the template has no system message or mixes it with the first turn.
        """
        if not self._system:
            raise _no_instruction("it has no system message")
        whole, turn = self.written([{"role": "system", "content": text}, user("x")]), self._opening("x")
        if not whole.endswith(turn):
            raise _no_instruction("a system message changes the turn after it")
        return self.ids(whole.removesuffix(turn))

    def _opening(self, text: str) -> str:
        """The text of a turn after which the policy speaks, without the end of the turn before."""
        return self._next(text).removeprefix(self._between)

    @cached_property
    def _between(self) -> str:
        """What follows the end of a reply whatever comes next, often a newline."""
        last = self._quoting.own(
            str(self._tokenizer.apply_chat_template(self._shaped(PAST), tokenize=False, add_generation_prompt=False))
        )
        return last[last.rindex(SAID) + len(SAID) :].removeprefix(self._closing)

    def _shaped(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [_in_parts(message) if self._parts else dict(message) for message in messages]

    def observation(self, observation: Observation, *, first: bool) -> np.ndarray:
        if not first:
            return self.ids(self._next(_text_of(observation)))
        if observation.instruction:  # `instruction` has written the head of the segment
            return self.ids(self._opening(_text_of(observation)))
        return self.ids(self.written(self.opening(None, observation)))

    def _next_plain(self, text: str) -> str:
        longer = self.written([*PAST, user(text)])
        return longer[longer.index(SAID) + len(SAID) :].removeprefix(self._closing)

    def action(self, text: str) -> np.ndarray:
        head = self._quoting.own(f"{CHANNEL}final<|message|>") if self._channels else ""
        return np.append(self.ids(head + self.as_written(text)), self.stop[:1]).astype(np.int32)

    def text(self, ids: np.ndarray) -> str:
        said = self.said(ids)
        if self._channels and CHANNEL in said:
            return _without_channels(said)
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)).strip()

    def said(self, ids: np.ndarray) -> str:
        """The text of sampled ids with the special tokens inside it."""
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False))


def user(text: str) -> dict[str, Any]:
    """A message that the policy reads."""
    return {"role": "user", "content": text}


def reply_of(said: str, *, thinking: bool) -> dict[str, Any]:
    """The message of a reply, for the template to write again.

    Args:
        thinking: the prompt has opened a thought, which the reply continues.
    """
    if CHANNEL in said:  # gpt-oss
        thoughts = re.findall(r"<\|channel\|>analysis<\|message\|>(.*?)(?:<\|end\|>|\Z)", said, re.DOTALL)
        final = said.rpartition("<|channel|>final<|message|>")
        return {"role": "assistant", "content": final[2] if final[1] else "", "thinking": "\n".join(thoughts)}
    return {"role": "assistant", "content": f"<think>\n{said}" if thinking else said}


def _without_channels(said: str) -> str:
    """A reply of gpt-oss with its analysis as a thought; a call of a tool stays as it is."""
    if "to=functions." in said:
        return said
    message = reply_of(said, thinking=False)
    content = re.sub(r"<\|[a-z]+\|>", "", message["content"]).strip()
    return f"<think>{message['thinking']}</think>{content}" if message["thinking"] else content


def _in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def head_of(renderer: Renderer, observation: Observation) -> np.ndarray:
    """The ids at the head of a segment: those of the instruction, if there is one."""
    return renderer.instruction(observation.instruction) if observation.instruction else np.zeros(0, np.int32)


def _no_instruction(fault: str) -> InvalidData:
    return InvalidData(
        where="policy language",
        what=f"the chat template cannot put an instruction before the first turn: {fault}.",
        remedy="Use a model whose template takes system messages, or put the instruction into the observations.",
    )
