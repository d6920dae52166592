"""Runs that SIGKILL ends at random moments, again and again, and that go on with `--resume`: (1) at the end they have
the logs, the weights and the rest of the last checkpoint of a run that nothing disturbed, byte for byte; (2) an
asynchronous run has the same iterations with as many episodes, evaluations and updates; (3) no start says anything but
clean lines, and nothing temporary stays in the folder.

`make attack KILLS=200` kills 200 times. A killed program is a fork of this process, which has imported everything; the
first of each kind is a process of its own, `python -m palaestra train …`, which may also die while it imports.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.attack.kinds import KINDS, Kind
from tests.attack.programs import Program
from tests.attack.promises import Trials, promise
from tests.extras import skip_without

EXACT = promise(
    "A run that is killed and resumed equals one that was never disturbed: logs and weights, byte for byte",
    how="`palaestra train` of a tiny recipe of each kind, SIGKILL of its process group at a random moment, `--resume`",
    subject="runs",
)
COUNTS = promise(
    "An asynchronous run that is killed and resumed has the same iterations, with as many episodes and updates",
    how="the same with `training.max_staleness: 2`, where the clock decides which weights play an episode",
    subject="runs",
)
KILLS_OF_A_RUN = 5
NUMBERS = ("step", "updates", "rollout/finished", "episodes/failed")
START = 3.0  # seconds in which a process of its own imports


def contents(run: Path) -> dict[str, bytes]:
    """What must be the same: the logs, and every file of the last checkpoint."""
    last = sorted(run.glob("checkpoints/step-*"))[-1]
    names = [run / name for name in ("metrics.jsonl", "evaluations.jsonl", "trajectories.jsonl")]
    return {str(path.relative_to(run)): path.read_bytes() for path in [*names, *sorted(last.iterdir())]}


def counts(run: Path) -> dict[str, Any]:
    """What an asynchronous run must have the same number of."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluations = [json.loads(line)["step"] for line in (run / "evaluations.jsonl").read_text().splitlines()]
    last = sorted(path.name for path in run.glob("checkpoints/step-*"))[-1]
    numbers = [{key: line[key] for key in NUMBERS} for line in lines]
    return {"lines": numbers, "evaluations": evaluations, "checkpoint": last}


def attack(program: Program, kind: Kind, trials: Trials, *, kills: int) -> None:
    """Kill runs so often, each several times, let each end, and compare it with one that nothing disturbed."""
    compared = contents if kind.exact else counts
    began = time.monotonic()
    program.end(program.train("whole"))
    seconds = time.monotonic() - began
    whole, number, done = compared(program.folder / "whole"), 0, 0
    while done < kills:
        number += 1
        run, hits = f"run{number}", 0
        while hits < min(KILLS_OF_A_RUN, kills - done):
            apart = done + hits == 0 and trials.many
            moment = trials.draw.uniform(0.0, START + seconds if apart else 0.7 * seconds)
            if not program.end(program.train(run, apart=apart), after=moment):
                break  # it was faster
            hits += 1
        program.end(program.train(run))
        found = compared(program.folder / run)
        assert found.keys() == whole.keys()
        assert not [name for name in whole if found[name] != whole[name]], f"{run}, seed {trials.seed}, {hits} kills"
        assert not list((program.folder / run).rglob(".*")), "something temporary stayed"
        trials.add(hits)
        done += hits


def cases(exact: bool) -> list[Any]:
    return [
        pytest.param(name, id=name, marks=() if kind.short else pytest.mark.slow)
        for name, kind in KINDS.items()
        if kind.exact == exact
    ]


def kill(name: str, folder: Path, trials: Trials, kills: int) -> None:
    kind = KINDS[name]
    if kind.needs:
        skip_without(kind.needs)
    share = -(-kills // len(KINDS))  # every kind gets at least one
    attack(Program(folder, tuple(kind.write(folder))), kind, trials, kills=trials.number(few=1, many=share))


@EXACT
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", cases(exact=True))
def test_1_equal_bytes(name: str, tmp_path: Path, trials: Trials, kills: int) -> None:
    kill(name, tmp_path, trials, kills)


@COUNTS
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", cases(exact=False))
def test_2_equal_counts(name: str, tmp_path: Path, trials: Trials, kills: int) -> None:
    kill(name, tmp_path, trials, kills)
