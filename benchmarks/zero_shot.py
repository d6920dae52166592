"""What a model can do in each world before any training: success, acts that can be read, tokens and turns.

    python benchmarks/zero_shot.py                                  # SmolLM2-135M-Instruct in all presets
    python benchmarks/zero_shot.py household shop --tasks 32        # in some of them
    python benchmarks/zero_shot.py --model path/to/folder           # another model
    python benchmarks/zero_shot.py --set rollout.response_tokens=96 # any override of the recipes
    python benchmarks/zero_shot.py --endpoint http://127.0.0.1:8000/v1 --model Qwen/Qwen3-4B   # a model behind a server

Each world is played by its preset `recipes/worlds/NAME-chat.yaml`. Expert and random play are in `results/worlds/`. The
table is printed, and `results/zero_shot.json` gets the numbers of each model and world with 95 % intervals and the
commit. Worlds that are measured again replace their numbers; others stay. An endpoint counts its own tokens. Its key is
read from OPENAI_API_KEY.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import machine
import numpy as np

from palaestra.commands.runs import resolve
from palaestra.data import Trajectory
from palaestra.models.pretrained import SMOLLM2
from palaestra.registry.bound import BoundPart, bind
from palaestra.training.monitor.panel import Panel
from palaestra.training.settings import PolicySettings
from palaestra.training.setup import build_setup

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "recipes" / "worlds"
RESULTS = Path(__file__).parent / "results" / "zero_shot.json"
COLUMNS = ("success", "readable", "executable", "turns", "tokens")


def names() -> list[str]:
    """The worlds that have a preset."""
    return sorted(path.stem.removesuffix("-chat") for path in RECIPES.glob("*-chat.yaml"))


def measure(name: str, overrides: Sequence[str], endpoint: str | None = None) -> dict[str, Any]:
    """Play the evaluation tasks of a preset with the model as it is.

    Args:
        endpoint: name of the model that plays instead, at the endpoint of the environment variable OPENAI_BASE_URL.
    """
    settings = resolve([str(RECIPES / f"{name}-chat.yaml"), *overrides]).settings
    if endpoint is not None:
        part = bind("policy", BoundPart(name="endpoint", options={"model": endpoint}))
        player = PolicySettings(policy=part, trainable=False)
        settings = settings.model_copy(update={"policies": {"main": player}, "reference": None})
    setup = build_setup(settings)
    with closing(setup.runner), closing(Panel(settings, setup)) as panel:
        evaluation, played = panel.play()
    success = evaluation.success
    counted = of_acts(played)
    if endpoint is not None:
        counted["tokens"] = round(setup.policies["main"].generated / max(len(played), 1), 1)
    return {
        "episodes": evaluation.n,
        "success": None if success is None else round(success.value, 4),
        "interval": None if success is None else [round(success.low, 4), round(success.high, 4)],
        "failed": evaluation.failed,
        **counted,
    }


def of_acts(played: Sequence[Trajectory]) -> dict[str, Any]:
    """Shares of the acts that the world could read and carry out, and turns and tokens per episode."""
    steps = [step for trajectory in played for step in trajectory.steps]
    done = [float(step.info["executable"]) for step in steps if "executable" in step.info]
    written = sum(len(step.action.tokens) for step in steps)
    return {
        "readable": round(1 - sum(bool(step.info.get("invalid")) for step in steps) / max(len(steps), 1), 4),
        "executable": round(float(np.mean(done)), 4) if done else None,
        "turns": round(len(steps) / max(len(played), 1), 2),
        "tokens": round(written / max(len(played), 1), 1),
    }


def table(found: dict[str, dict[str, Any]]) -> str:
    """The numbers as lines of text, one for each world."""
    lines = ["world".ljust(18) + "".join(column.rjust(12) for column in COLUMNS) + "interval".rjust(18)]
    for name, row in found.items():
        cells = ["-" if row[column] is None else f"{row[column]:g}" for column in COLUMNS]
        span = "-" if row["interval"] is None else " to ".join(f"{end:.2f}" for end in row["interval"])
        lines.append(name.ljust(18) + "".join(cell.rjust(12) for cell in cells) + span.rjust(18))
    return "\n".join(lines)


def commit() -> str:
    """The commit of this checkout; empty outside of one."""
    said = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return said.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measure the chosen worlds and return the file of the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("worlds", nargs="*", choices=[[], *names()], help="names of presets; default all")
    parser.add_argument("--model", default=SMOLLM2, help="a model folder, or a name that is found")
    parser.add_argument("--endpoint", metavar="URL", help="address of a server with OpenAI's protocol, ending in /v1")
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an override of the recipes")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args(arguments)
    overrides = [f"evaluation.tasks={chosen.tasks}", *chosen.set]
    if chosen.endpoint:
        os.environ["OPENAI_BASE_URL"] = chosen.endpoint
    else:
        overrides.insert(0, f"policies.main.policy.language.model={chosen.model}")
    name = chosen.model if chosen.endpoint else Path(chosen.model).name
    result = json.loads(chosen.out.read_text()) if chosen.out.exists() else {"models": {}}
    found: dict[str, dict[str, Any]] = result["models"].setdefault(name, {})
    for world in chosen.worlds or names():
        made = measure(world, overrides, chosen.model if chosen.endpoint else None)
        found[world] = made | {"set": chosen.set, "commit": commit()}
        result["models"][name] = dict(sorted(found.items()))
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(result | {"machine": machine.describe()}, indent=1) + "\n")
        print(f"{world}: {found[world]}", flush=True)
    print(table(result["models"][name]))
    return chosen.out


if __name__ == "__main__":
    main()
