"""Summarizes the episodes of a panel of evaluation tasks: success, return, turns, stop reasons and failures."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from palaestra.data import Step, Trajectory
from palaestra.data.interaction import FinishReason
from palaestra.errors import InvalidData
from palaestra.evaluation.statistics import Interval, bootstrap_interval, pass_at, task_interval, wilson_interval

CUTS = (FinishReason.LENGTH, FinishReason.CONTEXT)
HIGH = 0.2  # from this share of cut responses on, they are warned of
FEW = 10.0  # returns with an absolute value below this have three decimals


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of one panel.

    Attributes:
        name: of the panel, as in `eval/<name>/success`.
        n: number of tasks. samples: episodes of each task.
        success: share of successes with Wilson's interval, which treats the tasks as independent and not their
            samples; None if the environment reports no success.
        successes: number of successes; None if the environment reports no success.
        passes: k → pass@k, the chance that one of k samples of a task succeeds, for k = 1, 2, 4, … up to `samples`;
            empty with one sample.
        returns: mean return of the episodes that did not fail, with a bootstrap interval over tasks; None if all
            failed. With several agents, the return of an episode is the mean over its agents.
        turns: mean number of acts in an episode. tokens: of generated ones.
        cut: share of generated responses that a limit of tokens has cut; None if no policy generates tokens.
        stops: stop reason → number of episodes.
        invalid: share of acts that the environment could not read.
        errors: boundary → number of episodes that failed there. They count as failures of the panel.
        agents: agent → its mean return.
        info_means: means of the numbers in the environment's last info, over the episodes that give them.
        fault: error message of the first failed episode.
    """

    name: str
    n: int
    successes: int | None
    success: Interval | None
    returns: Interval | None
    turns: float
    stops: dict[str, int]
    invalid: float
    errors: dict[str, int] = field(default_factory=dict)
    agents: dict[str, float] = field(default_factory=dict)
    info_means: dict[str, float] = field(default_factory=dict)
    fault: str = ""
    samples: int = 1
    passes: dict[int, Interval] = field(default_factory=dict)
    tokens: float = 0.0
    cut: float | None = None

    @property
    def episodes(self) -> int:
        """The number of episodes, with failed ones."""
        return self.n * self.samples

    @property
    def failed(self) -> int:
        """The number of failed episodes."""
        return sum(self.errors.values())

    def metrics(self) -> dict[str, float]:
        """The metrics `eval/<name>/…`: success and return with `_low` and `_high`, turns, shares of stop reasons …"""
        values: dict[str, float] = {
            "tasks": self.n,
            "turns": self.turns,
            "invalid": self.invalid,
            "failed": self.failed,
        }
        for key, interval in (("success", self.success), ("return", self.returns)):
            if interval is not None:
                values |= {key: interval.value, f"{key}_low": interval.low, f"{key}_high": interval.high}
        values |= {f"stop/{reason}": count / self.episodes for reason, count in self.stops.items()}
        values |= {f"stop/error/{boundary}": count / self.episodes for boundary, count in self.errors.items()}
        if self.cut is not None:
            values["cut"] = self.cut
        values |= {f"info/{name}": value for name, value in self.info_means.items()}
        if len(self.agents) > 1:
            values |= {f"agent/{agent}/return": value for agent, value in self.agents.items()}
        return {f"eval/{self.name}/{key}": value for key, value in values.items()}


