"""Palaestra: train, run and evaluate agents by multi-turn reinforcement learning."""

import importlib
import os
from typing import Any

__all__ = ["Run", "compare", "evaluate", "load_recipe", "train"]
__version__ = "0.1.0"

# oneDNN, a part of torch, makes a kernel for each shape of a product, and keeps 1024 of them. Generation has more
# shapes than that. Each kernel takes about half a megabyte, so not all can be kept.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "2048")


def __getattr__(name: str) -> Any:
    """The Python interface, which needs torch, is loaded at its first use."""
    if name not in __all__:
        raise AttributeError(f"module `palaestra` has no attribute `{name}`")
    return getattr(importlib.import_module("palaestra.api"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
