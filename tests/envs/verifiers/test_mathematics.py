"""Formulas of replies: (1) one that would compute for years, or take all memory, gets 0 in time; (2) other threads go
on meanwhile, and the next reply is judged as usual; (3) the processes end with this one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from palaestra.envs.verifiers import mathematics
from palaestra.envs.verifiers.mathematics import WORKERS, math
from tests.extras import skip_without

skip_without("math_verify")
ENDLESS = ["$9^{9^{9^{9}}}$", "$(99999999!)$", "the answer is 99**99999999", "$(x+1)^{100000}$", r"$\binom{9^9}{9^8}$"]


@pytest.mark.parametrize("reply", ENDLESS)
def test_1_2_endless(reply: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert math("12", "12") == 1.0  # the process has begun
    monkeypatch.setattr(mathematics, "SECONDS", 0.5)
    found: list[float | None] = []
    judge = threading.Thread(target=lambda: found.append(math(reply, "12")))
    began = time.monotonic()
    judge.start()
    turns = 0
    while judge.is_alive() and time.monotonic() < began + 20:
        time.sleep(0.01)
        turns += 1
    assert found == [0.0] and turns > 20  # 2: this thread had its turns
    monkeypatch.undo()
    assert math(r"\boxed{\frac{24}{2}}", "12") == 1.0 and math("13", "12") == 0.0


def test_1_memory() -> None:
    assert math("12", "12") == 1.0
    worker = WORKERS.idle[0]
    assert psutil.Process(worker._process.pid).rlimit(psutil.RLIMIT_AS)[0] == 2 << 30


def test_2_many_at_once() -> None:
    said: list[float | None] = [None] * 12

    def judged(place: int) -> None:
        said[place] = math(f"$x = {place}$", str(place % 3))

    threads = [threading.Thread(target=judged, args=(place,)) for place in range(len(said))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [float(place < 3) for place in range(12)]


def test_3_processes_end_with_their_parent() -> None:
    code = (
        "from palaestra.envs.verifiers.mathematics import WORKERS, math\n"
        "assert math('12', '12') == 1.0\n"
        "print(WORKERS.idle[0]._process.pid, flush=True)\n"
        "math('99**99999999', '12')"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        time.sleep(0.3)
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 20
    while time.monotonic() < until and psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie":
        time.sleep(0.05)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"
