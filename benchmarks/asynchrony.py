"""Wall time of an update when environments wait: `python benchmarks/asynchrony.py`.

Every step of the environment takes 50 ms and episodes have 2 to 16 steps. Four ways to play batches of 64 episodes, all
under way at once, with the same trainer, policy and tasks:

    lock step      every turn waits until all episodes have made theirs, as batched agent frameworks do it
    synchronous    each episode goes on by itself; the update waits for the last one       (max_staleness 0)
    wait, drop     episodes are played while the policy learns, one batch ahead            (max_staleness 1)

Results: results/asynchrony.json. Ratios are of wall seconds in one run of this file, arms in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from machine import describe

from palaestra.data import Action, StepResult, Task
from palaestra.recipe import load
from palaestra.testing.fakes import EchoEnvironment
from palaestra.training.loop import Trainer
from palaestra.training.start import train

RESULT = Path(__file__).parent / "results" / "asynchrony.json"
SECONDS, SHORTEST, LONGEST = 0.05, 2, 16
LIMITS = {"lock step": 1.8, "synchronous": 1.4}  # how many times faster `wait` is at least


class Waiting(EchoEnvironment):
    """Echo whose steps take 50 ms, with episodes of a length that the task decides."""

    def __init__(self) -> None:
        super().__init__(turns=LONGEST)

    def reset(self, task: Task) -> StepResult:  # type: ignore[override]
        self._turns = random.Random(task.seed).randint(SHORTEST, LONGEST)
        return super().reset(task)

    async def step(self, actions: Mapping[str, Action]) -> StepResult:  # type: ignore[override]
        await asyncio.sleep(SECONDS)
        return super().step(actions)


class Turn:
    """Lets nobody go on before everybody who plays has come."""

    def __init__(self) -> None:
        self._playing = 0
        self._here: list[asyncio.Future[None]] = []

    def enter(self) -> None:
        """One more plays."""
        self._playing += 1

    def leave(self) -> None:
        """One is through."""
        self._playing -= 1
        self._look()

    async def wait(self) -> None:
        """Come, and go on with the others."""
        mine = asyncio.get_running_loop().create_future()
        self._here.append(mine)
        self._look()
        await mine

    def _look(self) -> None:
        if self._here and len(self._here) >= self._playing:
            here, self._here = self._here, []
            for future in here:
                future.set_result(None)


TURN = Turn()


class LockStep(Waiting):
    """The same, turn by turn with all other episodes."""

    def __init__(self) -> None:
        super().__init__()
        self._inside = False

    def reset(self, task: Task) -> StepResult:  # type: ignore[override]
        TURN.enter()
        self._inside = True
        return super().reset(task)

    async def step(self, actions: Mapping[str, Action]) -> StepResult:  # type: ignore[override]
        await TURN.wait()
        result = await super().step(actions)
        await TURN.wait()
        if not result.observations:
            self.close()
        return result

    def close(self) -> None:
        if self._inside:
            self._inside = False
            TURN.leave()


ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "lock step": ("LockStep", {}),
    "synchronous": ("Waiting", {}),
    "wait": ("Waiting", {"max_staleness": 1, "stale": "wait"}),
    "drop": ("Waiting", {"max_staleness": 1, "stale": "drop"}),
}
POLICIES: dict[str, Any] = {
    "network": {"network": {"hidden": [64]}},
    "language": {"language": {"hidden": 32, "layers": 2, "heads": 2, "context": 128, "vocabulary": 320}},
}


def recipe(arm: str, policy: str, iterations: int) -> dict[str, Any]:
    """One arm's recipe."""
    environment, training = ARMS[arm]
    return {
        "environment": f"{Path(__file__).resolve()}:{environment}",
        "policies": {"main": {"policy": POLICIES[policy]}},
        "rollout": {"tasks": 8, "group": 8, "max_turns": LONGEST, "response_tokens": 3},
        "training": {
            "iterations": iterations,
            "epochs": 2,
            "minibatches": 4,
            "threads": 1,
            "max_empty": 999,
            **training,
        },
        "evaluation": {"tasks": 1},
    }


def measure(arm: str, policy: str, iterations: int) -> dict[str, float]:
    """Median wall seconds of an iteration, after the first three, and what they went to."""
    spent: list[float] = []
    logged: list[dict[str, float]] = []
    plain = Trainer.iterate

    def timed(self: Trainer) -> dict[str, float]:
        started = time.perf_counter()
        metrics = plain(self)
        spent.append(time.perf_counter() - started)
        logged.append(metrics)
        return metrics

    Trainer.iterate = timed  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            made = load([recipe(arm, policy, iterations)], [f"run={folder}/run"])
            train(made.settings, recipe=made.to_json(), quiet=True)
    finally:
        Trainer.iterate = plain  # type: ignore[method-assign]
    kept = spent[3:-2]  # at the end nothing is played ahead
    found = {"seconds": statistics.mean(kept), "iterations": float(len(kept))}
    ages = [line["staleness/mean"] for line in logged[3:-2] if "staleness/mean" in line]
    return found | ({"staleness": statistics.mean(ages)} if ages else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=23)
    parser.add_argument("--check", action="store_true", help="fail if `wait` is not as much faster as promised")
    chosen = parser.parse_args()
    found: dict[str, Any] = {}
    for policy in POLICIES:
        arms = {arm: measure(arm, policy, chosen.iterations) for arm in ARMS}
        ratios = {arm: arms[arm]["seconds"] / arms["wait"]["seconds"] for arm in ARMS}
        found[policy] = {"arms": arms, "slower_than_wait": ratios}
        for arm in ARMS:
            print(f"{policy:9} {arm:12} {arms[arm]['seconds'] * 1000:7.0f} ms an update, {ratios[arm]:.2f} x wait")
    content = {"machine": describe(), "step_seconds": SECONDS, "steps": [SHORTEST, LONGEST], "episodes": 64, **found}
    RESULT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if chosen.check:
        for arm, least in LIMITS.items():
            assert found["network"]["slower_than_wait"][arm] >= least, arm


if __name__ == "__main__":
    main()
