"""`palaestra docs`: write the generated files, or say which are stale."""

from __future__ import annotations

import sys
from typing import Any

from palaestra.catalogue import write


def run(*, check: bool, command: Any) -> None:
    """Write; with `check` only compare, and leave with 1 if anything is stale.

    Args:
        command: the command line's tree, for the page of commands.
    """
    stale = write(check=check, command=command)
    for path in stale:
        print(f"{'stale' if check else 'wrote'} {path}")
    if check and stale:
        print("run `palaestra docs` and commit the result", file=sys.stderr)
        sys.exit(1)
