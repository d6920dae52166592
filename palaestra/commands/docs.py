"""`palaestra docs`: write the generated files, or say which are stale."""

from __future__ import annotations

import sys

from palaestra.catalogue import write


def run(*, check: bool) -> None:
    """Write; with `check` only compare, and leave with 1 if anything is stale."""
    stale = write(check=check)
    for path in stale:
        print(f"{'stale' if check else 'wrote'} {path}")
    if check and stale:
        print("run `palaestra docs` and commit the result", file=sys.stderr)
        sys.exit(1)
