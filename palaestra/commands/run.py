"""`palaestra run`: evaluates a system that needs no training, and its baselines, on a panel of evaluation tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from palaestra.commands.tables import console
from palaestra.data import Trajectory
from palaestra.errors import RecipeError
from palaestra.evaluation.panels import Evaluation, failure_line, interval_line, result_line
from palaestra.evaluation.statistics import t_interval
from palaestra.evaluation.tables import cell
from palaestra.process.terminal import visible
from palaestra.recipe import Recipe, load, packaged, split_arguments
from palaestra.recipe.sources import PLAYED
from palaestra.training.monitor.metrics import spent
from palaestra.training.monitor.panel import Panel
from palaestra.training.progress import Progress
from palaestra.training.settings import RunSettings
from palaestra.training.setup import build_setup
from palaestra.training.warm_start import demonstrated, kept_line, warm_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The result of the system or of one of its baselines.

    Attributes:
        scores: one for each task. tokens: generated in an episode, on average.
        tasks: what is known of the tasks, such as `256 held-out tasks`.
    """

    name: str
    evaluation: Evaluation
    scores: Sequence[float]
    tokens: float
    tasks: str


def run(*, recipe: Sequence[str], quiet: bool, smoke: bool) -> None:
    """Play the panel and print a table, with the results once more in the last line.

    That line is, for example, `success 0.412 on 256 held-out tasks; one answer 0.301`.

    The policies have the weights after the recipe's warm start, or those that `policies.NAME.load` names. A baseline
    has the same weights, unless it changes the policies or the warm start.

    Raises: RecipeError, if the recipe trains a policy.
    """
    found = load_played(recipe, smoke=smoke)
    recipes = {found.settings.name: found} | {name: found.baseline(name) for name in found.baselines}
    weights: dict[str, Any] = {}
    with Progress(total=0, quiet=quiet) as progress:
        arms = [_played(name, each, found.settings, weights, progress) for name, each in recipes.items()]
    console().print(_table(arms))
    print(interval_line(arms[0].evaluation))
    for arm in (arm for arm in arms if arm.evaluation.failed):
        print(visible(f"{arm.name}: {failure_line(arm.evaluation)}"))
    print(
        "; ".join(
            [
                result_line(arms[0].evaluation, tasks=arms[0].tasks),
                *(f"{arm.name} {_headline(arm)}" for arm in arms[1:]),
            ]
        )
    )


def load_played(arguments: Sequence[str], *, smoke: bool) -> Recipe:
    """The recipe that the arguments name: a system, which means its `run.yaml`, or files.

    Raises: RecipeError, if the recipe trains a policy; as `load`.
    """
    files, overrides = split_arguments(arguments)
    known = packaged()
    found = load(
        [f"{file}/{PLAYED}" if f"{file}/{PLAYED}" in known else file for file in files], overrides, smoke=smoke
    )
    trained = [name for name, policy in found.settings.policies.items() if policy.trainable]
    if trained:
        raise RecipeError(
            where=f"palaestra run {' '.join(arguments)}",
            what=f"this recipe trains policy `{trained[0]}`, and `palaestra run` trains nothing.",
            options=sorted(name.partition("/")[0] for name in known if name.endswith(f"/{PLAYED}")),
            remedy=f"Train it with `palaestra train`, or set policies.{trained[0]}.trainable=false.",
        )
    return found


def _played(name: str, recipe: Recipe, whole: RunSettings, weights: dict[str, Any], progress: Progress) -> Arm:
    """The result of one arm.

    Args:
        whole: the settings of the system.
        weights: of the system's policies after the warm start. The first arm fills them in, and later arms use them.
    """
    settings = recipe.settings
    same = (settings.policies, settings.warm_start) == (whole.policies, whole.warm_start)
    setup = build_setup(settings)
    with ExitStack() as resources:
        if setup.engine is not None:
            resources.callback(setup.engine.shutdown)
        resources.callback(setup.runner.close)
        panel = resources.enter_context(closing(Panel(settings, setup)))
        if settings.warm_start is not None:
            panel.note(setup.source, demonstrated(setup.source, settings.warm_start, seed=settings.seed))
        if same and weights:
            _take(setup.policies, weights)
        elif settings.warm_start is not None:
            done = warm_start(setup, settings, say=progress.phase)
            if (line := kept_line(done)) is not None:
                progress.note(line)
        if same and not weights:
            weights.update(_weights(setup.policies))
        evaluation, played = panel.play()
    progress.note(f"{name}: {interval_line(evaluation)}")
    return Arm(name=name, evaluation=evaluation, scores=[_score(one) for one in played],
               tokens=spent(played)[1] / len(played), tasks=panel.described)  # fmt: skip


def _weights(policies: Mapping[str, Any]) -> dict[str, Any]:
    return {name: policy.module.state_dict() for name, policy in policies.items() if policy.module is not None}


def _take(policies: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    for name, state in weights.items():
        policies[name].module.load_state_dict(state)
        policies[name].weights_changed(policies[name].version + 1)


def _score(played: Trajectory) -> float:
    """The outcome of an episode, or the mean return of its agents if it has no outcome; 0 for a failed episode."""
    if played.error is not None:
        return 0.0
    return float(played.outcome if played.outcome is not None else np.mean(list(played.returns.values()) or [0.0]))


def _table(arms: Sequence[Arm]) -> Table:
    first = arms[0]
    table = Table("", "result", "acts an episode", "tokens an episode", f"{cell(first.name)}, less this", box=None)
    for arm in arms:
        less = "" if arm is first else _difference(first, arm)
        table.add_row(
            cell(arm.name), interval_line(arm.evaluation), f"{arm.evaluation.turns:.1f}", f"{arm.tokens:.1f}", less
        )
    return table


def _difference(first: Arm, other: Arm) -> str:
    """The mean difference over the tasks, which both arms have played, with its interval from Student's t."""
    if len(first.scores) < 2:
        return "–"
    found = t_interval([a - b for a, b in zip(first.scores, other.scores, strict=True)])
    return f"{found.value:+.3f}, 95 % interval {found.low:+.3f} to {found.high:+.3f}"


def _headline(arm: Arm) -> str:
    return result_line(arm.evaluation).split()[1]
