"""What self-play reaches: `python benchmarks/self_play.py kuhn --seeds 1 2 3`, `… tictactoe`, `… connect_four`.

Trains recipes/teams/<game>.yaml, one run folder for each seed, or reads those that are there. Then, in Kuhn poker, what
best answers gain against the last policy, the pool of its snapshots, and the later half of them (NashConv in chips; an
equilibrium 0, uniform play 0.917); in tic-tac-toe how often the last policy loses against a perfect player, in either
seat; in Connect Four how often it wins against random play, and how its snapshots fare against each other.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe

from palaestra.commands.runs import open_run
from palaestra.envs.adapters.openspiel.tables import average, nash_conv, uniform
from palaestra.envs.adapters.openspiel.tabular import tabular
from palaestra.envs.adapters.openspiel.world import OpenSpiel
from palaestra.evaluation.statistics import t_interval, wilson_interval
from palaestra.recipe import load
from palaestra.store.folder import RECIPE, RunFolder
from palaestra.store.metrics import ENVIRONMENT_STEPS, MetricsLog
from palaestra.systems.pfsp.opponents import Pool
from palaestra.training.monitor.panel import Panel
from palaestra.training.start import train

RESULTS = Path(__file__).parent / "results" / "self_play"
OPPONENTS = {"tictactoe": "expert", "connect_four": "random"}


def trained(game: str, seed: int, folder: Path, overrides: Sequence[str]) -> Path:
    """The run folder of this seed; trained now, if it is not there."""
    run = folder / f"{game}-{seed}"
    if not (run / RECIPE).exists():
        recipe = load([f"recipes/teams/{game}.yaml"], [f"seed={seed}", f"run={run}", *overrides])
        print(train(recipe.settings, recipe=recipe.to_json()))
    return run


def members(run: Path) -> tuple[Any, Pool, int]:
    """The setup of a run, with its last policy, its pool, and its last iteration."""
    _, setup = open_run(str(run), None)
    setup.runner.close()
    place = RunFolder.open(run).latest_checkpoint()
    assert place is not None
    state = torch.load(place / "strategy.0.state.pt", weights_only=True)
    pool = Pool(size=len(state["pool"]["members"]))
    pool.restore(state["pool"], setup.policies["main"])
    return setup, pool, int(place.name.rpartition("-")[2])


def kuhn(run: Path) -> dict[str, Any]:
    """NashConv of the last policy and of mixtures of its snapshots; `prefix`: had the run ended earlier."""
    setup, pool, last = members(run)
    game = OpenSpiel(game="kuhn_poker")
    tables = {member.number: tabular(member.policy, game) for member in pool.members}
    final = tabular(setup.policies["main"], game)

    def later_half(end: int) -> float:
        return nash_conv(game, average(game, [table for at, table in tables.items() if end / 2 <= at < end]))

    ends = [round(last * share / 4) for share in (1, 2, 3, 4)]
    return {
        "last": nash_conv(game, final),
        "pool": nash_conv(game, average(game, list(tables.values()))),
        "later_half": later_half(last),
        "single_best": min(nash_conv(game, table) for table in tables.values()),
        "single_median": float(np.median([nash_conv(game, table) for table in tables.values()])),
        "prefix": {str(end): later_half(end) for end in ends},
        "uniform": nash_conv(game, uniform(game)),
        "bets": {key: round(moves[1], 3) for key, moves in average(game, list(tables.values())).moves.items()},
        "members": len(tables),
    }


def games(run: Path, game: str, count: int, temperature: float) -> dict[str, Any]:
    """Results of the last policy against a fixed opponent, in each seat by turns."""
    recipe, setup = open_run(str(run), None)
    evaluation = recipe.settings.evaluation.model_copy(update={"tasks": count, "temperature": temperature})
    assert evaluation.environment is not None and evaluation.environment.options["opponent"] == OPPONENTS[game]
    settings = recipe.settings.model_copy(update={"evaluation": evaluation})
    with closing(Panel(settings, setup)) as panel:
        _, played = panel.play()
    setup.runner.close()
    found: dict[str, Counter[str]] = {"first": Counter(), "second": Counter()}
    for one in played:
        ((name, value),) = [(step.agent, one.returns.get(step.agent, 0.0)) for step in one.steps[-1:]]
        result = "won" if value > 0 else "lost" if value < 0 else "drawn"
        found["first" if name == "player_0" else "second"][result] += 1
    total = found["first"] + found["second"]
    shares = {
        result: dict(zip(("share", "low", "high"), _interval(total[result], len(played)), strict=True))
        for result in ("won", "drawn", "lost")
    }
    return {"games": len(played), "temperature": temperature, "seats": {k: dict(v) for k, v in found.items()}, **shares}


def _interval(successes: int, n: int) -> tuple[float, float, float]:
    found = wilson_interval(successes, n)
    return found.value, found.low, found.high


def judged(game: str, run: Path, count: int) -> dict[str, Any]:
    """All numbers of one run."""
    log = MetricsLog(RunFolder.open(run)).metrics.read()
    found: dict[str, Any] = {"iterations": log[-1]["step"], "environment_steps": log[-1][ENVIRONMENT_STEPS]}
    found |= {key: round(value, 4) for key, value in log[-1].items() if key.startswith("self_play/")}
    if game == "kuhn":
        return found | kuhn(run)
    return found | {f"temperature_{at:g}": games(run, game, count, at) for at in (0.0, 1.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("game", choices=["kuhn", "tictactoe", "connect_four"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--games", type=int, default=600)
    parser.add_argument("--folder", type=Path, default=Path("runs/self_play"))
    parser.add_argument("--name", help="of the result; default: the game")
    parser.add_argument("--override", nargs="*", default=[], help="of the recipe, as in `palaestra train`")
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = given.folder / (given.name or given.game)
    runs = {seed: trained(given.game, seed, folder, given.override) for seed in given.seeds}
    found = {str(seed): judged(given.game, run, given.games) for seed, run in runs.items()}
    result: dict[str, Any] = {"recipe": f"recipes/teams/{given.game}.yaml", "overrides": given.override}
    result |= {"machine": describe(), "seeds": found}
    if given.game == "kuhn" and len(found) > 1:
        names = ("last", "pool", "later_half")
        result["mean"] = {name: str(t_interval([float(own[name]) for own in found.values()])) for name in names}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{given.name or given.game}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
