"""Read a user's questions from a JSONL file, which has a question and its answers on each line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from palaestra.data import derive
from palaestra.errors import InvalidData

HELD_OUT = 5  # of the questions without `split`, about one in this many is held out
KEYS = ("question", "answer", "aliases", "split", "calls", "id")


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its right answers.

    Attributes:
        text: the question.
        answers: all right answers. One of them is enough.
        calls: calls of tools that lead to the answer, as name and arguments. May be empty.
    """

    text: str
    answers: tuple[str, ...]
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def params(self) -> dict[str, Any]:
        """The question as JSON values, for the params of a task."""
        calls = [{"name": name, "arguments": dict(arguments)} for name, arguments in self.calls]
        return {"question": self.text, "answers": list(self.answers), "calls": calls}

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Question:
        """The question of a task with these params."""
        calls = tuple((call["name"], call["arguments"]) for call in params["calls"])
        return cls(params["question"], tuple(params["answers"]), calls)


def read_questions(path: str) -> dict[str, list[Question]]:
    """The questions of a file, by split. A file that has not changed is read only once.

    Raises: InvalidData, for a line that is not a question, a question that is in two splits, or no questions.
    """
    try:
        state = Path(path).stat()
        return _read_all(path, (state.st_mtime_ns, state.st_size))
    except (OSError, UnicodeDecodeError) as error:
        remedy = "Give the path of a JSONL file, relative to the working folder."
        raise InvalidData(where=f"questions: {path}", what=f"it cannot be read: {error}.", remedy=remedy) from None


@lru_cache(maxsize=16)
def _read_all(path: str, state: tuple[int, int]) -> dict[str, list[Question]]:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    found: dict[str, list[Question]] = {}
    splits: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        question, split = _read(line, f"{path}:{number}")
        before = splits.setdefault(question.text, split)
        if before != split:
            what = f"the question {question.text[:60]!r} is in the splits {before} and {split}."
            remedy = "Keep it in one of them. A question that is trained on cannot be held out."
            raise InvalidData(where=f"{path}:{number}", what=what, remedy=remedy)
        found.setdefault(split, []).append(question)
    if not found:
        remedy = 'Write {"question": "…", "answer": "…"} on each line.'
        raise InvalidData(where=f"questions: {path}", what="the file has no questions.", remedy=remedy)
    return found


def _read(line: str, where: str) -> tuple[Question, str]:
    remedy = 'Write {"question": "…", "answer": "…"}; other keys are aliases, split, calls and id.'
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InvalidData(where=where, what=f"the line is not JSON: {error}.", remedy=remedy) from None
    if not isinstance(entry, dict) or not isinstance(entry.get("question"), str):
        raise InvalidData(where=where, what="it has no `question` that is a text.", remedy=remedy)
    strangers = [key for key in entry if key not in KEYS]
    if strangers:
        raise InvalidData(where=where, what=f"a question has no key `{strangers[0]}`.", options=KEYS, remedy=remedy)
    given = [entry["answer"]] if "answer" in entry else []
    answers = tuple(str(one) for one in [*given, *entry.get("aliases", ())])
    if not any(answer.strip() for answer in answers):
        raise InvalidData(where=where, what="the question has no answer.", remedy=remedy)
    calls = entry.get("calls", [])
    good = isinstance(calls, list) and all(
        isinstance(call, dict) and set(call) == {"name", "arguments"} for call in calls
    )
    if not good:
        remedy = 'Write "calls": [{"name": "TOOL", "arguments": {}}].'
        raise InvalidData(where=where, what="`calls` is not a list of calls.", remedy=remedy)
    question = Question(entry["question"], answers, tuple((call["name"], call["arguments"]) for call in calls))
    held_out = derive(0, "tool_tasks", question.text) % HELD_OUT == 0
    return question, str(entry.get("split", "eval" if held_out else "train"))
