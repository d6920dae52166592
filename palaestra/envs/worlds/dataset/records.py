"""Read the records of a data set (conversations in TRL's columns, or stored episodes) as trajectories.

A record is a list of trajectories of one group. A record that cannot be read is refused with its file and line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from palaestra.chat.messages import Message, MessageFault, MessageReader, with_thought
from palaestra.data import Action, Marks, Observation, Step, Task, Trajectory
from palaestra.envs.worlds.dataset.files import read_rows
from palaestra.envs.worlds.dataset.layouts import LayoutName, in_columns, named
from palaestra.envs.worlds.dataset.problems import tools_in
from palaestra.errors import InvalidData
from palaestra.store.episodes import from_json

RECORDS = "dataset"  # environment of tasks that stand in a file
WHERE = "experience: dataset"
READ = {"prompt", "chosen", "rejected", "completion", "messages", "label", "content", "tools", "functions"}
Record = list[Trajectory]


@dataclass(slots=True)
class Records:
    """The records of a file, and lines that name what of it is not read."""

    records: list[Record] = field(default_factory=list)
    notes: tuple[str, ...] = ()


def read_records(path: Path, agent: str | None, *, layout: LayoutName = "columns") -> Records:
    """The records of a file, which may have any format that the environment `dataset` reads.

    The columns of a record are one of these:

        prompt, chosen, rejected    a pair with the outcomes 1 and 0, in which both have the mark `pair`. Without
                                    `prompt`, the prompt is the words, or the messages, that both begin with
        prompt, completion          a demonstration, whose outcome is 1, or 1 or 0 by `label`
        messages                    a demonstration with several answers, whose outcome is the same
        trajectory                  an episode as `to_json` writes it; episodes with the same `step`, `name` and group
                                    are one record

    Besides, `tools` may declare the tools that the answers call, and `content` may tell the problem: the
    `Task.content_hash` of the task that is answered.

    A text is one message, of the user in a prompt, of the assistant elsewhere. Each message of the assistant is a step.
    The steps of a prompt, and those of messages with `weight: 0`, have weight 0. The outcome is the reward of the last
    step.

    Args:
        agent: the agent that answers in conversations. None: unknown, so conversations are refused.
        layout: `sharegpt` or `alpaca` for rows of these layouts.

    Raises: InvalidData, for a row that is not a record, or a file without rows.
    """
    found = Records()
    groups: dict[tuple[Any, ...], Record] = {}
    reader = MessageReader(images=False)
    unread: dict[str, None] = {}
    for row in read_rows(str(path), where=WHERE):
        given = {name: value for name, value in row.columns.items() if value is not None}
        if "trajectory" not in given:
            given = {name: v for name, v in in_columns(given, layout, row.place).items() if v is not None}
            unread |= dict.fromkeys(name for name in given if name not in READ)
            content = given.pop("content", None)
            record = _conversations(given, row.place, agent, reader)
            found.records.append([replace(one, task=replace(one.task, content=content)) for one in record])
            continue
        try:
            episode = from_json(given["trajectory"])
        except (KeyError, TypeError, ValueError) as error:
            raise _bad(row.place, f"`trajectory` is not an episode: {type(error).__name__}: {error}") from error
        group = groups.setdefault((given.get("step"), given.get("name"), episode.group), [])
        if not group:
            found.records.append(group)
        group.append(replace(episode, sample=len(group)))
    lines = {"column": list(unread), "key": sorted(reader.unread)}
    places = {"column": "", "key": " of messages"}
    found.notes = tuple(
        f"{path.name}: nothing reads {named(kind, names)}{places[kind]}" for kind, names in lines.items() if names
    )
    return found


def _conversations(record: Mapping[str, Any], where: str, agent: str | None, reader: MessageReader) -> Record:
    """The trajectories of a pair, with the chosen one first, or of a demonstration."""
    if agent is None:
        remedy = "Set `agent` to the role that answers in the conversations."
        raise InvalidData(where=where, what="the recipe has several roles that act.", remedy=remedy)
    if record.get("images") or record.get("image"):
        raise _bad(where, "it has images, and `experience: dataset` reads texts alone")
    given: dict[str, Any] = {"where": where, "agent": agent, "reader": reader, "tools": tools_in(record, where)}
    if "chosen" in record and "rejected" in record:
        if record["chosen"] == record["rejected"]:
            raise _bad(where, "`chosen` and `rejected` are equal")
        record = record if "prompt" in record else _with_prompt(record, where)
        marks = Marks(pair=1.0)
        chosen, rejected = (
            _episode(record, ("prompt", name), outcome, marks, **given)
            for name, outcome in (("chosen", 1.0), ("rejected", 0.0))
        )
        return [chosen, replace(rejected, sample=1)]
    outcome = float(bool(record.get("label", True)))
    if "prompt" in record and "completion" in record:
        return [_episode(record, ("prompt", "completion"), outcome, Marks(), **given)]
    if "messages" in record:
        return [_episode(record, ("messages",), outcome, Marks(), **given)]
    raise _bad(where, f"its columns are not those of a record: {', '.join(sorted(record)) or 'none'}")


def _with_prompt(record: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The record of a pair with a prompt: the words, or the messages, that both answers begin with."""
    sides = [record["chosen"], record["rejected"]]
    kinds = {type(side) for side in sides}
    if kinds not in ({str}, {list}):
        raise _bad(where, "`chosen` and `rejected` must be two texts or two lists of messages")
    shared = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(*sides, strict=False)))
    if kinds == {str}:
        shared = sides[0][:shared].rfind(" ") + 1  # whole words
    if not shared:
        raise _bad(where, "it has no `prompt`, and `chosen` and `rejected` begin differently")
    return {"prompt": sides[0][:shared], "chosen": sides[0][shared:], "rejected": sides[1][shared:]}


