"""Read the rows of a data file: JSON, CSV, Parquet, Arrow, a folder of them, or a data set of the Hugging Face hub that
was downloaded before. Nothing is downloaded. JSON and CSV may be compressed by gzip.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from palaestra.errors import InvalidData, missing_extra

# A file's or folder's name, up to the word that names its split, as `datasets` of Hugging Face finds it.
SPLIT = re.compile(
    r"(?:.*?[-._ 0-9])?(train(?:ing)?|test(?:ing)?|validation|valid|val|dev|eval(?:uation)?)(?![a-z])", re.IGNORECASE
)
SAME_SPLIT = {"training": "train", "testing": "test", "valid": "validation", "val": "validation", "evaluation": "eval"}
PACKED = ".gz"
HALF = re.compile(r"\\u[dD][89a-fA-F]")  # where JSON text may have half of a character, such as `\ud83d`
DOWNLOAD = "hf download --repo-type dataset"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a data file: its columns, its place for messages, such as `train.jsonl:17`, and its file's folder."""

    columns: Mapping[str, Any]
    place: str
    folder: str = ""


def read_rows(path: str, *, where: str = "environment: dataset") -> tuple[Row, ...]:
    """The rows of a data file. Files that have not changed are read only once.

    Args:
        where: what reads them, for messages.
        path: a file; a folder; or an id of the Hugging Face hub that was downloaded before. After a folder or an id,
            the beginning of file names may follow: `openai/gsm8k/main/train` means `main/train-00000-of-00001.parquet`.

    Raises: InvalidData, if there is no such file, for a row that cannot be read, or without rows; MissingExtra, for
        Parquet and Arrow without pyarrow.
    """
    files = data_files(path, where=where)
    states = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    rows = _read_all(states)
    if not rows:
        raise InvalidData(where=path, what="the file has no rows.", remedy="Name a file with at least one row.")
    return rows


@lru_cache(maxsize=16)
def _read_all(states: tuple[tuple[str, int, int], ...]) -> tuple[Row, ...]:
    return tuple(row for file, _, _ in states for row in _read(Path(file)))


# ---- files ------------------------------------------------------------------------------------------------
def data_files(path: str, *, where: str = "environment: dataset") -> list[Path]:
    """The files that a path means. Raises: InvalidData, if there is none."""
    place = Path(path)
    if place.is_file():
        return [place]
    for folder, start in _folders(path):
        found = sorted(file for file in folder.rglob("*") if kind_of(file) in READERS and file.is_file())
        inside = [(file, file.relative_to(folder)) for file in found]
        seen = [(file, place) for file, place in inside if not any(name.startswith(".") for name in place.parts)]
        named = [file for file, place in seen if place.as_posix().startswith(start)]
        # A folder of Hugging Face `datasets` holds JSON files about itself beside the data.
        tables = [file for file in named if kind_of(file) in TABLES]
        if named:
            _refuse_several_splits(
                f"{where}, path: {path}", path, start, [file.relative_to(folder) for file in tables or named]
            )
            return tables or named
    begins = "/".join(place.parts[:2])
    name = begins if re.fullmatch(r"[\w.-]+/[\w.-]+", begins) else "OWNER/NAME"
    raise InvalidData(
        where=f"{where}, path: {path}",
        what="there is no such file or folder with data, and no data set of this name on this machine. Nothing is "
        "downloaded by itself.",
        remedy=f"Correct the path, which starts from the recipe's folder or the working folder. Files may be "
        f"{', '.join(READERS)}; JSON and CSV also with `{PACKED}` behind it.\n"
        f"For a data set of the Hugging Face hub, run first: {DOWNLOAD} {name}",
    )


def kind_of(path: Path) -> str:
    """The kind of a file by its name, such as `.jsonl`, also for `train.jsonl.gz`."""
    kinds = [kind.lower() for kind in path.suffixes]
    return kinds[-2] if kinds[-1:] == [PACKED] and len(kinds) > 1 and kinds[-2] in UNPACKED else "".join(kinds[-1:])


