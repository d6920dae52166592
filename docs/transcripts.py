"""Transcripts in pages: what `palaestra play` prints, between a mark that says how and the page's next text.

    python docs/transcripts.py docs/environments/shop.md      # fills the blocks of this page
    python docs/transcripts.py --check                        # says which of all pages are stale; 1 if any is

A block is a comment `<!-- transcript: palaestra play shop --policy expert --seed 3 -->` and the fenced text after it.
`<!-- transcript (kept): … -->` marks one that other machines may not print letter by letter; it is not compared.
Knows pages and commands. Knows nothing of environments.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

from typer.main import get_command

from palaestra.cli import app

PAGES = Path(__file__).parent / "environments"
BLOCK = re.compile(
    r"(<!-- transcript(?P<kept> \(kept\))?: palaestra (?P<command>[^\n]*?) -->\n+```text\n)(?P<text>.*?)(```\n)", re.S
)


def printed(command: str) -> str:
    """What the command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        get_command(app).main(shlex.split(command), standalone_mode=False)
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines()) + "\n"


def renewed(page: Path, *, kept: bool) -> str:
    """The page with its transcripts played again; those that are kept only if asked for."""

    def fill(found: re.Match[str]) -> str:
        again = kept or not found["kept"]
        return f"{found[1]}{printed(found['command']) if again else found['text']}{found[5]}"

    return BLOCK.sub(fill, page.read_text(encoding="utf-8"))


def stale(pages: Path = PAGES) -> list[str]:
    """The names of pages that say something else than what is printed now."""
    found = sorted(pages.glob("*.md"))
    return [page.name for page in found if renewed(page, kept=False) != page.read_text(encoding="utf-8")]


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        names = stale()
        print("\n".join(f"stale: {name}" for name in names))
        return int(bool(names))
    for name in arguments:
        text = renewed(Path(name), kept=True)
        Path(name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
