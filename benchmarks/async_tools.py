"""What it is worth that every episode calls its tool as soon as its own turn ends: `python benchmarks/async_tools.py`.

First on a simulated clock: a generation takes the same time everywhere, tools take random times; "lock step" waits in
each turn for the slowest of all episodes, "asynchronous" does not. Then with real waiting: episodes of `toolcalc`
played by a small language policy through the runner `episodes`, where either each episode's tool sleeps by itself, or
all of a turn are gathered first. Both ways must sample the same tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

from palaestra.chat import FullHistory
from palaestra.data import Action, Play, RunSetup, StepResult, Task, Trajectory, derive
from palaestra.engines import InProcessEngine
from palaestra.envs.probes.toolcalc import ToolCalc
from palaestra.policies.language import LanguagePolicy
from palaestra.registry import part
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings

RESULT = Path(__file__).parent / "results" / "async_tools.json"
TURNS = (1, 2, 4, 8)


# ---- the simulated clock ----------------------------------------------------------------------------------
def lock_step(generation: float, tools: np.ndarray) -> float:
    """Seconds until all episodes are over where each turn waits for its slowest tool. `tools`: (episodes, turns)."""
    return float((generation + tools.max(0)).sum())


def asynchronous(generation: float, tools: np.ndarray) -> float:
    """The same where no episode waits for another one."""
    return float((generation + tools).sum(1).max())


def simulated(turns: int, *, episodes: int = 64, repeats: int = 200) -> float:
    """Lock step over asynchronous: mean over draws of exponential tool times, with a generation of half their mean."""
    draw = np.random.default_rng(derive(0, "simulated", turns))
    ratios = []
    for _ in range(repeats):
        tools = draw.exponential(size=(episodes, turns))
        ratios.append(lock_step(0.5, tools) / asynchronous(0.5, tools))
    return float(np.mean(ratios))


# ---- real waiting -----------------------------------------------------------------------------------------
@dataclass
class Together:
    """Lets episodes go on only when all that are still live wait, and then after the longest of their times."""

    live: int
    waiting: list[tuple[float, asyncio.Future[None]]] = field(default_factory=list)
    running: set[asyncio.Task[None]] = field(default_factory=set)

    async def wait(self, seconds: float) -> None:
        gone_on = asyncio.get_running_loop().create_future()
        self.waiting.append((seconds, gone_on))
        self._release()
        await gone_on

    def leave(self) -> None:
        self.live -= 1
        self._release()

    def _release(self) -> None:
        if self.waiting and len(self.waiting) == self.live:
            batch, self.waiting = self.waiting, []
            self.running.add(asyncio.create_task(self._sleep(batch)))

    async def _sleep(self, batch: Sequence[tuple[float, asyncio.Future[None]]]) -> None:
        await asyncio.sleep(max(seconds for seconds, _ in batch))
        for _, gone_on in batch:
            gone_on.set_result(None)


class Waiting:
    """Toolcalc, whose every act takes a time that the task's seed decides."""

    def __init__(self, seconds: float, together: Together | None) -> None:
        self._env, self._seconds, self._together = ToolCalc(), seconds, together
        self.agents = self._env.agents
        self._seed, self._turn = 0, 0

    async def reset(self, task: Task) -> StepResult:
        self._seed, self._turn = task.seed, 0
        return self._env.reset(task)

    async def step(self, actions: Mapping[str, Action]) -> StepResult:
        result = self._env.step(actions)
        self._turn += 1
        draw = np.random.default_rng(derive(self._seed, "latency", self._turn))
        wait = self._together.wait if self._together else asyncio.sleep
        if result.observations:
            await wait(self._seconds * float(draw.exponential()))
        return result

    async def close(self) -> None:
        self._env.close()
        if self._together:
            self._together.leave()


def small_policy() -> LanguagePolicy:
    """An untrained policy with an engine of its own; equal calls give equal weights."""
    env = ToolCalc()
    texts = [env.reset(task).observations["player"].text for task in env.tasks("train", 50, 0)] + [*env.actions] * 4
    setup = RunSetup(seed=0, texts=lambda: texts)
    policy = LanguagePolicy("main", setup, hidden=32, layers=1, heads=2, context=512, vocabulary=320)
    policy.engine = InProcessEngine(models={"main": policy.model})
    return policy


def play(*, turns: int, episodes: int, seconds: float, gathered: bool) -> tuple[float, list[Trajectory]]:
    """Wall seconds and what was played."""
    together = Together(episodes) if gathered else None
    setup = RunSetup(
        environment_name="toolcalc",
        make_environment=lambda: Waiting(seconds, together),  # type: ignore[arg-type, return-value]
        roles={"*": Role(policy=small_policy(), context=FullHistory())},
        program=part("program", "play").target,
        environment_options={},
    )
    plays = [
        Play(task=task, group=f"{number:03d}", sample=0, seed=derive(0, "play", number))
        for number, task in enumerate(ToolCalc().tasks("train", episodes, 0))
    ]
    runner = EpisodeRunner(setup, RolloutSettings(max_turns=turns, response_tokens=6))
    started = time.perf_counter()
    played = runner.collect(plays)
    return time.perf_counter() - started, played


def tokens(played: Sequence[Trajectory]) -> list[list[int]]:
    """The sampled tokens of each act."""
    return [step.action.tokens.tolist() for trajectory in played for step in trajectory.steps]


def measure(*, turns: Sequence[int], episodes: int, seconds: float) -> dict[str, Any]:
    """A row for each number of turns."""
    rows = []
    for count in turns:
        wall, sampled = {}, {}
        for name, gathered in (("lock_step", True), ("asynchronous", False)):
            wall[name], played = play(turns=count, episodes=episodes, seconds=seconds, gathered=gathered)
            sampled[name] = tokens(played)
        rows.append(
            {
                "turns": count,
                "simulated_speed_up": round(simulated(count), 3),
                "lock_step_seconds": round(wall["lock_step"], 3),
                "asynchronous_seconds": round(wall["asynchronous"], 3),
                "speed_up": round(wall["lock_step"] / wall["asynchronous"], 3),
                "same_tokens": sampled["lock_step"] == sampled["asynchronous"],
            }
        )
    return {"machine": describe(), "episodes": episodes, "mean_tool_seconds": seconds, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="+", default=TURNS)
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=RESULT)
    chosen = parser.parse_args()
    found = measure(turns=chosen.turns, episodes=chosen.episodes, seconds=chosen.seconds)
    chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(chosen.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