def summarize(
    trajectories: Sequence[Trajectory],
    *,
    name: str,
    success_at: float = 1.0,
    level: float = 0.95,
    seed: int = 0,
    samples: int = 1,
) -> Evaluation:
    """Compute the result of a panel.

    Args:
        trajectories: `samples` finished episodes of each task, those of one task in a row.
        name: of the panel.
        success_at: an outcome of at least this is a success.
        level: of both intervals. Higher: wider. Usual: 0.95.
        seed: of the bootstrap.

    Raises: InvalidData, if there are no trajectories, or not `samples` of each task.
    """
    if len(trajectories) % samples:
        raise InvalidData(
            where=f"evaluation: {name}", what=f"{len(trajectories)} episodes are not {samples} of each task."
        )
    if not trajectories:
        raise InvalidData(
            where=f"evaluation: {name}",
            what="the panel is empty: no task was played.",
            remedy="Set `evaluation.tasks` to at least 1 and check that the environment gives tasks of this split.",
        )
    whole = [t for t in trajectories if t.error is None]
    solved = _solved(trajectories, success_at)
    counts = None if solved is None else np.reshape(solved, (-1, samples)).sum(axis=1)
    steps = [step for t in trajectories for step in t.steps]
    return Evaluation(
        name=name,
        n=len(trajectories) // samples,
        samples=samples,
        successes=None if counts is None else int(counts.sum()),
        success=None if counts is None else _success(counts, samples, level),
        passes={} if counts is None or samples == 1 else _passes(counts, samples, level),
        returns=_mean_return(
            [trajectories[i : i + samples] for i in range(0, len(trajectories), samples)], level, seed
        ),
        tokens=sum(len(step.action.tokens) for step in steps) / len(trajectories),
        cut=share_cut(steps),
        turns=len(steps) / len(trajectories),
        stops=dict(sorted(Counter(t.stop.value for t in trajectories).items())),
        invalid=sum(bool(step.info.get("invalid")) for step in steps) / max(len(steps), 1),
        errors=dict(sorted(Counter(t.error.boundary for t in trajectories if t.error).items())),
        agents=_returns_of_agents(whole),
        info_means=info_means(whole),
        fault=next((t.error.message for t in trajectories if t.error), ""),
    )


def _solved(trajectories: Sequence[Trajectory], success_at: float) -> list[bool] | None:
    """Whether each episode is a success; None if the environment reports no success."""
    # A score is an outcome too, but nothing says from which score on it is a success.
    known = any(t.outcome is not None and ("success" in t.info or "score" not in t.info) for t in trajectories)
    if not known and not all(t.error for t in trajectories):
        return None
    return [t.error is None and t.outcome is not None and t.outcome >= success_at for t in trajectories]


def _success(counts: np.ndarray, samples: int, level: float) -> Interval:
    """The share of successes, with Wilson's interval."""
    if samples == 1:
        return wilson_interval(int(counts.sum()), len(counts), level=level)
    return task_interval(counts / samples, draws=samples, level=level)


