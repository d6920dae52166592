"""Markdown: tables, code, and prose whose own signs are made harmless."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; line breaks inside cells become spaces."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("\n", " ") for cell in line) + " |\n" for line in lines)


def code(text: str) -> str:
    """Text as code, harmless inside a table."""
    return "`" + text.replace("|", "\\|") + "`" if text else ""


def prose(text: str) -> str:
    """Text with Markdown's own signs made harmless outside of backticks."""
    pieces = text.split("`")
    plain = [re.sub(r"([*_<|\[\]])", r"\\\1", piece) if i % 2 == 0 else piece for i, piece in enumerate(pieces)]
    return "`".join(plain)


def source(text: str) -> str:
    """Text with every `arXiv 2402.03300` as a link."""
    return re.sub(r"arXiv[: ](\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def anchor(name: str) -> str:
    """The fragment that a heading of this text gets."""
    return re.sub(r"[^\w-]+", "-", name.lower()).strip("-")
