"""Watch: says so when an environment that runs in the event loop does not return.

Nothing can interrupt such a call; the least we owe is a line that names the cause and the way out.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from types import TracebackType

PATIENCE = 60.0  # seconds without a turn of the event loop


class Watch:
    """While entered, a thread looks whether the event loop still turns."""

    def __init__(self, name: str, *, idle: bool, patience: float = PATIENCE) -> None:
        self._name, self._patience = name, patience
        self._stop = threading.Event()
        self._beat = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True) if idle else None
        self._handle: asyncio.Handle | None = None

    def __enter__(self) -> Watch:
        if self._thread is not None:
            self._tick()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._handle is not None:
            self._handle.cancel()

    def _tick(self) -> None:
        self._beat.set()
        self._handle = asyncio.get_running_loop().call_later(self._patience / 4, self._tick)

    def _look(self) -> None:
        while not self._stop.wait(self._patience):
            if not self._beat.is_set():
                print(
                    f"environment {self._name}: a call has not returned for {self._patience:g} s. If it hangs, stop "
                    "the run (Ctrl-C twice) and set rollout.workers=2 rollout.worker_kind=process "
                    "rollout.step_seconds=10: such episodes then fail and the run goes on.",
                    file=sys.stderr,
                )
            self._beat.clear()
