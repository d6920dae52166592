"""Make problems of rows: what the agent reads, the right answer, and what tells one problem from another."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from palaestra.chat.messages import Message, MessageFault, MessageReader, read_tools, with_thought
from palaestra.data import Action, Observation
from palaestra.data.task import content_digest
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.images import image_digest, observation_of, refuse_unplaced, with_images
from palaestra.envs.verifiers.answers import right_answers
from palaestra.envs.worlds.dataset.files import Row
from palaestra.envs.worlds.dataset.layouts import LayoutName, in_columns
from palaestra.errors import InvalidData, nearest

NAME = "dataset"
ANSWERS = ("answer", "solution", "ground_truth", "reward_model.ground_truth")  # TRL's columns, then verl's
LEVELS = ("difficulty", "level")
VIDEOS = ("video", "videos")
# Columns that mean something to trainers of chat models, and that this environment does not read.
UNREAD = (
    "chosen",
    "rejected",
    "label",
    "chat_template_kwargs",
    "parallel_tool_calls",
    "function_call",
)
PLACE = re.compile(r"\{\{(\w+(?:\.\w+)*)\}\}|\{([^{}]+)\}")  # `{{word}}` and `{column}` in a template
NAMED = re.compile(r"([^\W\d]\w*(?:\.\w+)*)([:!\[].*)?", re.DOTALL)  # what may stand in a place: a name, and a format
Given = Mapping[str, Any]  # a message as contexts and reward functions get it


@dataclass(frozen=True, slots=True)
class Problem:
    """A row as a problem.

    Attributes:
        prompt: of the row: a text, or the messages of a conversation.
        messages: all that the agent reads first: the system message, the examples, and the prompt.
        columns: all columns of the file, with `answer` if the answer was found under another name. A column that the
            row lacks is None.
        demonstration: good replies, one for each turn; empty, if the row has none.
        content: what tells this problem from others. digest: its hash.
        level: how hard it is, if a column says so.
        place: of the row, such as `train.jsonl:17`.
        images: of the row, as its file has them. They are read when the agent sees them, so that not all are in memory.
        asked: how many of the messages are the row's own; its images stand in these.
        folder: where the paths of images begin.
        tools: that the row declares, and that the agent may call in its reply.
    """

    prompt: str | tuple[Given, ...]
    messages: tuple[Given, ...]
    columns: Mapping[str, Any]
    demonstration: tuple[Action, ...]
    content: Any
    digest: str
    level: float | None
    place: str
    images: tuple[Any, ...] = ()
    asked: int = 1
    folder: str = ""
    tools: tuple[Given, ...] = ()

    @property
    def conversational(self) -> bool:
        """Whether the row's prompt is a list of messages."""
        return not isinstance(self.prompt, str)

    def observation(self) -> Observation:
        """What the agent reads first. A system message before a single question becomes the instruction.

        Raises: InvalidData, for an image that cannot be read.
        """
        seen = self._seen()
        return replace(seen, tools=self.tools) if self.tools else seen

    def _seen(self) -> Observation:
        *head, last = self.messages
        if self.images or any(not isinstance(message["content"], str) for message in self.messages):
            return self._with_images()
        if last.keys() == PLAIN and last["role"] == "user" and (not head or (len(head) == 1 and _leads(head[0]))):
            instruction = head[0]["content"] if head else None
            return Observation(text=last["content"], instruction=instruction, state_key=self.digest)
        text = "\n".join(message["content"] for message in self.messages)
        return Observation(text=text, messages=self.messages, state_key=self.digest)

    def _with_images(self) -> Observation:
        folder, count = Path(self.folder), len(self.messages) - self.asked
        before = with_images(self.messages[:count], folder=folder, where=self.place)
        own = with_images(self.messages[count:], self.images, folder=folder, where=self.place)
        messages, instruction = (*before, *own), None
        if len(messages) == 2 and _leads(messages[0]) and messages[1]["role"] == "user":
            instruction, messages = messages[0]["content"], messages[1:]
        return observation_of(messages, instruction=instruction, state_key=self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How rows become problems: options of the environment `dataset`, where they are explained."""

    prompt: str = "prompt"
    answer: str | None = None
    completion: str = "completion"
    template: str | None = None
    system: str | None = None
    fewshot: tuple[Mapping[str, Any], ...] = ()
    problem: tuple[str, ...] = ()
    difficulty: str | None = None
    layout: LayoutName = "columns"
    examples: tuple[Given, ...] = field(init=False, default=())
    unread: set[str] = field(init=False, default_factory=set, compare=False)  # keys of messages

    def __post_init__(self) -> None:
        shown: list[Given] = []
        for number, row in enumerate(self.fewshot, start=1):
            shown += [row] if {"role", "content"} <= row.keys() else self._example(row, number)
        read = self._conversation(shown, "environment: dataset, fewshot") if shown else []
        object.__setattr__(self, "examples", tuple(one.as_given() for one in read))

    def problems(self, rows: Sequence[Row]) -> tuple[Problem, ...]:
        """The problems of the rows. If some prompts are texts and others messages, all are messages.

        Raises: InvalidData, for a row without a prompt.
        """
        found = tuple(self._problem(row) for row in rows)
        names = dict.fromkeys(name for one in found for name in one.columns)
        found = tuple(
            one if len(one.columns) == len(names) else replace(one, columns=dict.fromkeys(names) | dict(one.columns))
            for one in found
        )
        if len({one.conversational for one in found}) == 1:
            return found
        return tuple(
            one if one.conversational else replace(one, prompt=({"role": "user", "content": one.prompt},))
            for one in found
        )

    def _problem(self, row: Row) -> Problem:
        columns = in_columns(row.columns, self.layout, row.place)
        video = next((name for name in VIDEOS if columns.get(name)), None)
        if video is not None:
            raise InvalidData(
                where=f"{row.place}, `{video}`",
                what="the environment `dataset` asks questions in words and images, and this row has a video.",
                remedy="Use rows without one, or rename the column if the question does not need it.",
            )
        images = tuple(columns.get("images") or ([columns["image"]] if columns.get("image") else ()))
        prompt, spoken = self._prompt(columns, row.place)
        name = self.answer or next((name for name in ANSWERS if column(columns, name) is not None), None)
        if name is not None and column(columns, name) is None:
            raise absent(name, columns, row.place, option="answer")
        if name is not None:
            columns["answer"] = column(columns, name)
        own = prompt if not isinstance(prompt, str) else ({"role": "user", "content": prompt},)
        refuse_unplaced(own, len(images), where=row.place)
        tools = tools_in(columns, row.place)
        head = [message for message in own[:1] if _leads(message)]
        system = [{"role": "system", "content": self.system}] if self.system is not None else head
        shown = prompt if not images else [prompt, [image_digest(one, row.folder, row.place) for one in images]]
        shown = [shown, tools] if tools else shown
        content = as_json([self._named(columns, name, row.place) for name in self.problem] if self.problem else shown)
        return Problem(
            prompt=prompt,
            messages=(*system, *self.examples, *own[len(head) :]),
            columns=columns,
            demonstration=tuple(map(_acted, self._demonstration(columns, spoken, row.place))),
            content=content,
            digest=content_digest(NAME, content),
            level=self._level(columns, row.place),
            place=row.place,
            images=images,
            asked=len(own) - len(head),
            folder=row.folder,
            tools=tools,
        )

    def _conversation(self, given: Any, place: str) -> list[Message]:
        """Checked messages. Raises: InvalidData, for one that cannot be read, and without any."""
        reader = MessageReader(unread=self.unread)
        try:
            messages = reader.read(given)
        except MessageFault as fault:
            raise unreadable(fault, place) from None
        if not messages:
            raise InvalidData(where=place, what="it has no message.", remedy="Write at least one message of the user.")
        return messages

    def _prompt(self, columns: Mapping[str, Any], place: str) -> tuple[str | tuple[Given, ...], Message | None]:
        """The prompt, and the reply in a column `messages` that holds the whole conversation."""
        if self.template is not None:
            text = filled(self.template, columns, place)
            if not text.strip():
                raise InvalidData(where=place, what="the question is empty.", remedy="Correct `template`, or the row.")
            return text, None
        given = column(columns, self.prompt)
        if given is None and isinstance(columns.get("messages"), list):
            messages = self._conversation(columns["messages"], f"{place}, `messages`")
            replies = [number for number, message in enumerate(messages) if message.role == "assistant"]
            end = replies[-1] if replies else len(messages)
            if end:
                return tuple(one.as_given() for one in messages[:end]), messages[end] if replies else None
        if given is None:
            raise absent(self.prompt, columns, place, option="prompt")
        if isinstance(given, list):
            messages = self._conversation(given, f"{place}, `{self.prompt}`")
            last = messages[-1]
            if last.role == "assistant":
                raise InvalidData(
                    where=f"{place}, `{self.prompt}`",
                    what="its last message is one of the assistant, and a reply is a new message: it would not go on "
                    f"from {last.text!r}.",
                    remedy="End with a message of the user. If the last message is a good reply, call the column "
                    "`messages`.",
                )
            if last.role == "user" and last.is_empty:
                raise InvalidData(
                    where=f"{place}, `{self.prompt}`",
                    what="its last message is empty.",
                    remedy="Write the question into it.",
                )
            return tuple(one.as_given() for one in messages), None
        if not isinstance(given, str) or not given.strip():
            raise InvalidData(
                where=f"{place}, `{self.prompt}`",
                what=f"it is {given!r}, neither a text nor a list of messages.",
                remedy="Write the question as a text, or as messages with `role` and `content`.",
            )
        return given, None

    def _demonstration(self, columns: Mapping[str, Any], spoken: Message | None, place: str) -> list[Message]:
        """Good replies: those of the column `completion`, else of the conversation, else the answer itself."""
        given = column(columns, self.completion)
        if isinstance(given, list) and given and isinstance(given[0], Mapping) and "role" in given[0]:
            told = self._conversation(given, f"{place}, `{self.completion}`")
            return [one for one in told if one.role == "assistant" and one.learned]
        answer = columns.get("answer")
        answer = answer[0] if isinstance(answer, list) and answer else answer
        if isinstance(given, str):
            return [Message(role="assistant", content=given)]
        if spoken is not None:
            return [spoken] if spoken.learned else []
        if isinstance(answer, str | int | float):
            return [Message(role="assistant", content=right_answers(answer)[0])]
        return []

    def _level(self, columns: Mapping[str, Any], place: str) -> float | None:
        """How hard the problem is: a number, or the first number of a text such as `Level 5`."""
        name = self.difficulty or next((name for name in LEVELS if name in columns), None)
        given = None if name is None else column(columns, name)
        level = None
        if isinstance(given, int | float) and not isinstance(given, bool):
            level = float(given) if math.isfinite(given) else None
        elif isinstance(given, str):
            number = re.search(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", given)
            level = None if number is None else float(number[0])
        if level is None and self.difficulty is not None:
            raise InvalidData(
                where=f"{place}, `{name}`",
                what=f"it is {given!r}, which has no number.",
                remedy="Write numbers that are higher for harder problems, or leave out `difficulty`.",
            )
        return level

    def _named(self, columns: Mapping[str, Any], name: str, place: str) -> Any:
        value = column(columns, name)
        if value is None:
            raise absent(name, columns, place, option="problem")
        return value

    def _example(self, row: Mapping[str, Any], number: int) -> list[Given]:
        """The messages of an example with its answer."""
        place = f"environment: dataset, fewshot, example {number}"
        prompt, spoken = self._prompt(row, place)
        name = self.answer or next((name for name in ANSWERS if column(row, name) is not None), "answer")
        replies = self._demonstration({**row, "answer": column(row, name)}, spoken, place)
        if not replies:
            raise absent(name, row, place, option="answer")
        own: tuple[Given, ...] = ({"role": "user", "content": prompt},) if isinstance(prompt, str) else prompt
        return [*own, replies[0].as_given()]


PLAIN = {"role", "content"}  # keys of a message that is a text and nothing else


def _leads(message: Given) -> bool:
    """Whether a message may become the instruction."""
    plain = message.keys() == PLAIN and isinstance(message["content"], str)
    return plain and message["role"] in ("system", "developer")


def _acted(reply: Message) -> Action:
    """A reply as the expert gives it."""
    return Action(text=with_thought(reply.text, reply.thinking), tool_calls=reply.calls)


def tools_in(columns: Mapping[str, Any], place: str) -> tuple[dict[str, Any], ...]:
    """The tools that a row declares. Raises: InvalidData, for a column that declares none."""
    name = next((name for name in ("tools", "functions") if columns.get(name)), None)
    try:
        return () if name is None else read_tools(columns[name])
    except MessageFault as fault:
        raise InvalidData(
            where=f"{place}, `{'.'.join(filter(None, (name, fault.place)))}`",
            what=f"{fault.what}.",
            remedy="Declare tools as a list in OpenAI's form, or as the same in a JSON text. Rename the column if it "
            "means something else.",
        ) from None


def unreadable(fault: MessageFault, place: str) -> InvalidData:
    """The error for a message that cannot be read. `place`: of its list, such as ``a.jsonl:3, `messages` ``."""
    return InvalidData(
        where=f"{place.removesuffix('`')}.{fault.place}`" if fault.place and place.endswith("`") else place,
        what=f"{fault.what}.",
        remedy="Write messages with a `role` and a `content`: a text, or parts of the types `text` and `image`. A "
        "reply may have `tool_calls`, and each of them a result: a message of the role `tool`.",
    )


def column(columns: Mapping[str, Any], name: str) -> Any:
    """The value of a column; None without one. `reward_model.ground_truth` is a value inside of a column."""
    if name in columns:
        return columns[name]
    value: Any = columns
    for piece in name.split("."):
        value = value.get(piece) if isinstance(value, Mapping) else None
    return value


def filled(template: str, columns: Mapping[str, Any], place: str) -> str:
    """The template with the values of the row in its `{column}` places. `{{word}}` becomes `{word}`, and braces around
    anything else stay.

    Raises: InvalidData, for an absent column, a format such as `{price:.2f}`, or a column with messages.
    """

    def value(found: re.Match[str]) -> str:
        if found[1] is not None:
            return f"{{{found[1]}}}"
        name = found[2].strip()
        given, named = column(columns, name), NAMED.fullmatch(name)
        if given is None and name not in columns:
            if named is None or (named[2] and column(columns, named[1]) is None):
                return found[0]  # no column: braces of LaTeX, say
            if named[2]:
                raise InvalidData(
                    where=f"{place}, template",
                    what=f"`{found[0]}` is more than the name of a column.",
                    remedy=f"Write `{{{named[1]}}}`, and change the column if its values should look different.",
                )
        if given is None:
            raise absent(name, columns, place, option="template", braces=True)
        if isinstance(given, list) and any(isinstance(one, Mapping) and "role" in one for one in given):
            raise InvalidData(
                where=f"{place}, template",
                what=f"the column `{name}` holds messages, and a template makes a text.",
                remedy="Leave out `template`, and use `system` and `fewshot` beside the messages.",
            )
        return str(given)

    return PLACE.sub(value, template)


def absent(name: str, columns: Mapping[str, Any], place: str, *, option: str, braces: bool = False) -> InvalidData:
    """The error for a column that a row does not have, or in which it has no value.

    Args:
        braces: whether the name stands in braces, which may have been meant as they are.
    """
    state = "is empty" if name in columns else "is missing"
    return InvalidData(
        where=f"{place}",
        what=f"the column `{name}` {state}. The row has: {', '.join(columns) or 'no column'}.",
        options=nearest(name, columns) if name not in columns else (),
        remedy=f"Correct the row, or set the option `{option}` of the environment `dataset`."
        + (f"\n`{{{{{name}}}}}` writes the word in braces as it is." if braces else ""),
    )
