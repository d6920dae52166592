"""The formats in which agents write calls of tools, by name. `FORMATS["json"].parse(text, tools)` reads calls.

Reading never raises. `Parsed.fault` says what could not be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from palaestra.data import ToolCall
from palaestra.errors import UnknownName, nearest
from palaestra.tools.calls import Parsed
from palaestra.tools.format_code import CodeCalls
from palaestra.tools.format_json import JsonCalls
from palaestra.tools.format_tagged import TaggedCalls
from palaestra.tools.format_words import WordCalls
from palaestra.tools.tool import Tool


class CallFormat(Protocol):
    """One way to write calls. Reading gives back what was written: `parse(write(call), tools).calls == (call,)`."""

    name: str

    def explain(self, tools: Sequence[Tool]) -> str:
        """What the agent is told: how to write a call, and which tools there are."""
        ...

    def parse(self, text: str, tools: Mapping[str, Tool]) -> Parsed:
        """The calls in a text. Never raises."""
        ...

    def write(self, call: ToolCall, tools: Mapping[str, Tool] | None = None) -> str:
        """A call with JSON values as an expert writes it. With `tools`, the text may be shorter."""
        ...


FORMATS: dict[str, CallFormat] = {one.name: one for one in (JsonCalls(), TaggedCalls(), CodeCalls(), WordCalls())}


def format_of(name: str) -> CallFormat:
    """The format of this name. Raises: UnknownName."""
    if name not in FORMATS:
        raise UnknownName(
            where=f"format: {name}", what=f"no format is called `{name}`.", options=nearest(name, FORMATS)
        )
    return FORMATS[name]
