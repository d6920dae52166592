"""Transcripts in pages: what `palaestra play` prints, put below a comment that gives the command.

    python docs/transcripts.py docs/environments/shop.md      # prints the page as the site shows it

A page has a comment `<!-- transcript: palaestra play shop --policy expert --seed 3 -->`. MkDocs calls this hook when
it builds the site. The hook plays the episode and adds it as text. Where an episode needs programs that the build may
lack, the page holds the text itself.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from typer.main import get_command

from palaestra.commands.cli import app

MARK = re.compile(r"<!-- transcript: palaestra (?P<command>[^\n]*?) -->\n")


@functools.cache
def printed(command: str) -> str:
    """What the command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        get_command(app).main(shlex.split(command), standalone_mode=False)
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines()) + "\n"


def filled(markdown: str) -> str:
    """The page with each command and what it prints."""
    return MARK.sub(lambda mark: f"`palaestra {mark['command']}`\n\n```text\n{printed(mark['command'])}```\n", markdown)


def on_page_markdown(markdown: str, **context: Any) -> str:
    """Called by MkDocs for every page."""
    return filled(markdown)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(filled(Path(name).read_text(encoding="utf-8")))
