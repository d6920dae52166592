"""Messages of errors, complete, in one file: tests/messages.yaml.

    with told(InvalidData, "`gama`"):
        ...

is `pytest.raises(InvalidData)`. It asks that the message contains the word, and that all of it is what the file has
for this test. After a change of wording:

    python -m pytest --write-messages PATHS      writes what these tests see; read the difference before you commit it

A test that runs several `told` has one entry for each, in order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_suffix(".yaml")
WRITE = "PALAESTRA_WRITE_MESSAGES"  # set by --write-messages
# What differs from machine to machine and from run to run.
PLACES = (
    (rf"{re.escape(str(ROOT))}/?", ""),
    (r"/\S*?/pytest-\d+/(?:popen-\w+/)?[\w-]+", "TMP"),
    (r"0x[0-9a-f]+", "0x…"),
)
counted: dict[str, int] = {}  # test → how many messages it has shown so far


@cache
def stored() -> dict[str, list[str]]:
    """Test → its messages, in order."""
    return yaml.safe_load(FILE.read_text(encoding="utf-8")) or {} if FILE.exists() else {}


def plain(text: str) -> str:
    """A message without the places of this machine."""
    for pattern, instead in PLACES:
        text = re.sub(pattern, instead, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


class Dumper(yaml.SafeDumper):
    """Messages as blocks of lines."""


def _block(dumper: Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, _block)


def write(test: str, place: int, text: str) -> None:
    """Put a message into the file."""
    kept = stored().get(test, [])
    stored()[test] = [*kept[:place], text]
    lines = yaml.dump(stored(), Dumper=Dumper, sort_keys=True, allow_unicode=True, width=1000)
    FILE.write_text(f"# Written by `python -m pytest --write-messages PATHS`, see tests/messages.py.\n{lines}", "utf-8")


@contextmanager
def told(error: type[Exception], word: str) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error whose message contains `word` and is, complete, the one of the file."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    place = counted[test] = counted.get(test, -1) + 1
    with pytest.raises(error) as caught:
        yield caught
    text = plain(str(caught.value))
    assert word in text
    if os.environ.get(WRITE):
        write(test, place, text)
    expected = stored().get(test, [])
    assert place < len(expected), f"no message of this test is stored: python -m pytest --write-messages '{test}'"
    assert text == expected[place]
