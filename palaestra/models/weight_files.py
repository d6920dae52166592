"""Files of weights: safetensors files that others may read, as the umask says, and reading and writing without noise.

The package safetensors writes a temporary file that only its owner can read, and renames it. So each file that it wrote
gets the mode of an ordinary new file here.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.utils import logging

from palaestra.errors import CheckpointError


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """transformers shows no bars while it reads or writes weights. They fill the log of a run."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def reason(error: Exception) -> str:
    """Why weights could not be read, in one line: what transformers, peft, torch or safetensors said."""
    if isinstance(error, pickle.UnpicklingError):  # torch explains how to run the code in the file
        return "its weights are a pickle that is damaged or holds code, which is not run; save them as safetensors"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    sizes = (line for line in lines if line.startswith("size mismatch"))
    return next(sizes, lines[1] if lines[0].endswith(":") and lines[1:] else lines[0]).rstrip(".")


def load_weights(module: nn.Module, file: Path, *, remedy: str = "") -> None:
    """Load a safetensors file into a module. Raises: CheckpointError, if it is damaged, or of other layers."""
    try:
        module.load_state_dict(load_file(file))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        what = f"its weights cannot be read: {reason(error)}."
        raise CheckpointError(where=str(file), what=what, remedy=remedy) from error


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
