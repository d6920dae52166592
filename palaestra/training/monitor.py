"""Monitoring of a run: metrics, checks that stop it, and evaluation panels."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palaestra.algebra import standardize, total_return
from palaestra.boundary.cleaning import CHARACTERS, CUT, VALUES
from palaestra.data import Batch, Play, RunSetup, Step, StepTable, StopReason, Task, Trajectory, derive
from palaestra.data.abilities import content_of
from palaestra.data.protocols.learning import Experience
from palaestra.data.table import token_count
from palaestra.envs.kit.panels import evaluation_tasks
from palaestra.envs.worlds.dataset.records import RECORDS
from palaestra.errors import NoSignal, PalaestraError
from palaestra.evaluation.panels import Evaluation, form, info_means, share_cut, summarize, tasks_line
from palaestra.registry.user_objects import shown
from palaestra.store.folder import RunFolder
from palaestra.store.lines import STEP
from palaestra.store.metrics import MetricsLog
from palaestra.training.parallel import SharedRunner
from palaestra.training.settings import RunSettings, TrainingSettings

REPLACED = {"replaced/characters": CHARACTERS, "replaced/cut": CUT, "replaced/values": VALUES}


# ---- metrics --------------------------------------------------------------------------------------------
def measure(
    batch: Batch, policies: Mapping[str, Any], roles: Sequence[str] = (), *, shaped: bool = False
) -> dict[str, float]:
    """Metrics of one iteration: rewards, turns, tokens, stop reasons and signal, and those of each of several agents.

    Results are means over the episodes that are over. They are left out if no episode is over. If nothing was played,
    they are of the episodes that the update learns from.

    Args:
        roles: the roles that should act.
        shaped: the recipe has reward parts, so that `reward/shaped`, the mean return that they make, is told as well.
    """
    played = batch.played or batch.kept
    not_failed = [t for t in played if t.stop is not StopReason.ERROR]
    over = [t for t in not_failed if t.stop is not StopReason.SUSPENDED]
    metrics = {
        "invalid/mean": float(np.mean([s.info.get("invalid", 0.0) for t in not_failed for s in generated(t)] or [0.0])),
        "episodes/failed": float(len(played) - len(not_failed)),
        "rollout/finished": float(len(over)),
        "rollout/suspended": float(len(not_failed) - len(over)),
        "rollout/longest": float(max(sum(map(token_count, generated(t))) for t in played)),
    }
    cut = share_cut(s for t in not_failed for s in generated(t))
    metrics |= _results(over) | ({} if cut is None else {"cut/mean": cut})
    stops = Counter(t.stop.value for t in played)
    metrics |= {f"stop/{reason}": count / len(played) for reason, count in sorted(stops.items())}
    failures = Counter(t.error.boundary for t in played if t.error)
    metrics |= {f"stop/error/{boundary}": count / len(played) for boundary, count in sorted(failures.items())}
    if batch.kept:
        metrics |= _of_table(batch, shaped)
    replaced = sum((t.replaced for t in played), Counter[str]())
    metrics |= {name: float(replaced[what]) for name, what in REPLACED.items() if replaced[what]}
    metrics |= {f"info/{name}/mean": value for name, value in info_means(over).items()}
    metrics |= _tools(over) | _calls(played)
    return metrics | team_metrics(over, roles) | _versions(not_failed, policies)


def _of_table(batch: Batch, shaped: bool) -> dict[str, float]:
    metrics = signal_metrics(batch.table) if "advantage" in batch.table else {}
    metrics["selection/kept"] = float((batch.table.row_weight > 0).float().mean())
    return metrics | _weights(batch) | ({"reward/shaped": _shaped(batch.table)} if shaped else {})


def _shaped(table: StepTable) -> float:
    """The mean over trajectories of the return after all reward parts, without padding."""
    order, last = table.timeline("trajectory")
    ends = order[last]
    return float(total_return(table)[ends[table.row_weight[ends] > 0]].mean())


def generated(trajectory: Trajectory) -> list[Step]:
    """The steps that this iteration generated, without those of an earlier iteration and those that a branch copied."""
    return [step for step in trajectory.steps if step.marks.fresh in (None, 1.0) and not step.marks.copied]


def spent(played: Sequence[Trajectory]) -> tuple[int, int]:
    """Environment steps and generated tokens of this iteration, failed episodes included."""
    steps = [step for trajectory in played for step in generated(trajectory)]
    return len(steps), sum(len(step.action.tokens) for step in steps)


def _weights(batch: Batch) -> dict[str, float]:
    """The largest weight of the tokens that count, and their effective sample size (Σw)² / Σw² as a share of them."""
    counted = batch.table["weight"][batch.table["counts"] > 0].double()
    if not bool((counted > 0).any()):
        return {}
    return {
        "weights/max": float(counted.max()),
        "weights/effective": float(counted.sum() ** 2 / counted.square().sum() / len(counted)),
    }


def _results(over: Sequence[Trajectory]) -> dict[str, float]:
    if not over:
        return {}
    returns = [sum(t.returns.values()) for t in over]
    metrics = {
        "reward/mean": float(np.mean(returns)),
        "reward/std": float(np.std(returns)),
        "turns/mean": float(np.mean([len(t.steps) for t in over])),
        "tokens/mean": float(np.mean([sum(len(s.action.tokens) for s in t.steps) for t in over])),
    }
    read = [length for t in over for length in prompt_lengths(t)]
    if any(read):
        metrics["prompt/mean"] = float(np.mean(read))
    outcomes = [t.outcome for t in over if t.outcome is not None]
    return metrics | ({"outcome/mean": float(np.mean(outcomes))} if outcomes else {})


def _calls(played: Sequence[Trajectory]) -> dict[str, float]:
    """The number of tool calls of this iteration, without copies; nothing if no step reports tool calls."""
    infos = [s.info["tool_call"] for t in played for s in generated(t) if "tool_call" in s.info]
    return {"tools/calls": float(sum(infos))} if infos else {}


def _tools(over: Sequence[Trajectory]) -> dict[str, float]:
    """Tool calls per episode and the share of calls that failed, separately for solved and failed episodes."""
    metrics: dict[str, float] = {}
    for name, episodes in (
        ("solved", [t for t in over if t.outcome == 1]),
        ("failed", [t for t in over if t.outcome == 0]),
    ):
        infos = [[s.info for s in t.steps if "tool_call" in s.info] for t in episodes]
        calls = sum(info["tool_call"] for of_steps in infos for info in of_steps)
        errors = sum(info.get("tool_error", 0.0) for of_steps in infos for info in of_steps)
        if any(infos):
            metrics[f"tools/{name}/calls"] = calls / len(episodes)
        if calls:
            metrics[f"tools/{name}/errors"] = errors / calls
    return metrics


def prompt_lengths(trajectory: Trajectory) -> list[int]:
    """The prompt length at each step: all tokens of its segment so far; 0 for policies without tokens."""
    length: dict[tuple[str, int], int] = defaultdict(int)
    lengths = []
    for step in trajectory.steps:
        place = (step.agent, step.segment)
        lengths.append(length[place] + len(step.prompt))
        length[place] = lengths[-1] + len(step.action.tokens) if len(step.prompt) else 0
    return lengths


def _versions(not_failed: Sequence[Trajectory], policies: Mapping[str, Any]) -> dict[str, float]:
    """How many versions behind the trained weights the sampled steps were."""
    lags = [
        policies[step.policy].version - step.version
        for trajectory in not_failed
        for step in generated(trajectory)
        if step.policy in policies and policies[step.policy].trainable
    ]
    return {"staleness/max": float(max(lags))} if lags else {}


# ---- signal -----------------------------------------------------------------------------------------------
def signal_metrics(table: StepTable) -> dict[str, float]:
    """Metrics of the advantages, over rows of positive weight. They show whether there is anything to learn from.

        advantage/nonzero                      share of rows with an advantage other than 0
        advantage/mean, advantage/std          a row's advantage is the mean over its tokens

    With several agents, also for each of them:

        agent/<name>/advantage/mean, …/std     of its rows
        agent/<name>/return/shift              (mean of its returns − mean of all) / deviation of all, returns centered
                                               in their group
        agent/<name>/return/variance_ratio     variance of its returns / variance of all, centered likewise. Under a
                                               baseline for all agents its mean square advantage is this + shift²
        agent/<name>/return/own_shift, …/own_variance_ratio     the same for each agent's own rewards in the
                                               trajectory, which estimators with `returns: [trajectory, agent]` use
    """
    total = torch.zeros(len(table), dtype=torch.float64).index_add_(0, table.token_row, table["advantage"].double())
    row, counts = total / table["token_count"], table.row_weight > 0
    mean, std = _moments(row[counts])
    nonzero = float((row[counts] != 0).double().sum()) / max(int(counts.sum()), 1)
    metrics = {"advantage/nonzero": nonzero, "advantage/mean": mean, "advantage/std": std}
    acted = {str(name): counts & (table["agent"] == code) for code, name in enumerate(table.labels("agent"))}
    acted = {name: rows for name, rows in acted.items() if bool(rows.any())}
    if len(acted) < 2:
        return metrics
    peers = table.key("group")
    shared = standardize(total_return(table), by=peers).double()
    earned = standardize(total_return(table, by=("trajectory", "agent")), by=peers).double()
    for name, rows in acted.items():
        of_agent = dict(zip(("advantage/mean", "advantage/std"), _moments(row[rows]), strict=True))
        names = ("return/shift", "return/variance_ratio", "return/own_shift", "return/own_variance_ratio")
        numbers = (*_against(shared[rows], shared[counts]), *_against(earned[rows], earned[counts]))
        of_agent |= dict(zip(names, numbers, strict=True))
        metrics |= {f"agent/{name}/{key}": value for key, value in of_agent.items()}
    return metrics


def _against(own: Tensor, everyone: Tensor) -> tuple[float, float]:
    """The distance of an agent's mean from the mean of all, in deviations of all; and the ratio of the variances."""
    mean, std = _moments(everyone)
    own_mean, own_std = _moments(own)
    scale = std or 1.0
    return (own_mean - mean) / scale, (own_std / scale) ** 2


