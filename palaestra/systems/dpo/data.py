"""Make pairs from an environment: a policy answers each task several times; the best and the worst answer are a pair.

    python -m palaestra.systems.dpo.data dpo --tasks 2400 --samples 4 --out pairs.jsonl

The policy is that of a recipe after its warm start. Left out are tasks of the same content as one of the recipe's
evaluation, and tasks whose answers are all equally good.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from palaestra.boundary.tasks import tasks_of
from palaestra.data import Play, Task, Trajectory, derive
from palaestra.data.abilities import content_of
from palaestra.envs.kit.panels import evaluation_tasks
from palaestra.recipe import load
from palaestra.training.settings import RunSettings
from palaestra.training.setup import build_setup
from palaestra.training.warm_start import warm_start


def pairs(settings: RunSettings, *, tasks: int, samples: int) -> Iterator[dict[str, Any]]:
    """Records with `prompt`, `chosen`, `rejected` and, where it is known, `content`, in the order of tasks."""
    setup = build_setup(settings)

    def played(asked: Sequence[Task], each: int) -> list[Trajectory]:
        plays = [
            Play(task=task, group=f"{place:06d}", sample=sample, seed=derive(settings.seed, "pairs", place, sample))
            for place, task in enumerate(asked)
            for sample in range(each)
        ]
        return [trajectory for trajectory in setup.runner.collect(plays) if trajectory.outcome is not None]

    try:
        if settings.warm_start is not None:
            warm_start(setup, settings, say=lambda *_: None)
        panel = evaluation_tasks(setup.source, settings.evaluation.tasks, name=settings.evaluation.panel)
        held_out = {content_of(setup.source, task) for task in panel}
        asked = tasks_of(setup.source, "train", tasks, derive(settings.seed, "pairs"))
        for _, answers in groupby(played(asked, samples), key=lambda trajectory: trajectory.group):
            ranked = sorted(answers, key=lambda trajectory: float(trajectory.outcome or 0.0))
            worst, best = ranked[0], ranked[-1]
            content = content_of(setup.source, best.task)
            if best.outcome != worst.outcome and (content is None or content not in held_out):
                prompt, *chosen = _messages(best)
                told = {"prompt": [prompt], "chosen": chosen, "rejected": _messages(worst)[1:]}
                yield told if content is None else told | {"content": content}
    finally:
        setup.runner.close()


def _messages(trajectory: Trajectory) -> list[Mapping[str, str]]:
    """The observations and actions of a trajectory as alternating chat messages."""
    said = ((("user", step.observation.text), ("assistant", step.action.text)) for step in trajectory.steps)
    return [{"role": role, "content": text or ""} for turn in said for role, text in turn]


def brief(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with a text in place of each list of one message."""
    return {name: said[0]["content"] if name != "content" and len(said) == 1 else said for name, said in record.items()}


def main() -> None:
    """Write a file of pairs; the command line names the recipe, the sizes and the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--tasks", type=int, default=2400)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("pairs.jsonl"))
    given = parser.parse_args()
    records = [
        brief(record) for record in pairs(load([given.recipe]).settings, tasks=given.tasks, samples=given.samples)
    ]
    given.out.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    print(f"{given.out}: {len(records)} pairs from {given.tasks} tasks")


if __name__ == "__main__":
    main()
