"""`palaestra eval`: evaluates the policies of a run or of a recipe, or what plays in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table

from palaestra.commands.export import chosen_policy
from palaestra.commands.runs import checkpoint_of, open_run, resolve, run_folder, trained_setup
from palaestra.commands.tables import console
from palaestra.data import Trajectory
from palaestra.errors import RunFolderError
from palaestra.evaluation.panels import Evaluation, cut_line, failure_line, form, interval_line, result_line
from palaestra.evaluation.statistics import Interval
from palaestra.evaluation.tables import cell
from palaestra.models.adapters import save_adapter
from palaestra.process.terminal import printed_elsewhere, visible
from palaestra.recipe.players import Player, player_of, replaced, with_players
from palaestra.store.atomic import write_atomic
from palaestra.store.episodes import EpisodeLog
from palaestra.store.folder import RunFolder
from palaestra.store.json_text import to_document
from palaestra.training.checkpoint import read_state
from palaestra.training.monitor.metrics import team_metrics
from palaestra.training.monitor.panel import Panel
from palaestra.training.settings import RunSettings
from palaestra.training.setup import build_setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What `palaestra eval` plays, beside the recipe.

    Attributes:
        policies: what plays in place of policies of the recipe, each as `player_of` reads it.
        model, key, style: of an endpoint (`with_players`).
        checkpoint: iteration of the checkpoint of a run; None: the newest.
        samples: episodes of each task. seed: of what is sampled; None: the recipe's.
        temperature, tasks: in place of `evaluation.temperature` and `evaluation.tasks`; None: those.
    """

    policies: Sequence[str] = ()
    model: str | None = None
    key: str | None = None
    style: str = "openai"
    checkpoint: int | None = None
    samples: int = 1
    seed: int | None = None
    temperature: float | None = None
    tasks: int | None = None


