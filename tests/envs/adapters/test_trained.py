"""Environments of other libraries are trained on for one iteration, by a tiny language model: (1) TRL's style with
`get_reward`; (2) OpenEnv's echo environment, whose tools are those of an MCP server on the loopback; (3) a taskset of
verifiers; (4) a game file of TextWorld. Each run makes an update with a finite loss and plays evaluation tasks.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import palaestra
from tests.envs.adapters.test_openenv import ECHO, Server
from tests.envs.adapters.test_verifiers import SUMS
from tests.extras import needs

PAY = Path(__file__).parents[2] / "pins" / "pay.py"
MODEL = {"hidden": 16, "layers": 1, "heads": 2, "context": 512, "vocabulary": 400}
COUNTER = '''
class Counter:
    """TRL's example: the environment owns its state and its reward."""

    def reset(self, **kwargs) -> str | None:
        self.count = 0

    def increment(self, step: int) -> int:
        """Increment the counter.

        Args:
            step: The amount to add.
        """
        self.count += step
        return self.count

    def get_reward(self) -> float:
        return float(self.count)


def step(env):
    from palaestra.data import ToolCall

    return ToolCall(name="increment", arguments={"step": 2})
'''


def trained(
    folder: Path, environment: Mapping[str, Any], model: Mapping[str, Any] = MODEL, **keys: Any
) -> palaestra.Run:
    """A run of one iteration. A small number is added to each reward, so that there is always something to learn."""
    chosen: dict[str, Any] = {
        "training": {"iterations": 1, "threads": 1},
        "rollout": {"tasks": 2, "group": 2, "response_tokens": 16},
        "evaluation": {"tasks": 2, "every": 1},
        "warm_start": {"episodes": 8, "epochs": 40, "optimizer": {"adamw": {"lr": 0.01}}},
        "reward": [f"{PAY}:pay"],
    }
    keys = chosen | {"run": str(folder / "run")} | keys
    run = palaestra.train(environment=environment, model=model, name="outside", quiet=True, **keys)
    metrics = run.metrics().iloc[0]
    assert metrics["policy/grad_norm"] > 0 and math.isfinite(metrics["policy/loss"]) and metrics["updates"] == 1
    assert len(run.trajectories()) >= 2 and not run.metrics("evaluations").empty
    return run


def test_trl(tmp_path: Path) -> None:  # rule 1
    (tmp_path / "counter.py").write_text(COUNTER)
    rows = [{"prompt": [{"role": "user", "content": f"Increment the counter by {n}."}], "n": n} for n in range(8)]
    file = tmp_path / "counter.py"
    environment = {"env": f"{file}:Counter", "data": rows, "expert": f"{file}:step", "format": "words", "max_turns": 2}
    run = trained(tmp_path, {"trl_class": environment})
    assert any(one.outcome for one in run.trajectories())


@pytest.mark.smoke
@needs("openenv")
def test_openenv(tmp_path: Path) -> None:  # rule 2
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

    (tmp_path / "echo.py").write_text(ECHO)
    server = Server(tmp_path / "echo.py", names=("Echo", CallToolAction, CallToolObservation))
    try:
        own = {"reward": f"{tmp_path / 'echo.py'}:longer", "expert": f"{tmp_path / 'echo.py'}:greet"}
        run = trained(tmp_path, {"openenv": {"url": server.url, "format": "words", "max_turns": 2, **own}})
        assert any(one.outcome > 0 for one in run.trajectories())  # a tool was called
    finally:
        server.close()


@pytest.mark.smoke
@needs("verifiers")
def test_verifiers(tmp_path: Path) -> None:  # rule 3
    file = tmp_path / "sums_to_train_on.py"
    file.write_text(SUMS)
    trained(tmp_path, {"verifiers": {"taskset": str(file)}}, warm_start=None)


@pytest.mark.smoke
@needs("textworld")
@pytest.mark.filterwarnings("ignore:.*not fully supported")
def test_textworld(tmp_path: Path) -> None:  # rule 4
    program = str(Path(sys.executable).with_name("tw-make"))
    options = ["--world-size", "2", "--quest-length", "1", "--nb-objects", "3", "--silent"]
    for seed in ("1", "2"):
        place = str(tmp_path / f"game{seed}.z8")
        subprocess.run([program, "custom", *options, "--seed", seed, "--output", place], check=True)
    environment = {"games": str(tmp_path / "*.z8"), "held_out": 0.5, "max_turns": 3, "cache": str(tmp_path)}
    run = trained(tmp_path, {"textworld": environment})
    assert {one.task.params["game"] for one in run.trajectories()} <= {str(path) for path in tmp_path.glob("*.z8")}
