"""The package TextArena: builds its games by name, without the network, and explains why some cannot be built."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from palaestra.envs.kit.randomness import Randomness
from palaestra.errors import RecipeError, UnknownName, missing_extra, nearest

PLACE = "environment textarena"
COUNTS = (2, 1, 3, 4, 5, 6, 7, 8)  # numbers of players, in the order in which they are tried
LACKS_FILE = "the installed package lacks a file that the game reads"
VARIANTS = ("-raw", "-train")  # endings of names under which the package registers a game again


@functools.cache
def package() -> Any:
    """The package. Raises: MissingExtra."""
    try:
        return importlib.import_module("textarena")
    except ImportError as error:
        raise missing_extra("textarena", extra="envs", needed_for=PLACE) from error


@functools.cache
def names() -> tuple[str, ...]:
    """The names of all games that the package registers, also of those that cannot be built here."""
    package()
    registry = importlib.import_module("textarena.envs.registration").ENV_REGISTRY
    return tuple(sorted(name for name in registry if not name.endswith(VARIANTS)))


def build(game: str, options: Mapping[str, Any]) -> Any:
    """Build a game of the package, without the package's wrappers.

    Raises: UnknownName; RecipeError, if it cannot be built here; MissingExtra.
    """
    make = package().make
    if game not in names():
        raise UnknownName(
            where=f"{PLACE}, game",
            what=f"TextArena has no game `{game}`.",
            options=nearest(game, names()),
            remedy="Set `game` to a name of its registry, such as TicTacToe-v0.",
        )
    registry = importlib.import_module("textarena.envs.registration").ENV_REGISTRY
    plain = f"{game}-raw" if f"{game}-raw" in registry else game
    try:
        with _offline():
            return make(plain, **options)
    except Exception as error:
        what, remedy = _reason(game, error)
        raise RecipeError(where=f"{PLACE}, game: {game}", what=what, remedy=remedy) from error


@functools.cache
def fewest_players(game: str, options: str) -> int:
    """The default number of players: 2 if the game allows it, else the fewest that it allows.

    Args:
        options: keyword arguments of the game's class, as JSON.

    Raises: RecipeError, if no number of players works.
    """
    for count in COUNTS:
        failure = refusal(game, json.loads(options), count)
        if not failure:
            return count
    raise RecipeError(
        where=f"{PLACE}, game: {game}",
        what=f"it cannot be set up: {failure}.",
        remedy="Choose another game, or check `options`.",
    )


def refusal(game: str, options: Mapping[str, Any], players: int) -> str:
    """Why the game cannot be set up for this number of players; empty if it can."""
    with Randomness(0).lent():
        built = build(game, options)
        try:
            built.reset(num_players=players, seed=0)
        except FileNotFoundError:
            return LACKS_FILE
        except Exception as error:
            return _first_line(error) or type(error).__name__
    return ""


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """A context in which nltk downloads nothing. Some games try to download word lists when they are built."""
    try:
        loader = importlib.import_module("nltk")
    except ImportError:
        yield
        return
    plain = loader.download
    loader.download = lambda *arguments, **keywords: False
    try:
        yield
    finally:
        loader.download = plain


def _reason(game: str, error: Exception) -> tuple[str, str]:
    """Why a game cannot be built, and what the user can do."""
    text = str(error)
    found = re.search(r"nltk\.download\('([\w-]+)'\)", text)
    if isinstance(error, LookupError) and found:
        remedy = f"With a network, run: python -m nltk.downloader {found[1]}"
        return f"it needs the word list `{found[1]}` of nltk, which is not on this machine.", remedy
    if "OPENROUTER_API_KEY" in text:
        return "it calls a language model of openrouter.ai, and OPENROUTER_API_KEY is not set.", "Choose another game."
    if isinstance(error, SyntaxError):
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"its code needs Python 3.12 or later, and this is {running}.", "Choose another game."
    if isinstance(error, FileNotFoundError):
        return f"{LACKS_FILE}.", "Choose another game."
    if isinstance(error, ImportError):
        return f"the installed package lacks a module of it: {_first_line(error)}.", "Choose another game."
    return f"it cannot be built: {_first_line(error)}.", "Check `options`: they go to the game's class."


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else ""
