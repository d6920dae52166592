"""Packages of extras, found without importing them: what a test module imports, every worker pays for."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """A mark that skips tests where one of these packages is not installed: `pytestmark = needs("textarena")`."""
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
