"""Where a benchmark was measured: processor, threads and versions; and the memory of this process."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def describe(packages: Iterable[str] = ("numpy", "transformers")) -> dict[str, Any]:
    """The machine and the versions of these packages; None for one that is not installed."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,  # other processes share it
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{package: _version(package) for package in packages},
    }


def peak_bytes() -> int:
    """The most memory that this process has held. The limits of `resource` would count the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
