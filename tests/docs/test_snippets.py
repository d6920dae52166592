"""What the documentation shows works: (1) the Python blocks of a page run, one after the other, beside the files that
the page names; (2) its YAML blocks are recipes, complete or laid over the page's first one; (3) its tables of
overrides are accepted; (4) every command line of any page, also of a generated one, fits the command line, and what it
would start resolves in full; (5) every page can be reached; (6) the benchmarks that pages name take these arguments.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from palaestra.commands.cli import app
from palaestra.commands.run import load_played
from palaestra.errors import MissingExtra
from palaestra.recipe import load, split_arguments
from palaestra.registry import user_files
from tests.docs.pages import ROOT, Block, Page, every_page, made, pages, written_pages

PAGES = {page.name: page for page in pages()}
RECIPES = [(page, block) for page in PAGES.values() for block in page.blocks("yaml")]
WRITTEN = {page.name: page for page in written_pages()}
OVERRIDES = [(page, override) for page in PAGES.values() for override in page.overrides()]
CLI: Any = typer.main.get_command(app)


def ids(pairs: list[tuple[Page, Any]]) -> list[str]:
    return [
        f"{page.name}:{' '.join(what) if isinstance(what, list) else getattr(what, 'line', what)}"
        for page, what in pairs
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder of one page; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    user_files.module_of_file.cache_clear()  # two pages may have files of one name
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.smoke
@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if page.blocks("python")])
def test_python_blocks_run(name: str, folder: Path) -> None:  # rule 1
    page = PAGES[name]
    page.write_files(folder)
    names: dict[str, Any] = {"__name__": "page"}
    for block in page.blocks("python"):
        if block.file is None:
            exec(compile("\n" * (block.line - 1) + block.text, name, "exec"), names)
        else:
            compile(block.text, f"{name}: {block.file}", "exec")


def complete(block: Block) -> bool:
    return {"environment", "policies"} <= set(yaml.safe_load(block.text))


def first_recipe(page: Page, folder: Path) -> Path:
    """The page's first complete recipe, as a file; of a page that has none, the quickstart."""
    whole = next((block.text for block in page.blocks("yaml") if complete(block)), None)
    if whole is None:
        return Path("quickstart.yaml")
    path = folder / "first.yaml"
    path.write_text(whole, encoding="utf-8")
    return path


@pytest.mark.parametrize(("page", "block"), RECIPES, ids=ids(RECIPES))
def test_yaml_blocks_are_recipes(page: Page, block: Block, folder: Path) -> None:  # rule 2
    page.write_files(folder)
    (folder / "block.yaml").write_text(block.text, encoding="utf-8")
    below = [] if complete(block) else [first_recipe(page, folder)]
    assert "block.yaml:" in load([*below, folder / "block.yaml"]).explain()


@pytest.mark.parametrize(("page", "override"), OVERRIDES, ids=ids(OVERRIDES))
def test_overrides_are_accepted(page: Page, override: str, folder: Path) -> None:  # rule 3
    first = ["regularizers=entropy"] if override.startswith("regularizers.0") else []
    assert "command line" in load([first_recipe(page, folder)], [*first, override]).explain()


@pytest.mark.parametrize("name", [*WRITTEN, "made pages"])
def test_command_lines_fit(name: str, folder: Path) -> None:  # rule 4
    shown = [WRITTEN[name]] if name in WRITTEN else made()
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")  # some recipes name parts in there
    lines, wrong = {tuple(words): page for page in shown for words in page.commands()}, {}
    missing: MissingExtra | None = None  # it skips the test at the end, if the Makefile leaves the package out
    for words, page in lines.items():
        page.write_files(folder)
        try:
            check_command(list(words))
        except MissingExtra as error:
            missing = error
        except Exception as error:
            wrong[page.name, shlex.join(words)] = error
    assert not wrong
    if missing is not None:
        raise missing


def check_command(words: list[str]) -> None:
    """A command line fits the command line, and what it would start resolves."""
    name, *arguments = words
    if name.startswith("-"):
        assert name in ("--help", "--version")
        return
    command = CLI.commands[name]
    if not arguments or "…" in words or any(word.isupper() for word in arguments):  # a mention, not a call
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in arguments if word.startswith("--")} <= known
        return
    given = command.make_context(name, list(arguments)).params
    if name == "compare":
        methods, overrides = split_arguments(given["methods"])
        for method in methods:
            load([given["setup"], method], overrides).explain()
    elif name == "run":
        load_played(given["recipe"], smoke=False)
    elif name in ("play", "envs"):
        check_environment_arguments(given)
    else:
        check_recipe_arguments(given.get("recipe") or [])


def check_recipe_arguments(arguments: list[str]) -> None:
    """Recipe files and overrides resolve. A run folder, which is not there yet, stands for any recipe."""
    files, overrides = split_arguments(arguments)
    if files:
        load(["quickstart.yaml" if file.startswith("runs/") else file for file in files], overrides).explain()


def check_environment_arguments(given: dict[str, Any]) -> None:
    """The environment has these options."""
    name = given["environment"] if "environment" in given else given["name"]
    if name and not name.startswith("runs/"):
        recipe = {"environment": {name: {}}, "policies": {"main": {"policy": "random", "trainable": False}}}
        load([recipe], [f"environment.{name}.{override}" for override in given["overrides"] or ()])


class Parsed(Exception):
    """A benchmark has read its arguments."""


def test_benchmarks_take_these_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 6."""
    plain = argparse.ArgumentParser.parse_args

    def parses(self: argparse.ArgumentParser, *args: Any) -> Any:
        plain(self, *args)
        raise Parsed

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parses)
    lines, wrong = {tuple(words): page for page in every_page() for words in page.scripts()}, {}
    for words, page in lines.items():
        monkeypatch.setattr(sys, "argv", list(words))
        try:
            importlib.import_module(Path(words[0]).stem).main()
        except Parsed:
            continue
        except (Exception, SystemExit) as error:
            wrong[page.name, shlex.join(words)] = error
        else:
            wrong[page.name, shlex.join(words)] = "it reads no arguments"
    assert len(lines) >= 80 and all((ROOT / words[0]).exists() for words in lines)
    assert not wrong


def test_something_was_found() -> None:
    assert len(PAGES) >= 10 and len(RECIPES) >= 12 and len(OVERRIDES) >= 8
    assert sum(len(page.commands()) for page in every_page()) >= 150


def test_every_page_can_be_reached() -> None:  # rule 5
    navigation = str(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    written = [name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")]
    assert not [name for name in written if f"'{name}'" not in navigation]