def _listed(value: Any, column: str, where: str) -> list[Any]:
    """The messages of a column, which has a text or a list of messages, as they are given."""
    if isinstance(value, str):
        value = [{"role": "user" if column == "prompt" else "assistant", "content": value}]
    if not isinstance(value, list) or not value:
        raise _bad(where, f"`{column}` is neither a text nor a list of messages")
    return value


def _read(record: Mapping[str, Any], columns: Sequence[str], where: str, reader: MessageReader) -> list[Message]:
    """The messages of columns that follow each other."""
    given = [_listed(record[name], name, where) for name in columns]
    names = [(name, place) for name, some in zip(columns, given, strict=True) for place in range(len(some))]
    try:
        messages = reader.read([message for some in given for message in some])
    except MessageFault as fault:
        number, _, inside = fault.place.partition(".")
        column, place = names[int(number)] if number else (columns[-1], "")
        at = ".".join(str(piece) for piece in (column, place, inside) if piece != "")
        raise _bad(f"{where}, `{at}`", fault.what) from None
    empty = next((name for (name, _), message in zip(names, messages, strict=True) if message.is_empty), None)
    if empty is not None:
        raise _bad(where, f"`{empty}` has a message whose text is empty")
    return messages


def _episode(
    record: Mapping[str, Any],
    columns: Sequence[str],
    outcome: float,
    marks: Marks,
    *,
    where: str,
    agent: str,
    reader: MessageReader,
    tools: Sequence[Mapping[str, Any]],
) -> Trajectory:
    """The episode of a conversation. Messages to the assistant are observations, its own messages are actions."""
    messages = _read(record, columns, where, reader)
    if len(columns) > 1:
        asked = len(_listed(record[columns[0]], columns[0], where))
    else:
        asked = sum(1 for _ in takewhile(lambda message: message.role != "assistant", messages))
    steps: list[Step] = []
    shown: list[Message] = []
    instruction = None
    for place, message in enumerate(messages):
        if place == 0 and message.role in ("system", "developer"):
            instruction = message.text
        elif message.role != "assistant":
            shown.append(message)
        elif not shown:
            raise _bad(where, "there is no message to the assistant before its answer")
        else:
            learned = place >= asked and message.learned
            step = Step(
                agent=agent,
                turn=len(steps),
                action=Action(text=with_thought(message.text, message.thinking), tool_calls=message.calls),
                observation=replace(_shown(shown, instruction), tools=list(tools) if tools and not steps else None),
                marks=marks if learned else replace(marks, row_weight=0.0),
            )
            steps.append(step)
            shown = []
    if not any(message.role == "assistant" for message in messages[asked:]):
        raise _bad(where, "the answer has no message of the role `assistant`")
    if all(step.marks.row_weight == 0 for step in steps):
        raise _bad(where, "all messages of the assistant have `weight: 0`")
    if shown:
        raise _bad(where, "it ends with a message that the assistant does not answer")
    steps[-1].reward, steps[-1].terminated = outcome, True
    prompt = [message.as_given() for message in messages[:asked]]
    task = Task(env=RECORDS, seed=0, params={"prompt": prompt}, key=where)
    return Trajectory(task=task, group=where, steps=steps, outcome=outcome, returns={agent: outcome})


def _shown(messages: Sequence[Message], instruction: str | None) -> Observation:
    """What the assistant reads before it answers. A message of the user alone is a text."""
    text = "\n".join(message.text for message in messages)
    alone = len(messages) == 1 and messages[0].role == "user" and not messages[0].name
    given = None if alone else [message.as_given() for message in messages]
    return Observation(text=text, messages=given, instruction=instruction)


def _bad(where: str, what: str) -> InvalidData:
    return InvalidData(
        where=where,
        what=f"{what}.",
        remedy="Give each record `prompt`, `chosen` and `rejected`, or `prompt` and `completion`, or `messages`, or "
        "`trajectory`.",
    )
