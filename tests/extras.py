"""What tests need beside Palaestra: packages of extras, and programs of this machine.

A test that needs one that is absent is skipped, and the last lines of pytest say how many are, and how to install it.
With `--absent=fail`, as CI calls pytest, it fails. Packages are found without importing them: what a test module
imports, every worker pays for.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from palaestra.errors import MissingExtra

ABSENT = "PALAESTRA_ABSENT"  # the environment variable that holds `skip` or `fail`
REASON = "absent: "  # a reason for a skip begins with it


@dataclass(frozen=True, slots=True)
class Program:
    """A program that tests start. `here` says whether this machine has it, `install` how to get it."""

    here: Callable[[], bool]
    install: str


def _any(*names: str) -> bool:
    return any(map(shutil.which, names))


def _bubblewrap() -> bool:
    from palaestra.tools.sandbox.bubblewrap import unavailable

    return not unavailable()


def _java() -> bool:
    from palaestra.envs.adapters.scienceworld.server import java

    return java() is not None


def _browser() -> bool:
    from palaestra.envs.adapters.miniwob.browser import CHROMEDRIVER, CHROMIUM

    return _any(*CHROMIUM) and _any(*CHROMEDRIVER)


PROGRAMS = {
    "bubblewrap": Program(_bubblewrap, "apt-get install bubblewrap; `palaestra doctor` says what else it lacks"),
    "browser": Program(_browser, "apt-get install chromium chromium-driver"),
    "java": Program(_java, "apt-get install default-jre-headless"),
    "git": Program(lambda: _any("git"), "apt-get install git"),
    "setpriv": Program(lambda: _any("setpriv"), "apt-get install util-linux"),
}
# The Makefile leaves these packages out on a machine without a compiler. Pages and recipes name their environments.
COMPILED = "apt-get install gcc g++ cmake python3-dev; make -B develop"
PACKAGES = dict.fromkeys(("textworld", "reasoning_gym", "fast_downward"), COMPILED)


def install(name: str) -> str:
    """How to install this package or program."""
    return PROGRAMS[name].install if name in PROGRAMS else PACKAGES.get(name, "make -B develop")


@cache
def _is_absent(name: str) -> bool:
    if name in PROGRAMS:
        return not PROGRAMS[name].here()
    return find_spec(name.partition(".")[0]) is None


def needs(*names: str) -> pytest.MarkDecorator:
    """A mark for tests that need these packages and programs: `pytestmark = needs("textarena", "browser")`."""
    return pytest.mark.needs(*names)


def absent(*names: str) -> list[str]:
    """Which of these packages and programs are absent."""
    return [name for name in names if _is_absent(name)]


LEFT_OUT = absent(*PACKAGES)  # before a test hides a package


def skip_without(*names: str) -> None:
    """Skip this test, or this module, if one of these packages and programs is absent."""
    missed = absent(*names)
    if not missed:
        return
    reason = REASON + ", ".join(missed)
    if os.environ.get(ABSENT) == "fail":
        pytest.fail(f"{reason} ({'; '.join(map(install, missed))})", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


@contextmanager
def skipped_without_packages() -> Iterator[None]:
    """A context for a test that may meet an environment whose package the Makefile leaves out: then it is skipped."""
    try:
        yield
    except MissingExtra as error:
        skip_without(*(name for name in LEFT_OUT if f"`{name}`" in error.what.replace("-", "_")))
        raise


def imported(name: str) -> Any:
    """This module. The test, or the module that calls, is skipped if its package is absent."""
    skip_without(name)
    return import_module(name)


def absences(reasons: Iterable[str]) -> list[str]:
    """The last lines of pytest: for each package and program, how many tests are skipped, and how to install it.

    Args:
        reasons: of the tests and modules that are skipped, also for other causes.
    """
    texts = [reason.removeprefix("Skipped: ") for reason in reasons]
    missed = Counter(name for text in texts if text.startswith(REASON) for name in text[len(REASON) :].split(", "))
    return [f"{name}: {number} skipped; {install(name)}" for name, number in missed.most_common()]


def some(values: Iterable[Any], *, fast: int) -> list[Any]:
    """Arguments of a test: `make test` takes `fast` of them, spread over all, and `make test-all` takes all."""
    given = list(values)
    kept = {place * len(given) // fast for place in range(fast)}
    return [one if place in kept else _slow(one) for place, one in enumerate(given)]


def _slow(one: Any) -> Any:
    values = one if isinstance(one, tuple) else (one,)
    return pytest.param(*values, marks=pytest.mark.slow)
