"""`palaestra doctor`: what is installed, what each missing extra would give, device, sandbox level."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata

import torch
from rich.console import Console
from rich.table import Table

import palaestra

EXTRAS = {
    "envs": (("textworld",), "the environment `textworld`"),
    "lora": (("peft",), "adapters on large models"),
    "dev": (("pytest", "hypothesis", "ruff", "mypy", "importlinter"), "tests, lint and docs"),
    "bench": (("trl",), "the benchmark against TRL"),
}
CORE = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic", "gymnasium", "minigrid")


def run() -> None:
    """Print four short tables."""
    console = Console()
    console.print(f"palaestra {palaestra.__version__}, Python {platform.python_version()}, {platform.platform()}")
    console.print(f"device: {_device()}; {os.cpu_count()} cores, {torch.get_num_threads()} torch threads")
    console.print(f"sandbox: {_sandbox()}")
    console.print(_packages())
    console.print(_extras())


def _device() -> str:
    if torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name(0)})"
    return "cpu"


def _sandbox() -> str:
    """No part of this version runs code that a model wrote; say what the machine could offer."""
    found = "bubblewrap is installed" if shutil.which("bwrap") else "bubblewrap is not installed"
    return f"none needed: no part of this version executes model-written code ({found})"


def _packages() -> Table:
    table = Table("package", "version", title="Core", title_justify="left", box=None)
    for name in CORE:
        table.add_row(name, _version(name) or "missing")
    return table


def _extras() -> Table:
    table = Table("extra", "installed", "gives", "command", title="Extras", title_justify="left", box=None)
    for extra, (packages, gives) in EXTRAS.items():
        missing = [name for name in packages if _version(name) is None]
        state = "yes" if not missing else f"no ({', '.join(missing)})"
        table.add_row(extra, state, gives, "" if not missing else f"pip install 'palaestra[{extra}]'")
    return table


def _version(name: str) -> str | None:
    distribution = {"importlinter": "import-linter"}.get(name, name)
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
