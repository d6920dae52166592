"""Throughput of a team with one slow role, free and in lock step: `python benchmarks/lockstep.py`.

A planner acts in every turn; in some turns it needs the searcher, who takes 100 ms to answer (a remote model, or a tool
that is asked through one); then the writer acts. Planner and writer answer in 10 ms, as if a server had them. 64
episodes are in flight and 256 are played, the same in both arms, with the same calls (checked below):

    free         the library: each episode goes on as soon as its own role has answered, and where one ends the next
                 one begins
    lock step    all episodes of a batch go through the roles together, under a mask of who needs the role now: nobody
                 goes on before the slowest of them has answered, and the next batch begins when the last episode is
                 through. So do batched frameworks play teams (langfengQ/DrMAS, commit 19c632b)

What makes the difference is that episodes differ: in their number of turns (the task decides, 2 to 12) and in whether
they need the slow role (in a share of the turns, by the task again). In lock step one episode that needs it stops all
64. Lock step is treated well: within a role call all its episodes are asked at once and wait together, a role that
nobody needs in this turn costs nothing, and a larger batch is no slower than a small one. What decides is the waiting:

    sometimes    the slow role is needed in a quarter of the turns
    rarely       in a tenth: the fast roles take most of the time of both arms
    often        in half of them
    one batch    as sometimes, but 64 episodes only, so that nothing begins where another ends
    always       in each turn, and all episodes have seven: lock step loses nothing
    here         as sometimes, but planner and writer are language models in this process, so that both arms compute
                 as much, lock step in larger batches; the smaller the share of waiting, the smaller the ratio

Arms take turns in one process; medians over repeats. Two clocks: `wall`, which on a machine that others use as well
counts their time too, and `idle`, which counts this process's processor time and its waiting, and so says what a wall
clock says where nothing else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import selectors
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from asynchrony import TURN  # one for this file as a script and as the home of its programs
from machine import describe

from palaestra.data import Action, NextPrompt, Observation, Play, RunSetup, derive
from palaestra.data.protocols import Policy, Response, Sampling, Session
from palaestra.recipe import load
from palaestra.registry import register
from palaestra.rollout.programs import acted_by
from palaestra.training.setup import build_setup

RESULT = Path(__file__).parent / "results" / "lockstep" / "throughput.json"
ROLES = ("planner", "searcher", "writer")
SECONDS, QUICK, BATCH, LIMIT = 0.1, 0.01, 64, 3.0
USUAL: dict[str, Any] = {"share": 0.25, "turns": (2, 12), "episodes": 256, "fast": "served"}
CASES: dict[str, dict[str, Any]] = {
    "sometimes": USUAL,
    "rarely": USUAL | {"share": 0.1},
    "often": USUAL | {"share": 0.5},
    "one batch": USUAL | {"episodes": 64},
    "always": USUAL | {"share": 1.0, "turns": (7, 7)},
    "here": USUAL | {"fast": "here"},
}


class Answering(Session):
    """A session that takes its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def act(self, observation: Observation, *, seed: int) -> Response:
        await asyncio.sleep(self._seconds)
        return Response(action=Action(text="found"))

    def record(self, observation: Observation, action: Action) -> Response:
        return Response(action=action)

    def end(self, observation: Observation | None) -> NextPrompt | None:
        return None


@register("policy", "served")
class Served(Policy):
    """A policy that answers after a while, as many at once as ask."""

    def __init__(self, name: str, setup: RunSetup, *, seconds: float) -> None:
        self.name, self.trainable, self.version, self._seconds = name, False, 0, seconds

    def session(self, *, context: Any, sampling: Sampling, key: Hashable) -> Answering:
        return Answering(self._seconds)


def needed(seed: int, *, share: float, turns: tuple[int, int]) -> list[bool]:
    """Whether each turn of the episode of this seed needs the slow role."""
    draw = random.Random(derive(seed, "calls"))
    return [draw.random() < share for _ in range(draw.randint(*turns))]


@register("program", "free")
@acted_by(*ROLES)
async def free(episode: Any, *, share: float, turns: tuple[int, int]) -> None:
    """Planner, searcher where it is needed, writer; turn after turn."""
    (seen,) = (await episode.reset()).observations.values()
    for slow in needed(episode.play.task.seed, share=share, turns=turns):
        for role in ROLES:
            if slow or role != "searcher":
                await episode.agents[role].act(seen)


@register("program", "lock_step")
@acted_by(*ROLES)
async def lock_step(episode: Any, *, share: float, turns: tuple[int, int]) -> None:
    """The same, role by role with all other episodes of the batch, who are in before the first begins."""
    try:
        (seen,) = (await episode.reset()).observations.values()
        for slow in needed(episode.play.task.seed, share=share, turns=turns):
            for role in ROLES:
                with episode.busy():
                    await TURN.wait()
                if slow or role != "searcher":
                    await episode.agents[role].act(seen)
    finally:
        TURN.leave()