def run(
    *,
    recipe: Sequence[str],
    wanted: Mapping[str, Any],
    episodes: Path | None = None,
    as_json: bool = False,
    out: Path | None = None,
) -> int:
    """Play the panel of evaluation tasks. Print a table, and as last line `success 0.912 on 256 held-out tasks`.

    The line says "held-out" only for a run folder whose training met none of the tasks. Otherwise it says `256 tasks of
    the split eval`.

    Args:
        recipe: recipe files and overrides, or a run folder. wanted: the attributes of `Wanted`.
        episodes: a folder for all episodes, as a run keeps them in trajectories.jsonl; None: keep none.
        as_json: print one JSON object and nothing else. out: a file for the same object.

    Returns: the exit status: 1 if every episode failed.
    Raises: RunFolderError, if `episodes` already has some.
    """
    log, chosen = _log(episodes), Wanted(**wanted)
    changes = {"evaluation.temperature": chosen.temperature, "evaluation.tasks": chosen.tasks}
    with printed_elsewhere() if as_json else nullcontext():
        found = resolve([*recipe, *(f"{key}={value}" for key, value in changes.items() if value is not None)])
        played = play_wanted(found.settings, chosen, run_folder(recipe))
    if log is not None:
        log.append(0, f"eval/{played.evaluation.name}", played.episodes)
    report = {"recipe": [*recipe], "policies": [str(player_of(text)) for text in chosen.policies] or ["of the recipe"]}
    text = to_document(report | played.to_json())
    if out is not None:
        write_atomic(out, text)
    if as_json:
        print(text, end="")
    else:
        _show(played)
    return int(played.evaluation.failed == played.evaluation.episodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedPanel:
    """The result of a panel.

    Attributes:
        evaluation: the numbers. episodes: `evaluation.samples` of each task, in a row.
        tasks: describes the tasks, as in `256 held-out tasks`.
        agents: the numbers of each of several agents, such as `tokens/mean`.
        temperature, seed: of what was sampled.
    """

    evaluation: Evaluation
    episodes: Sequence[Trajectory]
    tasks: str
    agents: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    temperature: float = 0.0
    seed: int = 0

    def __str__(self) -> str:
        return f"{interval_line(self.evaluation)} on {self.tasks}"

    def to_json(self) -> dict[str, Any]:
        """The numbers with their intervals, and the results of each task, as JSON values."""
        found = self.evaluation
        return {
            "panel": found.name,
            "tasks": found.n,
            "described": self.tasks,
            "samples": found.samples,
            "temperature": self.temperature,
            "seed": self.seed,
            "success": _interval(found.success),
            "successes": found.successes,
            "pass": {str(k): _interval(one) for k, one in found.passes.items()},
            "return": _interval(found.returns),
            "turns": found.turns,
            "tokens": found.tokens,
            "cut": found.cut,
            "invalid": found.invalid,
            "failed": found.failed,
            "errors": found.errors,
            "fault": found.fault,
            "stops": found.stops,
            "info": found.info_means,
            "agents": {name: dict(numbers) for name, numbers in self.agents.items()},
            "per_task": [_of_task(samples) for samples in self.by_task],
        }

    @property
    def by_task(self) -> list[Sequence[Trajectory]]:
        """The episodes of each task."""
        count = self.evaluation.samples
        return [self.episodes[i : i + count] for i in range(0, len(self.episodes), count)]


def _show(played: PlayedPanel) -> None:
    """Print the numbers as a table, and below it what went wrong and the result in one line."""
    found = played.evaluation
    many = f", {found.samples} samples of each" if found.samples > 1 else ""
    print(f"{visible(found.name)}: {played.tasks}{many}, temperature {played.temperature:g}, seed {played.seed}\n")
    table = Table("", "value", "95 % interval", box=None)
    for label, value, interval in _rows(found):
        table.add_row(label, value, interval)
    console().print(table)
    if len(played.agents) > 1:
        console().print("\n", _team(played.agents), sep="")
    print()
    if found.failed:
        print(visible(failure_line(found)))
    for line in filter(None, (cut_line(found.cut), _equal_samples(played))):
        print(visible(line))
    print(interval_line(found))
    print(result_line(found, tasks=played.tasks))


def _rows(found: Evaluation) -> Iterator[tuple[str, str, str]]:
    """Label, value and interval of each measure."""
    if found.success is not None:
        many = f" (avg@{found.samples})" if found.samples > 1 else ""
        yield f"success{many}", f"{found.success.value:.3f}", _bounds(found.success, ".3f")
    for k, one in found.passes.items():
        if k > 1:
            yield f"pass@{k}", f"{one.value:.3f}", _bounds(one, ".3f")
    if found.returns is not None:
        digits = form(found.returns.value)
        yield "return", format(found.returns.value, digits), _bounds(found.returns, digits)
    yield "acts in an episode", f"{found.turns:.2f}", ""
    if found.tokens:
        yield "tokens in an episode", f"{found.tokens:.1f}", ""
    if found.cut is not None:
        yield "cut responses", f"{found.cut:.1%}".replace("%", " %"), ""
    yield "unreadable acts", f"{found.invalid:.1%}".replace("%", " %"), ""
    for reason, count in found.stops.items():
        yield f"ended: {reason.replace('_', ' ')}", f"{count / found.episodes:.1%}".replace("%", " %"), ""


def _bounds(found: Interval, digits: str) -> str:
    return f"{found.low:{digits}} to {found.high:{digits}}"


def _team(agents: Mapping[str, Mapping[str, float]]) -> Table:
    """What each of several agents did in an episode."""
    columns = {
        "calls/mean": "acts",
        "active": "share of episodes",
        "tokens/mean": "tokens",
        "tokens/share": "share of tokens",
        "invalid/mean": "unreadable",
        "reward/mean": "reward",
    }
    table = Table("role", *columns.values(), box=None)
    for name, numbers in agents.items():
        table.add_row(cell(name), *(f"{numbers[key]:.3g}" if key in numbers else "–" for key in columns))
    return table


def _equal_samples(played: PlayedPanel) -> str:
    """A line that warns of samples which are all the same, as those of a policy at temperature 0 are."""
    if played.evaluation.samples == 1 or played.temperature > 0:
        return ""
    acts = [{tuple(step.action.text for step in one.steps) for one in samples} for samples in played.by_task]
    same = all(len(texts) == 1 for texts in acts)
    return "At temperature 0 the samples of a task are all the same. Give --temperature 1, say." if same else ""


def _interval(found: Interval | None) -> dict[str, float] | None:
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high, "level": found.level}