def _moments(values: Tensor) -> tuple[float, float]:
    """Mean and population standard deviation; 0 and 0 without values."""
    if not len(values):
        return 0.0, 0.0
    return float(values.double().mean()), float(values.double().std(correction=0))


# ---- teams ----------------------------------------------------------------------------------------------
NEARLY_ALL = 0.95  # of a team's tokens


def team_metrics(played: Sequence[Trajectory], roles: Sequence[str] = ()) -> dict[str, float]:
    """Metrics of each role, over all episodes that did not fail, including those in which it did not act.

        agent/<role>/calls/mean     acts per episode           agent/<role>/active        share of episodes it acted in
        agent/<role>/tokens/mean    tokens per episode         agent/<role>/tokens/share  of all tokens of the team
        agent/<role>/invalid/mean   share of its acts that could not be read
        agent/<role>/reward/mean    its own rewards in an episode it acted in
        agent/<role>/turns/mean     acts in an episode it acted in

    Args:
        played: the episodes; steps of opponents are left out.
        roles: the roles that should act; one that never acts gets zeros. A single role gives no metrics.
    """
    not_failed = [t for t in played if t.stop is not StopReason.ERROR]
    acts: dict[str, list[list[Step]]] = {role: [[] for _ in not_failed] for role in roles}
    for place, trajectory in enumerate(not_failed):
        for step in trajectory.steps:
            if step.marks.row_weight in (None, 1.0):
                acts.setdefault(step.agent, [[] for _ in not_failed])[place].append(step)
    if len(acts) < 2 or not not_failed:
        return {}
    tokens = {
        role: sum(len(step.action.tokens) for steps in episodes for step in steps) for role, episodes in acts.items()
    }
    total = sum(tokens.values())
    metrics: dict[str, float] = {}
    for role, episodes in sorted(acts.items()):
        steps = [step for episode in episodes for step in episode]
        active = [place for place, episode in enumerate(episodes) if episode]
        numbers = {
            "calls/mean": len(steps) / len(not_failed),
            "active": len(active) / len(not_failed),
            "tokens/mean": tokens[role] / len(not_failed),
            "invalid/mean": float(np.mean([step.info.get("invalid", 0.0) for step in steps] or [0.0])),
        }
        if total:
            numbers["tokens/share"] = tokens[role] / total
        if active:
            numbers["reward/mean"] = float(np.mean([not_failed[place].returns.get(role, 0.0) for place in active]))
            numbers["turns/mean"] = len(steps) / len(active)
        metrics |= {f"agent/{role}/{name}": value for name, value in numbers.items()}
    return metrics


