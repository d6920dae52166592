"""What the commands write: texts that do no harm on a terminal, and outputs that are closed, full or gone."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

# Control characters except tab and line feed; characters that change the direction of a line; halves of characters.
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\u061c\u200e\u200f]")


def visible(text: object) -> str:
    r"""A text without characters that move the cursor, color the screen, ring, or turn the direction of a line.

    Control characters become their pictures, and others their numbers. Line ends become `\n`.

    >>> visible("\x1b[2Jred\r\n"), visible("a\u202eb")
    ('␛[2Jred\n', 'a<U+202E>b')
    """
    return _HARMFUL.sub(_shown, str(text).replace("\r\n", "\n"))


def _shown(found: re.Match[str]) -> str:
    code = ord(found.group())
    return chr(0x2400 + code) if code < 32 else "\u2421" if code == 127 else f"<U+{code:04X}>"


def make_ready() -> None:
    """Prepare the outputs of a command.

    A closed input or output becomes the null device. Otherwise the next file that is opened would get its number, and
    messages of other programs would be written into it. What an output cannot encode becomes `?`, and what an input
    cannot decode becomes U+FFFD.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, so this one
            os.set_inheritable(opened, True)
    streams = (("stdin", "r", "replace"), ("stdout", "w", "replace"), ("stderr", "w", "backslashreplace"))
    for name, mode, errors in streams:
        if getattr(sys, name) is None:  # it was closed when Python started
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the program
        with suppress(AttributeError, OSError):
            getattr(sys, name).reconfigure(errors=errors)


def say(text: str) -> None:
    """Print to the standard error output. If nobody can read it, nothing happens."""
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def reopen() -> list[str]:
    """Open the outputs again that code of a user has closed. Returns their names.

    Python keeps the file of the system open. If it is closed too, nothing happens.
    """
    names = []
    for name, number, errors in (("sys.stdout", 1, "replace"), ("sys.stderr", 2, "backslashreplace")):
        stream: Any = vars(sys)[name.removeprefix("sys.")]
        with suppress(AttributeError, OSError):
            if stream.closed is True:
                again = open(number, "w", encoding="utf-8", errors=errors, buffering=1, closefd=False)  # noqa: SIM115
                setattr(sys, name.removeprefix("sys."), again)
                names.append(name)
    return names


def tell(text: str) -> None:
    """Print the result of work that is done. A reader that is gone is no fault."""
    reopen()
    with suppress(BrokenPipeError):
        print(text)


@contextmanager
def printed_elsewhere() -> Iterator[None]:
    """A context in which all that is printed goes to the standard error output, also by other programs and by C."""
    stream, kept = sys.stdout, os.dup(1) if _is_the_process_output(sys.stdout) else None
    print_elsewhere()
    try:
        yield
    finally:
        for printed in (sys.stdout, stream):
            with suppress(OSError, ValueError, AttributeError):
                printed.flush()
        sys.stdout = stream
        if kept is not None:
            _flush_c()
            os.dup2(kept, 1)
            os.close(kept)


def print_elsewhere() -> None:
    """From now on, print all to the standard error output. If what is held back cannot be written, nothing happens."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return
    if _is_the_process_output(sys.stdout):
        _flush_c()
        os.dup2(2, 1)
    sys.stdout = sys.stderr


def _is_the_process_output(stream: Any) -> bool:
    """Whether a stream is the standard output of the process, and not one that Python code has put in its place."""
    try:
        return bool(stream.fileno() == 1)
    except (AttributeError, OSError, ValueError):
        return False


def _flush_c() -> None:
    """Write out what functions of C have printed and hold back."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).fflush(None)


def reader_is_gone() -> bool:
    """Whether the standard output is a pipe whose reader has ended, as in `palaestra recipes | head -1`."""
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), select.POLLOUT)
        return any(event & select.POLLERR for _, event in watched.poll(0))
    except (AttributeError, OSError, ValueError):  # no output, or no file of the system
        return False


def output_fault() -> OSError | None:
    """Write out what is held back for the standard output. Returns the error, such as of a full disk; None without one.

    After an error, the rest of the output is thrown away, so that the end of the program does not fail on it as well.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        with suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return error
    except ValueError:  # the stream is closed
        pass
    return None


def is_gone(error: OSError) -> bool:
    """Whether an error of an output says that its reader is gone."""
    return error.errno == errno.EPIPE


def no_room(error: OSError) -> bool:
    """Whether an output that has no name, such as the standard output, has no room. Files of runs have names."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
