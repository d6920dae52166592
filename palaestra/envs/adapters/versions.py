"""Which version of its package each adapter was tested with, and the line that is logged when another one is installed.

The names of this table are those of environments. A test compares its versions with `constraints.txt`.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from importlib import metadata

LOG = logging.getLogger("palaestra.adapters")


@dataclass(frozen=True, slots=True)
class Tested:
    """What an adapter was tested with.

    Attributes:
        package: name of the distribution on the package index. version: of it.
        extra: of Palaestra, which installs the package. "": the package comes with Palaestra, or is not needed.
    """

    package: str
    version: str
    extra: str = ""


TESTED = {
    "babyai": Tested("minigrid", "3.2.0"),
    "gymnasium": Tested("gymnasium", "1.4.0"),
    "miniwob": Tested("miniwob", "1.1.0", "web"),
    "openenv": Tested("openenv", "0.10.0", "openenv"),
    "openspiel": Tested("open_spiel", "2.0.2", "envs"),
    "pettingzoo": Tested("pettingzoo", "1.27.0", "envs"),
    "reasoning_gym": Tested("reasoning-gym", "0.1.25", "envs"),
    "scienceworld": Tested("scienceworld", "1.2.3", "envs"),
    "textarena": Tested("textarena", "0.7.4", "envs"),
    "textworld": Tested("textworld", "1.7.0", "envs"),
    "trl_class": Tested("trl", "1.16.0"),
    "verifiers": Tested("verifiers", "0.4.0", "adapters"),
}


def installed(package: str) -> str | None:
    """The installed version of a package; None, if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def note_version(environment: str) -> None:
    """Log one line if another version is installed than the adapter was tested with. It is logged once in a process.

    The line is a warning of the logger `palaestra.adapters`. The run goes on, since most versions work.

    Args:
        environment: a name of `TESTED`.
    """
    tested = TESTED[environment]
    found = installed(tested.package)
    if found is not None and found != tested.version:
        LOG.warning("environment %s: tested with %s %s, found %s.", environment, tested.package, tested.version, found)
