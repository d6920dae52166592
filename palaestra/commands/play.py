"""`palaestra play`: a person or a policy plays an environment in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

from palaestra.boundary.tasks import tasks_of
from palaestra.commands.evaluate import Wanted, playing
from palaestra.commands.runs import means_a_run, resolve, trained_setup
from palaestra.data import Play, RunSetup, Trajectory, derive
from palaestra.process.terminal import visible
from palaestra.recipe import is_recipe, load
from palaestra.store.folder import RunFolder
from palaestra.training.setup import build_setup


def run(
    *,
    environment: str,
    overrides: Sequence[str],
    players: Mapping[str, Any],
    temperature: float | None,
    seed: int,
    episodes: int,
) -> None:
    """Play episodes and print them turn by turn.

    Args:
        environment: its name, a recipe, or a run folder.
        overrides: options of the environment, or overrides of the recipe.
        players: the attributes of `Wanted` that say who plays. Without policies: those of the run folder or of the
            recipe; for the name of an environment, a person.
        temperature: of sampling; None: that of the recipe's rollouts.
        seed: chooses the tasks. episodes: how many are played.
    """
    with ExitStack() as resources:
        setup = _setup(environment, overrides, Wanted(**players), resources)
        resources.enter_context(closing(setup.runner))
        person = "human" in setup.policies
        for number in range(episodes):
            task = tasks_of(setup.source, "play", 1, derive(seed, number))[0]
            play = Play(task=task, group=f"play-{number}", sample=0, seed=derive(seed, "play", number))
            trajectory = setup.runner.collect([play], temperature=temperature)[0]
            _show(trajectory, whole=not person)


def _setup(environment: str, overrides: Sequence[str], wanted: Wanted, resources: ExitStack) -> RunSetup:
    if ":" not in environment and means_a_run(environment):
        settings = resolve([environment, *overrides]).settings
        if not wanted.policies:
            return trained_setup(settings, RunFolder.open(environment), None)
    elif is_recipe(environment):
        settings = resolve([environment, *overrides]).settings
    else:
        prefix = f"environment.{environment}."
        settings = load(
            [{"environment": {environment: {}}, "policies": {"main": {"policy": "human", "trainable": False}},
              "rollout": {"max_turns": 200}}],
            [prefix + override for override in overrides],
        ).settings  # fmt: skip
        wanted = wanted if wanted.policies else Wanted(policies=("human",))
    return build_setup(playing(settings, wanted, resources))


def _show(trajectory: Trajectory, *, whole: bool) -> None:
    for step in trajectory.steps if whole else ():
        seen = step.observation
        print(f"\n{visible(seen.text if seen.text is not None else seen.vector)}")
        reward = f"   (reward {step.reward:g})" if step.reward else ""
        print(f"{visible(step.agent)}> {visible(step.action.text)}{reward}")
    if trajectory.error is not None:
        print(f"\nfailed: {visible(trajectory.error.message)}")
    outcome = "" if trajectory.outcome is None else f", outcome {trajectory.outcome:g}"
    returns = ", ".join(f"{visible(name)} {value:g}" for name, value in trajectory.returns.items()) or "none"
    print(f"\n{trajectory.stop.value} after {len(trajectory.steps)} acts; reward: {returns}{outcome}")
