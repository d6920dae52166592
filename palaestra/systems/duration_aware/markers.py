"""Markers: lines that a program prints at a milestone; they count only with a secret nonce."""

from __future__ import annotations

import re
from collections.abc import Sequence

NAME = r"[a-z][a-z0-9_]*"


def marker(name: str, nonce: str) -> str:
    """The line that reports milestone `name`. `nonce` is random and unknown to the author of the program."""
    return f"#milestone {nonce} {name}"


def reached(output: str, nonce: str, names: Sequence[str]) -> list[str]:
    """Those of `names` whose markers are in the output, each on its own line; another nonce does not count."""
    found = set(re.findall(rf"^#milestone {re.escape(nonce)} ({NAME})\s*$", output, re.MULTILINE))
    return [name for name in names if name in found]


__all__ = ["marker", "reached"]
