"""Packages of extras, found without importing them: what a test module imports, every worker pays for."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """A mark that skips tests where one of these packages is not installed: `pytestmark = needs("textarena")`."""
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def some(values: Iterable[Any], *, fast: int) -> list[Any]:
    """Arguments of a test: `make test` takes `fast` of them, spread over all, and `make test-all` takes all."""
    given = list(values)
    kept = {place * len(given) // fast for place in range(fast)}
    return [one if place in kept else _slow(one) for place, one in enumerate(given)]


def _slow(one: Any) -> Any:
    values = one if isinstance(one, tuple) else (one,)
    return pytest.param(*values, marks=pytest.mark.slow)
