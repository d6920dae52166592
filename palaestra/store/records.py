"""Read the records of a data set (conversations in TRL's columns, or stored episodes) as trajectories.

A record is a list of trajectories of one group. A record that cannot be read is refused with its file and line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from palaestra.data import Action, Marks, Observation, Step, Task, Trajectory
from palaestra.errors import InvalidData
from palaestra.store.episodes import from_json

RECORDS = "dataset"  # environment of tasks that stand in a file
SPEAKERS = ("system", "user", "tool", "assistant")
Message = Mapping[str, str]
Record = list[Trajectory]


def read_records(path: Path, agent: str | None) -> list[Record]:
    """The records of a file with JSON lines, or with one list if its name ends in `.json`.

    The columns of a record are one of these:

        prompt, chosen, rejected    a pair with the outcomes 1 and 0, in which both have the mark `pair`. Without
                                    `prompt`, the prompt is the words, or the messages, that both begin with
        prompt, completion          a demonstration, whose outcome is 1, or 1 or 0 by `label`
        messages                    a demonstration with several answers, whose outcome is the same
        trajectory                  an episode as `to_json` writes it; episodes with the same `step`, `name` and group
                                    are one record

    Besides, `content` may tell the problem: the `Task.content_hash` of the task that is answered.

    A text is one message, of the user in a prompt, of the assistant elsewhere. Each message of the assistant is a step.
    The steps of a prompt have weight 0. The outcome is the reward of the last step.

    Args:
        agent: the agent that answers in conversations. None: unknown, so conversations are refused.

    Raises: InvalidData, for a line that is not a record, or a file without records.
    """
    records: list[Record] = []
    groups: dict[tuple[Any, ...], Record] = {}
    for where, line in _lines(path):
        given = {name: value for name, value in line.items() if value is not None}
        if "trajectory" not in given:
            content = given.pop("content", None)
            record = _conversations(given, where, agent)
            records.append([replace(one, task=replace(one.task, content=content)) for one in record])
            continue
        try:
            episode = from_json(given["trajectory"])
        except (KeyError, TypeError, ValueError) as error:
            raise _bad(where, f"`trajectory` is not an episode: {type(error).__name__}: {error}") from error
        group = groups.setdefault((given.get("step"), given.get("name"), episode.group), [])
        if not group:
            records.append(group)
        group.append(replace(episode, sample=len(group)))
    if not records:
        raise InvalidData(where=str(path), what="the file has no record.", remedy="Name a file with records.")
    return records


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file, each with its place: the number of its line or, in a `.json`, in the list."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some programs begin a file with a mark of its byte order
    except UnicodeDecodeError as error:
        raise _bad(str(path), f"it is not UTF-8: {error}") from None
    whole = path.suffix == ".json"
    for number, line in enumerate(_parsed(text, str(path)) if whole else text.split("\n"), start=1):
        if whole or line.strip():
            where = f"{path}:{number}"
            record = line if whole else _parsed(line, where)
            if not isinstance(record, dict):
                raise _bad(where, "it is not a JSON object")
            yield where, record


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _bad(where, f"it is not JSON: {error}") from None


def _conversations(record: Mapping[str, Any], where: str, agent: str | None) -> Record:
    """The trajectories of a pair, with the chosen one first, or of a demonstration."""
    if agent is None:
        remedy = "Set `agent` to the role that answers in the conversations."
        raise InvalidData(where=where, what="the recipe has several roles that act.", remedy=remedy)
    if "chosen" in record and "rejected" in record:
        if record["chosen"] == record["rejected"]:
            raise _bad(where, "`chosen` and `rejected` are equal")
        record = record if "prompt" in record else _with_prompt(record, where)
        prompt, *answers = (_messages(record[name], name, where) for name in ("prompt", "chosen", "rejected"))
        chosen, rejected = (
            _episode(prompt, answer, outcome, Marks(pair=1.0), where=where, agent=agent)
            for answer, outcome in zip(answers, (1.0, 0.0), strict=True)
        )
        return [chosen, replace(rejected, sample=1)]
    if "prompt" in record and "completion" in record:
        prompt, answer = (_messages(record[name], name, where) for name in ("prompt", "completion"))
    elif "messages" in record:
        messages = _messages(record["messages"], "messages", where)
        prompt = list(takewhile(lambda message: message["role"] != "assistant", messages))
        answer = messages[len(prompt) :]
    else:
        raise _bad(where, f"its columns are not those of a record: {', '.join(sorted(record)) or 'none'}")
    outcome = float(bool(record.get("label", True)))
    return [_episode(prompt, answer, outcome, Marks(), where=where, agent=agent)]


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


def _messages(value: Any, column: str, where: str) -> list[Message]:
    """The messages of a column, which has a text or a list of messages."""
    if isinstance(value, str):
        value = [{"role": "user" if column == "prompt" else "assistant", "content": value}]
    if not isinstance(value, list) or not value:
        raise _bad(where, f"`{column}` is neither a text nor a list of messages")
    for message in value:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str) or not content.strip():
            raise _bad(where, f"`{column}` has a message whose text is empty or missing")
        if message.get("role") not in SPEAKERS:
            raise _bad(where, f"`{column}` has the role `{message.get('role')}`; roles are {', '.join(SPEAKERS)}")
    return value


def _episode(
    prompt: Sequence[Message], answer: Sequence[Message], outcome: float, marks: Marks, *, where: str, agent: str
) -> Trajectory:
    """The episode of a conversation. Messages to the assistant are observations, its own messages are actions."""
    steps: list[Step] = []
    shown: list[str] = []
    instruction = None
    for place, message in enumerate([*prompt, *answer]):
        if message["role"] == "system":
            if place:
                raise _bad(where, "a message of the role `system` is not the first")
            instruction = message["content"]
        elif message["role"] != "assistant":
            shown.append(message["content"])
        elif not shown:
            raise _bad(where, "there is no message to the assistant before its answer")
        else:
            step = Step(
                agent=agent,
                turn=len(steps),
                action=Action(text=message["content"]),
                observation=Observation(text="\n".join(shown), instruction=instruction),
                marks=marks if place >= len(prompt) else replace(marks, row_weight=0.0),
            )
            steps.append(step)
            shown = []
    if not steps or steps[-1].marks.row_weight == 0:
        raise _bad(where, "the answer has no message of the role `assistant`")
    steps[-1].reward, steps[-1].terminated = outcome, True
    task = Task(env=RECORDS, seed=0, params={"prompt": [dict(message) for message in prompt]}, key=where)
    return Trajectory(task=task, group=where, steps=steps, outcome=outcome, returns={agent: outcome})


def _bad(where: str, what: str) -> InvalidData:
    return InvalidData(
        where=where,
        what=f"{what}.",
        remedy="Give each record `prompt`, `chosen` and `rejected`, or `prompt` and `completion`, or `messages`, or "
        "`trajectory`.",
    )