@dataclass(slots=True)
class Teamwork:
    """Reports once when a role stops acting, acts again, or takes nearly all tokens of the team.

    Attributes:
        roles: the roles that should act. patience: a role that has not acted once in so many iterations ends the run.
    """

    roles: Sequence[str]
    patience: int
    acted: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    loud: str = ""
    iterations: int = 0

    def check(self, metrics: Mapping[str, float]) -> list[str]:
        """The lines to show after an iteration with these metrics.

        Raises: NoSignal, for a role that has not acted once in `patience` iterations.
        """
        self.iterations += 1
        lines = []
        for role in self.roles:
            active = metrics.get(f"agent/{role}/active")
            if active is None:
                continue
            if active > 0:
                self.acted.add(role)
                if role in self.silent:
                    self.silent.remove(role)
                    lines.append(f"role {role} acts again")
            elif role not in self.silent:
                self.silent.add(role)
                lines.append(f"role {role} has fallen silent: it acted in none of the iteration's episodes")
        never = [role for role in self.roles if role in self.silent and role not in self.acted]
        if never and self.iterations >= self.patience:
            raise NoSignal(
                where=f"role {never[0]}, {self.iterations} iterations",
                what="it has never acted, so its policy cannot learn.",
                options=sorted(self.acted),
                remedy="Look at the program with `palaestra play`, or leave the role out of `agents`.",
            )
        return lines + self._shares(metrics)

    def _shares(self, metrics: Mapping[str, float]) -> list[str]:
        share = {role: metrics.get(f"agent/{role}/tokens/share", 0.0) for role in self.roles}
        loud = next((role for role, value in share.items() if value >= NEARLY_ALL and len(share) > 1), "")
        said, self.loud = self.loud, loud
        return [f"role {loud} takes {share[loud]:.0%} of the team's tokens"] if loud and loud != said else []


