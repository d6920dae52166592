"""Shows the progress of a run: a live table on a terminal, and otherwise a short line every few seconds."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

from rich.console import Console
from rich.live import Live
from rich.table import Table

from palaestra.evaluation.panels import Evaluation, cut_line, failure_line, interval_line
from palaestra.evaluation.tables import cell
from palaestra.process.terminal import visible

SHOWN = {
    "outcome/mean": "outcome",
    "reward/mean": "reward",
    "reward/shaped": "shaped",
    "turns/mean": "turns",
    "cut/mean": "cut",
    "policy/entropy": "entropy",
    "policy/grad_norm": "gradient",
    "mismatch/kl": "mismatch",
}
REPLACED = {
    "replaced/characters": "characters that no file or tokenizer can hold were replaced",
    "replaced/cut": "very long texts were cut",
    "replaced/values": "values that JSON lacks were replaced",
}
EVERY = 10.0  # seconds between lines if the output is not a terminal
WIDEST = 72  # columns of a line's metrics; those that come last in `SHOWN` are left out


class _Lasting(Console):
    """A console whose reader may go away. The run goes on without it."""

    def on_broken_pipe(self) -> None:
        """Say nothing more; rich would end the program."""
        self.quiet = True


class Progress:
    """Shows a live table on a terminal, else a line every few seconds; nothing if `quiet`."""

    def __init__(self, *, total: int, quiet: bool = False) -> None:
        self._total, self._quiet = total, quiet
        self._console = _Lasting(stderr=True)
        self._live: Live | None = None
        self._lines: deque[str] = deque()  # that wait to be written
        self._writing = False
        self._last = 0.0
        self._started = time.monotonic()
        self._warned = False  # of cut responses; once is enough
        self._told = False  # of characters and values that were replaced
        self._first = (0, self._started)  # iteration and time at which the loop began

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
        """Show one line.

        The handler of a signal may call this while another line is being written. That line is then shown first, and
        only once.
        """
        if not self._quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Show one line, even if the progress is quiet: something of the user's is damaged, or was replaced."""
        self._lines.append(text)
        while self._lines and not self._writing:
            self._writing = True
            try:
                with suppress(IndexError, OSError):  # IndexError: a handler has shown it; OSError: the terminal is gone
                    self._console.print(visible(self._lines.popleft()), highlight=False, markup=False, soft_wrap=True)
            finally:
                self._writing = False

    def phase(self, what: str, done: int, of: int) -> None:
        """Show the progress of a phase before the loop, such as the warm start."""
        if self._live is not None:
            self._live.update(cell(f"{what} {done}/{of}"))
        elif self._due() or done == of:
            self.note(f"{what} {done}/{of}")

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Show the result of a panel."""
        self.note(f"[{self._clock()}] iteration {step}: {interval_line(evaluation)}")
        if step == self._first[0]:  # the iterations begin now
            self.begin(step)
        if evaluation.failed:
            self.note(failure_line(evaluation))

    def begin(self, step: int) -> None:
        """The loop begins at this iteration. The time that is left is estimated from here on."""
        self._first = (step, time.monotonic())

    def iteration(self, step: int, metrics: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """Show the numbers of one iteration.

        Args:
            metrics: of the iteration; `speed/tokens` is shown as well.
            seconds: that it took, by kind of work.
        """
        if not self._warned and (warning := cut_line(_over_policies(metrics, "cut/mean"))):
            self._warned = True
            self.note(f"iteration {step}: {warning}")
        if not self._told and (replaced := _replaced_line(metrics)):
            self._told = True
            self.note(f"iteration {step}: {replaced}")
        shown = _shown(metrics)
        counted = "tokens" if metrics.get("tokens/mean", 0.0) > metrics.get("turns/mean", 0.0) else "acts"
        unit = f"{counted}/s"
        pace = {unit: f"{speed:.0f}"} if (speed := metrics.get("speed/tokens")) else {}
        left = self._left(step)
        if self._live is not None:
            table = Table("iteration", *shown, *pace, "rollout s", "update s", "left", box=None)
            took = [f"{value:.3g}" for value in seconds.values()]
            table.add_row(f"{step}/{self._total}", *shown.values(), *pace.values(), *took, left)
            self._live.update(table)
        elif self._due() or step == self._total:
            line = ""
            for label, value in shown.items():
                if len(line) + len(label) + len(value) + 3 <= WIDEST:
                    line += f"  {label} {value}"
            after = [*(f"{value} {unit}" for unit, value in pace.items()), f"{sum(seconds.values()):.1f} s"]
            after += [f"{left} left"] if left else []
            self.note(f"[{self._clock()}] iteration {step}/{self._total}{line}  ({', '.join(after)})")

    def _left(self, step: int) -> str:
        """The time until the last iteration, if all take as long as those since `begin`; empty, if it is unknown."""
        first, began = self._first
        if step <= first or step >= self._total:
            return ""
        return clock((time.monotonic() - began) / (step - first) * (self._total - step))

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._last < EVERY:
            return False
        self._last = now
        return True

    def _clock(self) -> str:
        return clock(time.monotonic() - self._started)


def _replaced_line(metrics: Mapping[str, float]) -> str:
    """What was replaced in the episodes of an iteration; empty, if nothing was."""
    counts = [f"{metrics[name]:.0f} {what}" for name, what in REPLACED.items() if metrics.get(name)]
    return f"in episodes, {', '.join(counts)}; metrics.jsonl counts them" if counts else ""


def clock(seconds: float) -> str:
    """Seconds as minutes and seconds, or with hours.

    >>> clock(62.4), clock(7384)
    ('1:02', '2:03:04')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _shown(metrics: Mapping[str, float]) -> dict[str, str]:
    """Label → number, of the metrics that are shown. What says nothing new is left out."""
    found = {key: value for key in SHOWN if (value := _over_policies(metrics, key)) is not None}
    if found.get("reward/mean") == found.get("outcome/mean"):
        found.pop("reward/mean", None)
    if found.get("cut/mean", 0.0) < 0.005:  # it would read 0 %
        found.pop("cut/mean", None)
    return {SHOWN[key]: f"{value:.0%}" if key == "cut/mean" else f"{value:.3g}" for key, value in found.items()}


def _over_policies(metrics: Mapping[str, float], key: str) -> float | None:
    """A metric of the only policy, or the mean over several policies, whose metrics carry their names."""
    if key in metrics:
        return metrics[key]
    own = re.compile(rf"policy/[^/]+/{re.escape(key.removeprefix('policy/'))}")
    found = [value for name, value in metrics.items() if own.fullmatch(name)]
    return sum(found) / len(found) if found else None
