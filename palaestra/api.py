"""The Python interface: trains recipes, and reads, evaluates, plots and exports runs.

`import palaestra` offers the names of this file and loads them at their first use.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from palaestra.commands.evaluate import PlayedPanel, Wanted, play_wanted
from palaestra.commands.export import export
from palaestra.commands.runs import recipe_of, resolve, trained_setup
from palaestra.data import Trajectory
from palaestra.errors import RecipeError, UnknownName, missing_extra, nearest
from palaestra.evaluation.comparison import compare as compare_arms
from palaestra.evaluation.curves import drawn_figure, panels_of
from palaestra.evaluation.runs import load_arm
from palaestra.evaluation.statistics import Interval
from palaestra.recipe import Recipe, load
from palaestra.registry import registration
from palaestra.registry.trust import trusting
from palaestra.registry.user_objects import name_of, shown
from palaestra.store.episodes import EpisodeLog
from palaestra.store.folder import EVALUATIONS, METRICS, TIMINGS, RunFolder
from palaestra.store.lines import STEP
from palaestra.store.metrics import ENVIRONMENT_STEPS, read
from palaestra.training.settings import CHOSEN
from palaestra.training.start import train as train_settings

if TYPE_CHECKING:
    import pandas

__all__ = ["Run", "compare", "evaluate", "load_recipe", "train"]

Layer = str | os.PathLike[str] | Mapping[Any, Any]
ACCESS = ("model", "style", "key")  # of an endpoint
LOGS = {"metrics": METRICS, "evaluations": EVALUATIONS, "timings": TIMINGS}


def load_recipe(
    *layers: Layer, model: str | Mapping[str, Any] | None = None, smoke: bool = False, **keys: Any
) -> Recipe:
    """A checked recipe.

    Args:
        layers: names of recipes such as "gigpo", files, or mappings. Later ones win.
        model: the model of the policy `main`: the folder or name of a pretrained one, or options of the policy
            `language`, such as `{"model": "SmolLM2-135M-Instruct", "lora": {"rank": 16}}` or `{"hidden": 64}`.
        smoke: make everything small.
        keys: keys of the recipe's top level, such as `advantage="gigpo"` or `rollout={"group": 8}`. They win over the
            layers. In place of a part's name, a class or a function can stand, also before its options, as in
            `advantage={centered: {"size": 2}}`.

    Raises: RecipeError or UnknownName, if the recipe cannot run.
    """
    given = dict(keys)
    if model is not None:
        options = {"model": model} if isinstance(model, str) else dict(model)
        main = {"policies": {"main": {"policy": {"language": options}}}}
        layers = (*layers, main)
    written = [layer if isinstance(layer, str | os.PathLike) else _named(layer) for layer in (*layers, given)]
    return load([os.fspath(one) if isinstance(one, os.PathLike) else one for one in written], smoke=smoke)


def train(
    *layers: Layer,
    model: str | Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    smoke: bool = False,
    **keys: Any,
) -> Run:
    """Train a recipe and return its run, as `palaestra train` does.

    >>> run = train("cartpole.yaml", training={"iterations": 2}, overwrite=True)  # doctest: +SKIP
    >>> run.metrics()["reward/mean"]  # doctest: +SKIP

    Args:
        layers, model, keys: see `load_recipe`. The key `run` names the folder; without it, the folder is `runs/NAME`.
        resume: go on from the newest checkpoint in the folder.
        overwrite: replace the run that is in the folder.
        quiet: show no progress.
        smoke: make everything small.

    Raises: RecipeError, RunFolderError, CheckpointError, NoSignal.
    """
    recipe = load_recipe(*layers, model=model, smoke=smoke, **keys)
    settings = recipe.settings
    result = train_settings(settings, recipe=recipe.to_json(), resume=resume, overwrite=overwrite, quiet=quiet)
    return Run(settings.run or f"runs/{settings.name}", result=result)


def evaluate(
    *layers: Layer,
    policy: str | os.PathLike[str] | Sequence[str] | None = None,
    model: str | Mapping[str, Any] | None = None,
    endpoint: Mapping[str, str] | None = None,
    samples: int = 1,
    seed: int | None = None,
    **keys: Any,
) -> PlayedPanel:
    """Play the evaluation tasks of a recipe without training.

    Args:
        layers, model, keys: see `load_recipe`.
        policy: who plays, as `palaestra eval --policy` takes it: "random", a model folder, a run folder, an address, or
            several such as ["left=random", "right=exported"]; None: the policies of the recipe.
        endpoint: how an address is asked, as `palaestra eval` takes it: `model`, `style` ("openai" or "anthropic"), and
            `key`, which is the name of the environment variable with the key. Such as `{"style": "anthropic"}`.
        samples: episodes of each task, for avg@k and pass@k. seed: of what is sampled; None: the recipe's.
    """
    settings = load_recipe(*layers, model=model, **keys).settings
    return play_wanted(settings, Wanted(policies=_policies(policy), **_access(endpoint), samples=samples, seed=seed))


def compare(
    runs: Sequence[Run | str | os.PathLike[str]] | Mapping[str, Sequence[Run | str | os.PathLike[str]]],
    *,
    metric: str = "success",
    axis: str = ENVIRONMENT_STEPS,
    reference: str | None = None,
) -> pandas.DataFrame:
    """Compare runs at an equal budget, as `palaestra compare` does.

    >>> compare({"grpo": [first, second], "gigpo": [third, fourth]})  # doctest: +SKIP

    Args:
        runs: arm → its runs, which differ in their seeds. Of a plain list, runs whose recipes differ only in their seed
            are one arm, which is named after the recipe, or after the run's folder if several arms have the same name.
        metric: "success" or "return" of the evaluations, or a name in the logs.
        axis: what the budget counts: environment_steps, tokens, updates or step.
        reference: the arm that the others are compared with; None: the first.

    Returns: a table with a row for each arm: the value at the budget and the mean height of the curve, their intervals,
        and the difference to the reference with its interval and verdict.
    Raises: MissingExtra, without pandas; RunFolderError; UnknownName.
    """
    package = _pandas("palaestra.compare()")
    arms = {name: list(map(_run, some)) for name, some in (runs if isinstance(runs, Mapping) else _arms(runs)).items()}
    loaded = [load_arm(name, [run.folder for run in some]) for name, some in arms.items()]
    settings = next(run for some in arms.values() for run in some).recipe.settings if arms else None
    if settings is not None and metric in ("success", "return"):
        metric = f"eval/{shown((settings.evaluation.environment or settings.environment).name)}/{metric}"
    found = compare_arms(loaded, metric=metric, axis=axis, reference=reference)
    rows: dict[str, dict[str, Any]] = {}
    for arm in found.arms:
        rows[arm.name] = {
            "seeds": len(arm.seeds),
            **_numbers("final", arm.final.mean),
            **_numbers("mean", arm.area.mean),
        }
        against = found.differences.get(arm.name, {}).get("final")
        if against is not None:
            rows[arm.name] |= _numbers("difference", against.bootstrap) | {"verdict": against.verdict}
    table = package.DataFrame.from_dict(rows, orient="index")
    table.index.name = "arm"
    table.attrs |= {"metric": metric, "axis": axis, "budget": found.budget, "reference": found.reference}
    return table


def _run(given: Run | str | os.PathLike[str]) -> Run:
    return given if isinstance(given, Run) else Run(given)


def _arms(runs: Sequence[Run | str | os.PathLike[str]]) -> dict[str, list[Run]]:
    """Arm → its runs: those whose recipes differ only in their seed and folder."""
    groups: dict[str, list[Run]] = {}
    for run in map(_run, runs):
        entries = run.recipe.to_json()
        values = {
            key: entry["value"]
            for key, entry in entries.items()
            if key not in ("seed", "run", "name") and entry["origin"] != CHOSEN
        }
        groups.setdefault(json.dumps(values, sort_keys=True), []).append(run)
    names = [some[0].recipe.settings.name for some in groups.values()]
    return {
        name if names.count(name) == 1 else Path(some[0].folder).name: some
        for name, some in zip(names, groups.values(), strict=True)
    }


def _numbers(name: str, found: Interval | None) -> dict[str, float]:
    return {} if found is None else {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def _pandas(needed_for: str) -> Any:
    """The package. Raises: MissingExtra, without it."""
    try:
        return importlib.import_module("pandas")
    except ImportError as error:
        raise missing_extra("pandas", extra="data", needed_for=needed_for) from error


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder.

    Args:
        folder: of a run. result: the closing lines, if the run was trained just now.
        trust: import code that the run names even if it was not made here, and code inside its folder, as `--trust`.

    Raises: RunFolderError, if the folder holds no run.
    """

    folder: str | os.PathLike[str]
    result: str = ""
    trust: bool = False

    def __post_init__(self) -> None:
        RunFolder.open(self.folder)

    @property
    def recipe(self) -> Recipe:
        """The recipe, with the origin of every value."""
        with trusting(self.trust):
            return recipe_of(self._folder)

    def metrics(self, log: str = "metrics") -> pandas.DataFrame:
        """A table with a row for each iteration, or for each evaluation. The index is the iteration.

        Args:
            log: "metrics", "evaluations" or "timings".

        Raises: MissingExtra, without pandas; UnknownName.
        """
        if log not in LOGS:
            raise UnknownName(where=f"metrics({log!r})", what="a run has no such log.", options=list(LOGS))
        table = _pandas("Run.metrics()").DataFrame(read(self._folder / LOGS[log]))
        return table.set_index(STEP) if STEP in table else table

    def trajectories(self, *, step: int | None = None, name: str | None = None) -> list[Trajectory]:
        """The episodes that the run has kept.

        Args:
            step: of this iteration only. name: only "train", or a panel such as "eval/household".
        """
        kept = EpisodeLog(self._folder).read()
        return [one for at, called, one in kept if step in (None, at) and name in (None, called)]

    def policy(self, name: str | None = None, *, checkpoint: int | None = None) -> Any:
        """A policy with its trained weights.

        Args:
            name: None: the only policy that the run trains. checkpoint: an iteration; None: the newest.

        Raises: UnknownName, if the run has no such policy, or several and `name` is None.
        """
        with trusting(self.trust):
            setup = trained_setup(self.recipe.settings, self._folder, checkpoint)
        setup.runner.close()
        trained = list(setup.trained)
        if name is None and len(trained) == 1:
            return setup.policies[trained[0]]
        if name not in setup.policies:
            what = "the run has no such policy." if name else f"the run trains {len(trained)} policies. Name one."
            known = nearest(name, setup.policies) if name else trained
            raise UnknownName(where=f"policy({name!r})", what=what, options=known or list(setup.policies))
        return setup.policies[name]

    def evaluate(
        self,
        *,
        checkpoint: int | None = None,
        policy: str | os.PathLike[str] | Sequence[str] | None = None,
        endpoint: Mapping[str, str] | None = None,
        samples: int = 1,
        seed: int | None = None,
        **keys: Any,
    ) -> PlayedPanel:
        """Play evaluation tasks with the trained policies.

        >>> run.evaluate(evaluation={"tasks": 64, "temperature": 0.7})  # doctest: +SKIP

        Args:
            checkpoint: an iteration; None: the newest.
            policy, endpoint, samples, seed: see `palaestra.evaluate`.
            keys: keys of the recipe that are changed.
        """
        chosen = {"policies": _policies(policy), **_access(endpoint)}
        wanted = Wanted(**chosen, checkpoint=checkpoint, samples=samples, seed=seed)
        with trusting(self.trust):
            settings = resolve([os.fspath(self.folder), *_overrides(_named(keys))]).settings
            return play_wanted(settings, wanted, self._folder)

    def export(self, out: str | os.PathLike[str], *, policy: str | None = None, checkpoint: int | None = None) -> Path:
        """Write a policy into a folder that other programs can read, and return the folder."""
        with trusting(self.trust):
            export(folder=os.fspath(self.folder), out=os.fspath(out), policy=policy, checkpoint=checkpoint)
        return Path(out)

    def plot(self, *titles: str) -> Figure:
        """The curves of the report, as a figure of matplotlib.

        Args:
            titles: of the panels, such as "Reward"; none: all.

        Raises: UnknownName, if the run has no panel of a title.
        """
        panels = {one.title: one for one in panels_of(read(self._folder / METRICS), read(self._folder / EVALUATIONS))}
        for title in titles:
            if title not in panels:
                raise UnknownName(where=f"plot({title!r})", what="the run has no such panel.", options=list(panels))
        return drawn_figure([panels[title] for title in titles or panels], x_label="iteration")

    @property
    def _folder(self) -> RunFolder:
        return RunFolder.open(self.folder)

    def __str__(self) -> str:
        return self.result or f"run in {os.fspath(self.folder)}"