def _of_task(samples: Sequence[Trajectory]) -> dict[str, Any]:
    return {
        "task": samples[0].task.content_hash,
        "seed": samples[0].task.seed,
        "outcomes": [None if one.error else one.outcome for one in samples],
        "returns": [{agent: float(value) for agent, value in one.returns.items()} for one in samples],
        "stops": [one.stop.value for one in samples],
    }


def play_wanted(settings: RunSettings, wanted: Wanted, folder: RunFolder | None = None) -> PlayedPanel:
    """Play the panel with what is wanted.

    Args:
        folder: the run that the settings are of. Its weights are used, unless players replace them.
    """
    with ExitStack() as resources:
        settings = playing(settings, wanted, resources)
        folder = None if wanted.policies else folder
        return play_panel(settings, folder, wanted.checkpoint, samples=wanted.samples, seed=wanted.seed)


def playing(settings: RunSettings, wanted: Wanted, resources: ExitStack) -> RunSettings:
    """The settings with what is wanted in place of policies of the recipe.

    Args:
        resources: removes at its end what was written for this.
    """
    players = [_of_run(player_of(text), settings, wanted, resources) for text in wanted.policies]
    return with_players(settings, players, model=wanted.model, key=wanted.key, style=wanted.style)


def _of_run(player: Player, settings: RunSettings, wanted: Wanted, resources: ExitStack) -> Player:
    """The policy of a run as a folder, which is removed at the end. Other players stay as they are.

    Of low-rank additions to the same pretrained model that the recipe has, only the additions are written.
    """
    if player.kind != "run":
        return player
    (target, *_) = replaced(settings, player)
    place = resources.enter_context(TemporaryDirectory(prefix="palaestra-"))
    recipe, setup = open_run(player.what, wanted.checkpoint)
    setup.runner.close()
    names = setup.policies if player.stands_for in setup.policies else ()
    name = chosen_policy(setup, player.stands_for if names else None, where=f"--policy {player}")
    policy, theirs = setup.policies[name], recipe.settings.policies[name].policy
    ours = settings.policies[target].policy
    model = theirs.options.get("model")
    if theirs.options.get("lora") and ours.name == theirs.name and model and model == ours.options.get("model"):
        save_adapter(policy.adapter, Path(place))
        return Player(kind="adapter", what=place, stands_for=target)
    policy.save(place)
    return Player(kind="network" if theirs.name == "network" else "model", what=place, stands_for=target)


def play_panel(
    settings: RunSettings,
    folder: RunFolder | None = None,
    checkpoint: int | None = None,
    *,
    samples: int = 1,
    seed: int | None = None,
) -> PlayedPanel:
    """Play the panel of evaluation tasks.

    Args:
        folder: a run whose weights are used; None: those that the settings name or make.
        checkpoint: iteration of the checkpoint; None: the newest.
        samples: episodes of each task. seed: of what is sampled; None: that of the settings.
    """
    place = None if folder is None else checkpoint_of(folder, checkpoint)
    setup = build_setup(settings) if folder is None else trained_setup(settings, folder, place)
    with ExitStack() as resources:
        if setup.engine is not None:
            resources.callback(setup.engine.shutdown)
        resources.enter_context(closing(setup.runner))
        panel = resources.enter_context(closing(Panel(settings, setup)))
        panel.load_state_dict({} if place is None else read_state(place).get("panel", {}))
        evaluation, episodes = panel.play(samples=samples, seed=seed)
        return PlayedPanel(
            evaluation=evaluation,
            episodes=episodes,
            tasks=panel.described,
            agents=_agents(team_metrics(episodes, setup.team)),
            temperature=settings.evaluation.temperature,
            seed=settings.seed if seed is None else seed,
        )


def _agents(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Agent → name → number, of metrics `agent/<agent>/<name>`."""
    found: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        _, agent, name = key.split("/", 2)
        found.setdefault(agent, {})[name] = value
    return found


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
