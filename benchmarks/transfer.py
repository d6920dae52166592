"""Language policies in self-play: what can be won from them, what they lose to a perfect player, and what transfers.

    python benchmarks/transfer.py kuhn              # teams/kuhn_language.yaml: NashConv, from its start on
    python benchmarks/transfer.py tictactoe         # teams/tictactoe_language.yaml: losses to a perfect player
    python benchmarks/transfer.py suite             # mars/recipe.yaml and two arms, on games never trained on
    python benchmarks/transfer.py textarena         # teams/textarena_*.yaml: against scripted opponents
    python benchmarks/transfer.py suite --seeds 5

Runs lie in runs/language_self_play and runs/mars_transfer; one that is complete is not run again. Results are
benchmarks/results/language_self_play/<name>.json and benchmarks/results/mars_transfer/transfer.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch

from palaestra.commands.launch.arms import ArmRun, run_all
from palaestra.commands.runs import load_weights, open_run
from palaestra.data import RunSetup
from palaestra.envs.adapters.openspiel.tables import Tabular, average, nash_conv
from palaestra.envs.adapters.openspiel.tabular import tabular
from palaestra.evaluation.statistics import Interval, t_interval, wilson_interval
from palaestra.recipe import load
from palaestra.registry.bound import BoundPart, bind
from palaestra.store.folder import RunFolder
from palaestra.training.monitor.panel import Panel
from palaestra.training.settings import RunSettings

ROOT = Path(__file__).resolve().parent.parent
RUNS, RESULTS = ROOT / "runs", ROOT / "benchmarks" / "results"
KUHN, POOL = "kuhn_poker", 5  # the last so many snapshots are the pool
ARMS = {
    "mars": [],
    "one-baseline": ["advantage=[{mars: {by: [game]}}, whiten]"],
    "fixed-opponent": ["environment.games.opponent=first"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=["kuhn", "tictactoe", "suite", "textarena"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--games", type=int, default=None, help="of each evaluation")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(1, chosen.seeds + 1)
    if chosen.subject == "kuhn":
        write("language_self_play/kuhn", kuhn(seeds))
    elif chosen.subject == "tictactoe":
        write("language_self_play/tictactoe", tictactoe(seeds, games=chosen.games or 400))
    elif chosen.subject == "textarena":
        for path in sorted((ROOT / "recipes" / "teams").glob("textarena_*.yaml")):
            write(f"language_self_play/{path.stem}", curve(path.stem, seeds))
    else:
        write("mars_transfer/transfer", suite(seeds, games=chosen.games or 200))


# ---- Kuhn poker -------------------------------------------------------------------------------------------
def kuhn(seeds: Sequence[int]) -> dict[str, Any]:
    """NashConv in chips, of the start, the last policy, the average over snapshots and the last ones as a pool."""
    train("kuhn_language", "language_self_play/kuhn", seeds)
    found = [of_snapshots(RUNS / "language_self_play" / "kuhn" / f"seed-{seed}") for seed in seeds]
    names = ("start", "last", "average", "pool")
    return {
        "recipe": "teams/kuhn_language.yaml",
        "measure": "NashConv in chips, at temperature 1; uniform play has 0.917",
        "means": {name: interval([one[name] for one in found]) for name in names},
        "share_of_start": {name: interval([one[name] / one["start"] for one in found]) for name in names[1:]},
        "seeds": found,
    }


def of_snapshots(path: Path) -> dict[str, Any]:
    recipe, setup = open_run(str(path), None)
    folder, role = RunFolder.open(str(path)), setup.role("player_0")
    tables: dict[int, Tabular] = {}
    for step in folder.checkpoint_steps():
        load_weights(setup, folder, step)
        # The environment `games` puts the game's name before what `openspiel` shows.
        tables[step] = tabular(role.policy, KUHN, context=role.context, prompt="kuhn poker. {text}")
    setup.runner.close()
    trained = [tables[step] for step in sorted(tables) if step > 0]
    last = max(tables)
    return {
        "seed": recipe.settings.seed,
        "start": round(nash_conv(KUHN, tables[0]), 4),
        "last": round(nash_conv(KUHN, tables[last]), 4),
        "average": round(nash_conv(KUHN, average(KUHN, trained)), 4),
        "pool": round(nash_conv(KUHN, average(KUHN, trained[-POOL:])), 4),
        "no_move": {"start": _outside(tables[0]), "last": _outside(tables[last])},
        "curve": {str(step): round(nash_conv(KUHN, table), 4) for step, table in sorted(tables.items())},
    }


def _outside(table: Tabular) -> float:
    """The mean share of what is no move."""
    return round(float(np.mean(list(table.outside.values()))), 4)


# ---- tic-tac-toe ------------------------------------------------------------------------------------------
def tictactoe(seeds: Sequence[int], *, games: int) -> dict[str, Any]:
    """Shares of games lost to a perfect player in both seats, before and after; a move that is none loses too."""
    name = "language_self_play/tictactoe"
    train("tictactoe_language", name, seeds)
    found = []
    for seed in seeds:
        settings, setup, folder = opened(RUNS / name / f"seed-{seed}")
        own = settings.evaluation.environment or settings.environment
        entry: dict[str, Any] = {"seed": seed}
        for temperature in (0.0, 1.0):
            for place, step in (("before", 0), ("after", max(folder.checkpoint_steps()))):
                load_weights(setup, folder, step)
                entry[f"{place}, temperature {temperature:g}"] = played(
                    settings, setup, own, games=games, temperature=temperature
                )
        setup.runner.close()
        found.append(entry)
    lost = {key: [entry[key]["lost"] for entry in found] for key in found[0] if key != "seed"}
    return {
        "recipe": "teams/tictactoe_language.yaml",
        "games": games,
        "lost": {key: interval(values) for key, values in lost.items()},
        "lost_all_seeds_pooled": {
            key: _rounded(wilson_interval(round(sum(values) * games), games * len(values)))
            for key, values in lost.items()
        },
        "seeds": found,
    }


# ---- the suite --------------------------------------------------------------------------------------------
def suite(seeds: Sequence[int], *, games: int) -> dict[str, Any]:
    """Mean reward (1 is the most there is) and illegal games against random play, before and after, of each arm."""
    root = RUNS / "mars_transfer"
    files = ("mars/recipe.yaml",)
    options = load(list(files), []).settings.environment.options
    trained, held_out = list(options["games"]), list(options["words"])
    everything = root / "start.yaml"  # legal play at random in all games; its first checkpoint is what arms begin with
    everything.parent.mkdir(parents=True, exist_ok=True)
    everything.write_text(json.dumps({
        "environment": {"games": {"games": [*trained, *held_out]}},
        "training": {"iterations": 1},
        "evaluation": {"tasks": 30},
    }))  # fmt: skip
    found: dict[str, dict[str, Any]] = {}
    for seed in seeds:
        clone = root / "start" / f"seed-{seed}"
        start = ArmRun(arm="start", seed=seed, folder=clone, arguments=(*files, str(everything)))
        run_all([start], parallel=1, say=say)
        weights = root / "start" / f"policy-{seed}"
        own, setup, folder = opened(clone)
        load_weights(setup, folder, 0)
        setup.policies["main"].save(str(weights))
        found.setdefault("start", {})[str(seed)] = on_all(folder, own, setup, trained, held_out, games)
        setup.runner.close()
        for arm, overrides in ARMS.items():
            one = ArmRun(
                arm=arm,
                seed=seed,
                folder=root / arm / f"seed-{seed}",
                arguments=(*files, "warm_start=null", f"policies.main.load={weights}", *overrides),
            )
            run_all([one], parallel=1, say=say)
            own, setup, folder = opened(one.folder)
            load_weights(setup, folder, max(folder.checkpoint_steps()))
            found.setdefault(arm, {})[str(seed)] = on_all(folder, own, setup, trained, held_out, games)
            setup.runner.close()
    return {
        "recipe": "mars/recipe.yaml",
        "games": games,
        "trained": trained,
        "held_out": held_out,
        "gain": {arm: gains(found, arm, trained, held_out) for arm in ARMS},
        "arms": found,
    }


def on_all(
    folder: RunFolder,
    settings: RunSettings,
    setup: RunSetup,
    trained: Sequence[str],
    held_out: Sequence[str],
    games: int,
) -> dict[str, Any]:
    """Each game, in every seat by turns, against random play at temperature 1; kept in the run's folder."""
    kept = folder / f"against-random-{games}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    results = {}
    for name in (*trained, *held_out):
        options = {"games": [name], "opponent": "random", "text": "signs", "reward_max": 1.0}
        environment = bind("environment", BoundPart(name="games", options=options))
        results[name] = played(settings, setup, environment, games=games, temperature=1.0)
        say(f"{name}: {results[name]}")
    kept.write_text(json.dumps(results, indent=1))
    return results


