"""The tool `python`, which runs code in a sandbox. Variables last for an episode, or for one call."""

from __future__ import annotations

import atexit
import functools
from typing import Literal

from palaestra.errors import PalaestraError
from palaestra.registry import NonNegative, Positive, PositiveInt, register
from palaestra.tools.files import WorkFolder
from palaestra.tools.sandbox import Execution, Piece, PythonPool, Session
from palaestra.tools.tool import Tool, ToolError

DESCRIPTION = (
    "Run Python. Variables and imports last for the whole episode. What is printed and the value of the last "
    "expression are shown. There is no network."
)
FRESH = (
    "Run Python. Each call starts anew, without earlier variables. What is printed and the value of the last "
    "expression are shown. {isolation}"
)
PARAMETERS = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "statements of Python"}},
    "required": ["code"],
    "additionalProperties": False,
}
ENDINGS = {  # state of a piece of code → what the agent is told about its variables
    "kept": "",
    "before": "variables are as before this code; files keep what was written",
    "lost": "Python starts anew: variables and files of this episode's Python are gone",
}
LINES = 10  # last lines of a traceback that are shown
REMEMBERED = 4096  # results that are kept


class PythonTool:
    """Python whose variables last for one episode. Give `tool` to a toolbox, and call `close` after the episode.

    Args:
        pool: where the code runs. `pool.guarantees()` says what the code cannot do.
        folder: files that the code shares with other tools. They are copied in before each call and back after it.
        timeout_s: seconds of wall clock for one call. Higher: longer waits for endless code. Usual: 5.
        memory_mb: memory of each process. Usual: 256.
        max_chars: most characters of output that are shown. The middle of a longer output is left out, visibly.
    """

    def __init__(
        self,
        pool: PythonPool,
        *,
        folder: WorkFolder | None = None,
        timeout_s: float = 5.0,
        memory_mb: int = 256,
        max_chars: int = 2000,
    ) -> None:
        if max_chars < 100:
            raise PalaestraError(
                where="PythonTool", what=f"`max_chars` is {max_chars}.", remedy="Set `max_chars` to 100 or more."
            )
        self._session = Session(pool, memory_mb=memory_mb)
        self._folder, self._timeout_s, self._max_chars = folder, timeout_s, max_chars
        self._sent: dict[str, bytes] = {}
        self.tool = Tool(
            name="python",
            description=DESCRIPTION,
            parameters=PARAMETERS,
            call=self.run,
            timeout_s=timeout_s + 15,  # the session's own limit comes first, because its message says more
        )

    def run(self, code: str) -> str:
        """Run code. Returns the text that the agent reads.

        Raises: ToolError, if the code raised an error or a limit stopped it. The text says what became of the
            variables.
        """
        changed = {}
        if self._folder:
            files = self._folder.contents()
            changed = {path: content for path, content in files.items() if self._sent.get(path) != content}
            self._sent = files
        piece = self._session.run(code, timeout_s=self._timeout_s, files=changed)
        kept_out, gone = "", False  # gone: the session died after the code, before its files were read
        if piece.state == "lost":
            self._sent = {}
        elif self._folder:
            try:
                kept_out = self._take_files()
            except PalaestraError:
                self._sent, gone = {}, True
        text = "\n".join(part for part in (self._shown(piece.execution), self._ending(piece, gone), kept_out) if part)
        if piece.execution.rc != 0 or gone:
            died = gone or piece.execution.killed_by in ("worker", "signal")
            raise ToolError(text, fault="timeout" if piece.execution.timed_out else "died" if died else "raised")
        return text or "(no output)"

    def close(self) -> None:
        """End the session and its processes."""
        self._session.close()

    def __enter__(self) -> PythonTool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_files(self) -> str:
        """Copy the files that the code has changed to the folder. Returns a message about files that do not fit.

        Raises: PalaestraError, if the session does not answer. It is then lost.
        """
        assert self._folder
        found = self._session.files()
        refused = []
        for path, content in found.items():
            if self._sent.get(path) != content:
                try:
                    self._folder.write(path, content)
                except ToolError as fault:
                    refused.append(str(fault))
        for path in self._sent.keys() - found.keys():
            self._folder.remove(path)
        self._sent = found
        return "\n".join(refused[:3])

    def _shown(self, done: Execution) -> str:
        parts = [done.out.rstrip("\n"), short_traceback(done.err.rstrip("\n"))]
        return cut("\n".join(part for part in parts if part), self._max_chars)

    def _ending(self, piece: Piece, gone: bool) -> str:
        done, state = piece.execution, "lost" if gone else piece.state
        early = "files could not be read" if gone else "Python ended early" if state != "kept" else ""
        why = {
            "time": f"stopped after {self._timeout_s:g} s",
            "cpu": "stopped: no processor time is left",
            "memory": "stopped: no memory is left",
            "worker": "the machine that ran Python failed",
        }.get(done.killed_by or "", early)
        return "; ".join(part for part in (why, ENDINGS[state]) if part)


