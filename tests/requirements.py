"""Print the requirements of extras without some packages: `python tests/requirements.py dev,envs textworld`.

`make develop` calls it. It leaves out what pip must compile, which a machine without a C compiler cannot install.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(extras: Iterable[str], without: Iterable[str] = ()) -> Iterator[str]:
    """The requirements of these extras of pyproject.toml, without those packages."""
    listed = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for extra in extras:
        for line in listed[extra]:
            if re.match(r"[\w.-]+", line)[0] not in without:  # type: ignore[index] - each line begins with a name
                yield line


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1].split(","), sys.argv[2:])))
