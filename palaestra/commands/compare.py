"""`palaestra compare`: trains several methods on one setup with several seeds, and compares them at equal budget."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from palaestra.commands import tables
from palaestra.commands.launch.arms import ArmRun, run_all
from palaestra.errors import RecipeError, RunFolderError
from palaestra.evaluation.comparison import compare
from palaestra.evaluation.comparison_plot import plot
from palaestra.evaluation.runs import Arm, load_arm
from palaestra.process.terminal import say, visible
from palaestra.recipe import Recipe, load, split_arguments
from palaestra.recipe.sources import COMPLETE
from palaestra.store.atomic import write_atomic
from palaestra.store.folder import RECIPE, RunFolder
from palaestra.training.checkpoint import changes


def run(
    *,
    setup: str,
    methods: Sequence[str],
    arms: Sequence[str] = (),
    seeds: int,
    out: str,
    parallel: int,
    reference: str | None,
    metric: str,
    axis: str,
) -> None:
    """Run all arms, then write comparison.json, comparison.txt and comparison.png into `out`.

    Args:
        methods: method files, one arm each, and overrides for all arms.
        arms: further arms, each as `name: file key=value …`.
        seeds: number of seeds; each arm is trained with the seeds 1, 2, …
        out: folder of the results and of the runs.
        parallel: runs at the same time.
        reference: the arm that the others are compared with; None: the first.
        metric: "success" or "return". axis: the budget that is equal, such as "environment_steps".

    Raises: RecipeError, for arms that are not valid; RunFolderError, if an arm's folder holds a run of another recipe.
    """
    files, overrides = split_arguments(methods)
    named = _arms(files, arms)
    recipes = {  # all are checked before the first run starts
        arm: load([setup, *layers], [*overrides, *own]) for arm, (layers, own) in named.items()
    }
    runs = [
        ArmRun(
            arm=arm,
            seed=seed,
            folder=Path(out) / "runs" / arm / f"seed-{seed}",
            arguments=(setup, *layers, *overrides, *own),
            clones=Path(out) / "clones" if recipes[arm].settings.warm_start is not None else None,
        )
        for seed in range(1, seeds + 1)
        for arm, (layers, own) in named.items()
    ]
    for run in runs:
        _check_same(run, recipes[run.arm])
    run_all(runs, parallel=parallel, say=lambda line: say(visible(line)))
    loaded = [_load(arm, [r for r in runs if r.arm == arm]) for arm in named]
    settings = next(iter(recipes.values())).settings
    name = (settings.evaluation.environment or settings.environment).name
    result = compare(loaded, metric=f"eval/{name}/{metric}", reference=reference, axis=axis)
    folder = Path(out)
    write_atomic(folder / "comparison.json", json.dumps(result.to_json(), indent=1, sort_keys=True) + "\n")
    write_atomic(folder / "comparison.txt", result.text())
    plot(result, folder / "comparison.png")
    tables.console().print(result.table())


def _arms(files: Sequence[str], arms: Sequence[str]) -> dict[str, tuple[list[str], list[str]]]:
    """Name of each arm → its files and its own overrides.

    Raises: RecipeError, if there is no arm, if an arm has no name or no file, or if two arms have the same name.
    """
    found: list[tuple[str, list[str], list[str]]] = [(_named_after(file), [file], []) for file in files]
    for text in arms:
        name, colon, rest = text.partition(":")
        try:
            layers, own = split_arguments(shlex.split(rest))
        except ValueError:  # a quotation mark is not closed
            layers, own = [], []
        if not (colon and name.strip() and layers):
            raise RecipeError(
                where=f"palaestra compare --arm {text!r}",
                what="an arm needs a name and at least one method file.",
                remedy='Write --arm "half: gigpo/method.yaml advantage.gigpo.step_weight=0.5".',
            )
        found.append((name.strip(), layers, own))
    names = [name for name, _, _ in found]
    if not names:
        raise RecipeError(
            where="palaestra compare",
            what="no method file is given.",
            remedy="Give at least one method file after the setup, such as grpo/method.yaml.",
        )
    for name in names:
        if name in (".", "..") or not set("/\\\0").isdisjoint(name):
            raise RecipeError(
                where="palaestra compare",
                what=f"the name of an arm is also that of its folder, which {name!r} cannot be.",
                remedy='Give it another name with `--arm "name: file"`.',
            )
    if len(set(names)) < len(names):
        raise RecipeError(
            where="palaestra compare",
            what="two arms have the same name.",
            remedy='An arm has the name of its file, or of its system. Give it another one with `--arm "name: file"`.',
        )
    return {name: (layers, own) for name, layers, own in found}


def _named_after(file: str) -> str:
    """The name of a file's arm: `gigpo` for `gigpo/method.yaml`, and otherwise the file's name without `.yaml`."""
    path = Path(file)
    return path.parent.name if path.name in ("method.yaml", COMPLETE) and path.parent.name else path.stem


def _check_same(run: ArmRun, recipe: Recipe) -> None:
    """Raises: RunFolderError, if the arm's folder holds a run of another recipe. It would be taken for this arm's."""
    if not (run.folder / RECIPE).exists():
        return
    now = recipe.with_overrides(run.overrides).to_json()
    differing = changes(RunFolder.open(run.folder).read_recipe(), now)
    if differing:
        raise RunFolderError(
            where=str(run.folder),
            what=f"the run in this folder has another recipe: {'; '.join(differing)}.",
            remedy="Give the recipe of that run, choose another folder with --out, or remove the folder.",
        )


def _load(name: str, runs: Sequence[ArmRun]) -> Arm:
    return load_arm(name, [run.folder for run in runs], seeds=[run.seed for run in runs])