@register("tool", "python")
def fresh_python(
    *,
    backend: Literal["bubblewrap", "subprocess"] = "bubblewrap",
    timeout_s: Positive = 5.0,
    memory_mb: PositiveInt = 256,
    max_chars: PositiveInt = 2000,
    cost: NonNegative = 0.0,
) -> Tool:
    """Python as a tool of a role. Each call runs in an interpreter of its own, so nothing has to be closed.

    Results are kept, because a run takes 20 ms: code that ran before without reaching a limit does not run again.

    Args:
        backend: "bubblewrap" isolates the code. "subprocess" does not, so use it only for code that you trust.
        timeout_s: seconds of wall clock for one call. Higher: longer waits for endless code. Usual: 5.
        memory_mb: memory of each process. Usual: 256.
        max_chars: most characters of output that are shown.
        cost: cost of one call.

    The description of the tool says how the code is isolated.
    Raises: PalaestraError, if the back end cannot be used here. No weaker one is used instead.
    """
    pool = shared_pool(backend)

    @functools.lru_cache(maxsize=REMEMBERED)
    def ran(code: str) -> tuple[bool, str]:
        with PythonTool(pool, timeout_s=timeout_s, memory_mb=memory_mb, max_chars=max_chars) as python:
            try:
                return True, python.run(code)
            except ToolError as fault:
                if fault.fault != "raised":
                    raise  # not kept, because reaching a limit depends on how busy the machine is
                return False, fault.text

    def call(code: str) -> str:
        fine, text = ran(code)
        if not fine:
            raise ToolError(text)
        return text

    strength = pool.guarantees()
    told = f"It runs in {strength.backend}: {'isolated' if strength.isolation == 'isolation' else 'NOT isolated'}."
    return Tool(
        name="python",
        description=FRESH.format(isolation=told),
        parameters=PARAMETERS,
        call=call,
        timeout_s=timeout_s + 15,
        cost=cost,
    )


@functools.cache
def shared_pool(backend: Literal["bubblewrap", "subprocess"]) -> PythonPool:
    """The pool of interpreters that all roles of this process share. It closes when the process ends."""
    pool = PythonPool(backend=backend)
    atexit.register(pool.close)
    return pool


def cut(text: str, most: int) -> str:
    """About `most` characters of a text: its beginning, the number of characters left out, and its end."""
    if len(text) <= most:
        return text
    head, tail = most * 2 // 3, most // 3
    return f"{text[:head]}\n… {len(text) - head - tail:,} characters left out …\n{text[-tail:]}"


def short_traceback(text: str) -> str:
    """Error output, of which a long one keeps only its first line and its last lines."""
    lines = text.splitlines()
    if len(lines) <= LINES + 1:
        return text
    return "\n".join([lines[0], f"… {len(lines) - LINES - 1} lines left out …", *lines[-LINES:]])
