"""Rows of other layouts in the columns that the library reads: ShareGPT, Alpaca, and OpenAI's rows of preferences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from palaestra.errors import InvalidData

LayoutName = Literal["columns", "sharegpt", "alpaca"]
SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "function_call": "function_call",
    "observation": "tool",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
}
Row = Mapping[str, Any]


def in_columns(row: Row, layout: LayoutName, place: str) -> dict[str, Any]:
    """A row with the columns `messages`, or `prompt` with `completion` or with `chosen` and `rejected`.

    Args:
        layout: "columns": the row has such columns already, or is one of preferences as OpenAI's fine-tuning reads it.
            "sharegpt": `conversations`, a list of `from` and `value`; also `system`, `tools`, and `chosen` and
            `rejected` as single messages. "alpaca": `instruction`, `input`, `output`, `system` and `history`; also
            `chosen` and `rejected`.
        place: of the row, for messages.

    The other columns are kept.

    Raises: InvalidData, for a row that is not of this layout.
    """
    if layout == "sharegpt":
        return _of_sharegpt(row, place)
    if layout == "alpaca":
        return _of_alpaca(row, place)
    given = row.get("input")
    if isinstance(given, Mapping) and "messages" in given and "preferred_output" in row:
        names = {"preferred_output": "chosen", "non_preferred_output": "rejected"}
        others = {names.get(name, name): value for name, value in row.items() if name != "input"}
        inside = {name: value for name, value in given.items() if name != "messages"}
        return {"prompt": given["messages"], **inside, **others}
    return dict(row)


# ---- ShareGPT ---------------------------------------------------------------------------------------------
def _of_sharegpt(row: Row, place: str) -> dict[str, Any]:
    turns = row.get("conversations")
    if not isinstance(turns, Sequence) or isinstance(turns, str) or not turns:
        raise _other(place, "`conversations`, a list of `from` and `value`", row)
    messages = [_turn(turn, f"{place}, `conversations.{number}`") for number, turn in enumerate(turns)]
    if row.get("system"):
        messages.insert(0, {"role": "system", "content": row["system"]})
    names = ("conversations", "system", "kto_tag")
    made = {name: value for name, value in row.items() if name not in names}
    if row.get("chosen") and row.get("rejected"):
        answers = {name: [_turn(row[name], f"{place}, `{name}`")] for name in ("chosen", "rejected")}
        return {**made, "prompt": messages, **answers}
    tagged = {} if row.get("kto_tag") is None else {"label": row["kto_tag"]}
    return {**made, "messages": messages, **tagged}


def _turn(turn: Any, where: str) -> dict[str, Any]:
    """A message of a turn `{"from": …, "value": …}`. Raises: InvalidData."""
    speaker = turn.get("from") if isinstance(turn, Mapping) else None
    role, value = SPEAKERS.get(str(speaker)), turn.get("value") if isinstance(turn, Mapping) else None
    if role is None or not isinstance(value, str):
        raise InvalidData(
            where=where,
            what=f"{str(turn)[:80]} is no turn.",
            remedy=f"Write `from` ({', '.join(SPEAKERS)}) and `value`, a text. If the rows have `role` and `content`, "
            "leave out `layout`.",
        )
    others = {name: given for name, given in turn.items() if name not in ("from", "value")}
    if role == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": _calls(value, where), **others}
    return {"role": role, "content": value, **others}


def _calls(text: str, where: str) -> list[Any]:
    """The calls of a turn `function_call`: a JSON object with `name` and `arguments`, or a list of those."""
    try:
        calls = json.loads(text)
    except ValueError as error:
        remedy = 'Write `{"name": …, "arguments": {…}}`.'
        raise InvalidData(where=where, what=f"the call is not JSON: {error}.", remedy=remedy) from None
    return calls if isinstance(calls, list) else [calls]


# ---- Alpaca -----------------------------------------------------------------------------------------------
def _of_alpaca(row: Row, place: str) -> dict[str, Any]:
    pieces = [row.get("instruction"), row.get("input")]
    history = row.get("history") or []
    pairs = all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in history)
    if not isinstance(pieces[0], str) or not isinstance(pieces[1], str | None) or not pairs:
        raise _other(place, "`instruction` and `input`, two texts, and `history`, a list of pairs", row)
    messages = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    for asked, said in history:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    messages.append({"role": "user", "content": "\n".join(piece for piece in pieces if piece)})
    made = {name: value for name, value in row.items() if name not in ("instruction", "input", "history", "system")}
    if row.get("chosen") and row.get("rejected"):
        return {**made, "prompt": messages}
    return {**made, "prompt": messages, "completion": row.get("output")}


def named(kind: str, names: Sequence[str]) -> str:
    """Names in a sentence: "the columns `a`, `b`"."""
    return f"the {kind}{'s' * (len(names) > 1)} {', '.join(f'`{name}`' for name in names)}"


def _other(place: str, wanted: str, row: Row) -> InvalidData:
    return InvalidData(
        where=place,
        what=f"the row has not the layout that the option `layout` names: {wanted}. It has: {', '.join(row)}.",
        remedy="Correct the row, or leave out `layout` if its columns are `prompt` or `messages`.",
    )