def gains(found: Mapping[str, Any], arm: str, trained: Sequence[str], held_out: Sequence[str]) -> dict[str, Any]:
    """Reward after minus before, paired by seed: the mean over trained games, over held-out ones, and each."""

    def gain(names: Sequence[str]) -> list[float]:
        return [
            float(np.mean([one[name]["reward"] - found["start"][seed][name]["reward"] for name in names]))
            for seed, one in found[arm].items()
        ]

    sets = {"trained": trained, "held_out": held_out, **{name: [name] for name in (*trained, *held_out)}}
    return {key: interval(gain(names)) for key, names in sets.items()}


# ---- TextArena --------------------------------------------------------------------------------------------
def curve(name: str, seeds: Sequence[int]) -> dict[str, Any]:
    """The run's own evaluations against its scripted opponent."""
    train(name, f"language_self_play/{name}", seeds)
    curves = []
    for seed in seeds:
        folder = RUNS / "language_self_play" / name / f"seed-{seed}"
        lines = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
        keep = ("success", "success_low", "success_high", "return", "invalid")
        curves.append([{"step": one["step"]} | {key: round(one[f"eval/textarena/{key}"], 4) for key in keep}
                       for one in lines])  # fmt: skip
    change = [one[-1]["success"] - one[0]["success"] for one in curves]
    return {"recipe": f"teams/{name}.yaml", "gain": interval(change), "curves": curves}


