"""The errors of the library. A message gives the place, the fault, the allowed values and a remedy, in this order.

    Exception
    └── PalaestraError
        ├── RecipeError          (ValueError)    the recipe cannot run; nothing was started
        ├── UnknownName          (LookupError)   no part, environment or column has this name
        ├── MissingColumn        (LookupError)   a part reads a column that the table does not have
        ├── MissingExtra         (ImportError)   an optional package is not installed
        ├── InvalidData          (ValueError)    an estimator or a loss cannot use these values
        ├── RunFolderError       (OSError)       the run folder cannot be read or written
        ├── CheckpointError      (ValueError)    the checkpoint does not fit this recipe
        ├── ContractError        (TypeError)     an environment or a part breaks its protocol
        ├── NoSignal             (RuntimeError)  the run cannot learn: every update would be empty
        └── EpisodeFailure       (RuntimeError)  one episode failed; `boundary` says where

A new error inherits from PalaestraError and from the standard exception that a caller would catch.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable

# What fails one call of a tool if the code of a user raises it: `exit()` must end no run.
FAULTS = (Exception, SystemExit)
# What torch says if memory ran out; its errors have no class of their own on a CPU.
_NO_MEMORY = ("can't allocate", "out of memory", "size calculation overflowed", "not enough memory")
_ENDLESS = re.compile(r"\S{1000,}")  # a word that would fill the screen, such as a key of 5,000 digits
WIDEST_TEXT = 200  # characters of a value that a message shows


def shortened(text: str) -> str:
    """A value for a message, cut if it is long."""
    return text if len(text) <= WIDEST_TEXT + 60 else f"{text[:WIDEST_TEXT]} … ({len(text):,} characters)"


_LETTERS, _LINES = 10_000, 200  # of a fault; a chat template, a tokenizer or the code of a user may say anything


def _beginning_of(text: str) -> str:
    """The beginning of a text that would fill the screen."""
    lines = text[:_LETTERS].split("\n", _LINES)
    if len(text) <= _LETTERS and len(lines) <= _LINES:
        return text
    return "\n".join(lines[:_LINES]) + f" … ({len(text):,} characters)"


def _begin(found: re.Match[str]) -> str:
    return f"{found[0][:100]}… ({len(found[0]):,} characters)"


def ends_run(error: BaseException) -> bool:
    """Whether an error ends the run, also where the code of a user raised it: Ctrl-C or a signal, alone or in a group.

    Everything else that an environment, a program, a policy or a tool raises fails one episode.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(ends_run(single) for single in error.exceptions)
    return isinstance(error, KeyboardInterrupt)


def described(error: BaseException) -> str:
    """An error as `ValueError: no such door`, cut if it is long. One whose message cannot be read has its type only.

    >>> described(KeyError("door"))
    "KeyError: 'door'"
    """
    try:
        return _beginning_of(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        raise
    except BaseException:  # the message may come from code of a user, which may even call `exit()`
        return f"{type(error).__name__}, whose message cannot be read"


def is_panic(error: BaseException) -> bool:
    """Whether a package written in Rust, such as tokenizers, has met a fault of its own. It is no `Exception`."""
    return (type(error).__module__, type(error).__name__) == ("pyo3_runtime", "PanicException")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, as Python, PyTorch on a CPU or a GPU, and the system say it.

    >>> [out_of_memory(error) for error in (MemoryError(), RuntimeError("CUDA out of memory"), RuntimeError("no door"))]
    [True, True, False]
    """
    if isinstance(error, RuntimeError):
        return any(words in described(error) for words in _NO_MEMORY)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


class PalaestraError(Exception):
    """A fault that a user can correct. All errors of the library inherit from it.

    Args:
        where: the place, such as `recipes/a.yaml:11  advantage: gigpo`, or a function and its argument.
        what: the fault, with the value found.
        options: the allowed values, or the nearest names.
        remedy: what the user can do, in one or more sentences or lines.
    """

    def __init__(self, *, where: str, what: str, options: Iterable[str] = (), remedy: str = "") -> None:
        self.where = where
        self.what = what
        self.options = tuple(str(option) for option in options)
        self.remedy = remedy
        super().__init__(self.render())

    def render(self) -> str:
        """The message as the command line prints it."""
        lines = [self.where, "", f"  {_beginning_of(self.what)}"]
        if self.options:
            lines.append(f"  Candidates: {', '.join(self.options)}.")
        if self.remedy:
            lines.append("")
            lines.extend(f"  {line}" for line in self.remedy.splitlines())
        return _ENDLESS.sub(_begin, "\n".join(lines))

    def __reduce__(self) -> tuple[object, tuple[object, ...], dict[str, object]]:
        # Pickle cannot call a constructor with keyword-only arguments.
        return (_rebuild, (type(self), self.args), self.__dict__.copy())


def _rebuild(cls: type[PalaestraError], args: tuple[object, ...]) -> PalaestraError:
    return cls.__new__(cls, *args)


class RecipeError(PalaestraError, ValueError):
    """The recipe cannot run; nothing was started."""


class UnknownName(PalaestraError, LookupError):
    """No part, environment or column has this name."""


class MissingColumn(PalaestraError, LookupError):
    """A part reads a column that the table does not have."""


class MissingExtra(PalaestraError, ImportError):
    """An optional package is not installed."""


class InvalidData(PalaestraError, ValueError):
    """An estimator or a loss cannot use these values."""


class RunFolderError(PalaestraError, OSError):
    """The run folder cannot be read or written."""


class CheckpointError(PalaestraError, ValueError):
    """The checkpoint does not fit this recipe."""


class RankError(PalaestraError, ConnectionError):
    """Another process of the run has ended, or cannot be reached."""


class ContractError(PalaestraError, TypeError):
    """An environment or a part breaks its protocol."""


class NoSignal(PalaestraError, RuntimeError):
    """The run cannot learn: every update would be empty."""


class EpisodeFailure(PalaestraError, RuntimeError):
    """One episode failed. `boundary` says where: environment, engine, tool, judge or part."""

    def __init__(self, *, boundary: str, where: str, what: str, options: Iterable[str] = (), remedy: str = "") -> None:
        self.boundary = boundary
        super().__init__(where=where, what=what, options=options, remedy=remedy)


def nearest(name: str, candidates: Iterable[str], *, count: int = 3) -> tuple[str, ...]:
    """The candidates most similar to `name`. If none is similar: all candidates if there are at most 12, else none."""
    pool = sorted(set(candidates))
    close = difflib.get_close_matches(name, pool, n=count, cutoff=0.5)
    if close:
        return tuple(close)
    return tuple(pool) if len(pool) <= 12 else ()


def missing_extra(package: str, *, extra: str, needed_for: str) -> MissingExtra:
    """The error for an optional package that is not installed, with the command that installs it."""
    return MissingExtra(
        where=needed_for,
        what=f"the package `{package}` is not installed.",
        remedy=f"Install it with: pip install 'palaestra[{extra}]'",
    )