def _passes(counts: np.ndarray, samples: int, level: float) -> dict[int, Interval]:
    """pass@k for k = 1, 2, 4, … and for all samples."""
    sizes = sorted({2**power for power in range(samples.bit_length()) if 2**power <= samples} | {samples})
    means = {k: pass_at(k, counts, samples) if k > 1 else counts / samples for k in sizes}
    return {k: task_interval(mean, draws=samples // k, level=level) for k, mean in means.items()}


def _mean_return(of_tasks: Sequence[Sequence[Trajectory]], level: float, seed: int) -> Interval | None:
    """The mean over the tasks that have an episode which did not fail. A task's value is the mean of its episodes."""
    values = [
        float(np.mean([np.mean(list(t.returns.values()) or [0.0]) for t in whole]))
        for samples in of_tasks
        if (whole := [t for t in samples if t.error is None])
    ]
    return bootstrap_interval(values, level=level, resamples=2_000, seed=seed) if values else None


def share_cut(steps: Iterable[Step]) -> float | None:
    """The share of generated responses that a limit of tokens has cut. None if none was generated."""
    ends = [step.action.finish for step in steps if step.action.finish is not FinishReason.CHOICE]
    return sum(end in CUTS for end in ends) / len(ends) if ends else None


def _returns_of_agents(whole: Sequence[Trajectory]) -> dict[str, float]:
    agents = sorted({agent for t in whole for agent in t.returns})
    return {agent: float(np.mean([t.returns[agent] for t in whole if agent in t.returns])) for agent in agents}


def info_means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means of the numbers in the environment's last info, by name."""
    found: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.info.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(name, []).append(float(value))
    return {name: float(np.mean(values)) for name, values in sorted(found.items())}


# ---- lines ------------------------------------------------------------------------------------------------
def result_line(evaluation: Evaluation, *, tasks: str = "") -> str:
    """`success 0.912 on 256 held-out tasks`; `return 487.2 on …` if the environment reports no success.

    Args:
        tasks: describes the tasks, from `tasks_line`.
    """
    word, value = _headline(evaluation)
    return f"{word} {value} on {tasks or tasks_line(evaluation.n, None)}"


def tasks_line(n: int, shared: int | None, *, different: int | None = None) -> str:
    """The number of tasks, and whether they were held out from training.

    >>> tasks_line(64, 0), tasks_line(64, 9), tasks_line(64, None)
    ('64 held-out tasks', '64 tasks, 9 of them also trained on', '64 tasks of the split eval')
    >>> tasks_line(64, 64, different=1)  # a game that begins the same way each time
    '64 episodes of one task'

    Args:
        n: number of tasks of the evaluation.
        shared: number of them whose problem was trained on; None: unknown.
        different: number of different problems; None: unknown.
    """
    if different == 1 and n > 1:
        return f"{n} episodes of one task"
    if shared is None:
        return f"{n} tasks of the split eval"
    return f"{n} tasks, {shared} of them also trained on" if shared else f"{n} held-out tasks"


def interval_line(evaluation: Evaluation) -> str:
    """The result with its interval, as in `success 0.945, 95 % interval 0.910 to 0.967 (Wilson, 242 of 256)`."""
    if evaluation.success is not None:
        many = f"; {evaluation.samples} samples of each task" if evaluation.samples > 1 else ""
        inside = f"Wilson, {evaluation.successes} of {evaluation.episodes}{many}"
        return f"success {_spelled(evaluation.success, '.3f')} ({inside})"
    if evaluation.returns is not None:
        many = f"{evaluation.n} tasks" if evaluation.samples > 1 else f"{evaluation.n - evaluation.failed} episodes"
        return f"return {_spelled(evaluation.returns, form(evaluation.returns.value))} (bootstrap over {many})"
    return "no episode finished"


def failure_line(evaluation: Evaluation) -> str:
    """`3 of 256 episodes failed (engine 1, environment 2) …`, with the first error; empty if none failed."""
    if not evaluation.failed:
        return ""
    places = ", ".join(f"{boundary} {count}" for boundary, count in evaluation.errors.items())
    first, failed = textwrap.indent(evaluation.fault, "  "), f"{evaluation.failed} of {evaluation.episodes}"
    return f"{failed} episodes failed ({places}) and count as failures. The first:\n{first}"


def cut_line(share: float | None) -> str:
    """A line that warns of cut responses; empty, if few were cut.

    >>> cut_line(0.1), cut_line(None)
    ('', '')
    >>> cut_line(0.625)
    '62 % of the responses were cut at the limit of tokens. Raise rollout.response_tokens (or that of the role).'
    """
    if share is None or share < HIGH:
        return ""
    limit = "Raise rollout.response_tokens (or that of the role)."
    return f"{100 * share:.0f} % of the responses were cut at the limit of tokens. {limit}"


def _headline(evaluation: Evaluation) -> tuple[str, str]:
    if evaluation.success is not None:
        return "success", f"{evaluation.success.value:.3f}"
    if evaluation.returns is None:
        return "return", "none"
    return "return", format(evaluation.returns.value, form(evaluation.returns.value))


def form(value: float) -> str:
    """The format of a return: three decimals if it is small, else one."""
    return ".3f" if abs(value) < FEW else ".1f"


def _spelled(interval: Interval, form: str) -> str:
    low, high = format(interval.low, form), format(interval.high, form)
    return f"{format(interval.value, form)}, {interval.level:.0%} interval {low} to {high}".replace("%", " %")
