"""Decides whose code a command may import. A folder that somebody else has made may name, or hold, code of theirs.

A recipe file that the user names is the user's own, and its code is imported. Two things need the user's `--trust`:

1. code inside a run folder,
2. code that the recipe of a run folder names, unless the run was made here: by this account, on this machine.

A run that was made here is known by a signature over its `recipe.json`. The key of the signature lies in the home
folder.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from palaestra.errors import RecipeError

RECIPE = "recipe.json"
SIGNATURE = "signature.json"  # in a run folder: digest of a recipe.json → its signature
BESIDE = ("checkpoints", "metrics.jsonl")  # one of them and a recipe.json make a folder one of a run
KEPT = 2  # signatures in the file: of the recipe that is being replaced, and of the new one
ATTRIBUTE = re.compile(r"[\w.-]+")  # behind a module; `gymnasium` has names such as `module:Env-v0`
DEVICES = ("cpu", "cuda", "mps")  # `cuda:0` is no code
OBJECTS = "palaestra_objects:"  # objects of the process that trained, which no other process has
PROGRAMS = ("command",)  # options that name a program
GAME = ".tw-pddl"  # TextWorld evaluates the expressions of Python in such a file
MODULES = ("env",)  # options that may name a module
KNOWN = ("pettingzoo", "mpe2", "gymnasium")  # packages whose modules are no code of others

_asked = {"trust": False}  # of the process, since code is also imported in threads


@contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """A context in which all code is imported if `trust` is true, as with `--trust`."""
    former = _asked["trust"]
    _asked["trust"] = former or trust
    try:
        yield
    finally:
        _asked["trust"] = former


def trusts() -> bool:
    """Whether the user has asked to import all code."""
    return _asked["trust"]


def refuse_code_of(folder: Path, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse the recipe of a run folder that names code, by the rules above.

    Args:
        entries: the content of `recipe.json`.

    Raises: RecipeError, with the key and the code.
    """
    found = [] if trusts() else list(code_in(entries))
    if not found:
        return
    made = made_here(folder)
    for key, text, folders in found:
        inside = made and _lies_in(folder, text, folders)
        if not made or inside:
            raise RecipeError(
                where=f"{folder / RECIPE}  {key}",
                what=f"it names code, `{text}`, "
                + (
                    "which lies inside the run folder."
                    if inside
                    else "and this run was not made by you on this machine."
                ),
                remedy="Code of others can do all that you can do. Read it first. Then add `--trust` to the command "
                "(in Python: `trust=True`).",
            )


def refuse_inside(file: Path, *, where: str) -> None:
    """Refuse a file of code that lies inside a run folder. Raises: RecipeError."""
    if trusts():
        return
    for folder in file.parents:
        if (folder / RECIPE).is_file() and any((folder / name).exists() for name in BESIDE):
            raise RecipeError(
                where=where,
                what=f"{os.path.relpath(file)} lies inside the run folder {os.path.relpath(folder)}, so it may be "
                "somebody else's code.",
                remedy="Read it first. Then add `--trust` to the command (in Python: `trust=True`), or copy the file "
                "to another place.",
            )


def sign(folder: Path, content: bytes) -> bytes | None:
    """The content of the file `SIGNATURE` of a folder whose `recipe.json` is about to have this content.

    None, if no key can be kept, as in a home folder that cannot be written.
    """
    key = _key(make=True)
    if key is None:
        return None
    signed = {**_signatures(folder), _digest(content): _signature(key, content)}
    return json.dumps(dict(list(signed.items())[-KEPT:]), indent=1).encode()


def made_here(folder: Path) -> bool:
    """Whether this account has written the `recipe.json` of this folder on this machine."""
    key = _key(make=False)
    try:
        content = (folder / RECIPE).read_bytes()
    except OSError:
        return False
    known = _signatures(folder).get(_digest(content), "")
    return key is not None and hmac.compare_digest(known, _signature(key, content))


def is_as_written(folder: Path) -> bool:
    """Whether `recipe.json` has the content that was written, by whomever. True, if that is not known."""
    known = _signatures(folder)
    try:
        return not known or _digest((folder / RECIPE).read_bytes()) in known
    except OSError:
        return True


# ---- code in a recipe -------------------------------------------------------------------------------------
def code_in(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Key, text and folders of each text that names code or a program."""
    for key, entry in entries.items():
        folders = [one for one in entry.get("folders", ()) if isinstance(one, str)]
        for name, text in _texts(entry.get("value"), key.rpartition(".")[2]):
            if name in PROGRAMS or _names_code(text) or (name in MODULES and _names_module(text)):
                yield key, text, folders


def _texts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Every text in a value, keys included, with the name of the option that it belongs to."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield "", str(key)
            yield from _texts(inner, str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, name)


def _names_code(text: str) -> bool:
    place, colon, attribute = text.rpartition(":")
    if place.endswith(".py") or text.endswith(GAME):
        return True
    if not colon or text.startswith(("palaestra.", OBJECTS)) or (place in DEVICES and attribute.isdigit()):
        return False
    return all(name.isidentifier() for name in place.split(".")) and ATTRIBUTE.fullmatch(attribute) is not None


def _names_module(text: str) -> bool:
    first, *others = text.split(".")
    return bool(others) and first not in KNOWN and all(name.isidentifier() for name in (first, *others))


def _lies_in(folder: Path, text: str, folders: Sequence[str]) -> bool:
    """Whether a text names a file inside the folder, looked for in all places in which it may be found."""
    named, place = text.rpartition(":")[0], folder.resolve()
    return named.endswith(".py") and any(
        (found := (Path(start) / named).resolve()).is_relative_to(place) and found.exists() for start in (*folders, ".")
    )


# ---- signatures -------------------------------------------------------------------------------------------
def _key(*, make: bool) -> bytes | None:
    """The secret of this account. It is made if it is missing and `make` is true."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    file = state / "palaestra" / "key"
    with suppress(OSError):
        if make and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            own = file.with_name(f"key.{os.getpid()}.{secrets.token_hex(4)}")
            handle = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.write(handle, secrets.token_bytes(32))
            finally:
                os.close(handle)
            with suppress(FileExistsError):  # another process was quicker
                os.link(own, file)
            own.unlink()
    try:
        key = file.read_bytes()
    except OSError:
        return None
    return key if len(key) == 32 else None


def _signatures(folder: Path) -> dict[str, str]:
    try:
        written = json.loads((folder / SIGNATURE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return {k: v for k, v in written.items() if isinstance(v, str)} if isinstance(written, dict) else {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _signature(key: bytes, content: bytes) -> str:
    return hmac.new(key, content, hashlib.sha256).hexdigest()
