"""Acts and how they are written: as a short line with an expression, as fenced code, or as a call of a tool."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from palaestra.data import ToolCall
from palaestra.envs.kit.leniency import read_leniently
from palaestra.tools import Tool
from palaestra.tools.formats import format_of
from palaestra.tools.tool import WrongArguments

Kind = Literal["function", "repository"]
Style = Literal["expression", "fenced", "json", "tagged"]
Name = Literal["try", "run", "test", "submit", "list", "read", "replace", "write"]
LONGEST = 20_000  # characters of an act
FENCE = re.compile(r"```[a-z]*\n(.*?)```", re.DOTALL)
REPLACE = re.compile(r"replace (\S+) (\d{1,5}) (.*)")
CODE = {"code": "a whole program"}
FILE = {"file": "name of a file"}
# name → what it does, its arguments, and which of them may be left out
MANUALS: dict[Kind, dict[Name, tuple[str, dict[str, str], tuple[str, ...]]]] = {
    "function": {
        "run": ("Run a program and see what it prints.", CODE, ()),
        "test": ("Run the visible tests on a program; without code, on the last one.", CODE, ("code",)),
        "submit": ("Hand in a program; without code, the last one. Ends the task.", CODE, ("code",)),
    },
    "repository": {
        "list": ("The names of the files.", {}, ()),
        "read": ("Show a file with line numbers.", FILE, ()),
        "replace": ("Put another line in the place of one.", FILE | {"line": "its number", "text": "the new line"}, ()),
        "write": ("Make a file, or replace it wholly.", FILE | {"code": "all that it holds"}, ()),
        "test": ("Run the visible tests.", {}, ()),
        "submit": ("Hand in the files. Ends the task.", {}, ()),
    },
}
FENCED: dict[Kind, str] = {
    "function": "Acts: `run`, `test` and `submit`, each on a line of its own with the program after it in a block "
    "```python … ```. `test` and `submit` without a block take the last program. `submit` ends the task.",
    "repository": "Acts, one in a turn, on the last line: `list`, `read FILE`, `replace FILE NUMBER NEW LINE`, `test`, "
    "`submit`; or `write FILE` and after it a block ```python … ``` with the whole file. `submit` ends the task.",
}


@dataclass(frozen=True, slots=True)
class Act:
    """An act of the agent. `code` is a program, an expression, the content of a file or the text of a line."""

    name: Name
    code: str = ""
    file: str = ""
    line: int = 0


class Misread(Exception):
    """A text that is no act. The message says why, and the agent reads it."""


def tools_of(kind: Kind) -> dict[str, Tool]:
    """The acts as tools. Their `call` is never used: the episode carries the acts out."""
    found: dict[str, Tool] = {}
    for name, (does, arguments, optional) in MANUALS[kind].items():
        parameters = {
            "type": "object",
            "properties": {
                one: {"type": "integer" if one == "line" else "string", "description": meaning}
                for one, meaning in arguments.items()
            },
            "required": [one for one in arguments if one not in optional],
            "additionalProperties": False,
        }
        found[name] = Tool(name=name, description=does, parameters=parameters, call=dict)
    return found


TOOLS: dict[Kind, dict[str, Tool]] = {"function": tools_of("function"), "repository": tools_of("repository")}


def explained(kind: Kind, style: Style) -> str | None:
    """The instruction that tells a model how to write acts. None for `style: expression`."""
    if style == "expression":
        return None
    return FENCED[kind] if style == "fenced" else format_of(style).explain(list(TOOLS[kind].values()))


def read_act(text: Any, kind: Kind, style: Style) -> Act:
    """The act that a text describes. Raises: Misread."""
    if not isinstance(text, str) or not text.strip():
        raise Misread("not understood")
    if len(text) > LONGEST:
        raise Misread("too long")
    if style == "expression":
        return _short(text)
    return _fenced(text, kind) if style == "fenced" else _called(text, kind, style)


def write_act(act: Act, style: Style) -> str:
    """The text of an act. `read_act` makes the same act from it."""
    if style == "expression":
        return f"{act.name} {act.code}".strip()
    if style == "fenced":
        words = [act.name, act.file, str(act.line or "")]
        head = " ".join(word for word in words if word)
        if act.name == "replace":
            return f"{head} {act.code}"
        return f"{head}\n```python\n{act.code}```" if act.code else head
    given: dict[str, Any] = {"file": act.file, "line": act.line}
    given["text" if act.name == "replace" else "code"] = act.code
    return format_of(style).write(ToolCall(name=act.name, arguments={k: v for k, v in given.items() if v}))


def _short(text: str) -> Act:
    act = read_leniently(text, _shortest)
    if act is None:
        raise Misread("not understood")
    return act


def _shortest(text: str) -> Act | None:
    word, _, code = " ".join(text.split()).removesuffix(".").partition(" ")
    word = word.lower()
    if word == "submit" or (word == "try" and code):
        return Act("submit" if word == "submit" else "try", code)
    return None


def _fenced(text: str, kind: Kind) -> Act:
    blocks = list(FENCE.finditer(text))
    code = blocks[-1][1] if blocks else ""
    before = text[: blocks[-1].start()] if blocks else text
    lines = [line for line in before.splitlines() if line.strip()]
    words = lines[-1].split() if lines else []
    name = words[0] if words else ""
    if name not in MANUALS[kind]:
        raise Misread("not understood")
    if name == "replace":
        found = REPLACE.fullmatch(lines[-1].lstrip().rstrip("\n"))
        if found is None or code:
            raise Misread("write: replace FILE NUMBER NEW LINE")
        return Act("replace", found[3], found[1], int(found[2]))
    takes = 2 if name in ("read", "write") else 1
    if len(words) != takes or (bool(code) and name in ("list", "read")) or (not code and name in ("run", "write")):
        raise Misread(f"write: {MANUALS[kind][name][0].lower()}")  # type: ignore[index]
    if kind == "repository" and code and name != "write":
        raise Misread(f"{name} takes no code")
    return Act(name, code, words[1] if takes == 2 else "")  # type: ignore[arg-type]


def _called(text: str, kind: Kind, style: Style) -> Act:
    parsed = format_of(style).parse(text, TOOLS[kind])
    if parsed.fault or not parsed.calls:
        raise Misread(parsed.fault or "there is no call of a tool")
    if len(parsed.calls) > 1:
        raise Misread("one call at a time")
    call = parsed.calls[0]
    tool = TOOLS[kind].get(call.name)
    if tool is None:
        raise Misread(f"there is no tool {call.name!r}")
    try:
        given = tool.arguments(call.arguments)
    except WrongArguments as fault:
        raise Misread(str(fault)) from None
    code = given.get("text", given.get("code", ""))
    return Act(tool.name, code, given.get("file", ""), given.get("line", 0))  # type: ignore[arg-type]
