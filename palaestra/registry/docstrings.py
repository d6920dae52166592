"""Reads docstrings: the summary, the prose, the sections, and the text of each argument.

The package `docstring_parser` reads the sections (Google style). This module handles three forms that the package does
not know. A section may begin on the line of its heading (`Raises: InvalidData, if …`). Prose may follow the sections.
One text may describe several arguments (`low, high: bounds`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from docstring_parser import DocstringParam, ParseError
from docstring_parser.google import GoogleParser, Section, SectionType

ARGUMENTS = ("Args", "Arguments", "Parameters", "Params")
NOTES = (
    "Returns",
    "Raises",
    "Yields",
    "Attributes",
    "Example",
    "Examples",
    "Note",
    "Notes",
    "Differs from the authors' code",
)
HEADING = re.compile(f"({'|'.join((*ARGUMENTS, *NOTES))}):[ \t]*(.*)")
PARSER = GoogleParser(
    [
        *(Section(title, "param", SectionType.MULTIPLE) for title in ARGUMENTS),
        *(Section(title, title, SectionType.SINGULAR) for title in NOTES),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Docstring:
    """The pieces of a docstring.

    Attributes:
        summary: the first line.
        body: the other prose, with its indented formulas unchanged.
        notes: heading → text, such as "Returns" and "Raises".
        arguments: name → text.
    """

    summary: str
    body: str
    notes: dict[str, str]
    arguments: dict[str, str]


def read_docstring(text: str) -> Docstring:
    """Split a docstring into its pieces. Examples (`>>>`) are left out.

    Args:
        text: the docstring without the indentation of the code, as `inspect.getdoc` gives it.

    Raises: ValueError, for an entry of `Args:` that is not `name: text`.
    """
    prose, sections = _separated(text)
    try:
        entries = PARSER.parse("\n".join(["", "", *sections])).meta
    except ParseError as error:
        raise ValueError(f"its section of arguments cannot be read: {error}") from error
    arguments: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, DocstringParam):
            arguments |= {name.strip(): _joined(entry.description) for name in entry.arg_name.split(",")}
    notes = {entry.args[0]: _joined(entry.description) for entry in entries if not isinstance(entry, DocstringParam)}
    summary, _, body = "\n".join(prose).partition("\n")
    return Docstring(summary=summary, body=body.strip("\n"), notes=notes, arguments=arguments)


def _separated(text: str) -> tuple[list[str], list[str]]:
    """The lines of the prose; and the lines of the sections, in the form that `docstring_parser` reads."""
    prose: list[str] = []
    sections: list[str] = []
    lines, begun = prose, False  # begun: the section began on its heading's line, so its next lines need no indent
    for line in _without_examples(text.splitlines()):
        heading = HEADING.fullmatch(line)
        if heading:
            lines, begun = sections, bool(heading[2])
            lines += [f"{heading[1]}:", *([f"    {heading[2]}"] if begun else [])]
        elif lines is sections and line and not line.startswith(" "):
            if not begun:
                lines = prose
            lines.append(f"    {line}" if begun else line)
        else:
            begun = begun and bool(line.strip())
            lines.append(line)
    return prose, sections


def _without_examples(lines: Iterable[str]) -> Iterator[str]:
    """The lines outside of examples. An empty line ends an example."""
    inside = False
    for line in lines:
        inside = (inside or line.startswith(">>>")) and bool(line.strip())
        if not inside:
            yield line


def _joined(text: str | None) -> str:
    return " ".join((text or "").split())
