"""Which recipes are evaluated on problems that their training asks, too?

    python benchmarks/held_out.py                    # all complete recipes; writes results/held_out.json
    python benchmarks/held_out.py worlds/code.yaml   # only these; prints

For each recipe it makes the evaluation tasks, the demonstrated tasks and those of all iterations, as its sampler gives
them before it has learned anything, and compares their contents. Groups that a strategy asks for in addition come from
the same split and are left out. "said" is what the last line of such a run says of its tasks.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from palaestra.data import Play
from palaestra.data.abilities import content_of, has
from palaestra.envs.kit.panels import evaluation_tasks
from palaestra.evaluation.panels import tasks_line
from palaestra.recipe import load, packaged
from palaestra.training.warm_start import demonstrated

RESULT = Path(__file__).parent / "results" / "held_out.json"
FOLDERS = ("worlds", "teams", "models")


def complete() -> list[str]:
    """Recipes that `palaestra train` takes as they are: those of systems, folders, and single files."""
    return [
        name for name in packaged() if name.endswith("/recipe.yaml") or name.split("/")[0] in FOLDERS or "/" not in name
    ]


def measured(name: str) -> dict[str, Any]:
    """What the evaluation of a recipe shares with its training."""
    settings = load([name]).settings
    source = settings.environment()
    asked = settings.evaluation
    evaluated = source if asked.environment is None else asked.environment()
    tasks = evaluation_tasks(evaluated, asked.tasks, name=asked.panel)
    row: dict[str, Any] = {"environment": settings.environment.name, "evaluated": len(tasks)}
    contents = [content_of(evaluated, task) for task in tasks]
    if None in contents or not has(source, "content"):
        return row | {"shared": None, "said": tasks_line(len(tasks), None)}
    known, trained = set(), 0
    demonstrations = (
        [] if settings.warm_start is None else demonstrated(source, settings.warm_start, seed=settings.seed)
    )
    sampler = settings.sampler.started()
    for number in range(-1, settings.training.iterations):
        played = demonstrations if number < 0 else sampler(source, number, settings.rollout.tasks, settings.seed)
        known |= {content_of(source, Play.of(one).task) for one in played}
        trained += len(played)
    shared = sum(content in known for content in contents)
    different = len({*contents})
    row |= {"different": different, "trained": trained, "trained_different": len(known)}
    return row | {
        "shared": shared,
        "share": round(shared / len(tasks), 4),
        "said": tasks_line(len(tasks), shared, different=different),
    }


def main() -> None:
    """Measure and print; of all recipes, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    chosen = parser.parse_args()
    rows = {}
    for name in chosen.names or complete():
        rows[name] = row = measured(name)
        share = "  –  " if row["shared"] is None else f"{row['shared'] / row['evaluated']:.3f}"
        print(f"{name:38} {row['environment']:16} {share}  {row['said']}", flush=True)
    if not chosen.names:
        RESULT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
