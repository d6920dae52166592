"""`palaestra eval`: evaluates the policies of a run folder or of a recipe, or a scripted policy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palaestra.bound import BoundPart, bind
from palaestra.commands.runs import checkpoint_of, resolve, run_folder, trained_setup
from palaestra.data import Trajectory
from palaestra.errors import RunFolderError
from palaestra.evaluation.panels import Evaluation, failure_line, interval_line, result_line
from palaestra.rollout.programs import roles_of
from palaestra.store.episodes import EpisodeLog
from palaestra.store.folder import RunFolder
from palaestra.training.checkpoint import read_state
from palaestra.training.monitor import Panel
from palaestra.training.settings import PolicySettings, RunSettings, default_role
from palaestra.training.setup import build_setup


def run(*, recipe: Sequence[str], policy: str | None, checkpoint: int | None, episodes: Path | None = None) -> None:
    """Play the panel of evaluation tasks. Print the interval, and as last line `success 0.912 on 256 held-out tasks`.

    The line says "held-out" only for a run folder whose training met none of the tasks. For a recipe or a scripted
    policy it says `256 tasks of the split eval`.

    Args:
        recipe: recipe files and overrides, or a run folder.
        policy: play all roles with this scripted policy; None: with the policies of the recipe.
        checkpoint: iteration of the checkpoint; None: the newest.
        episodes: a folder for all episodes, as a run keeps them in trajectories.jsonl; None: keep none.

    Raises: RunFolderError, if `episodes` already has some.
    """
    log = _log(episodes)
    found = resolve(recipe)
    settings = scripted(found.settings, policy) if policy else found.settings
    played = play_panel(settings, run_folder(recipe) if policy is None else None, checkpoint)
    evaluation = played.evaluation
    if log is not None:
        log.append(0, f"eval/{evaluation.name}", played.episodes)
    print(interval_line(evaluation))
    if evaluation.failed:
        print(failure_line(evaluation))
    print(result_line(evaluation, tasks=played.tasks))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedPanel:
    """The result of a panel.

    Attributes:
        evaluation: the numbers. episodes: one for each task. tasks: describes them, as in `256 held-out tasks`.
    """

    evaluation: Evaluation
    episodes: Sequence[Trajectory]
    tasks: str

    def __str__(self) -> str:
        return f"{interval_line(self.evaluation)} on {self.tasks}"


def play_panel(settings: RunSettings, folder: RunFolder | None = None, checkpoint: int | None = None) -> PlayedPanel:
    """Play the panel of evaluation tasks.

    Args:
        folder: a run whose weights are used; None: those that the settings name or make.
        checkpoint: iteration of the checkpoint; None: the newest.
    """
    setup = build_setup(settings) if folder is None else trained_setup(settings, folder, checkpoint)
    with closing(setup.runner), closing(Panel(settings, setup)) as panel:
        panel.load_state_dict({} if folder is None else read_state(checkpoint_of(folder, checkpoint)).get("panel", {}))
        evaluation, episodes = panel.play()
        return PlayedPanel(evaluation=evaluation, episodes=episodes, tasks=panel.described)


def _log(folder: Path | None) -> EpisodeLog | None:
    """The empty log in this folder, which is made."""
    if folder is None:
        return None
    log = EpisodeLog(folder)
    if log.lines.path.exists():
        raise RunFolderError(
            where=str(folder), what="it has episodes already.", remedy="Choose another folder for --episodes."
        )
    folder.mkdir(parents=True, exist_ok=True)
    return log


def scripted(settings: RunSettings, policy: str) -> RunSettings:
    """The settings with every agent of the environment played by a scripted policy.

    A team's program is replaced by `play`, because a scripted policy can play only the agents of the environment.
    """
    player = PolicySettings(policy=bind("policy", BoundPart(name=policy)), trainable=False)
    changed: dict[str, Any] = {"policies": {policy: player}, "agents": {"*": default_role(policy)}}
    if roles_of(settings.program) != ():
        changed["program"] = bind("program", BoundPart(name="play"))
    return settings.model_copy(update={**changed, "reference": None})
