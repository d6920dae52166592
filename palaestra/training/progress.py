"""Progress: what a person sees while a run goes on, on standard error. Knows metrics by name; decides nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from rich.console import Console
from rich.live import Live
from rich.table import Table

from palaestra.evaluation.panels import Evaluation, failure_line, interval_line

SHOWN = {
    "outcome/mean": "outcome",
    "reward/mean": "reward",
    "turns/mean": "turns",
    "policy/entropy": "entropy",
    "policy/grad_norm": "gradient",
    "mismatch/kl": "mismatch",
}
EVERY = 10.0  # seconds between lines where the output is not a terminal


class Progress:
    """A live table on a terminal, a line every few seconds elsewhere, nothing when quiet."""

    def __init__(self, *, total: int, quiet: bool = False) -> None:
        self._total, self._quiet = total, quiet
        self._console = Console(stderr=True)
        self._live: Live | None = None
        self._last = 0.0
        self._started = time.monotonic()

    def __enter__(self) -> Progress:
        if self._console.is_terminal and not self._quiet:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)
            self._live = None

    def note(self, text: str) -> None:
        """One line."""
        if not self._quiet:
            self._console.print(text, highlight=False, soft_wrap=True)

    def phase(self, what: str, done: int, of: int) -> None:
        """How far a phase before the loop has come."""
        if self._live is not None:
            self._live.update(f"{what} {done}/{of}")
        elif self._due() or done == of:
            self.note(f"{what} {done}/{of}")

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        """The result of a panel."""
        self.note(f"[{self._clock()}] iteration {step}: {interval_line(evaluation)}")
        if evaluation.failed:
            self.note(failure_line(evaluation))

    def iteration(self, step: int, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """The numbers of one iteration."""
        shown = {label: value for key, label in SHOWN.items() if (value := _over_policies(metrics, key)) is not None}
        if self._live is not None:
            table = Table("iteration", *shown, "rollout s", "update s", box=None)
            numbers = [f"{value:.3g}" for value in (*shown.values(), *seconds.values())]
            table.add_row(f"{step}/{self._total}", *numbers)
            self._live.update(table)
        elif self._due() or step == self._total:
            self.note(
                f"[{self._clock()}] iteration {step}/{self._total}  "
                + "  ".join(f"{label} {value:.3g}" for label, value in shown.items())
                + f"  ({sum(seconds.values()):.1f} s)"
            )

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._last < EVERY:
            return False
        self._last = now
        return True

    def _clock(self) -> str:
        passed = int(time.monotonic() - self._started)
        return f"{passed // 60}:{passed % 60:02d}"


def _over_policies(metrics: Mapping[str, float], key: str) -> float | None:
    """A number of the only policy, or the mean over several, each of which has it under its name."""
    if key in metrics:
        return metrics[key]
    own = re.compile(rf"policy/[^/]+/{re.escape(key.removeprefix('policy/'))}")
    found = [value for name, value in metrics.items() if own.fullmatch(name)]
    return sum(found) / len(found) if found else None
