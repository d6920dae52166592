"""What vLLM 0.32 refuses in the body of a request for tokens, as the stand-in does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LONGEST_SALT, NOT_IN_SALTS, HOTTEST = 128, set("@/\\\x00"), 2.0


def refusal(said: Mapping[str, Any]) -> str:
    """Why vLLM refuses the options of a request; "", if it does not."""
    salt, temperature, seed = said.get("cache_salt"), float(said.get("temperature", 1.0)), said.get("seed")
    if salt is not None and (not salt or len(salt) > LONGEST_SALT or set(salt) & NOT_IN_SALTS):
        return "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL."
    if not 0 <= temperature <= HOTTEST:
        return f"temperature must be in [0, 2], got {temperature}."
    if seed is not None and not -(2**63) <= seed < 2**63:
        return "seed is out of range."
    return ""
