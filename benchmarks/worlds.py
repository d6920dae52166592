"""How well expert and random play do in each world, and whether the same seed gives the same episode.

    python benchmarks/worlds.py shop household               # measures, writes results/worlds/<name>.json and the panel
    python benchmarks/worlds.py babyai-GoToObj               # … of a panel that is there, with its options
    python benchmarks/worlds.py shop --option size=50        # with options; --name tells how the panel is called
    python benchmarks/worlds.py pettingzoo --no-expert "several agents without a common goal"

Expert and random policy play 500 tasks of the split "eval" each. The panel in palaestra/envs/panels.json gets three
hashes, over its tasks, over what is shown first in each, and over 50 whole episodes of random play; and the share of
its tasks that training asks, too.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import machine
import yaml

from palaestra.data import Trajectory
from palaestra.data.abilities import has
from palaestra.envs.kit.panels import FILE, Panel, evaluation_tasks, measure, panels, with_overlap
from palaestra.evaluation.panels import summarize
from palaestra.evaluation.scripted import play_scripted, played_hash
from palaestra.registry import part
from palaestra.rollout.settings import RolloutSettings

RESULTS = Path(__file__).parent / "results" / "worlds"


def shares(played: list[Trajectory], name: str) -> dict[str, Any]:
    """Success with its interval, mean return, turns and failures of scripted play."""
    found = summarize(played, name=name)
    success = None if found.success is None else [round(getattr(found.success, k), 4) for k in ("value", "low", "high")]
    return {
        "tasks": found.n,
        "success": success,
        "return": None if found.returns is None else round(found.returns.value, 4),
        "turns": round(found.turns, 2),
        "invalid": round(found.invalid, 4),
        "failed": found.failed,
    }


def run(chosen: argparse.Namespace, environment: str) -> None:
    """Measure one world and keep what was found."""
    name = chosen.name or environment
    before = panels().get(name)  # a committed panel stays as it is; only what was not measured yet is added
    options = {key: yaml.safe_load(value) for key, _, value in (text.partition("=") for text in chosen.option)}
    if before is not None:
        environment, options = before.environment, dict(before.options) | options
    env = part("environment", environment).target(**options)
    tasks = evaluation_tasks(env, chosen.tasks)
    settings = RolloutSettings(max_turns=200, workers=chosen.workers)
    result: dict[str, Any] = {"environment": environment, "options": options, "machine": machine.describe()}
    for policy in ("expert", "random"):
        if policy == "expert" and not has(env, "expert"):
            result["expert"], result["why_no_expert"] = None, chosen.no_expert
            continue
        start = time.perf_counter()
        played = play_scripted(environment, options, policy, tasks, settings=settings)
        steps = sum(len(one.steps) for one in played)
        result[policy] = shares(played, name) | {"ms_per_step": round(1000 * (time.perf_counter() - start) / steps, 3)}
        print(f"{name} {policy}: {json.dumps(result[policy])}", flush=True)
    known = part("environment", environment).options.model_fields
    options |= {key: value for key, value in tasks[0].params.items() if key in known}  # what makes the panel's tasks
    entry = measure(replace(before or Panel(environment=environment, options={}, n=chosen.panel), options=options), env)
    entry = replace(entry, played=played_hash(entry, evaluation_tasks(env, entry.n), settings=settings))
    entry = with_overlap(entry, env, evaluation_tasks(env, entry.n))
    if before is not None and not chosen.renew:
        _refuse_change(name, before, entry)
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    known = json.loads(FILE.read_text(encoding="utf-8"))  # read late: others may have written meanwhile
    known[name] = asdict(entry)
    FILE.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
    env.close()


def _refuse_change(name: str, before: Panel, now: Panel) -> None:
    """Leaves, if a committed hash would change: results on the panel could not be compared with earlier ones."""
    changed = [key for key in ("hash", "first", "played") if getattr(before, key) not in ("", getattr(now, key))]
    if changed:
        raise SystemExit(f"panel {name}: {', '.join(changed)} changed. Was that wanted? Then give --renew.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="+")
    parser.add_argument("--option", action="append", default=[], help="key=value, of the environment; may be repeated")
    parser.add_argument("--name", help="of the panel; default the environment's")
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--panel", type=int, default=256)
    parser.add_argument("--renew", action="store_true", help="let a panel's hashes change: of a world in the making")
    parser.add_argument("--workers", type=int, default=0, help="threads, for environments that wait")
    parser.add_argument("--no-expert", default="", help="why there is none")
    chosen = parser.parse_args()
    for environment in chosen.environments:
        run(chosen, environment)


if __name__ == "__main__":
    main()
