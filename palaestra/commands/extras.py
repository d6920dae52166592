"""Optional dependencies: which packages an extra has, which are installed, and how to get the others.

All of it is read from metadata; none of the packages is imported.
"""

from __future__ import annotations

import re
from importlib import metadata


def requirements(extra: str) -> list[str]:
    """The names of the packages that `pip install 'palaestra[extra]'` asks for."""
    wanted = (f"extra == '{extra}'", f'extra == "{extra}"')
    found = [line for line in metadata.requires("palaestra") or () if any(mark in line for mark in wanted)]
    return [re.split(r"[<>=!~;\[ ]", line)[0] for line in found]


def version(package: str) -> str | None:
    """The installed version; None if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def installed_bytes(package: str) -> int:
    """The size of an installed package's own files."""
    return sum(file.size or 0 for file in metadata.distribution(package).files or ())


def way_out(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'palaestra[{extra}]'"
