"""Episodes on their way into the update: (1) one whose environment tells NaN is recorded, counted and not learned from,
and the run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.training.conftest import curve

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
