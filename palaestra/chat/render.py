"""The renderer for models with a chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from palaestra.chat.lengths import decoded, remembered
from palaestra.chat.messages import fit_replies
from palaestra.chat.places import PLACE, in_parts, placed
from palaestra.chat.quoting import Quoting
from palaestra.chat.reply_calls import calls_of, templated_calls
from palaestra.chat.tags import BLIND, Tools, refuse_images, text_of
from palaestra.chat.template_limits import bound_templates
from palaestra.chat.template_thoughts import ThoughtForm, as_read, continued, form_of, in_place
from palaestra.chat.template_tools import (
    Support,
    call_in_words,
    in_words,
    message_of,
    numbered,
    result_of,
    support_of,
    without_results,
)
from palaestra.chat.thoughts import (
    KEYS,
    LEFT_OPEN,
    MESSAGE,
    PAIRS,
    SPACED,
    TAGS,
    apart,
    in_channels,
    reply_apart,
    split_channels,
    usual,
    without_channels,
)
from palaestra.data import Observation, ToolCall
from palaestra.data.trajectory import Picture
from palaestra.errors import ContractError, EpisodeFailure, InvalidData
from palaestra.models.pictures import PictureReader
from palaestra.tools.calls import Parsed

SAID = "Zq7reply7qZ"  # a reply that occurs nowhere else in what a template writes
EARLIER = "Zq3earlier3qZ"
PAST = ({"role": "user", "content": "x"}, {"role": "assistant", "content": SAID})
ROLES = ("system", "developer", "user", "assistant", "tool")
CALL_ENDS = ("<|call|>", "<|tool_response>", "<|observation|>")  # of replies with a call: gpt-oss, Gemma 4, GLM
NONE: Mapping[str, Any] = MappingProxyType({})


class ChatRenderer:
    """Writes dialogues by the model's own chat template.

    `written` renders a whole dialogue, as `Dialogue` needs it. `instruction`, `observation` and `action` give the ids
    of one turn alone, in the form that the template gives to turns of the past, for contexts that put turns together.
    Special tokens come from the template alone; their strings in a message stay text.

    A message may have images, under the key `pictures`. The template gets them as parts of the content, before its
    text, and writes a placeholder for each. The model's processor says which tokens stand there (`ids_with`).

    Args:
        stop: further ids that end a reply, such as those of the model's generation config.
        pictures: reads images; None: the model reads none. blind: why it reads none.

    Raises: InvalidData, if the template cannot write a dialogue of two turns.
    """

    instructed = True

    def __init__(
        self, tokenizer: Any, *, stop: Iterable[int] = (), pictures: PictureReader | None = None, blind: str = BLIND
    ) -> None:
        bound_templates()
        self._tokenizer = tokenizer
        self._next = remembered(self._next_plain)
        # Some templates of models that see images read only contents that are lists of parts.
        self._parts, written = self._form()
        self.pictures, self.blind = pictures, blind
        tokens = "" if pictures is None else f"{pictures.token} {pictures.mark}"
        template = tokenizer.chat_template
        self._source = " ".join(template.values()) if isinstance(template, Mapping) else str(template)
        self._quoting = Quoting(tokenizer, template=f"{written} {tokens} {self._source}")
        # Its own tags are special in a reply, where the template may look for them, but in no other message.
        plain = {token.content for token in tokenizer.added_tokens_decoder.values() if not token.special}
        pairs = [one for name in plain if (end := name.replace("<", "</", 1)) in plain - {name} for one in (name, end)]
        self._tag = re.compile(f"({'|'.join(map(re.escape, sorted({*TAGS, *pairs})))})")
        if pictures is not None and not self._writes_pictures():
            self.pictures, self.blind = None, "the chat template writes no images"
        self.encoder, past = self._quoting.encoder, self.written([*PAST, user("x")])
        after = past[past.rindex(SAID) + len(SAID) :]
        run, eos = self._quoting.leading(after), tokenizer.eos_token_id
        if eos in run:
            run = run[: run.index(eos) + 1]
        self.closing: tuple[int, ...] = tuple(run if eos in run else run[:1])  # ids at the end of a reply
        vocabulary = tokenizer.get_vocab()
        self._has_reader = getattr(tokenizer, "response_template", None) is not None  # of its own replies
        self._channels = {MESSAGE, "<|start|>"} <= vocabulary.keys()
        ended = [vocabulary["<|return|>"]] if self._channels and "<|return|>" in vocabulary else self.closing[-1:]
        ends = [i for i in (*ended, *map(vocabulary.get, CALL_ENDS), eos, *stop) if i is not None]
        self.stop: tuple[int, ...] = tuple(dict.fromkeys(int(i) for i in ends))
        self._closing = self.closed(len(self.closing))
        self._ends_reply = self.closing if self.closing[-1:] == self.stop[:1] else self.stop[:1]
        self._system = self._takes(({"role": "system", "content": SAID}, user("x")))

    def _form(self) -> tuple[bool, str]:
        """Whether contents are lists of parts, and a dialogue as text."""
        fault = ""
        for parts in (False, True):
            dialogue = [in_parts(message) if parts else message for message in [*PAST, user("x")]]
            try:
                written = str(self._tokenizer.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True))
            except EpisodeFailure:  # it has no end
                raise
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

    def _writes_pictures(self) -> bool:
        """Whether the template writes a placeholder for each image, in the order of the messages."""
        turn = {**user("x"), "pictures": (None,)}
        try:
            written = self.written([turn, {"role": "assistant", "content": SAID}, turn])
        except Exception:  # a template may raise anything
            return False
        return [part.count(self._placeholder) for part in written.split(SAID)] == [1, 1]

    @cached_property
    def _placeholder(self) -> str:
        """What `written` writes for an image. No message can contain it."""
        assert self.pictures is not None
        return self._quoting.own(self.pictures.token)

    def written(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Tools = (),
        keep: bool = False,
        variables: Mapping[str, Any] = NONE,
    ) -> str:
        """The template's text for a dialogue after which the policy speaks, in the form that `ids` reads.

        Args:
            tools: the tools to declare, if the template can; `led` declares them in words if it cannot.
            keep: write the thoughts of replies as they are; False: the template keeps or leaves them out.
            variables: further variables of the template, such as `enable_thinking`.
        """
        if (tools or any(message["role"] == "tool" for message in messages)) and not self.support.declares:
            messages, tools = without_results(messages), ()
        hidden: list[str] | None = [] if keep and not self._channels else None
        quoted = [self._quoted(self._as_read(message, keep=hidden is not None), hidden) for message in messages]
        written = self._quoting.own(self._applied(quoted, tools=self._quoting.quote(list(tools)), **variables))
        tags = [(self._quoting.own(opening), self._quoting.own(closing)) for opening, closing in PAIRS[:4]]
        for place, thought in enumerate(hidden or ()):
            written = in_place(written, self._quoting.place(place), thought, tags)
        return written

    def _as_read(self, message: Mapping[str, Any], *, keep: bool) -> Mapping[str, Any]:
        """A message with its thought where the template reads it; with `keep`, always before the words."""
        if message["role"] != "assistant" or apart(message) is None:
            return message
        return as_read(message, self.thoughts._replace(key="") if keep else self.thoughts)

    @cached_property
    def thoughts(self) -> ThoughtForm:
        """How the template takes the thoughts of replies."""
        tokens = " ".join(token.content for token in self._tokenizer.added_tokens_decoder.values())
        return form_of(self._applied, f"{self._source} {tokens}", as_text=self.support.as_text)

    def _applied(self, messages: Sequence[Mapping[str, Any]], tools: Tools = (), **variables: Any) -> str:
        """The template's text for these messages as they are."""
        shaped = [in_parts(message) if self._parts or "pictures" in message else dict(message) for message in messages]
        given = {"add_generation_prompt": True, **variables}
        return str(self._tokenizer.apply_chat_template(shaped, tools=list(tools) or None, tokenize=False, **given))

    @cached_property
    def support(self) -> Support:
        """What the template writes of tools."""
        return support_of(self._applied)

    def _quoted(self, message: Mapping[str, Any], hidden: list[str] | None = None) -> dict[str, Any]:
        """A message in which special tokens are marks. `hidden` gets the thoughts that a placeholder stands for."""
        if message["role"] not in ROLES:
            raise EpisodeFailure(
                boundary="environment",
                where="contexts",
                what=f"a message has the role {str(message['role'])[:40]!r}.",
                options=ROLES,
                remedy="Correct `Observation.messages`.",
            )
        if message["role"] != "assistant":
            return dict(self._quoting.quote(dict(message)))
        quoted = {name: said if name == "role" else self._quoted_part(said) for name, said in message.items()}
        thought = SPACED.match(str(message.get("content"))) if hidden is not None else None
        if hidden is not None and thought is not None:
            rest = self.quoted_reply(message["content"][thought.end() :])
            quoted["content"] = self._quoting.place(len(hidden)) + rest
            hidden.append(self.as_written(thought[0]))
        return quoted

    def _quoted_part(self, part: Any) -> Any:
        return self.quoted_reply(part) if isinstance(part, str) else self._quoting.quote(part)

    def quoted_reply(self, reply: str) -> str:
        """A reply in which the tags of its thoughts and calls are the only special tokens."""
        pieces = self._tag.split(reply)
        return "".join(one if place % 2 else self._quoting.quote(one) for place, one in enumerate(pieces))

    def as_written(self, reply: str) -> str:
        """A part of a reply's message in the form that `written` gives it, if the template does not change it."""
        return self._quoting.own(self.quoted_reply(reply))

    def as_sampled(self, reply: str) -> str:
        """A sampled reply in the form that `written` gives it, if the template itself writes its special tokens."""
        return self._quoting.own(reply)

    def closed(self, count: int) -> str:
        """The text of the first `count` ids of `closing`, in the form of `written`."""
        return self._quoting.named(self.closing[:count])

    def name_of(self, token: int) -> str:
        """An id that ends a reply, as `written` writes it."""
        return self._quoting.named([token]) if self._quoting.knows(token) else ""

    def refuse_unknown(self, variables: Mapping[str, Any]) -> None:
        """Raises: InvalidData, for a variable that does not occur in the template, or that the library sets."""
        for name in variables:
            own = name in ("messages", "tools", "add_generation_prompt")
            if own or re.search(rf"\b{re.escape(name)}\b", self._source) is None:
                raise InvalidData(
                    where="agents.*.context, template",
                    what=f"the library sets `{name}`." if own else f"the chat template has no variable `{name}`.",
                    remedy="Leave it out; `tokenizer.chat_template` shows which variables the template reads.",
                )

    def ids(self, text: str) -> np.ndarray:
        """The ids of a text that `written` gave, or of a part of it."""
        return np.array(self._quoting.ids(text), np.int32)

    def ids_with(self, text: str, images: Sequence[np.ndarray]) -> tuple[np.ndarray, tuple[Picture, ...]]:
        """The ids of a text that `written` gave, or of its end, and what in them stands for images.

        Args:
            images: of the whole dialogue, in order. The text shows as many of the last ones as it has placeholders.

        Raises: EpisodeFailure, for an image that the processor refuses.
        """
        reader = self.pictures
        if reader is None or self._placeholder not in text:
            return self.ids(text), ()
        head, *rest = text.split(self._placeholder)
        shown = images[len(images) - len(rest) :]
        read = [reader.read(image) for image in shown]
        pieces = [self._quoting.own(one.text) + after for one, after in zip(read, rest, strict=True)]
        ids = self.ids(head + "".join(pieces))
        places = np.flatnonzero(ids == reader.token_id)
        ends = np.cumsum([0, *(one.count for one in read)])
        if len(places) != ends[-1]:
            raise ContractError(
                where="policy language, pictures",
                what=f"the tokenizer gives {len(places)} placeholders of images, and the processor {ends[-1]}.",
                remedy="Set `pictures: false` of the policy, and report the model.",
            )
        return ids, tuple(
            Picture(
                image=image,
                start=int(places[start]),
                stop=int(places[stop - 1]) + 1,
                count=one.count,
                inputs=one.inputs,
            )
            for image, one, start, stop in zip(shown, read, ends[:-1], ends[1:], strict=True)
        )

    def end_in(self, written: str) -> tuple[int, int] | None:
        """Where the first id that ends a reply stands in a text of `written`."""
        found = self._ends.search(written)
        return None if found is None else found.span()

    @cached_property
    def _ends(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(self._quoting.named([i])) for i in self.stop if self._quoting.knows(i)))

    def turn(self, observation: Observation, *, first: bool = False) -> list[dict[str, Any]]:
        """The messages of an observation, with its image if the model reads pictures.

        Args:
            first: a dialogue begins with them.
        """
        image = observation.image if self.pictures is not None else None
        if self.pictures is None:
            refuse_images(observation, f"the policy cannot read it: {self.blind}")
        if image is None:
            return self._in_words(observation, first=first)
        alone = observation.text is None and not observation.messages
        messages = [user("")] if alone else self._in_words(observation, first=first)
        if messages[-1]["role"] != "user":  # such as the result of a tool
            messages.append(user(""))
        messages[-1]["content"] = PLACE + messages[-1]["content"]
        messages[-1]["pictures"] = (image, *messages[-1].get("pictures", ()))
        return messages

    def _in_words(self, observation: Observation, *, first: bool) -> list[dict[str, Any]]:
        """The messages of an observation, in roles that the template writes at this place.

        A system message that it does not write becomes one of the user. Messages of the user that follow each other
        are joined if the template refuses them.
        """
        given = fit_replies(observation.messages or (), self, observation.tools or ())
        given = given or [user(text_of(observation, blind=self.blind))]
        if first and not self.support.declares:
            given = without_results(given)
        fitted: list[dict[str, Any]] = []
        for place, message in enumerate(given):
            role = message["role"]
            if role in ("system", "developer"):
                role = self._role_of_rules(first=first and place == 0, last=place == len(given) - 1)
            follows = role == "user" and place > 0 and fitted[-1]["role"] == "user"
            if follows and not self._takes((user("x"), user(SAID))):
                pictures = (*fitted[-1].get("pictures", ()), *message.get("pictures", ()))
                fitted[-1]["content"] = f"{placed(fitted[-1])}\n\n{placed(message)}"
                fitted[-1] |= {"pictures": pictures} if pictures else {}
            else:
                fitted.append({**message, "role": role})
        return fitted

    def _role_of_rules(self, *, first: bool, last: bool) -> str:
        """The role of a message of the system: of the user, if the template leaves it out, moves it or refuses it."""
        if first or last:
            return "system" if first and not last and self._system else "user"
        spoken = (user("x"), {"role": "assistant", "content": EARLIER}, {"role": "system", "content": SAID}, user("x"))
        return "system" if self._takes(spoken, after=EARLIER) else "user"

    def _takes(self, messages: Sequence[Mapping[str, Any]], *, after: str = "") -> bool:
        """Whether the template writes a dialogue of these messages, with the text `SAID` after another text."""
        try:
            written = self._applied(messages)
        except Exception:  # a template may refuse a role by any exception
            return False
        return written.find(SAID) >= written.find(after)

    def led(
        self, instruction: str | None, messages: Sequence[Mapping[str, Any]], tools: Tools = ()
    ) -> list[dict[str, Any]]:
        """A dialogue with its instruction, and with the tools if the template cannot declare them.

        Without a system role, the instruction stands before the first message.
        """
        words = in_words(tools) if tools and not self.support.declares else None
        first, *others = (dict(message) for message in messages)
        if first["role"] == "system":
            first["content"] = _paragraphs(instruction, first["content"], words)
        elif instruction or words:
            if self._system:
                return [{"role": "system", "content": _paragraphs(instruction, words)}, first, *others]
            first["content"] = _paragraphs(instruction, words, first["content"])
        return [first, *others]

    def accepts(self, reply: Mapping[str, Any], tools: Tools) -> bool:
        """Whether the template writes all calls of a reply; some write one call only."""
        calls = reply["tool_calls"]
        marks = [f"{SAID}{place}" for place in range(len(calls))]
        marked = [_with_argument(call, mark, self.support.as_text) for call, mark in zip(calls, marks, strict=True)]
        results = [result_of("x", call["function"]["name"], call["id"]) for call in calls]
        try:
            written = self.written([user("x"), dict(reply, tool_calls=marked), *results], tools=tools)
        except Exception:  # a template may refuse a message by any exception
            return False
        return all(mark in written for mark in marks)

    def following(
        self, reply: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], tools: Tools, **style: Any
    ) -> str:
        """What the template writes after a reply: its end, these messages and the head of the next reply."""
        short = [dict(reply, content=SAID)]
        if "tool_calls" in reply:
            *others, last = reply["tool_calls"]
            marked = _with_argument(last, SAID, self.support.as_text)
            short[0] |= {"content": "", "tool_calls": [*others, marked]}
        written = self.written([user("x"), *short, *messages], tools=tools, **style)
        return written[written.rindex(SAID) + len(SAID) :]

    # ---- one turn alone -----------------------------------------------------------------------------------
    def instruction(self, text: str) -> np.ndarray:
        """The ids of a system message: those of a dialogue that begins with it, without the first turn.

        Raises: InvalidData, if the template has no system message or mixes it with the first turn.
        """
        if not self._system:
            raise _no_instruction("it has no system message")
        whole, turn = self.written([{"role": "system", "content": text}, user("x")]), self._opening([user("x")])
        if not whole.endswith(turn):
            raise _no_instruction("a system message changes the turn after it")
        return self.ids(whole.removesuffix(turn))

    def _opening(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of a turn after which the policy speaks, without the end of the turn before."""
        return self._after_reply(messages).removeprefix(self._between)

    @cached_property
    def _between(self) -> str:
        """What follows the end of a reply whatever comes next, often a newline."""
        last = self._quoting.own(self._applied(PAST, add_generation_prompt=False))
        return last[last.rindex(SAID) + len(SAID) :].removeprefix(self._closing)

    def observation(self, observation: Observation, *, first: bool) -> np.ndarray:
        refuse_images(observation, "the role's context puts turns together itself, so it cannot show it")
        messages = self._in_words(observation, first=first)
        if first and not observation.instruction:
            return self.ids(self.written(messages))
        if first:  # `instruction` has written the head of the segment
            if messages[0]["role"] == "system" and len(messages) > 1:
                system, turn, *others = messages
                messages = [{**turn, "content": f"{system['content']}\n\n{turn['content']}"}, *others]
            return self.ids(self._opening(messages))
        if observation.messages:
            return self.ids(self._after_reply(messages))
        return self.ids(self._next(text_of(observation, blind=self.blind)))

    def _next_plain(self, text: str) -> str:
        return self._after_reply([user(text)])

    def _after_reply(self, messages: Sequence[Mapping[str, Any]]) -> str:
        longer = self.written([*PAST, *messages])
        return longer[longer.index(SAID) + len(SAID) :].removeprefix(self._closing)

    def action(self, text: str, *, prompt: np.ndarray | None = None) -> np.ndarray:
        """The ids of a reply with its end. A thought before its words gets the template's tags.

        Args:
            prompt: the ids before it. The reply has then the form that the template gives it after them.
        """
        form, message = self.thoughts, reply_apart(text)
        begun, thought = "" if prompt is None else self._begun(prompt), message.get(KEYS[0])
        if self._channels or (prompt is not None and (form.shows_last if thought else form.shows_empty)):
            return self._reply(message, (), begun)
        if thought and form.opening.strip() not in text:
            text = f"{form.opening}{thought}{form.closing}{message['content']}"
        if LEFT_OPEN.search(begun) is not None:
            text = text.lstrip().removeprefix(form.opening.strip()).lstrip() if thought else f"{form.closing}{text}"
        text = text if prompt is None or begun else f"{form.lead}{text}"
        return np.array([*self.ids(self.as_written(text)), *self._ends_reply], np.int32)

    def call(
        self, calls: Sequence[ToolCall], tools: Tools, *, said: str = "", prompt: np.ndarray | None = None
    ) -> np.ndarray:
        """The ids of a reply with these calls, as the template writes it, with its end.

        Args:
            said: a thought and words beside the calls. prompt: as in `action`.

        Raises: InvalidData, if the template does not write them.
        """
        if not self.support.calls:
            said = f"{said}\n" if said and not said.endswith("\n") else said
            return self.action(said + "\n".join(map(call_in_words, calls)), prompt=prompt)
        message = self.calling(reply_apart(said), numbered(calls, 0), tools)
        if message is None:
            raise InvalidData(
                where="policy language",
                what=f"the chat template does not write a reply with {len(calls)} calls of tools.",
                remedy="Make one call in each turn of a demonstration.",
            )
        return self._reply(message, tools, None if prompt is None else self._begun(prompt))

    def calling(self, reply: Mapping[str, Any], calls: Sequence[ToolCall], tools: Tools) -> dict[str, Any] | None:
        """The message of a reply with these calls; None, if the template does not write them.

        A template that refuses words beside a call and its thought gets them as the end of the thought.
        """
        if not self.support.calls:
            return None
        message = {**reply, **message_of(reply["content"], calls, as_text=self.support.as_text)}
        parts = apart(message)
        if self.accepts(message, tools):
            return message
        if parts is None or not parts.words:
            return None
        message = {**message, "content": "", KEYS[0]: f"{parts.thought}\n{parts.words}"}
        return message if self.accepts(message, tools) else None

    def _reply(self, message: Mapping[str, Any], tools: Tools, begun: str | None) -> np.ndarray:
        """The ids of a reply as the template writes it, with its end.

        Args:
            begun: the thought, open or empty, with which the prompt ends. None: as the template begins it.
        """
        whole = self.written([user("x"), message], tools=tools, variables={"add_generation_prompt": False})
        begin, usually = self.opened(self.written([user("x")], tools=tools))
        reply, begun = whole[begin:], usually if begun is None else begun
        form, parts = self.thoughts, apart(message)
        if parts is not None and self.as_written(parts.thought.strip()) not in reply:
            reply = self.as_written(f"{form.opening}{parts.thought}{form.closing}") + reply.lstrip()
        tags = self.as_written(form.opening), self.as_written(form.closing)
        is_empty = parts is None and not form.shows_empty and reply.lstrip().startswith(tags[0].strip())
        if reply.startswith(head := self._quoting.own(begun)) and not (is_empty and not begun):
            reply = reply.removeprefix(head)
        else:
            reply = continued(reply, tags, is_open=bool(LEFT_OPEN.search(begun)), has_thought=parts is not None)
        end = self.end_in(reply)
        ids = self.ids(reply if end is None else reply[: end[1]])
        return ids if end is not None else np.append(ids, self.stop[0]).astype(np.int32)

    def _begun(self, prompt: np.ndarray) -> str:
        """The thought, open or empty, with which the ids of a prompt end."""
        return self.opened(self._quoting.own(self.said(prompt[-16:])))[1]

    def opened(self, written: str) -> tuple[int, str]:
        """The thought, open or empty, with which a prompt ends: where it begins, and its text."""
        for opening, closing in PAIRS:
            begin, end = (re.escape(self._quoting.own(tag)) for tag in (opening, closing))
            found = re.search(rf"{begin}(\s*)(?:{end}(\s*))?\Z", written)
            if found is not None:
                return found.start(), opening + found[1] + ("" if found[2] is None else closing + found[2])
        return len(written), ""

    def text(self, ids: np.ndarray, *, tools: Tools = (), prompt: np.ndarray | None = None) -> str:
        """The text of sampled ids, with `<think>` and `</think>` around thoughts.

        Other special tokens are left out, except in a reply that calls tools.

        Args:
            prompt: the ids before it. If they open a thought that the reply never closes, the text begins with
                `<think>`, so that no reader takes the thought for an act.
        """
        said, opened = self.said(ids), ""
        if prompt is not None and LEFT_OPEN.search(self.said(prompt[-16:])) is not None:
            opened = "" if "</think>" in usual(said) else "<think>\n"
        marked = not self._special.isdisjoint(ids[:-1].tolist())  # a call may be marked by special tokens
        if tools or (marked and not self._channels):
            ended = len(ids) > 0 and int(ids[-1]) in self.stop
            whole = opened + self.said(ids[:-1] if ended else ids).strip()
            parsed = self.calls(whole, tools)
            if parsed.calls or (tools and parsed.fault is not None):
                return whole if self._has_reader else usual(whole)
        if self._channels and in_channels(said):
            return without_channels(said)
        kept = np.array([i for i in ids if int(i) not in self._special], np.int32)
        return opened + usual(self.said(kept)).strip()

    @cached_property
    def _special(self) -> frozenset[int]:
        """The special tokens that `text` leaves out."""
        added = self._tokenizer.added_tokens_decoder
        return frozenset(i for i, token in added.items() if token.special and token.content not in TAGS)

    def calls(self, reply: str, tools: Tools) -> Parsed:
        """The calls in a reply: by the tokenizer's own `response_template` if it has one, else by `calls_of`."""
        if self._has_reader:
            return templated_calls(self._tokenizer, reply, tools)
        if self._channels and in_channels(reply):
            spoken, said = split_channels(reply)
            return replace(calls_of(spoken, tools), said=said)
        return calls_of(reply, tools)

    def said(self, ids: np.ndarray) -> str:
        """The text of sampled ids with the special tokens inside it."""
        return decoded(self._tokenizer, ids, special=True)


def user(text: str) -> dict[str, Any]:
    """A message that the policy reads."""
    return {"role": "user", "content": text}


def _paragraphs(*texts: str | None) -> str:
    return "\n\n".join(filter(None, texts))


def _with_argument(call: Mapping[str, Any], text: str, as_text: bool) -> dict[str, Any]:
    """A call of a message with this text as its only argument."""
    arguments: Any = json.dumps({"x": text}) if as_text else {"x": text}
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _no_instruction(fault: str) -> InvalidData:
    return InvalidData(
        where="policy language",
        what=f"the chat template cannot put an instruction before the first turn: {fault}.",
        remedy="Use a model whose template takes system messages, or put the instruction into the observations.",
    )
