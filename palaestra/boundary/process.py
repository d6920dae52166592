"""What the code of a user changes in this process, such as the default dtype of torch, is undone before other code goes
on.

`protected` stands around phases in which such code runs. `Lent` stands around each call of one environment. The
environment keeps what it has set, and nobody else sees it. `learning` stands around updates.
"""

from __future__ import annotations

import functools
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

from palaestra.boundary import torch_settings as of_torch
from palaestra.process.interruption import SIGNALS
from palaestra.process.terminal import reopen

LOG, PACKAGE = logging.getLogger("palaestra.process"), logging.getLogger("palaestra")
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


def _levels() -> tuple[Any, ...]:
    """What decides that a line of the log is too unimportant."""
    root = logging.root
    return root.manager.disable, root.level, root.disabled, PACKAGE.level, PACKAGE.disabled


def _set_levels(levels: tuple[Any, ...]) -> None:
    below, level, logging.root.disabled, of_package, PACKAGE.disabled = levels
    logging.disable(below)
    logging.root.setLevel(level)
    PACKAGE.setLevel(of_package)


def _loggers() -> tuple[Any, ...]:
    """Where the lines of this package's loggers go.

    Plain handlers of the common logger print to the terminal and do no harm. `logging.warning` adds one.
    """
    own = tuple(_logger(one) for one in _loggers_of_package(len(logging.root.manager.loggerDict)))
    return _unusual(logging.root), tuple(logging.root.filters), logging.lastResort, own


def _unusual(logger: logging.Logger) -> tuple[logging.Handler, ...]:
    return tuple(one for one in logger.handlers if type(one) is not logging.StreamHandler)


@functools.lru_cache(maxsize=1)
def _loggers_of_package(among: int) -> tuple[logging.Logger, ...]:
    """The loggers of this package. `among`: the number of all loggers; the answer holds until there are more."""
    names = (name for name in logging.root.manager.loggerDict if name.partition(".")[0] == PACKAGE.name)
    return tuple(logging.getLogger(name) for name in sorted(names))


def _logger(one: logging.Logger) -> tuple[Any, ...]:
    return one, 0 if one is PACKAGE else one.level, one.propagate, tuple(one.handlers), tuple(one.filters)


def _set_loggers(wanted: tuple[Any, ...]) -> None:
    handlers, logging.root.filters[:], logging.lastResort, own = wanted
    logging.root.handlers[:] = [*handlers, *(set(logging.root.handlers) - set(_unusual(logging.root)))]
    for one, level, one.propagate, one.handlers[:], one.filters[:] in own:
        if one is not PACKAGE:
            one.setLevel(level)


State = tuple[Any, ...]
Kind = tuple[str, Callable[[], Any], Callable[[Any], Any]]  # a name, how to read it, and how to set it
# Those that are read after each call of an environment. All of them together take a few microseconds.
QUICK: tuple[Kind, ...] = (
    ("torch's inference mode", torch.is_inference_mode_enabled, _set_inference),
    ("torch's recording of gradients", torch.is_grad_enabled, torch.set_grad_enabled),
    ("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    ("torch's autocast", of_torch.autocast, of_torch.set_autocast),
    ("torch's default device or modes", of_torch.modes, of_torch.set_modes),
    ("torch's hooks of saved tensors", of_torch.saved_hooks, of_torch.set_saved_hooks),
    ("torch's kernels of attention", of_torch.attention, of_torch.set_attention),
    ("the working folder", _folder, _set_folder),
    ("Python's recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    ("sys.stdout", lambda: sys.stdout, lambda stream: setattr(sys, "stdout", stream)),
    ("sys.stderr", lambda: sys.stderr, lambda stream: setattr(sys, "stderr", stream)),
    ("levels of logging", _levels, _set_levels),
)
SLOW: tuple[Kind, ...] = (
    ("torch's deterministic mode", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    ("handlers of signals", _handlers, _set_handlers),
    ("filters that make warnings errors", _raising, _set_raising),
    ("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    ("NumPy's handling of errors", np.geterr, lambda errors: np.seterr(**errors)),
    ("torch's dtypes of autocast", of_torch.autocast_rest, of_torch.set_autocast_rest),
    ("torch's hooks of all modules", of_torch.module_hooks, of_torch.set_module_hooks),
    ("torch's precision of products", of_torch.precision, of_torch.set_precision),
    ("torch's detection of anomalies", of_torch.anomalies, of_torch.set_anomalies),
    ("flags of cuDNN", of_torch.cudnn, of_torch.set_cudnn),
    ("handlers and filters of logging", _loggers, _set_loggers),
)


def _quick() -> State:
    """What `_read(QUICK)` gives, in half the time."""
    return (
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        of_torch.autocast(),
        of_torch.modes(),
        of_torch.saved_hooks(),
        of_torch.attention(),
        _folder(),
        sys.getrecursionlimit(),
        sys.stdout,
        sys.stderr,
        _levels(),
    )


def _read(kinds: tuple[Kind, ...]) -> State:
    return tuple(read() for _, read, _ in kinds)


def _put(kinds: tuple[Kind, ...], state: State, now: State) -> list[str]:
    """Set what differs between `now` and `state`. Returns its names."""
    names = []
    for (name, _, put), value, other in zip(kinds, state, now, strict=True):
        if value is not other and value != other:
            put(value)
            names.append(name)
    return names


def _report(who: str, names: list[str]) -> None:
    """Write once to the log who has changed what. Call it when all is set, since logging is among it."""
    for name in names:
        if (who, name) not in _REPORTED:
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
        _report(who, [*_put(QUICK, quick, _read(QUICK)), *_put(SLOW, slow, _read(SLOW)), *reopen()])


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
            _report(self._who, _put(QUICK, state, now))
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