def _policies(given: str | os.PathLike[str] | Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    return (os.fspath(given),) if isinstance(given, str | os.PathLike) else tuple(given)


def _access(given: Mapping[str, str] | None) -> dict[str, Any]:
    """How an endpoint is asked. Raises: UnknownName, for another key."""
    for name in given or {}:
        if name not in ACCESS:
            raise UnknownName(where=f"endpoint={{{name!r}: …}}", what="no such key.", options=list(ACCESS))
    return dict(given or {})


def _named(value: Any) -> Any:
    """The same value with names in place of classes and functions."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else _name(key): _named(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_named(inner) for inner in value]
    if callable(value):
        return _name(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _overrides(values: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The values as overrides, such as `rollout.group=8`."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value and all(one.isidentifier() for one in value):
            yield from _overrides(value, f"{before}{key}.")
        else:
            yield f"{before}{key}={json.dumps(value)}"


def _name(thing: Any) -> str:
    """The name of a part: its registered one, or one by which this program finds it."""
    if not callable(thing):
        raise RecipeError(
            where="palaestra.train", what=f"`{thing!r}` is no name of a part, no class and no function.",
            remedy="Give a text, a class or a function.",
        )  # fmt: skip
    part = registration(thing)
    return name_of(thing) if part is None or not thing.__module__.startswith("palaestra.") else part.name
