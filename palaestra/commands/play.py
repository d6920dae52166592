"""`palaestra play`: a person or a policy plays an environment in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from palaestra.commands.evaluate import scripted
from palaestra.commands.runs import means_a_run, resolve, trained_setup
from palaestra.data import Play, RunSetup, Trajectory, derive
from palaestra.recipe import load
from palaestra.store.folder import RunFolder
from palaestra.training.setup import build_setup


def run(*, environment: str, overrides: Sequence[str], policy: str | None, seed: int, episodes: int) -> None:
    """Play episodes and print them turn by turn.

    Args:
        environment: its name, or a run folder.
        overrides: options of the environment, or overrides of the run's recipe.
        policy: a scripted policy or "human". None: the policies of the run folder, or a human.
        seed: chooses the tasks. episodes: how many are played.
    """
    setup = _setup(environment, overrides, policy)
    person = "human" in setup.policies
    with closing(setup.runner):
        for number in range(episodes):
            task = setup.source.tasks("play", 1, derive(seed, number))[0]
            play = Play(task=task, group=f"play-{number}", sample=0, seed=derive(seed, "play", number))
            trajectory = setup.runner.collect([play])[0]
            _show(trajectory, whole=not person)


def _setup(environment: str, overrides: Sequence[str], policy: str | None) -> RunSetup:
    if ":" not in environment and means_a_run(environment):
        settings = resolve([environment, *overrides]).settings
        if policy is not None:
            return build_setup(scripted(settings, policy))
        return trained_setup(settings, RunFolder.open(environment), None)
    policy, prefix = policy or "human", f"environment.{environment}."
    recipe = load(
        [{"environment": {environment: {}}, "policies": {policy: {"policy": policy, "trainable": False}},
          "agents": {"*": {"policy": policy}}, "rollout": {"max_turns": 200}}],
        [prefix + override for override in overrides],
    )  # fmt: skip
    return build_setup(scripted(recipe.settings, policy))


def _show(trajectory: Trajectory, *, whole: bool) -> None:
    for step in trajectory.steps if whole else ():
        print(f"\n{step.observation.text if step.observation.text is not None else step.observation.vector}")
        reward = f"   (reward {step.reward:g})" if step.reward else ""
        print(f"{step.agent}> {step.action.text}{reward}")
    if trajectory.error is not None:
        print(f"\nfailed: {trajectory.error.message}")
    outcome = "" if trajectory.outcome is None else f", outcome {trajectory.outcome:g}"
    returns = ", ".join(f"{name} {value:g}" for name, value in trajectory.returns.items()) or "none"
    print(f"\n{trajectory.stop.value} after {len(trajectory.steps)} acts; reward: {returns}{outcome}")