# ---- guards ---------------------------------------------------------------------------------------------
LOWER = "  • a lower `optimizer.lr`, or `training.stop_kl`, which ends the updates of an iteration early,\n"
SOLVED = 0.999  # from this mean outcome on, iterations without signal do not stop the run


class Guard:
    """Stops a run with too many failed episodes, or too many iterations in a row without signal."""

    def __init__(self, settings: TrainingSettings) -> None:
        self._settings = settings
        self._empty = 0
        self._best, self._when = 0.0, 0  # the highest mean outcome so far, and its iteration

    def finished(self, played: Sequence[Trajectory]) -> list[Trajectory]:
        """The episodes that did not fail and have steps. The update learns from no other.

        With `training.max_failed` 1 there may be none.

        Raises: PalaestraError, if a larger share than `training.max_failed`, or all, failed; NoSignal, if no episode
            that did not fail has a step.
        """
        failed, most = [t for t in played if t.stop is StopReason.ERROR], self._settings.max_failed
        if failed and most < 1 and (len(failed) == len(played) or len(failed) > most * len(played)):
            first = failed[0].error
            raise PalaestraError(
                where=f"rollout, task {failed[0].task.content_hash}",
                what=f"{len(failed)} of {len(played)} episodes failed. The first:\n\n{first.message if first else ''}",
                remedy="Correct the cause, or raise `training.max_failed` to train on the other episodes.",
            )
        whole = [t for t in played if t.stop is not StopReason.ERROR and t.steps]
        if not whole and len(failed) < len(played):
            raise NoSignal(where="rollout", what=f"none of {len(played)} episodes has a step.")
        return whole

    def learned(self, metrics: Mapping[str, float], signal: bool, *, number: int) -> None:
        """Record whether iteration `number` had a signal, such as an advantage other than 0.

        Args:
            metrics: of the iteration, from `measure`.

        Raises: NoSignal, after `training.max_empty` iterations in a row without signal.
        """
        outcome = metrics.get("outcome/mean", float("nan"))
        if outcome > self._best:
            self._best, self._when = outcome, number
        self._empty = 0 if signal else self._empty + 1
        if self._empty < self._settings.max_empty:
            return
        if outcome >= SOLVED:
            return
        times = f"{self._empty} iterations in a row"
        if metrics.get("stop/error") == 1.0:
            what = "all episodes failed, so there was nothing to learn from."
            remedy = "Correct the cause, which `stop/error/…` in metrics.jsonl names, or raise `training.max_empty`."
            raise NoSignal(where=f"rollout, {times}", what=what, remedy=remedy)
        if "advantage/nonzero" not in metrics:
            what = f"no learner had anything to learn from (mean outcome {outcome:.3f})."
            raise NoSignal(where=f"learner, {times}", what=what, remedy="Look at what `experience` gives.")
        raise NoSignal(
            where=f"advantage, {times}",
            what=f"every advantage was 0 (mean outcome {outcome:.3f}): in each group all episodes had the same result."
            + "".join(f" {line}" for line in self._noticed(metrics, outcome)),
            remedy="Do one of these:\n"
            + (LOWER if self._fell(outcome) else "")
            + "  • an easier task or a better warm start, if the outcome is near 0,\n"
            "  • a larger `rollout.group` or a higher `rollout.temperature`, if groups are too alike, or\n"
            "  • look at the reward: `palaestra play` shows it step by step.",
        )

    def _fell(self, outcome: float) -> bool:
        """Whether the policy was much better before."""
        return self._best > 0.05 and outcome < self._best / 4

    def _noticed(self, metrics: Mapping[str, float], outcome: float) -> Iterator[str]:
        unreadable = metrics["invalid/mean"]
        if unreadable > 0.5:
            yield f"{100 * unreadable:.0f} % of the acts could not be read."
        if self._fell(outcome):
            yield f"The mean outcome was {self._best:.3f} in iteration {self._when}. Later updates spoiled it."

    def state_dict(self) -> dict[str, Any]:
        """The number of iterations in a row without signal and the best mean outcome, as JSON values."""
        return {"empty": self._empty, "best": self._best, "when": self._when}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue to count from `state`; a checkpoint of an earlier version lacks numbers, which count as 0."""
        self._empty = int(state.get("empty", 0))
        self._best, self._when = float(state.get("best", 0.0)), int(state.get("when", 0))


# ---- panels ---------------------------------------------------------------------------------------------
class Panel:
    """The tasks of evaluations, which of them training has met, and the runner that plays them.

    Call `close` at the end, since the panel may own its runner.
    """

    def __init__(self, settings: RunSettings, setup: RunSetup, experience: Experience | None = None) -> None:
        """
        Args:
            experience: its `instruction` is given to every policy of the panel.

        Raises: InvalidData, if the panel is empty or its committed hash does not fit.
        """
        self._settings, self._experience = settings.evaluation, experience
        self._training: TrainingSettings = settings.training
        self._seed = settings.seed
        self.name = shown(settings.environment.name)
        self.metric = self._settings.metric
        source, self._runner = setup.source, setup.runner
        self._own: Any = None  # a runner beside the run's
        if self._settings.environment is not None:
            self.name = shown(self._settings.environment.name)
            environment = self._settings.environment
            make = functools.partial(environment.part.target, **environment.options)
            source = make()
            setup = dataclasses.replace(
                setup,
                environment_name=self._settings.environment.name,
                environment_options=environment.options,
                make_environment=make,
                source=source,
            )
        self.tasks: Sequence[Task] = evaluation_tasks(source, self._settings.tasks, name=self._settings.panel)
        self._contents = [content_of(source, task) for task in self.tasks]
        self._trained: set[str] | None = None if None in self._contents else set()
        if self._settings.environment is not None:
            self._runner = self._own = settings.rollout.runner.part.target(setup, settings.rollout)
            if setup.ranks.world > 1:
                self._runner = SharedRunner(self._own, setup.ranks)

    def close(self) -> None:
        """Close the panel's own runner, if it has one. The run closes its own runner."""
        if self._own is not None:
            self._own.close()
            self._own = None

    # ---- what was trained on ------------------------------------------------------------------------------
    def note(self, source: Any, tasks: Iterable[Task]) -> None:
        """Training has played these tasks of `source`, or learned from episodes of them."""
        if self._trained is None:
            return
        for task in {task.content_hash: task for task in tasks}.values():
            # A task of a file is none of the environment's.
            content = task.content if task.env == RECORDS else content_of(source, task)
            if content is None:
                self._trained = None
                return
            if content in self._contents:
                self._trained.add(content)

    @property
    def shared(self) -> int | None:
        """How many of the panel's tasks were trained on too; None where contents are not known."""
        return None if self._trained is None else sum(content in self._trained for content in self._contents)

    @property
    def described(self) -> str:
        """`256 held-out tasks`, if none of them was trained on."""
        different = None if None in self._contents else len({*self._contents})
        return tasks_line(len(self.tasks), self.shared, different=different)

    def state_dict(self) -> dict[str, Any]:
        """The contents of the panel, and those that were trained on; null where they are not known."""
        if self._trained is None:
            return {"contents": None}
        return {"contents": sorted({*map(str, self._contents)}), "trained": sorted(self._trained)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What a run noted, also of a panel with other tasks: of tasks that it did not compare, nothing is known."""
        compared = state.get("contents")
        known = compared is not None and self._trained is not None and {*self._contents} <= {*compared}
        self._trained = {*state["trained"]} if known else None

    # ---- playing ------------------------------------------------------------------------------------------
    def play(self, *, samples: int = 1, seed: int | None = None) -> tuple[Evaluation, list[Trajectory]]:
        """Play the tasks.

        Args:
            samples: episodes of each task. The first is the same for every number of samples.
            seed: of what is sampled; None: the seed of the run.

        Returns: the result, and the episodes in the order of the tasks.
        """
        said = None if self._experience is None else self._experience.instruction
        first = self._seed if seed is None else seed
        plays = [
            Play(
                task=task,
                group=f"eval-{i:05d}",
                sample=sample,
                seed=derive(first, "eval", task.content_hash, *([sample] if sample else [])),
                instruction=said,
            )
            for i, task in enumerate(self.tasks)
            for sample in range(samples)
        ]
        played = self._runner.collect(plays, temperature=self._settings.temperature)
        return summarize(played, name=self.name, samples=samples), played

    def due(self, step: int, last: Mapping[str, Any]) -> bool:
        """Whether the panel must be played after iteration `step`.

        It is played at the start, every `evaluation.every` iterations, and at the end.

        Args:
            last: the newest logged evaluation.
        """
        every = self._settings.every
        wanted = step == 0 or step >= self._training.iterations or (every is not None and step % every == 0)
        return wanted and int(last.get(STEP, -1)) < step

    def ends(self, step: int, last: Mapping[str, Any]) -> bool:
        """Whether the run is over: after its last iteration, or once a score reaches `training.stop_at`.

        Args:
            last: the newest logged evaluation.
        """
        training = self._training
        goal, score = training.stop_at, float(last.get(f"eval/{self.name}/{self.metric}") or 0.0)
        return step >= training.iterations or (goal is not None and bool(last) and score >= goal)


@dataclass(slots=True)
class Movement:
    """Reports once for each policy whose weights the updates of an iteration left as they were.

    Attributes:
        still: the metrics of these policies. moved: whether an iteration changed all policies that it updated.
    """

    still: set[str] = field(default_factory=set)
    moved: bool = False

    @property
    def is_missing(self) -> bool:
        """Whether no iteration changed all policies that it updated."""
        return bool(self.still) and not self.moved

    def check(self, metrics: Mapping[str, float]) -> list[str]:
        """The lines to show after an iteration with updates that gave these metrics."""
        found = {key for key in metrics if key.endswith("/unchanged")}
        new, self.still, self.moved = found - self.still, self.still | found, self.moved or not found
        cause = "the gradient is 0, the learning rate is too small, or a part switches gradients off"
        return [f"an iteration's updates left all weights as they were (`{key}`): {cause}" for key in sorted(new)]


def closing_line(folder: RunFolder, panel: Panel) -> str:
    """The intervals of the first and the last evaluation, and below them `success 0.438 -> 0.945 on 256 …`.

    If the environment gives no success, the numbers are returns.
    """
    written = MetricsLog(folder).evaluations.read()
    ends, metric = (written[0], written[-1]), panel.metric
    if all(record.get(f"eval/{panel.name}/{metric}") is None for record in ends):
        metric = "return"
    lines, values = [], []
    for record in ends:
        value, low, high = (record.get(f"eval/{panel.name}/{metric}{ending}") for ending in ("", "_low", "_high"))
        values.append("none" if value is None else format(value, form(value)))
        if value is not None and low is not None and high is not None:
            shown = form(value)
            interval = f"{value:{shown}}, 95 % interval {low:{shown}} to {high:{shown}}"
            lines.append(f"iteration {record['step']}: {metric} {interval}")
    return "\n".join([*lines, f"{metric} {values[0]} -> {values[1]} on {panel.described}"])
