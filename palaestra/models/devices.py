"""Devices: turns the setting `device` into a device of torch.

Tables, the columns of token batches and the tensors of checkpoints are on the CPU. A module is moved once, when its
policy or part is made. Callers of the module move their inputs to its device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from palaestra.errors import RecipeError
from palaestra.models.sharding import whole

CONTROL_GROUP = Path("/sys/fs/cgroup")


def run_device(name: str) -> torch.device:
    """The device that a recipe names: `cpu`, `cuda`, `cuda:1`, or another one that this build of torch can use.

    Raises: RecipeError, for a name that torch does not know, and for a device that cannot be used on this machine.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise _refused(name, f"torch knows no device `{name}`.") from None
    if device.type == "cpu":
        return device
    if device.type == "meta":
        raise _refused(name, "tensors on `meta` hold no numbers.")
    if device.type == "mps":
        raise _refused(name, "`mps` has no float64, which sums need.")
    count = _count(device.type)
    if not count:
        shown = "CUDA" if device.type == "cuda" else device.type
        raise _refused(name, f"this machine, or its build of torch ({torch.__version__}), has no {shown} device.")
    if device.index is not None and device.index >= count:
        raise _refused(name, f"this machine has {count} such device{'s' if count > 1 else ''}, counted from 0.")
    return device


def _count(kind: str) -> int:
    """The number of devices of this kind that can be used; 0 without a build of torch for it."""
    try:
        module = torch.get_device_module(kind)
    except RuntimeError:
        return 0
    return int(module.device_count()) if module.is_available() else 0


def _refused(name: str, what: str) -> RecipeError:
    kind = name.partition(":")[0]
    better = f", or install a build of torch for {kind} on a machine that has one" if kind in ("cuda", "xpu") else ""
    return RecipeError(where=f"device: {name}", what=what, options=usable(), remedy=f"Set device=cpu{better}.")


def usable() -> list[str]:
    """The devices that `device` may name on this machine."""
    return ["cpu", *(kind for kind in ("cuda", "xpu") if _count(kind))]


def free_bytes(name: str) -> int | None:
    """The free memory of a device, in bytes. On the CPU, the limit of the process's control group counts too. None, if
    it cannot be known."""
    device = torch.device(name)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (int((CONTROL_GROUP / file).read_text()) for file in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # there is no control group, or it has no limit ("max")
        return free
    return min(free, max(0, limit - used))


def device_of(module: nn.Module) -> torch.device:
    """The device of a module's parameters; the CPU, if it has none."""
    parameter = next(module.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def dtype_of(module: nn.Module) -> torch.dtype:
    """The type of a module's parameters."""
    return next(module.parameters()).dtype


def on_cpu(state: Any) -> Any:
    """A state of nested dicts, lists and tuples with every tensor complete and on the CPU, as checkpoints store it.

    Objects that need no change are returned themselves.
    """
    if isinstance(state, Tensor):
        return whole(state).cpu()
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    moved = [on_cpu(part) for part in parts]
    if all(one is other for one, other in zip(moved, parts, strict=True)):
        return state
    return dict(zip(state, moved, strict=True)) if isinstance(state, dict) else type(state)(moved)
