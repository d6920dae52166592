"""Formats: how agents write calls of tools. `FORMATS["json"].parse(text, tools)` reads them.

Knows the formats by name. Reading never raises: what cannot be read is told in `Parsed.fault`.
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
    """One way to write calls. `parse(write(call)).calls == (call,)`."""

    name: str

    def explain(self, tools: Sequence[Tool]) -> str:
        """What the agent is told: how to call, and the tools."""
        ...

    def parse(self, text: str, tools: Mapping[str, Tool]) -> Parsed:
        """The calls of a text. Never raises."""
        ...

    def write(self, call: ToolCall, tools: Mapping[str, Tool] | None = None) -> str:
        """How an expert writes a call of JSON values; `tools` may make it shorter."""
        ...


FORMATS: dict[str, CallFormat] = {one.name: one for one in (JsonCalls(), TaggedCalls(), CodeCalls(), WordCalls())}


def format_of(name: str) -> CallFormat:
    """The format of this name. Raises: UnknownName."""
    if name not in FORMATS:
        raise UnknownName(
            where=f"format: {name}", what=f"no format is called `{name}`.", options=nearest(name, FORMATS)
        )
    return FORMATS[name]
