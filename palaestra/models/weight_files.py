"""Writes weights into safetensors files that others may read, as the umask says.

The package safetensors writes a temporary file that only its owner can read, and renames it. So each file that it wrote
gets the mode of an ordinary new file here.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def save_weights(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write tensors to a safetensors file."""
    save_file(dict(tensors), file)
    file.chmod(_usual_mode(file.parent))


def open_weights(folder: Path) -> None:
    """Give the safetensors files of a folder, which `save_pretrained` wrote, the mode of ordinary new files."""
    mode = _usual_mode(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(mode)


def _usual_mode(folder: Path) -> int:
    """The mode of a new file in this folder. A new file is asked, since reading the umask would change it for a moment,
    also for other threads."""
    probe = folder / f".mode-{os.getpid()}-{threading.get_ident()}"
    handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        return os.fstat(handle).st_mode & 0o777
    finally:
        os.close(handle)
        probe.unlink()
