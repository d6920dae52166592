"""Pages: the documentation, its code blocks and the commands it names.

Pages that are made from the code when the site is built are made here too.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import made_pages
import typer.main

from palaestra.commands import cli
from palaestra.commands.init import EXAMPLE

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w./-]+\.(?:py|yaml))\b")  # first line of a block that is to be a file
SHELL = ("", "bash", "sh", "console")


@dataclass(frozen=True, slots=True)
class Block:
    """One code block. `file` is the name that its first line gives it."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        found = FILE.match(self.text)
        return found[1] if found else None


@dataclass(frozen=True, slots=True)
class Page:
    """One page that somebody wrote."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    def blocks(self, *languages: str) -> list[Block]:
        """The blocks in these languages, in order."""
        return [
            Block(found[1], found[2], self.text.count("\n", 0, found.start()) + 2)
            for found in BLOCK.finditer(self.text)
            if found[1] in languages
        ]

    def write_files(self, folder: Path) -> None:
        """Put every block with a file name into a folder, and the files of `palaestra init` if the page calls it."""
        if "$ palaestra init" in self.text:
            for path in (ROOT / "recipes" / EXAMPLE).glob("*.*"):
                shutil.copy(path, folder)
        for block in self.blocks("python", "yaml"):
            if block.file is not None:
                (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
                (folder / block.file).write_text(block.text, encoding="utf-8")

    def commands(self) -> list[list[str]]:
        """Words after `palaestra` of every command line, in blocks and in the text."""
        blocks = "\n".join(block.text for block in self.blocks(*SHELL)).replace("\\\n", " ")
        lines = re.findall(r"^(?:\$ )?palaestra +(\S.*)$", blocks, re.MULTILINE)
        text = BLOCK.sub("", self.text)
        lines += re.findall(r"^    (?:\$ )?palaestra +(\S.*)$", text, re.MULTILINE)  # a block without a fence
        lines += re.findall(r"`palaestra ([^`]+)`", text)
        return [shlex.split(line, comments=True) for line in lines]

    def scripts(self) -> list[list[str]]:
        """Words after `python` of every command line that runs a benchmark."""
        lines = re.findall(r"\bpython (benchmarks/[^`\n]+\.py[^`\n]*)", self.text)
        return [shlex.split(line, comments=True) for line in lines]

    def overrides(self) -> list[str]:
        """First cells of tables that are overrides, `rollout.group=16`."""
        return [shlex.split(cell)[0] for cell in re.findall(r"^\| `([^`(=]+=[^`]+)` \|", self.text, re.MULTILINE)]


def every_page() -> list[Page]:
    """All pages that print commands: written ones, and those that are made when the site is built."""
    return [*written_pages(), *made()]


def written_pages() -> list[Page]:
    """Pages that somebody wrote, of the documentation and of other folders."""
    more = [ROOT / "benchmarks" / "README.md", ROOT / "CONTRIBUTING.md"]
    return [*pages(), *(Page(path, path.read_text(encoding="utf-8")) for path in more)]


@cache
def made() -> list[Page]:
    """Pages that are made when the site is built."""
    texts = made_pages.pages(ROOT, typer.main.get_command(cli.app))
    return [Page(ROOT / "docs" / path, text) for path, text in texts.items()]


def pages() -> list[Page]:
    """The README and every page of docs/."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [Page(path, path.read_text(encoding="utf-8")) for path in paths]