def _refuse_several_splits(where: str, path: str, start: str, files: Sequence[Path]) -> None:
    """Refuse a folder in which both training and test data lie. Raises: InvalidData, which names the parts."""
    found: dict[str, str] = {}  # what to write → the split
    for file in files:
        for depth, name in enumerate(file.parts):
            if split := SPLIT.match(name):
                word = split[1].lower()
                found["/".join((*file.parts[:depth], split[0]))] = SAME_SPLIT.get(word, word)
                break
    if len(set(found.values())) > 1:
        base = path.removesuffix(start).rstrip("/")
        names = tuple(f"{base}/{part}" for part in found)
        test = next((name for name, split in zip(names, found.values(), strict=True) if split != "train"), names[0])
        raise InvalidData(
            where=where,
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
    if _has_lines(text := _text(path)):  # as `Dataset.to_json` and pandas write them
        return _json_lines(path)
    rows = _parsed(text, path.name)
    if not isinstance(rows, list):
        raise InvalidData(
            where=path.name,
            what="it is not a list of rows.",
            remedy="Write `[{…}, {…}]`, or one row a line in a .jsonl.",
        )
    return enumerate(rows, start=1)


def _has_lines(text: str) -> bool:
    """Whether the first line is a JSON object and more lines follow it."""
    first, _, others = text.lstrip().partition("\n")
    try:
        return bool(others.strip()) and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _csv(path: Path) -> Iterable[tuple[int, Any]]:
    """The rows, each with the number of its first line. An empty value is None."""
    csv.field_size_limit(2**31 - 1)
    delimiter = "\t" if kind_of(path) == ".tsv" else ","
    reader = csv.reader(io.StringIO(_text(path), newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    line = 1
    try:
        for row in reader:
            if not header:
                header = _header(row, f"{path.name}:{line}")
            elif row and len(row) != len(header):
                raise csv.Error(f"the header has {len(header)} columns, and the row has {len(row)}")
            elif row:
                yield line, {name: value or None for name, value in zip(header, row, strict=True)}
            line = reader.line_num + 1
    except csv.Error as error:
        raise InvalidData(
            where=f"{path.name}:{line}",
            what=f"{error}.",
            remedy="Put values that contain the delimiter, a line break or a double quote into double quotes, and "
            "write a double quote in them twice.",
        ) from None


def _header(names: list[str], place: str) -> list[str]:
    """The names of the columns. Raises: InvalidData, if two are equal."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidData(where=place, what=f"two columns are called `{twice}`.", remedy="Rename one of them.")
    return names


def _parquet(path: Path) -> Iterable[tuple[int, Any]]:
    parquet = _pyarrow("pyarrow.parquet", path)
    return _rows_of_table(path, lambda: parquet.read_table(path))


def _arrow(path: Path) -> Iterable[tuple[int, Any]]:
    ipc = _pyarrow("pyarrow.ipc", path)

    def read() -> Any:
        with path.open("rb") as file:  # `datasets` writes streams, other programs write files
            magic = file.read(6)
            file.seek(0)
            return (ipc.open_file if magic == b"ARROW1" else ipc.open_stream)(file).read_all()

    return _rows_of_table(path, read)


def _rows_of_table(path: Path, read: Callable[[], Any]) -> Iterable[tuple[int, Any]]:
    """The rows of a table of pyarrow. Raises: InvalidData, if it cannot be read."""
    pyarrow = _pyarrow("pyarrow", path)
    fault = pyarrow.ArrowException
    try:
        table = read()
        _header(table.column_names, path.name)
        columns = [column.to_pylist() for column in table.itercolumns()]
    except fault as error:
        first = str(error).partition("\n")[0]
        kind = path.suffix.lower().removeprefix(".").capitalize()
        raise InvalidData(
            where=str(path), what=f"it cannot be read as {kind}: {first}.", remedy="Write it again."
        ) from None
    made = [_converter(field.type, pyarrow) for field in table.schema]
    columns = [column if of is None else map(of, column) for of, column in zip(made, columns, strict=True)]
    rows = (dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True))
    return enumerate(rows, start=1)


def _converter(kind: Any, pyarrow: Any) -> Callable[[Any], Any] | None:
    """Makes of a value of this type what a row of JSON would have; None, if it is the same.

    All structs of a column have the same keys, so a key that is null in a struct was never there. Values of the type
    `arrow.json`, in which `datasets` stores what has no fixed form, are JSON texts.
    """
    if isinstance(kind, pyarrow.BaseExtensionType) and kind.extension_name == "arrow.json":
        return lambda value: None if value is None else _parsed(value, "a value of the type `arrow.json`")
    if pyarrow.types.is_struct(kind):
        inside = {field.name: _converter(field.type, pyarrow) for field in kind}
        return lambda value: None if value is None else _struct(value, inside)
    if any(is_kind(kind) for is_kind in (pyarrow.types.is_list, pyarrow.types.is_large_list)):
        of_items = _converter(kind.value_type, pyarrow)
        return None if of_items is None else lambda value: None if value is None else [of_items(one) for one in value]
    return None


def _struct(value: Mapping[str, Any], inside: Mapping[str, Callable[[Any], Any] | None]) -> dict[str, Any]:
    kept = {name: inner for name, inner in value.items() if inner is not None}
    return {name: inner if (made := inside[name]) is None else made(inner) for name, inner in kept.items()}


READERS: dict[str, Callable[[Path], Iterable[tuple[int, Any]]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
}
UNPACKED = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")  # kinds that may be compressed
TABLES = (".parquet", ".arrow", ".jsonl", ".ndjson", ".csv", ".tsv")


def _read(path: Path) -> Iterable[Row]:
    kind = kind_of(path)
    if kind not in READERS:
        raise InvalidData(where=str(path), what=f"files of the kind `{kind}` cannot be read.", options=tuple(READERS))
    for number, columns in READERS[kind](path):
        place = f"{path.name}:{number}"
        if not isinstance(columns, dict):
            raise InvalidData(where=place, what="the row is not a JSON object.", remedy='Write `{"prompt": …}`.')
        # NaN is how pandas writes that a value is missing.
        kept = {str(name): None if value != value else value for name, value in columns.items()}
        yield Row(kept, place, str(path.parent))


def _text(path: Path) -> str:
    try:
        if path.suffix.lower() == PACKED:
            return gzip.decompress(path.read_bytes()).decode("utf-8-sig").replace("\r\n", "\n")
        return path.read_text(encoding="utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        remedy = f"Compress it again: `gzip -k {path.stem}`."
        raise InvalidData(where=str(path), what=f"it is not compressed by gzip: {error}.", remedy=remedy) from None
    except UnicodeDecodeError as error:
        raise InvalidData(where=str(path), what=f"it is not UTF-8: {error}.", remedy="Save it as UTF-8.") from None
    except OSError as error:
        raise InvalidData(where=str(path), what=f"it cannot be read: {error.strerror}.") from None


def _parsed(text: str, where: str) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=_no_doubles)
        if HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])[1:-1]
        what = f"`{half}` is half of a character, which no text can hold."
        raise InvalidData(where=where, what=what, remedy="Remove it. The text was cut inside of a character.") from None
    except RecursionError:
        raise InvalidData(where=where, what="it is nested too deeply.", remedy="Correct the line.") from None
    except _Twice as error:
        remedy = "Remove one of the two. Only the last would count."
        raise InvalidData(where=where, what=f"{error}.", remedy=remedy) from None
    except ValueError as error:
        raise InvalidData(where=where, what=f"it is not JSON: {error}.", remedy="Correct the line.") from None
    return value


class _Twice(ValueError):
    """A key occurs twice in a JSON object."""


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys and values. Raises: _Twice, if a key occurs twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Twice(f"the key `{twice}` stands twice in one object")
    return made


def _pyarrow(module: str, path: Path) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra("pyarrow", extra="data", needed_for=f"environment: dataset, {path.name}") from error
