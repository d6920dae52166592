"""Games of TextWorld: makes them with the package, compiles them, and keeps them in a folder.

A game's file is named by a hash of its design.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

from palaestra.errors import EpisodeFailure, RunFolderError, missing_extra

Challenge = Literal["treasure_hunter", "coin_collector", "simple"]
Mode = Literal["easy", "medium", "hard"]

WHERE = "environment textworld"
FORMAT = 1  # part of every hash: raise it when `_generate` changes so that a design gives another game
ATTEMPTS = 20  # maps that are tried, as some allow no quest of the wanted length
_GENERATOR = threading.Lock()  # the whole process shares the package's parser and its random state


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """All that decides a game. The same design gives the same game in every process."""

    challenge: Challenge
    mode: Mode
    rooms: int
    quest_length: int
    seed: int

    @property
    def key(self) -> str:
        """The name of the game's files, without suffix."""
        content = json.dumps([FORMAT, package().__version__, asdict(self)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:24]


def package() -> ModuleType:
    """The textworld package. Raises: MissingExtra."""
    try:
        import textworld
        import textworld.challenges
    except ImportError as error:
        raise missing_extra("textworld", extra="envs", needed_for=WHERE) from error
    return textworld


def cache_folder(cache: str | None) -> Path:
    """The folder of games: `cache`, else $PALAESTRA_CACHE/textworld, else ~/.cache/palaestra/textworld."""
    if cache is not None:
        return Path(cache).expanduser()
    root = os.environ.get("PALAESTRA_CACHE")
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "palaestra") / "textworld"


@functools.lru_cache(maxsize=512)
def load(design: Design, folder: Path) -> Any:
    """The textworld.Game of this design: from memory, from the folder, or made now.

    A file that cannot be read is made anew. All episodes share the game, because playing does not change it.

    Raises: EpisodeFailure, if no map allows the quest; RunFolderError, if the folder cannot be written; MissingExtra.
    """
    path = folder / f"{design.key}.json"
    game_class = package().Game
    try:
        return game_class.load(str(path))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        content = _generate(design)
    _write(path, lambda place: place.write_text(json.dumps(content)))
    return game_class.deserialize(content)


def compiled(game: Any, key: str, folder: Path) -> Path:
    """The path of a compiled game, which has its `.json` beside it. A missing or broken file is compiled anew.

    Args:
        key: the name of the files, without suffix.

    Raises: EpisodeFailure, if the game cannot be compiled; RunFolderError, if the folder cannot be written.
    """
    path = folder / f"{key}.z8"
    beside = path.with_suffix(".json")
    if not beside.exists():  # `load` had the game in memory, and its file was deleted since
        _write(beside, lambda place: place.write_text(json.dumps(game.serialize())))
    if not _intact(path):
        _write(path, lambda place: _compile(game, place))
    return path


def load_compiled(design: Design, folder: Path) -> Path:
    """The path of the compiled game, as `compiled` gives it. Raises: as `load` and `compiled`."""
    return compiled(load(design, folder), design.key, folder)


# ---- making games -----------------------------------------------------------------------------------------
def _generate(design: Design) -> dict[str, Any]:
    textworld = package()
    with _GENERATOR:
        for attempt in range(ATTEMPTS):
            options = textworld.GameOptions()
            options.nb_rooms, options.quest_length = design.rooms, design.quest_length
            state = np.random.SeedSequence([design.seed, attempt]).generate_state(4) % 65635
            options.seeds = dict(zip(("map", "objects", "quest", "grammar"), map(int, state), strict=True))
            try:
                content: dict[str, Any] = MAKERS[design.challenge](options, design.mode).serialize()
            except textworld.generator.QuestGenerationError:
                continue
            # The grammar lists the names already used in the order of a set, which differs from process to process.
            content["grammar"] = {}
            return json.loads(json.dumps(content))  # type: ignore[no-any-return]
    raise EpisodeFailure(
        boundary="environment",
        where=f"environment textworld, {design}",
        what=f"no map of {design.rooms} rooms allowed a quest of {design.quest_length} actions in {ATTEMPTS} attempts.",
        remedy="Give more `rooms` or a smaller `quest_length`.",
    )


def _treasure_hunter(options: Any, mode: Mode) -> Any:
    from textworld.challenges.tw_treasure_hunter import treasure_hunter

    options.kb = _knowledge(treasure_hunter.KB_PATH)
    return treasure_hunter.make_game(mode, options)


def _coin_collector(options: Any, mode: Mode) -> Any:
    from textworld.challenges.tw_coin_collector import coin_collector

    options.kb = _knowledge(coin_collector.KB_PATH)
    options.grammar.allowed_variables_numbering = True
    return coin_collector.make_game("random" if mode == "hard" else "simple", options)


def _simple(options: Any, mode: Mode) -> Any:
    from textworld.challenges.tw_simple import simple

    rewards = {"easy": "dense", "medium": "balanced", "hard": "sparse"}[mode]
    return simple.make({"rewards": rewards, "goal": "detailed", "test": False}, options)


MAKERS: dict[str, Callable[[Any, Mode], Any]] = {
    "treasure_hunter": _treasure_hunter,
    "coin_collector": _coin_collector,
    "simple": _simple,
}


@functools.cache
def _knowledge(path: str) -> Any:
    """The rules and the grammar of a challenge. They are cached, since parsing takes longer than making a game."""
    from textworld.generator.data import KnowledgeBase

    return KnowledgeBase.load(path)


def _compile(game: Any, place: Path) -> None:
    from textworld.generator import CouldNotCompileGameError, compile_game

    options = package().GameOptions()
    options.path, options.force_recompile = str(place), True
    try:
        compile_game(game, options)
    except CouldNotCompileGameError as error:
        raise EpisodeFailure(
            boundary="environment",
            where="environment textworld, backend: compiled",
            what=f"the game cannot be compiled: {str(error).strip().splitlines()[-1]}",
            remedy="Use `backend: logic`, which needs no compiler.",
        ) from error


# ---- files ------------------------------------------------------------------------------------------------
def _write(path: Path, fill: Callable[[Path], object]) -> None:
    """Write a file in one step, so that nobody ever reads half a game. `fill` writes it to the path that it gets."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".making-") as workshop:
            place = Path(workshop) / path.name
            fill(place)
            os.replace(place, path)
    except OSError as error:
        raise RunFolderError(
            where=f"environment textworld, cache {path.parent}",
            what=f"a game cannot be written there: {error}.",
            remedy="Set `cache` or PALAESTRA_CACHE to a folder that can be written.",
        ) from error


def _intact(path: Path) -> bool:
    """Whether a Z-machine file is complete. Its header has the version, the length in units of 8 bytes, a checksum."""
    if not path.exists():
        return False
    content = np.fromfile(path, np.uint8)
    if len(content) < 64:
        return False
    length, total = (int(word) for word in content[[26, 27, 28, 29]].view(">u2"))
    length *= 8
    return content[0] == 8 and 64 < length <= len(content) and int(content[64:length].sum()) % 65536 == total
