"""Optional dependencies: the packages of an extra, their installed versions, and the command that installs them.

It reads the metadata of packages and imports none of them.
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
    """The installed version of a package; None, if it is not installed."""
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
