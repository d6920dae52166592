"""A user's own game files: of TextWorld (`.json`, `.z8` with its `.json` beside it) and of PDDL (`.tw-pddl`, ALFWorld).

This file finds them, tells their contents apart, and divides them into those for training and those for evaluation.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from palaestra.envs.adapters.rows import division
from palaestra.envs.adapters.textworld.games import WHERE, package
from palaestra.envs.adapters.versions import LOG
from palaestra.errors import EpisodeFailure, InvalidData, RecipeError

KINDS = (".json", ".z8", ".tw-pddl")
GLULX = ".ulx"  # textworld 1.7 plays it no more
BESIDE = ("traj_data.json",)  # files of ALFWorld that are no games
UNSUPPORTED = ("movable", "Sliced")  # in the paths of games that ALFWorld leaves out
TEMPLATE = re.compile(r'template\s*::\s*"([^"]+)"')  # of an action, in the grammar of a PDDL game
PLACE = re.compile(r"\[\{.*?\}\]|\{.*?\}")  # in a template, where the name of a thing stands
TELLING = ("world", "quests", "infos", "objective", "pddl_domain", "pddl_problem")  # what makes one game, not another


@dataclass(frozen=True, slots=True)
class File:
    """A game file.

    Attributes:
        path: of the file that is played. kind: its suffix.
        digest: hash of what makes the game. Copies and renamed files have the same.
    """

    path: Path
    kind: Literal[".json", ".z8", ".tw-pddl"]
    digest: str

    @property
    def name(self) -> str:
        """What tells it from others for a reader: the name of the file, or of the folders of a game of ALFWorld."""
        return "/".join(self.path.parts[-3:-1]) if self.kind == ".tw-pddl" else self.path.stem

    @property
    def logic(self) -> Path:
        """The file with the rules and the map."""
        return self.path.with_suffix(".json") if self.kind == ".z8" else self.path


@dataclass(frozen=True, slots=True)
class Library:
    """The games by content, and the contents for training and for evaluation."""

    games: dict[str, File]
    train: tuple[str, ...]
    held_out: tuple[str, ...]


def library(games: tuple[str, ...], eval_games: tuple[str, ...], held_out: float) -> Library:
    """The games of these patterns. A content that is among `eval_games` is never trained on.

    Args:
        games, eval_games: files, folders or patterns such as `games/*.z8`.
        held_out: share of `games` for evaluation, if there are no `eval_games`.

    Raises: InvalidData, if a pattern finds no game, or one that cannot be read; RecipeError.
    """
    found = _found(games, "games")
    if eval_games:
        apart = _found(eval_games, "eval_games")
        train = tuple(digest for digest in found if digest not in apart)
        if not train:
            remedy = "Name other games in `games`, or leave out `eval_games`."
            raise InvalidData(where=WHERE, what="all games of `games` are also in `eval_games`.", remedy=remedy)
        return Library(found | apart, train, tuple(apart))
    ordered = sorted(found)
    training, other = division(ordered, held_out)
    if held_out and training == other:
        count = f"{len(ordered)} game{'s are' if len(ordered) > 1 else ' is'}"
        LOG.warning("%s: %s too few to hold any out: training meets all of them.", WHERE, count)
    return Library(found, tuple(ordered[place] for place in training), tuple(ordered[place] for place in other))


def _found(patterns: Sequence[str], option: str) -> dict[str, File]:
    """The games by content. Of equal games, the first is kept."""
    games: dict[str, File] = {}
    for pattern in patterns:
        paths = _paths(pattern)
        stamps = [(path, path.stat()) for path in paths]
        files = [_file(path, option, (stat.st_mtime_ns, stat.st_size)) for path, stat in stamps]
        playable = [one for one in files if one is not None]
        if not playable:
            raise InvalidData(
                where=f"{WHERE}, {option}",
                what=f"`{pattern}` finds no game{f', but {len(paths)} other files' if paths else ''}.",
                remedy=f"Give files, folders or patterns of game files ({', '.join(KINDS)}), such as `games/*.z8`. "
                "`tw-make` makes such files.",
            )
        for one in playable:
            games.setdefault(one.digest, one)
    return games


def _paths(pattern: str) -> list[Path]:
    """The files of a pattern, in order. A game's `.json` is left out if its `.z8` is there."""
    place = Path(pattern).expanduser()
    if place.is_dir():
        found = sorted(path for path in place.rglob("*") if path.suffix in (*KINDS, GLULX))
    else:
        found = sorted(Path(path) for path in glob.glob(str(place), recursive=True))
    compiled = {path.with_suffix("") for path in found if path.suffix == ".z8"}
    return [
        path
        for path in found
        if path.name not in BESIDE and not (path.suffix == ".json" and path.with_suffix("") in compiled)
    ]


