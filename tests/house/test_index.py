"""Generated texts: (1) parts.json is fresh, (2) so are the pages of parts, methods and commands; (3) every
registration in the package is found by reading, which needs it above a function or class of a module.
"""

from __future__ import annotations

import ast
import json

import typer.main

from palaestra import cli
from palaestra.catalogue import build_index, declarations, write
from palaestra.catalogue.scan import is_registration
from tests.house.source_text import PACKAGE, python_files, tree


def test_the_index_is_fresh() -> None:  # rule 1
    stored = json.loads((PACKAGE / "parts.json").read_text(encoding="utf-8"))
    assert stored == build_index(), "run `palaestra docs`"


def test_pages_are_fresh() -> None:  # rule 2
    assert write(check=True, command=typer.main.get_command(cli.app)) == [], "run `palaestra docs`"


def test_every_registration_is_found() -> None:  # rule 3
    calls = [node for path in python_files("palaestra") for node in ast.walk(tree(path)) if is_registration(node)]
    assert len(calls) == len(declarations())
