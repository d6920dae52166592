"""Tiny recipes of each kind of run that the kills are tried on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.models.pretrained import SMOLLM2
from tests.commands.conftest import SMALL, TINY
from tests.commands.test_stopping import RECIPE
from tests.training.test_self_play_in_training import KUHN
from tests.training.test_team_resume import recipe as team
from tests.training.test_windows_in_training import LONG

ITERATIONS = 6
SLOW = '''
import asyncio, random
from palaestra.testing.fakes import EchoEnvironment


class Slow(EchoEnvironment):
    """Echo whose steps take a while, each another one."""

    async def step(self, actions):
        result = super().step(actions)
        await asyncio.sleep(random.Random(self._task.seed).uniform(0.002, 0.02))
        return result
'''


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    Attributes:
        write: writes the recipe into a folder, and returns the layers that the command line names.
        exact: whether the design promises the same bytes after a kill, or only the same counts.
        needs: a module without which this kind cannot run, and which is imported before programs are forked.
        short: whether `make test` tries it.
    """

    write: Callable[[Path], list[str]]
    exact: bool = True
    needs: str | None = None
    short: bool = False


def layers(*contents: Mapping[str, Any] | str) -> Callable[[Path], list[str]]:
    """Writes recipes as files. Texts are names of layers."""

    def write(folder: Path) -> list[str]:
        named = []
        for number, content in enumerate(contents):
            if not isinstance(content, str):
                (folder / f"layer{number}.yaml").write_text(json.dumps(content))
            named.append(content if isinstance(content, str) else f"layer{number}.yaml")
        return named

    return write


def _training(recipe: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """A recipe with a few iterations and a checkpoint after every second one."""
    changed = {"iterations": ITERATIONS, "checkpoint_every": 2, "threads": 1, **settings}
    return {**recipe, "training": {**recipe["training"], **changed}}


def _team(folder: Path) -> list[str]:
    return [team(folder).name, "training.threads=1"]


def _slow(folder: Path) -> list[str]:
    (folder / "slow.py").write_text(SLOW)
    recipe = _training(SMALL, iterations=12, max_staleness=2, checkpoint_every=3)
    return layers({**recipe, "environment": {"slow.py:Slow": {"turns": 3}}})(folder)


OUTSIDE = {
    **SMALL,
    "environment": {"gymnasium": {"id": "CartPole-v1"}},
    "rollout": {"runner": "vector", "tasks": 4, "group": 2, "max_turns": 40},
    "evaluation": {"tasks": 2, "every": 3, "metric": "return"},
}
LORA = {
    "name": "lora",
    "seed": 1,
    "environment": {"echo": {"turns": 1}},
    "agents": {"*": {"policy": "main", "context": "latest_only"}},
    "policies": {"main": {"policy": {"language": {"model": SMOLLM2, "lora": {"rank": 2, "alpha": 4}}}}},
    "rollout": {"tasks": 2, "group": 2, "max_turns": 1, "response_tokens": 2},
    "regularizers": [{"entropy": {"coefficient": 0.1}}],  # so that every update changes weights
    "optimizer": {"adamw": {"lr": 1e-3}},
    "training": {"iterations": 4, "checkpoint_every": 1, "threads": 1, "token_budget": 512},
    "evaluation": {"tasks": 1},
}
LANGUAGE = {**RECIPE, "policies": {"main": {"policy": TINY}}}
KINDS: dict[str, Kind] = {
    "network": Kind(layers(_training(SMALL)), short=True),
    "language": Kind(layers(_training(LANGUAGE)), short=True),
    "team": Kind(_team),
    "self-play": Kind(layers(_training(KUHN)), needs="pyspiel"),
    "windows": Kind(layers(_training(LONG), "t_ppo/method.yaml", {"rollout": LONG["rollout"]}), short=True),
    "asynchronous": Kind(_slow, exact=False, short=True),
    "old weights": Kind(layers(_training(LANGUAGE, lag=2))),
    "outside environment": Kind(layers(_training(OUTSIDE))),
    "pretrained": Kind(layers(LORA), needs="peft"),
}
