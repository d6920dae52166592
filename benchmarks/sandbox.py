"""How many Python calls a second run in a sandbox, warm and from a cold start: `python benchmarks/sandbox.py`.

A call is one program `print(1 + 1)` with files, limits and processes of its own. "cold" starts bubblewrap and an
interpreter for each; "warm" forks an interpreter that already runs, and still gives each call its own name spaces.
Kinds take turns in short rounds, so that other programs on the machine disturb all alike; the ratio is the median of
the rounds' ratios. "session" is a piece of code in a session, which keeps variables.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from machine import describe

from palaestra.tools.sandbox import BubblewrapSandbox, PythonPool, Session, SubprocessSandbox

RESULT = Path(__file__).parent / "results" / "sandbox.json"
CODE = "print(1 + 1)"


def rate(call: Callable[[], object], *, calls: int, threads: int) -> float:
    """Calls a second, from this many threads."""
    begun = time.perf_counter()
    if threads == 1:
        for _ in range(calls):
            call()
    else:
        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(call) for _ in range(calls)]:
                done.result()
    return calls / (time.perf_counter() - begun)


def right(output: str) -> None:
    """A benchmark of wrong answers measures nothing."""
    assert output == "2\n", output


def measure(rounds: int, warm_calls: int, cold_calls: int) -> dict[str, Any]:
    """Rates of all kinds and the ratios that matter."""
    bubble, plain = BubblewrapSandbox(), SubprocessSandbox()
    with PythonPool() as pool, PythonPool(backend="subprocess") as plain_pool, Session(pool) as session:
        kinds: dict[str, tuple[Callable[[], object], int]] = {
            "bubblewrap cold": (lambda: right(bubble.exec([bubble.python, "-c", CODE]).out), cold_calls),
            "bubblewrap warm": (lambda: right(pool.run(CODE).out), warm_calls),
            "bubblewrap session": (lambda: right(session.run(CODE).execution.out), warm_calls),
            "subprocess cold": (lambda: right(plain.exec([plain.python, "-c", CODE]).out), cold_calls),
            "subprocess warm": (lambda: right(plain_pool.run(CODE).out), warm_calls),
        }
        rates: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, (call, calls) in kinds.items():
                rates.setdefault(name, []).append(rate(call, calls=calls, threads=1))
                if "session" not in name:
                    rates.setdefault(f"{name}, 8 threads", []).append(rate(call, calls=calls, threads=8))
    bubble.close()
    plain.close()

    def ratio(over: str, under: str) -> float:
        return round(median(a / b for a, b in zip(rates[over], rates[under], strict=True)), 2)

    return {
        "calls a second, median": {name: round(median(values), 1) for name, values in rates.items()},
        "calls a second, best": {name: round(max(values), 1) for name, values in rates.items()},
        "ratios": {
            "bubblewrap: warm over cold": ratio("bubblewrap warm", "bubblewrap cold"),
            "bubblewrap: warm over cold, 8 threads": ratio("bubblewrap warm, 8 threads", "bubblewrap cold, 8 threads"),
            "bubblewrap: session over cold": ratio("bubblewrap session", "bubblewrap cold"),
            "subprocess: warm over cold": ratio("subprocess warm", "subprocess cold"),
            "warm: subprocess over bubblewrap": ratio("subprocess warm", "bubblewrap warm"),
        },
    }


def main() -> None:
    """Measure and write the result."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--warm-calls", type=int, default=60)
    options.add_argument("--cold-calls", type=int, default=12)
    given = options.parse_args()
    result = {"machine": describe(packages=()), "rounds": given.rounds}
    result |= measure(given.rounds, given.warm_calls, given.cold_calls)
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
