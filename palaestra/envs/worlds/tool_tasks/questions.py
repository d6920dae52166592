"""Questions of one's own: a JSONL file with a question and its answers on each line.

Knows the file and its splits. Knows nothing of tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from palaestra.data import derive
from palaestra.errors import InvalidData

HELD_OUT = 5  # where the file names no splits, one question in so many is held out
KEYS = ("question", "answer", "aliases", "split", "calls", "id")


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked and what is right.

    Attributes:
        text: of the question.
        answers: each of them is right.
        calls: of tools, name and arguments, that show how to find the answer; may be empty.
    """

    text: str
    answers: tuple[str, ...]
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def params(self) -> dict[str, Any]:
        """As JSON values, for a task."""
        calls = [{"name": name, "arguments": dict(arguments)} for name, arguments in self.calls]
        return {"question": self.text, "answers": list(self.answers), "calls": calls}

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Question:
        """Of a task."""
        calls = tuple((call["name"], call["arguments"]) for call in params["calls"])
        return cls(params["question"], tuple(params["answers"]), calls)


def read_questions(path: str) -> dict[str, list[Question]]:
    """The questions of a file by split; read once while the file stays as it is.

    Raises: InvalidData, naming the line; for a question that stands in two splits, which would leak; for no questions.
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
            what = f"the question {question.text[:60]!r} stands in the splits {before} and {split}."
            remedy = "Keep it in one of them: what was trained on cannot be held out."
            raise InvalidData(where=f"{path}:{number}", what=what, remedy=remedy)
        found.setdefault(split, []).append(question)
    if not found:
        remedy = 'Write {"question": "…", "answer": "…"} on each line.'
        raise InvalidData(where=f"questions: {path}", what="there are none.", remedy=remedy)
    return found


def _read(line: str, where: str) -> tuple[Question, str]:
    remedy = 'Write {"question": "…", "answer": "…"}; further keys are aliases, split, calls and id.'
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise InvalidData(where=where, what=f"this is no JSON: {error}.", remedy=remedy) from None
    if not isinstance(entry, dict) or not isinstance(entry.get("question"), str):
        raise InvalidData(where=where, what="`question` must be a text.", remedy=remedy)
    strangers = [key for key in entry if key not in KEYS]
    if strangers:
        raise InvalidData(where=where, what=f"there is no key `{strangers[0]}`.", options=KEYS, remedy=remedy)
    given = [entry["answer"]] if "answer" in entry else []
    answers = tuple(str(one) for one in [*given, *entry.get("aliases", ())])
    if not any(answer.strip() for answer in answers):
        raise InvalidData(where=where, what="there is no answer.", remedy=remedy)
    calls = entry.get("calls", [])
    good = isinstance(calls, list) and all(
        isinstance(call, dict) and set(call) == {"name", "arguments"} for call in calls
    )
    if not good:
        remedy = 'Write "calls": [{"name": "TOOL", "arguments": {}}].'
        raise InvalidData(where=where, what="`calls` is no list of calls.", remedy=remedy)
    question = Question(entry["question"], answers, tuple((call["name"], call["arguments"]) for call in calls))
    held_out = derive(0, "tool_tasks", question.text) % HELD_OUT == 0
    return question, str(entry.get("split", "eval" if held_out else "train"))
