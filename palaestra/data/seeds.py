"""Seeds: every random draw derives from names, never from how often something was called before."""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: object) -> int:
    """A seed in [0, 2⁶³) from a seed and names: run, task, sample, agent, turn …

    The same names give the same seed in every process and on every machine.
    """
    content = "\x1f".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "big") >> 1
