"""Where learned step rewards stand: means over kinds of steps, on rooms and on episodes that nobody has learned from.

    python benchmarks/step_rewards.py                      # trains and judges OPRL and SPA, a minute each
    python benchmarks/step_rewards.py --iterations 5       # quickly

Takes the reward of the run's last iteration as it is, plays fresh episodes with the trained policy and one with the
policy of the warm start, and writes results/step_rewards.json: per method and policy the mean reward of steps that take
the key, open the door, reach the goal, move, and of actions that are impossible.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from palaestra.data import Play, StepTable, derive, rows_of
from palaestra.data.iteration import Iteration
from palaestra.recipe import load
from palaestra.store.folder import RunFolder
from palaestra.training.checkpoint import load_policy
from palaestra.training.setup import build_setup
from palaestra.training.stages import started
from palaestra.training.start import train

ROOT = Path(__file__).resolve().parent.parent
METHODS = {"oprl": ("process", 1), "spa": ("reward", 0)}  # column of its step reward, place of the part that learns it
WITHOUT = {"spa": ["reward.progress.beta=0"]}  # a bonus for executable actions would tell kinds apart by itself


def kinds_of(table: StepTable) -> dict[str, torch.Tensor]:
    """Rows of each kind of step, bool (rows,); the table's rows stand in time."""
    stage, executable = table["progress"], table["executable"] == 1
    _, last = table.timeline("trajectory")
    before = torch.cat([torch.zeros(1), stage[:-1]])
    before[torch.cat([torch.ones(1, dtype=torch.bool), last[:-1]])] = 0
    key, door = (stage == 1) & (before == 0), (stage == 2) & (before == 1)
    goal = table["terminated"]
    return {
        "key": key,
        "door": door,
        "goal": goal,
        "move": executable & ~key & ~door & ~goal,
        "impossible": ~executable,
    }


def judge(method: str, folder: Path, settings: Any, *, episodes: int) -> dict[str, dict[str, float]]:
    """Mean step reward by policy ("start", "end") and kind of step."""
    column, place = METHODS[method]
    setup, parts = build_setup(settings), started(settings.reward)
    learners = {name: policy for name, policy in setup.policies.items() if policy.trainable}
    held = parts[place].state
    held.start(setup, learners)
    run, found = RunFolder.open(folder), {}
    steps = run.checkpoint_steps()
    state = torch.load(run.checkpoint(steps[-1]) / f"reward.{place}.state.pt", weights_only=True)
    held.load_state_dict(state)
    for name, step in (("start", steps[0]), ("end", steps[-1])):
        for policy in learners.values():
            load_policy(run.checkpoint(step), policy.name, policy)
        tasks = setup.source.tasks("train", episodes, derive(0, "judged"))
        plays = [Play(task=task, group=f"{i:05d}", sample=0, seed=derive(1, i)) for i, task in enumerate(tasks)]
        played = setup.runner.collect(plays)
        table, seen = (
            StepTable.from_trajectories(played),
            Iteration(learners, 0, 0, 1.0, settings.training.token_budget),
        )
        seen.rows = rows_of(played)
        given = held(table, seen)
        reward = given[column] if isinstance(given, dict) else given
        found[name] = {kind: float(reward[rows].mean()) for kind, rows in kinds_of(table).items() if bool(rows.any())}
    setup.runner.close()
    return found


def main() -> None:
    """Train, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/step_rewards.json")
    options = parser.parse_args()
    results = {}
    for method in METHODS:
        with tempfile.TemporaryDirectory() as folder:
            layers = ["setups/rooms-tiny.yaml", f"{method}/method.yaml"]
            more = [f"training.iterations={options.iterations}", f"run={folder}/run", *WITHOUT.get(method, [])]
            recipe = load(layers, more)
            train(recipe.settings, recipe=recipe.to_json(), quiet=True)
            results[method] = judge(method, Path(folder) / "run", recipe.settings, episodes=options.episodes)
        print(method, json.dumps(results[method], indent=1))
    options.out.write_text(json.dumps({"iterations": options.iterations, "mean reward": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
