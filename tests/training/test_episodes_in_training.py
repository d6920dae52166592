"""Episodes on their way into the update: (1) one whose environment tells NaN is recorded, counted and not learned from,
and the run goes on; (2) an environment's numbers that are called like what the library notes on steps, or like what
policies compute, change nothing of what is learned.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import curve, final_weights

Run = Callable[..., Path]
NETWORK: dict[str, Any] = {"policies": {"main": {"policy": {"network": {"hidden": [16]}}}}, "warm_start": None}


def test_1_the_run_goes_on(echo: Run, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from palaestra.testing.fakes import EchoEnvironment\n\n\n"
        "class Wrong(EchoEnvironment):\n"
        "    def step(self, actions):\n"
        "        result = super().step(actions)\n"
        "        speed = float('nan') if self._task.seed % 3 == 0 else 1.0\n"
        "        result.info['speed'] = {'player': speed}\n"
        "        return result\n"
    )
    folder = echo("run", layers={**NETWORK, "environment": f"{tmp_path / 'wrong.py'}:Wrong"})
    log = curve(folder)
    assert len(log) == 4 and sum(line["episodes/failed"] for line in log) > 0
    assert all(line.get("stop/error/environment", 0.0) == line["episodes/failed"] / 16 for line in log)
    stops = [json.loads(line)["trajectory"] for line in (folder / "trajectories.jsonl").read_text().splitlines()]
    assert all("`speed` is nan." in one["error"]["message"] for one in stops if one["stop"] == "error")


TOLD = '''
from palaestra.testing.fakes import EchoEnvironment


class Told(EchoEnvironment):
    """Echo that tells a number of its own, another one for each task and turn."""

    def __init__(self, *, name: str, turns: int = 2) -> None:
        super().__init__(turns=turns)
        self._name = name

    def step(self, actions):
        result = super().step(actions)
        number = (self._task.seed % 7) / 3
        return type(result)(
            observations=result.observations, rewards=result.rewards, terminated=result.terminated,
            truncated=result.truncated, last=result.last, info={**result.info, self._name: {"player": number}},
        )
'''
OLD_POLICY = {"training": {"epochs": 2, "iterations": 3, "lag": 1}, "loss": {"ppo_clip": {"high_foreign": 0.0}}}
Result = tuple[bytes, list[dict[str, float]]]
STEERED = ("row_weight", "foreign", "fresh", "copied", "anchored", "replayed", "row_value", "row_entropy", "value_old")


@pytest.fixture(scope="module")
def reference() -> dict[str, Result]:
    """Weights and metrics of the run whose environment tells a number of a name that nobody knows, made once."""
    return {}


@pytest.mark.parametrize("name", STEERED)
def test_2_numbers_of_the_environment_steer_nothing(
    echo: Run, tmp_path: Path, reference: dict[str, Result], name: str
) -> None:
    (tmp_path / "told.py").write_text(TOLD)

    def run(told: str) -> Result:
        environment = {f"{tmp_path / 'told.py'}:Told": {"name": told}}
        folder = echo(told, layers={**NETWORK, **OLD_POLICY, "environment": environment})
        return final_weights(folder), curve(folder)

    if not reference:
        reference["unknown"] = run("unknown")
    assert run(name) == reference["unknown"]


@pytest.mark.parametrize("name", ["noise"])
def test_2_nor_what_is_imitated(echo: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "told.py").write_text(TOLD)
    warm = {"warm_start": {"episodes": 8, "epochs": 1, "batch_tokens": 64, "optimizer": {"adamw": {"lr": 1e-2}}}}

    def run(told: str) -> bytes:
        environment = {f"{tmp_path / 'told.py'}:Told": {"name": told}}
        layers = {**NETWORK, **warm, "environment": environment, "training": {"iterations": 1}}
        return final_weights(echo(told, layers=layers))

    assert run(name) == run("unknown")
