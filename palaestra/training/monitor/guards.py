"""Guards of a run: they say what goes wrong, and stop a run that cannot learn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palaestra.data import StopReason, Trajectory
from palaestra.errors import NoSignal, PalaestraError
from palaestra.training.settings import TrainingSettings

NEARLY_ALL = 0.95  # of a team's tokens


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

    def recall(self, iterations: Iterable[Mapping[str, float]]) -> None:
        """Note the metrics of iterations before a resume, whose lines were shown then. Raises: as `check`."""
        for metrics in iterations:
            self.check(metrics)

    def _shares(self, metrics: Mapping[str, float]) -> list[str]:
        share = {role: metrics.get(f"agent/{role}/tokens/share", 0.0) for role in self.roles}
        loud = next((role for role, value in share.items() if value >= NEARLY_ALL and len(share) > 1), "")
        said, self.loud = self.loud, loud
        return [f"role {loud} takes {share[loud]:.0%} of the team's tokens"] if loud and loud != said else []


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
