"""How much memory an engine may use for keys and values."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from palaestra.errors import ContractError

UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}
# The trainer needs the rest. On a GPU it has the memory between two rollouts, since the engine frees it.
SHARES = {"cpu": 0.25, "cuda": 0.5}


def limit_of(memory: int | float | str | None, device: torch.device) -> int:
    """The limit in bytes.

    Args:
        memory: bytes; or a text such as "4GB"; or a share, in (0, 1), of what is free now; None: the device's share.

    Raises: ContractError, for other values.
    """
    text = str(SHARES.get(device.type, 0.25) if memory is None else memory).strip()
    match = re.fullmatch(r"([0-9]+\.?[0-9]*(?:e[0-9]+)?) *([KMGT]?B?)", text, re.IGNORECASE)
    number = float(match[1]) if match else 0.0
    if match is None or number <= 0:
        raise ContractError(
            where="engine: in_process.memory",
            what=f"{memory!r} is not an amount of memory.",
            remedy='Write bytes (2000000000), a text ("2GB"), or a share of what is free (0.25).',
        )
    unit = match[2].upper()
    if number < 1 and not unit:
        return int(number * free_bytes(device))
    return int(number * UNITS[unit if len(unit) != 1 or unit == "" else "" if unit == "B" else f"{unit}B"])


def is_share(memory: int | float | str | None) -> bool:
    """Whether this limit is a share of what is free, and not a number of bytes."""
    try:
        return memory is None or float(memory) < 1
    except ValueError:
        return False


def free_bytes(device: torch.device) -> int:
    """Memory that can be had on a device now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = [_available(), *_left_in_group()]
    return min(free)


def _available() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _left_in_group() -> list[int]:
    """What a container's limit leaves, if there is one."""
    group = Path("/sys/fs/cgroup")
    try:
        most = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return []
    return [max(0, int(most) - used)] if most.isdigit() else []


def said(count: float) -> str:
    """A number of bytes in words: 2.5 GB."""
    for unit in ("bytes", "KB", "MB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GB"
