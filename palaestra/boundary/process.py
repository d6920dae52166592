"""What the code of a user changes in this process, such as the default dtype of torch, is undone before other code goes
on.

`protected` stands around phases in which such code runs. `Lent` stands around each call of one environment. The
environment keeps what it has set, and nobody else sees it. `learning` stands around updates.
"""

from __future__ import annotations

import locale
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from palaestra.interruption import SIGNALS

LOG = logging.getLogger("palaestra.process")
_HELD: list[Any] = []  # contexts of torch's inference mode that are never left, since others have not left theirs
_REPORTED: set[tuple[str, str]] = set()


# ---- what is protected ------------------------------------------------------------------------------------
def _set_inference(on: bool) -> None:
    context = torch.inference_mode(on)
    context.__enter__()
    _HELD.append(context)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None


def _set_folder(folder: str | None) -> None:
    if folder is not None:
        with suppress(OSError):
            os.chdir(folder)


def _handlers() -> tuple[Any, ...]:
    return tuple(signal.getsignal(number) for number in SIGNALS)


def _set_handlers(handlers: tuple[Any, ...]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in zip(SIGNALS, handlers, strict=True):
            if handler is not None:  # else it was not set from Python
                signal.signal(number, handler)


def _raising() -> tuple[Any, ...]:
    """The filters that make warnings errors. Others do no harm, and packages add some when they are imported."""
    return tuple(one for one in warnings.filters if one[0] == "error")


def _set_raising(wanted: tuple[Any, ...]) -> None:
    others = [one for one in warnings.filters if one[0] != "error" or one in wanted]
    lost = [one for one in wanted if one not in others]
    warnings.resetwarnings()  # also forgets which warnings were shown under the other filters
    warnings.filters[:] = [*lost, *others]  # type: ignore[index]


def _cudnn() -> tuple[bool, bool]:
    return torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic


def _set_cudnn(flags: tuple[bool, bool]) -> None:
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = flags


def _set_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)


def _autocast() -> tuple[bool, bool]:
    return torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def _set_autocast(wanted: tuple[bool, bool]) -> None:
    for kind, on in zip(("cpu", "cuda"), wanted, strict=True):
        torch.set_autocast_enabled(kind, on)


def _kernels() -> tuple[bool, ...]:
    return tuple(bool(is_on()) for is_on, _ in KERNELS)


def _set_kernels(wanted: tuple[bool, ...]) -> None:
    for (_, put), on in zip(KERNELS, wanted, strict=True):
        put(on)


def _logging() -> tuple[Any, ...]:
    logger = logging.getLogger("palaestra")
    return logging.root.manager.disable, logger.level, logger.disabled


def _set_logging(wanted: tuple[Any, ...]) -> None:
    logger = logging.getLogger("palaestra")
    logging.disable(wanted[0])
    logger.setLevel(wanted[1])
    logger.disabled = wanted[2]


KERNELS = (
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
)
State = tuple[Any, ...]
Kind = tuple[str, Callable[[], Any], Callable[[Any], Any]]  # a name, how to read it, and how to set it
# Those that are read after each call of an environment. All of them together take about a microsecond.
QUICK: tuple[Kind, ...] = (
    ("torch's inference mode", torch.is_inference_mode_enabled, _set_inference),
    ("torch's recording of gradients", torch.is_grad_enabled, torch.set_grad_enabled),
    ("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    ("torch's autocast", _autocast, _set_autocast),
    ("the working folder", _folder, _set_folder),
    ("Python's recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    ("sys.stdout", lambda: sys.stdout, lambda stream: setattr(sys, "stdout", stream)),
    ("sys.stderr", lambda: sys.stderr, lambda stream: setattr(sys, "stderr", stream)),
)
SLOW: tuple[Kind, ...] = (
    ("torch's deterministic mode", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    ("handlers of signals", _handlers, _set_handlers),
    ("filters that make warnings errors", _raising, _set_raising),
    ("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    ("NumPy's handling of errors", np.geterr, lambda errors: np.seterr(**errors)),
    ("torch's default device", torch.get_default_device, _set_device),
    ("torch's precision of products", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    ("flags of cuDNN", _cudnn, _set_cudnn),
    ("torch's kernels of attention", _kernels, _set_kernels),
    ("levels of logging", _logging, _set_logging),
)


def _quick() -> State:
    """What `_read(QUICK)` gives, in half the time."""
    return (
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        _autocast(),
        _folder(),
        sys.getrecursionlimit(),
        sys.stdout,
        sys.stderr,
    )


def _read(kinds: tuple[Kind, ...]) -> State:
    return tuple(read() for _, read, _ in kinds)


def _put(kinds: tuple[Kind, ...], state: State, now: State, *, who: str = "") -> None:
    """Set what differs between `now` and `state`. With `who`, a line of the log says once who has changed what."""
    for (name, _, put), value, other in zip(kinds, state, now, strict=True):
        if value is not other and value != other:
            put(value)
            if who and (who, name) not in _REPORTED:
                _REPORTED.add((who, name))
                LOG.warning("%s changed %s. The change does not reach the rest of the process.", who, name)


# ---- around code of a user --------------------------------------------------------------------------------
@contextmanager
def protected(who: str) -> Iterator[None]:
    """A context around code of a user. At its end the process is as it was.

    Args:
        who: the code, for the log.
    """
    quick, slow = _read(QUICK), _read(SLOW)
    try:
        yield
    finally:
        _put(QUICK, quick, _read(QUICK), who=who)
        _put(SLOW, slow, _read(SLOW), who=who)


class Home:
    """The state of the process when a rollout begins. Environments get it lent."""

    def __init__(self) -> None:
        self.state = _quick()
        self.waiting = 0  # coroutines of environments that are under way


class Lent:
    """The process, as one environment sees it.

    Call `begin` before each call of the environment, and `end` after it. What the environment has set is undone in
    between and set again for its next call, but for torch's inference mode.

    Args:
        who: the environment, for the log.
    """

    def __init__(self, who: str, home: Home) -> None:
        self._who, self._home = who, home
        self._own: State | None = None

    def begin(self) -> None:
        """Give the environment what it has set."""
        if self._own is not None:
            _put(QUICK, self._own, _quick())

    def end(self) -> None:
        """Take the process back."""
        state, now = self._home.state, _quick()
        if now != state:
            _put(QUICK, state, now, who=self._who)
            self._own = (state[0], *now[1:])
        elif self._own is not None:
            self._own = None

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """A context in which a coroutine of the environment runs.

        While others run as well, nobody knows who has changed what, and nothing is undone.
        """
        self._home.waiting += 1
        try:
            yield
        finally:
            self._home.waiting -= 1
            if not self._home.waiting:
                self.end()


@contextmanager
def learning() -> Iterator[None]:
    """A context in which torch records gradients, whatever other code has switched off."""
    with torch.inference_mode(False), torch.enable_grad():
        yield