@functools.cache
def _file(path: Path, option: str, stamp: tuple[int, int]) -> File | None:
    """The game of a file; None, for a file that ALFWorld leaves out, too.

    Args:
        stamp: time of its last change and its size. A changed file is read again.
    """
    where = f"{WHERE}, {option}, {path}"
    if path.suffix == GLULX:
        raise RecipeError(
            where=where,
            what="games of Glulx (.ulx) can be played only by textworld before 1.7.",
            remedy="Make the game again: `tw-make … --format z8`, or name its `.json` file, if it is there.",
        )
    if path.suffix not in KINDS:
        return None
    file = File(path, path.suffix, "")  # type: ignore[arg-type]
    if not file.logic.is_file():
        remedy = f"Copy {file.logic.name}, which `tw-make` wrote beside the game, into the same folder."
        raise InvalidData(where=where, what=f"there is no {file.logic.name} beside it.", remedy=remedy)
    data = _read(file.logic, where)
    own = "/".join(path.parts[-3:])  # ALFWorld's folder of the task, that of the trial, and the file
    if file.kind == ".tw-pddl" and (data.get("solvable") is False or any(word in own for word in UNSUPPORTED)):
        return None
    telling = {name: data[name] for name in TELLING if name in data} | {"task": _task(data)}
    written = json.dumps(telling, sort_keys=True)
    return File(path, file.kind, hashlib.sha256(written.encode()).hexdigest()[:16])


def _read(path: Path, where: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        remedy = "Make the file again with `tw-make`."
        raise InvalidData(where=where, what=f"it cannot be read: {error}.", remedy=remedy) from error
    wanted = ("pddl_domain", "pddl_problem", "grammar") if path.suffix == ".tw-pddl" else ("world", "quests", "infos")
    if not isinstance(data, dict) or any(name not in data for name in wanted):
        what = f"it is no game: a game has {', '.join(wanted)}."
        raise InvalidData(where=where, what=what, remedy="Name game files only, by a pattern such as `games/*.z8`.")
    return data


def _task(data: dict[str, Any]) -> str | None:
    """What a PDDL game says of its goal, which stands in its grammar."""
    return data["grammar"] if isinstance(data.get("grammar"), str) else None


def commands_of(file: File) -> dict[str, str]:
    """The commands of a game as an instruction lists them, such as `take THING from THING`."""
    if file.kind == ".tw-pddl":
        grammar = str(_read(file.path, f"{WHERE}, {file.path}")["grammar"])
        templates = [found[1] for found in TEMPLATE.finditer(grammar)]
    else:
        templates = list(load_file(file.logic).command_templates)
    return dict.fromkeys(dict.fromkeys(PLACE.sub("THING", one) for one in templates), "")


@functools.lru_cache(maxsize=512)
def load_file(path: Path) -> Any:
    """The textworld.Game of a `.json` file. All episodes share it, because playing does not change it.

    Raises: EpisodeFailure, if the package cannot read it.
    """
    try:
        return package().Game.load(str(path))
    except Exception as error:  # the package raises errors of many types for a damaged file
        raise EpisodeFailure(
            boundary="environment",
            where=f"{WHERE}, {path}",
            what=f"the package textworld cannot read the game: {type(error).__name__}: {error}.",
            remedy="Make it again with the installed version of `tw-make`.",
        ) from error
