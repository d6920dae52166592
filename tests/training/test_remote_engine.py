"""A run whose engine is another process: (1) its metrics, weights and episodes are those of a run with the in-process
engine, byte for byte, over several updates; (2) also if the process is killed again and again; (3) a run without an
engine that answers ends by one line.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palaestra.engines.remote import RemoteEngine
from palaestra.errors import PalaestraError
from tests.training.conftest import curve, final_weights

Run = Callable[..., Path]
REMOTE = "engine={remote: {start: true}}"
SHORT = ("training.iterations=3", "evaluation.tasks=4")


def left(run: Path) -> list[Any]:
    """What a run leaves, without times."""
    lines = [{key: value for key, value in line.items() if not key.startswith("time/")} for line in curve(run)]
    return [lines, final_weights(run), (run / "trajectories.jsonl").read_bytes()]


def test_1_a_run_is_the_same(echo: Run) -> None:
    assert left(echo("there", REMOTE, *SHORT)) == left(echo("here", *SHORT))


@pytest.mark.slow
def test_2_also_if_its_engine_is_killed(echo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = left(echo("here"))
    plain, asked, killed = RemoteEngine._generate, 0, []

    async def deadly(self: RemoteEngine, *request: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked in (20, 75):
            killed.append(self._child.pid)
            os.kill(self._child.pid, signal.SIGKILL)
        return await plain(self, *request, **options)

    monkeypatch.setattr(RemoteEngine, "_generate", deadly)
    assert left(echo("killed", REMOTE)) == expected
    assert len(set(killed)) == 2


def test_3_nobody_answers(echo: Run) -> None:
    with pytest.raises(PalaestraError, match=r"it has not answered for 0\.3 s"):
        echo("run", "engine={remote: {url: http://127.0.0.1:9, patience: 0.3}}", "warm_start=null")
