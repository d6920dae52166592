"""`palaestra doctor`: shows devices, sandboxes, installed packages, and how to install what is missing."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence

import torch
from rich.markup import escape
from rich.table import Table

import palaestra
from palaestra.commands import tables
from palaestra.registry.extras import requirements, version, way_out
from palaestra.tools.sandbox import Found, detect
from palaestra.tools.sandbox.choosing import ANY_PROGRAM

EXTRAS = {
    "envs": "TextWorld, OpenSpiel, PettingZoo, TextArena, reasoning-gym, ScienceWorld",
    "web": "MiniWoB++ in a real browser",
    "tools": "search, MCP servers, WebAssembly sandboxes",
    "serve": "chat models as simulated users",
    "adapters": "environments written for verifiers and OpenEnv",
    "lora": "adapters on large models",
    "quantize": "models in 4 or 8 bits, for training adapters on them",
    "dev": "tests, lint and docs",
    "bench": "the benchmark against TRL",
}
PROGRAMS = {
    "bwrap": ("bubblewrap", "the sandbox that isolates"),
    "chromium": ("chromium", "the environment `miniwob`"),
    "chromedriver": ("chromium-driver", "the environment `miniwob`"),
    "java": ("default-jre-headless", "the environment `scienceworld`"),
}
CORE = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic", "gymnasium", "minigrid")


def run() -> None:
    """Print what this machine has."""
    console = tables.console()
    console.print(f"palaestra {palaestra.__version__}, Python {platform.python_version()}, {platform.platform()}")
    console.print(f"device: {_device()}; {os.cpu_count()} cores, {torch.get_num_threads()} torch threads")
    sandboxes = detect()
    console.print(f"sandbox: {_strongest(sandboxes)}")
    console.print(_packages())
    console.print(_extras())
    console.print(_sandboxes(sandboxes))
    console.print(_programs())


def _device() -> str:
    """The values that `device` may have in a recipe, with the name of each device and the CUDA version of torch."""
    built = f"torch {torch.__version__} is built for CUDA {torch.version.cuda}"
    if torch.version.cuda is None:
        return f"cpu (torch {torch.__version__} is built without CUDA)"
    if not torch.cuda.is_available():
        return f"cpu ({built}, and finds no such device)"
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    named = [f"cuda:{number} ({one.name}, {one.total_memory / 2**30:.0f} GiB)" for number, one in enumerate(found)]
    return f"{', '.join(named)}, cpu; {built}; a recipe computes on the cpu unless it says `device: cuda`"


def _strongest(sandboxes: Sequence[Found]) -> str:
    """The sandboxes that can run code written by a model, as `choose` takes them."""
    isolating = [one.name for one in sandboxes if one.guarantees and one.guarantees.isolation == "isolation"]
    able = [name for name in isolating if name in ANY_PROGRAM]
    narrow = "".join(f"; {name} (isolation) runs WebAssembly only" for name in isolating if name not in ANY_PROGRAM)
    state = f"{', '.join(able)} (isolation)" if able else "none that isolates: code that a model wrote will not run"
    return f"{state}{narrow}"


def _sandboxes(sandboxes: Sequence[Found]) -> Table:
    """The sandboxes and their guarantees. Only those of level "isolation" protect this machine from a model's code."""
    table = Table("back end", "level", "does not stop, or why not", title="Sandboxes", title_justify="left", box=None)
    for found in sandboxes:
        claims = found.guarantees
        if claims is None:
            table.add_row(found.name, "not available", escape(found.reason))
        else:
            missed = ", ".join(sorted(claims.misses)) or "faults of what it shares with the host"
            level = "NO isolation" if claims.isolation == "none" else "isolation"
            table.add_row(found.name, level if found.name in ANY_PROGRAM else f"{level}, WebAssembly only", missed)
    return table


def _packages() -> Table:
    table = Table("package", "version", title="Core", title_justify="left", box=None)
    for name in CORE:
        table.add_row(name, version(name) or "missing")
    return table


def _extras() -> Table:
    table = Table("extra", "installed", "gives", "command", title="Extras", title_justify="left", box=None)
    for extra, gives in EXTRAS.items():
        missing = [name for name in requirements(extra) if version(name) is None]
        state = "yes" if not missing else f"no ({', '.join(missing)})"
        table.add_row(extra, state, gives, "" if not missing else escape(way_out(extra)))
    return table


def _programs() -> Table:
    table = Table("program", "found", "needed for", "command", title="Programs", title_justify="left", box=None)
    for program, (package, purpose) in PROGRAMS.items():
        place = shutil.which(program)
        table.add_row(program, place or "no", purpose, "" if place else f"apt install {package}")
    return table
