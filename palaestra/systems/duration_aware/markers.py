"""Markers: lines that a program prints when it has come so far, which nobody can print who does not know their nonce.

Knows texts. Knows nothing of programs or rewards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

NAME = r"[a-z][a-z0-9_]*"


def marker(name: str, nonce: str) -> str:
    """The line that says that milestone `name` was reached. `nonce`: random, and unknown to who wrote the program."""
    return f"#milestone {nonce} {name}"


def reached(output: str, nonce: str, names: Sequence[str]) -> list[str]:
    """Those of `names` whose markers stand in the output, each on a line of its own; others' nonces do not count."""
    found = set(re.findall(rf"^#milestone {re.escape(nonce)} ({NAME})\s*$", output, re.MULTILINE))
    return [name for name in names if name in found]


__all__ = ["marker", "reached"]