def world(arm: str, case: dict[str, Any]) -> Any:
    """What one arm plays in."""
    here = Path(__file__).resolve()
    fast: Any = {f"{here}:Served": {"seconds": QUICK}}
    if case["fast"] == "here":
        fast = {"language": {"hidden": 16, "layers": 1, "heads": 2, "context": 64, "vocabulary": 280}}
    recipe = {
        "environment": {"echo": {"turns": 99}},
        "program": {f"{here}:{arm}": {"share": case["share"], "turns": list(case["turns"])}},
        "policies": {
            "planner": {"policy": fast},
            "writer": {"policy": fast},
            "searcher": {"policy": {f"{here}:Served": {"seconds": SECONDS}}},
        },
        "agents": {role: {"policy": role, "context": "latest_only"} for role in ROLES},
        "rollout": {"tasks": 8, "group": 8, "max_turns": 99, "response_tokens": 2, "in_flight": BATCH},
    }
    with tempfile.TemporaryDirectory() as folder:
        return build_setup(load([recipe], [f"run={folder}/run"]).settings)


class Skipping(selectors.SelectSelector):
    """Where an event loop would wait, it goes on at once, and the time is noted."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0 if timeout is None or timeout > 0 else timeout)
        if not found and timeout:
            self.skipped += timeout
        return found


class Idle(asyncio.DefaultEventLoopPolicy):
    """Event loops whose clock counts processor time and waiting, as a wall clock does where nothing else runs."""

    def __init__(self) -> None:
        super().__init__()
        self.selector = Skipping()

    def seconds(self) -> float:
        """What the clock says."""
        return time.process_time() + self.selector.skipped

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        before, self.selector = self.selector.skipped, Skipping()
        self.selector.skipped = before
        loop = asyncio.SelectorEventLoop(self.selector)
        loop.time = self.seconds  # type: ignore[method-assign]
        return loop


def play(made: Any, plays: list[Play], arm: str, clock: Callable[[], float]) -> tuple[float, list[Any]]:
    """Seconds, and what was played: all at once, or batch after batch."""
    size = BATCH if arm == "lock_step" else len(plays)
    begun, played = clock(), []
    for first in range(0, len(plays), size):
        batch = plays[first : first + size]
        for _ in batch if arm == "lock_step" else ():
            TURN.enter()  # all of them, so that nobody is ahead of the others
        played += made.runner.collect(batch)
    return clock() - begun, played


def least(plays: list[Play], case: dict[str, Any]) -> float:
    """Seconds that lock step waits at least, if nothing else takes time."""
    total = 0.0
    for first in range(0, len(plays), BATCH):
        batch = plays[first : first + BATCH]
        calls = [needed(play.task.seed, share=case["share"], turns=case["turns"]) for play in batch]
        for turn in range(max(map(len, calls))):
            total += 2 * QUICK + SECONDS * any(len(own) > turn and own[turn] for own in calls)
    return total


def acts(played: list[Any]) -> list[Any]:
    """Who said what in which episode."""
    return [(t.group, s.agent, s.action.tokens.tolist()) for t in played for s in t.steps]


def measure(case: dict[str, Any], repeats: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Medians of both arms, and the ratio of their times in the same round."""
    worlds = {arm: world(arm, case) for arm in ("free", "lock_step")}
    seconds: dict[str, list[float]] = {arm: [] for arm in worlds}
    for repeat in range(repeats + 1):
        tasks = worlds["free"].source.tasks("train", case["episodes"], repeat)
        plays = [Play(task=t, group=f"{i:04d}", sample=0, seed=derive(repeat, i)) for i, t in enumerate(tasks)]
        said = {}
        for arm in ("free", "lock_step") if repeat % 2 else ("lock_step", "free"):
            spent, played = play(worlds[arm], plays, arm, clock)
            waits = arm == "lock_step" and case["fast"] == "served"
            assert not waits or spent >= 0.99 * least(plays, case), "it was not in lock step"
            assert all(t.error is None for t in played), next(t.error for t in played if t.error)
            seconds[arm].append(spent)
            said[arm] = acts(played)
        assert said["free"] == said["lock_step"], "the arms did not do the same"
    for made in worlds.values():
        made.runner.close()
    kept = {arm: values[1:] for arm, values in seconds.items()}  # the first round warms caches
    return {
        "lock_step_waits": least(plays, case),
        "acts": Counter(agent for _, agent, _ in said["free"]),
        "seconds": {arm: statistics.median(values) for arm, values in kept.items()},
        "episodes_per_second": {arm: case["episodes"] / statistics.median(values) for arm, values in kept.items()},
        "times_faster": statistics.median(b / a for a, b in zip(kept["free"], kept["lock_step"], strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--wall-repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--check", action="store_true", help="fail if it is not as much faster as promised")
    chosen = parser.parse_args()
    found: dict[str, Any] = {}
    for name in chosen.cases:
        policy = Idle()
        asyncio.set_event_loop_policy(policy)
        idle = measure(CASES[name], chosen.repeats, policy.seconds)
        asyncio.set_event_loop_policy(None)
        wall = measure(CASES[name], chosen.wall_repeats, time.perf_counter)
        found[name] = CASES[name] | {"idle": idle, "wall": wall}
        for kind, one in (("idle", idle), ("wall", wall)):
            rates = {arm: f"{rate:.0f}" for arm, rate in one["episodes_per_second"].items()}
            print(
                f"{name:10} {kind} clock: episodes a second {rates}, {one['times_faster']:.2f} times faster", flush=True
            )
    content = {
        "machine": describe(),
        "slow_seconds": SECONDS,
        "quick_seconds": QUICK,
        "in_flight": BATCH,
        "limit": LIMIT,
    }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(content | {"cases": found}, indent=1) + "\n", encoding="utf-8")
    if chosen.check:
        assert found["sometimes"]["idle"]["times_faster"] >= LIMIT


if __name__ == "__main__":
    main()
