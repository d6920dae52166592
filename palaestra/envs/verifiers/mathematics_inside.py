"""The process that reads and compares formulas.

A reply such as 9^{9^{9^{9}}} would compute for years, and no Python code can stop such a product. So the process that
asks measures the time and kills this one, which also has an alarm of its own.

Requests and answers are lines of JSON. The process ends when its parent does.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import queue
import resource
import signal
import sys
import threading
from typing import Any

ADDRESSES = 2 << 30  # bytes of the whole process
ALARM_S = 10  # the system then ends the process, if its parent has ended and cannot


def score(package: Any, completion: str, answers: list[str]) -> float | None:
    """1 if the formula in the reply has the value of one of the answers, else 0. None: no answer can be read."""
    wanted = [package.parse(one, parsing_timeout=None) for one in answers]
    if not any(wanted):
        return None
    said = package.parse(completion, parsing_timeout=None)
    return float(any(one and package.verify(one, said, timeout_seconds=None) for one in wanted))


def main() -> None:
    """Answer the lines of standard input. The first one has the path of modules. The process ends with its input."""
    lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            lines.put(json.loads(line))
        os._exit(0)  # the parent has ended

    threading.Thread(target=read, daemon=True).start()
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # what a package prints is no answer
    sys.path[:] = lines.get()["path"]
    package = importlib.import_module("math_verify")
    logging.disable(logging.CRITICAL)  # it warns in each call that it uses no signals
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer: dict[str, Any] = {"score": None}
    while True:
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
        asked = lines.get()
        signal.alarm(ALARM_S)
        try:
            answer = {"score": score(package, asked["completion"], asked["answers"])}
        except (MemoryError, RecursionError, OverflowError):
            answer = {"score": 0.0}
        except Exception as error:
            answer = {"fault": f"{type(error).__name__}: {error}"}
        signal.alarm(0)


if __name__ == "__main__":
    main()
