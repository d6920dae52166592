"""How many episodes of MiniWoB++ a minute one, two and four browsers play, and how well.

    python benchmarks/browsers.py                    # writes results/miniwob/episodes.json

Episodes of the tested pages, in as many threads as there are browsers, without a model: the expert's
acts, then random ones. The start of the browsers is told apart.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import machine

from palaestra.data import Action, Task
from palaestra.envs.adapters.miniwob.pool import BROWSERS
from palaestra.envs.adapters.miniwob.world import AGENT, MiniWoB

RESULT = Path(__file__).parent / "results" / "miniwob" / "episodes.json"


def play(env: MiniWoB, task: Task, policy: str) -> tuple[bool, int]:
    """One episode: whether it succeeded, and its acts."""
    draw, result, acts = random.Random(task.seed), env.reset(task), 0
    while result.observations:
        seen = result.observations[AGENT]
        action = env.expert(AGENT) if policy == "expert" else Action(text=draw.choice(seen.legal or ["stop"]))
        result, acts = env.step({AGENT: action}), acts + 1
    return bool(result.info["success"]), acts


def measure(browsers: int, policy: str, tasks: list[Task], pages: tuple[str, ...] | None) -> dict[str, float]:
    """Play all tasks; what came out."""
    options = {} if pages is None else {"tasks": pages}
    worlds = [MiniWoB(browsers=browsers, **options) for _ in range(browsers)]
    shares = [tasks[i::browsers] for i in range(browsers)]

    def work(env: MiniWoB, share: list[Task]) -> list[tuple[bool, int]]:
        found = [play(env, task, policy) for task in share]
        env.close()
        return found

    with ThreadPoolExecutor(browsers) as threads:
        begun = time.perf_counter()
        list(threads.map(lambda env: env.reset(tasks[0]), worlds))
        ready = time.perf_counter()
        played = [one for found in threads.map(work, worlds, shares) for one in found]
    seconds = time.perf_counter() - ready
    BROWSERS.close()
    return {
        "browsers": browsers,
        "episodes": len(played),
        "success": round(sum(won for won, _ in played) / len(played), 4),
        "acts": round(sum(acts for _, acts in played) / len(played), 2),
        "episodes_per_minute": round(60 * len(played) / seconds),
        "ms_per_act": round(1000 * seconds * browsers / sum(acts for _, acts in played), 1),
        "start_seconds": round(ready - begun, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=160)
    parser.add_argument("--browsers", type=int, nargs="+", default=[1, 2, 4])
    chosen = parser.parse_args()
    tasks = MiniWoB().tasks("eval", chosen.episodes, 20_000)
    result = {"machine": machine.describe(), "pages": "forty mixed", "rows": []}
    for policy in ("expert", "random"):
        for browsers in chosen.browsers:
            result["rows"].append({"policy": policy, **measure(browsers, policy, tasks, None)})
            print(json.dumps(result["rows"][-1]), flush=True)
    alone = MiniWoB(tasks=("click-option",)).tasks("eval", chosen.episodes, 20_000)
    for browsers in chosen.browsers:
        row = measure(browsers, "expert", alone, ("click-option",))
        result["rows"].append({"policy": "expert, click-option alone", **row})
        print(json.dumps(result["rows"][-1]), flush=True)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