# ---- runs and games ---------------------------------------------------------------------------------------
def train(recipe: str, name: str, seeds: Sequence[int]) -> None:
    arguments = (str(ROOT / "recipes" / "teams" / f"{recipe}.yaml"),)
    run_all(
        [ArmRun(arm=recipe, seed=seed, folder=RUNS / name / f"seed-{seed}", arguments=arguments) for seed in seeds],
        parallel=1,
        say=say,
    )


def opened(path: Path) -> tuple[RunSettings, RunSetup, RunFolder]:
    recipe, setup = open_run(str(path), None)
    return recipe.settings, setup, RunFolder.open(str(path))


def played(
    settings: RunSettings, setup: RunSetup, environment: BoundPart, *, games: int, temperature: float
) -> dict[str, float]:
    """The policy in a panel of this environment: reward, shares won, lost and ended by what is no legal move."""
    own = settings.evaluation.model_copy(
        update={"environment": environment, "tasks": games, "temperature": temperature, "panel": None}
    )
    with closing(Panel(settings.model_copy(update={"evaluation": own}), setup)) as panel:
        _, episodes = panel.play()
    rewards = [float(np.mean(list(one.returns.values()) or [0.0])) for one in episodes]
    no_move = [any(step.info.get("illegal") or step.info.get("invalid") for step in one.steps) for one in episodes]
    return {
        "reward": round(float(np.mean(rewards)), 4),
        "won": round(float(np.mean([reward > 0 for reward in rewards])), 4),
        "lost": round(float(np.mean([reward < 0 for reward in rewards])), 4),
        "no_move": round(float(np.mean(no_move)), 4),
        "failed": round(float(np.mean([one.error is not None for one in episodes])), 4),
    }


def interval(values: Sequence[float]) -> list[float]:
    """Mean and Student's interval over seeds; the mean alone of one."""
    return _rounded(t_interval(values)) if len(values) > 1 else [round(values[0], 4)]


def _rounded(found: Interval) -> list[float]:
    return [round(found.value, 4), round(found.low, 4), round(found.high, 4)]


def write(name: str, result: Mapping[str, Any]) -> None:
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**result, "machine": machine.describe()}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in result.items() if key not in ("seeds", "arms", "curves")}, indent=1))


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
