"""Actions of `searchqa`, and how they are written and read.

There are three styles:

    words    search amber author          open d3          answer birch
    tags     <think> i need the author of amber. </think> <search> amber author </search>
    calls    {"name": "search", "arguments": {"query": "amber author"}}
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from palaestra.data import Action, ToolCall
from palaestra.envs.kit.calls import call_in, command
from palaestra.envs.kit.leniency import read_leniently
from palaestra.tools import Toolbox
from palaestra.tools.formats import format_of

SEARCH, OPEN, ANSWER = "search", "open", "answer"
KINDS = (SEARCH, OPEN, ANSWER)
Style = Literal["words", "tags", "calls"]
Written = Literal["words", "tags"]  # styles of acts that are texts

_TEXT = r"([^<>]*+[<>][^<>]*+|(?=\s*+[^\s<>])[^<>]*+)"  # not blank, and with one bracket at most
_TAGGED = re.compile(r"<(search|open|answer)>([^<>]*)</\1>")
_ONE_TURN = re.compile(rf"\s*<think>{_TEXT}</think>\s*<(search|open|answer)>{_TEXT}</\2>\s*")
# Without a search engine, an agent may write searches and, in place of results, what it recalls.
_RECALLED = re.compile(
    rf"\s*<think>{_TEXT}</think>\s*"
    rf"(?:<search>{_TEXT}</search>\s*<information>{_TEXT}</information>\s*(?:<think>{_TEXT}</think>\s*)?)*"
    rf"<answer>{_TEXT}</answer>\s*"
)
# Kind of an act → what its tool does, the name of its argument, and what that is.
_TOOLS = {
    SEARCH: ("Show the best passages.", "query", "words, such as anna friend"),
    OPEN: ("Show a whole passage.", "id", "such as d3"),
    ANSWER: ("Answer the question, which ends the episode.", "text", "the answer and nothing else"),
}
_STOP = "Stop, and let a reader answer from the passages that you have seen."
_THOUGHTS = {SEARCH: "i need {}.", OPEN: "i read {}.", ANSWER: "it is {}."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An act. `text`: the query, the id of a passage, or the answer. An empty answer lets the reader answer."""

    kind: str
    text: str = ""


def write(act: Act, style: Style) -> str:
    """The text of an act. `read` gives the act back, and `read_call` one of the style "calls"."""
    if style == "words":
        return f"{act.kind} {act.text}".strip()
    if style == "calls":
        arguments = {_TOOLS[act.kind][1]: act.text} if act.text else {}
        return format_of("json").write(ToolCall(name=act.kind, arguments=arguments))
    thought = _THOUGHTS[act.kind].format(act.text) if act.text else "that is enough."
    return f"<think> {thought} </think> <{act.kind}> {act.text} </{act.kind}>"


def read(
    text: str, style: Literal["words", "tags"], *, alone: bool = False, reader: bool = False
) -> tuple[Act | None, bool]:
    """The act that a text means, None if it cannot be read; and whether the text has the asked form.

    In the style "tags", a text is read if exactly one action is tagged. The asked form has one thought before the
    action, and nothing else.

    Args:
        alone: whether there is no search engine. Then only answers are read, and recalled searches may come before one.
        reader: whether an answer may be empty, because a reader answers.
    """
    if style == "words":
        act = read_leniently(text, lambda one: _plain_act(one, alone, reader))
        return act, act is not None
    found = _TAGGED.findall(text)
    if alone:
        found = [(kind, inner) for kind, inner in found if kind == ANSWER]
    if len(found) != 1:
        return None, False
    kind, inner = found[0]
    act = _act(kind, " ".join(inner.split()), alone, reader)
    shape = _RECALLED if alone else _ONE_TURN
    if reader and kind == ANSWER:
        text = text.replace(f"<answer>{inner}</answer>", f"<answer>{inner or ' '}.</answer>")
    return act, act is not None and shape.fullmatch(text) is not None


def tools_for(kinds: Collection[str], *, reader: bool) -> Toolbox:
    """The tools of the style "calls" for acts of these kinds.

    Args:
        reader: whether an answer is empty, because a reader answers.
    """
    tools = []
    for kind in kinds:
        does, argument, told = _TOOLS[kind]
        if kind == ANSWER and reader:
            tools.append(command(kind, _STOP, {}))
        else:
            tools.append(command(kind, does, {argument: {"type": "string", "description": told}}))
    return Toolbox(tools)


def read_call(action: Action, box: Toolbox) -> Act | str:
    """The act that a call of these tools means. Otherwise a text that says what is wrong with the call."""
    call = call_in(action, box)
    if isinstance(call, str):
        return call
    text = " ".join(" ".join(call.arguments.values()).split())
    return Act(kind=call.name, text=text.lower() if call.name == OPEN else text)


def _plain_act(text: str, alone: bool, reader: bool) -> Act | None:
    kind, _, rest = " ".join(text.lower().split()).partition(" ")
    return _act(kind, rest, alone, reader)


def _act(kind: str, rest: str, alone: bool, reader: bool) -> Act | None:
    if kind not in KINDS or (alone and kind != ANSWER):
        return None
    if not rest and not (reader and kind == ANSWER):
        return None
    return Act(kind=kind, text="" if reader and kind == ANSWER else rest.lower() if kind == OPEN else rest)


def parts_of(text: str, count: int) -> list[str]:
    """The `count` answers in one text: between semicolons, else one for each word if there are as many words. Missing
    answers are empty."""
    if count == 1:
        return [text]
    parts = text.split(";") if ";" in text else text.split()
    if len(parts) != count and ";" not in text:
        parts = [text]
    return [*parts, *[""] * count][:count]
