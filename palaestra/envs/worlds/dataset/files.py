"""Read the rows of a data file: JSON, CSV, Parquet, Arrow, a folder of them, or a data set of the Hugging Face hub that
was downloaded before. Nothing is downloaded.
"""

from __future__ import annotations

import csv
import importlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from palaestra.errors import InvalidData, missing_extra

SPLIT = re.compile(r"(train|test|validation|valid|val|dev|eval)(?![a-z])")  # the beginning of a file's or folder's name
DOWNLOAD = "hf download --repo-type dataset"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a data file: its columns, and its place for messages, such as `train.jsonl:17`."""

    columns: Mapping[str, Any]
    place: str


def read_rows(path: str) -> tuple[Row, ...]:
    """The rows of a data file. Files that have not changed are read only once.

    Args:
        path: a file; a folder; or an id of the Hugging Face hub that was downloaded before. After a folder or an id,
            the beginning of file names may follow: `openai/gsm8k/main/train` means `main/train-00000-of-00001.parquet`.

    Raises: InvalidData, if there is no such file, for a row that cannot be read, or without rows; MissingExtra, for
        Parquet and Arrow without pyarrow.
    """
    files = data_files(path)
    states = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    rows = _read_all(states)
    if not rows:
        raise InvalidData(where=path, what="the file has no rows.", remedy="Name a file with at least one row.")
    return rows


@lru_cache(maxsize=16)
def _read_all(states: tuple[tuple[str, int, int], ...]) -> tuple[Row, ...]:
    return tuple(row for file, _, _ in states for row in _read(Path(file)))


# ---- files ------------------------------------------------------------------------------------------------
def data_files(path: str) -> list[Path]:
    """The files that a path means. Raises: InvalidData, if there is none."""
    place = Path(path)
    if place.is_file():
        return [place]
    for folder, start in _folders(path):
        found = sorted(file for file in folder.rglob("*") if file.suffix in READERS and file.is_file())
        named = [file for file in found if file.relative_to(folder).as_posix().startswith(start)]
        # A folder of Hugging Face `datasets` holds JSON files about itself beside the data.
        tables = [file for file in named if file.suffix in TABLES]
        if named:
            _refuse_several_splits(path, start, [file.relative_to(folder) for file in tables or named])
            return tables or named
    begins = "/".join(place.parts[:2])
    name = begins if re.fullmatch(r"[\w.-]+/[\w.-]+", begins) else "OWNER/NAME"
    raise InvalidData(
        where=f"environment: dataset, path: {path}",
        what="there is no such file or folder with data, and no data set of this name on this machine. Nothing is "
        "downloaded by itself.",
        remedy=f"Correct the path, which starts from the recipe's folder or the working folder. Files may be "
        f"{', '.join(READERS)}.\nFor a data set of the Hugging Face hub, run first: {DOWNLOAD} {name}",
    )


def _refuse_several_splits(path: str, start: str, files: Sequence[Path]) -> None:
    """Refuse a folder in which both training and test data lie. Raises: InvalidData, which names the parts."""
    found: dict[str, str] = {}  # what to write → the split
    for file in files:
        for depth, name in enumerate(file.parts):
            if split := SPLIT.match(name):
                found["/".join((*file.parts[:depth], split[1]))] = split[1]
                break
    if len(set(found.values())) > 1:
        base = path.removesuffix(start).rstrip("/")
        names = tuple(f"{base}/{part}" for part in found)
        test = next((name for name in names if not name.endswith("/train")), names[0])
        raise InvalidData(
            where=f"environment: dataset, path: {path}",
            what=f"the folder has several splits: {', '.join(sorted(set(found.values())))}.",
            options=names,
            remedy=f"Name one of them, and another for evaluations: `eval: {test}`.",
        )


def _folders(path: str) -> Iterable[tuple[Path, str]]:
    """The folders that a path may mean, each with the beginning of the names of its files."""
    place = Path(path)
    if place.is_dir():
        yield place, ""
    elif place.parent.is_dir() and str(place.parent) != ".":
        yield place.parent, place.name
    pieces = place.as_posix().split("/")
    if len(pieces) >= 2 and not place.is_absolute():
        try:
            folder = snapshot_download("/".join(pieces[:2]), repo_type="dataset", local_files_only=True)
        except (LocalEntryNotFoundError, HFValidationError):
            return
        yield Path(folder), "/".join(pieces[2:])


# ---- formats ----------------------------------------------------------------------------------------------
def _json_lines(path: Path) -> Iterable[tuple[int, Any]]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            yield number, _parsed(line, f"{path.name}:{number}")


def _json(path: Path) -> Iterable[tuple[int, Any]]:
    rows = _parsed(_text(path), path.name)
    if not isinstance(rows, list):
        raise InvalidData(
            where=path.name,
            what="it is not a list of rows.",
            remedy="Write `[{…}, {…}]`, or one row a line in a .jsonl.",
        )
    return enumerate(rows, start=1)


def _csv(path: Path) -> Iterable[tuple[int, Any]]:
    delimiter = "\t" if path.suffix == ".tsv" else ","
    reader = csv.DictReader(_text(path).splitlines(keepends=True), delimiter=delimiter)
    for row in reader:
        if None in row or None in row.values():
            raise InvalidData(
                where=f"{path.name}:{reader.line_num}",
                what=f"the row has not the {len(reader.fieldnames or ())} values of the header.",
                remedy="Put values that contain the delimiter or line breaks into double quotes.",
            )
        yield reader.line_num, row


def _parquet(path: Path) -> Iterable[tuple[int, Any]]:
    parquet = _pyarrow("pyarrow.parquet", path)
    return enumerate(parquet.read_table(path).to_pylist(), start=1)


def _arrow(path: Path) -> Iterable[tuple[int, Any]]:
    ipc = _pyarrow("pyarrow.ipc", path)
    with path.open("rb") as file:  # `datasets` writes streams, other programs write files
        magic = file.read(6)
        file.seek(0)
        table = (ipc.open_file if magic == b"ARROW1" else ipc.open_stream)(file).read_all()
    return enumerate(table.to_pylist(), start=1)


READERS: dict[str, Callable[[Path], Iterable[tuple[int, Any]]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
}
TABLES = (".parquet", ".arrow", ".jsonl", ".ndjson", ".csv", ".tsv")


def _read(path: Path) -> Iterable[Row]:
    if path.suffix not in READERS:
        raise InvalidData(
            where=str(path), what=f"files of the kind `{path.suffix}` cannot be read.", options=tuple(READERS)
        )
    for number, columns in READERS[path.suffix](path):
        place = f"{path.name}:{number}"
        if not isinstance(columns, dict):
            raise InvalidData(where=place, what="the row is not a JSON object.", remedy='Write `{"prompt": …}`.')
        yield Row({str(name): value for name, value in columns.items()}, place)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidData(where=str(path), what=f"it is not UTF-8: {error}.", remedy="Save it as UTF-8.") from None


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidData(where=where, what=f"it is not JSON: {error}.", remedy="Correct the line.") from None


def _pyarrow(module: str, path: Path) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra("pyarrow", extra="data", needed_for=f"environment: dataset, {path.name}") from error
