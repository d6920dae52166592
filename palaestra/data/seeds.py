"""Seeds that are derived from names, so that a random draw does not depend on how many draws came before it."""

from __future__ import annotations

import hashlib


def derive(seed: int, *names: object) -> int:
    """Derive a seed in [0, 2⁶³) from a seed and names, such as task, sample, agent and turn.

    The same names give the same seed in every process and on every machine.
    """
    content = "\x1f".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "big") >> 1
