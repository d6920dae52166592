"""Memory that is given back: (1) a loop over tensors of many lengths does not grow without bound; (2) memory is given
back after a growth, and not before; (3) where the system tells nothing, nothing is done.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from palaestra.engines import heap

# Tensors of a pass lie in the heap, between small ones that stay, as the states of an optimizer and caches do.
LOOP = """
import random, sys
import torch
from palaestra.engines.heap import Growth, resident_bytes

random.seed(1)
growth, kept, most = Growth(20_000_000), [], 0
start = resident_bytes()
for step in range(120):
    passed = []
    for _ in range(60):
        passed.append(torch.ones(random.randrange(20_000, 30_000 + 3_000 * step)))
        kept.append(torch.ones(random.randrange(200, 900)))
    del passed
    if sys.argv[1] == "bound":
        growth.bound()
    most = max(most, resident_bytes() - start)
print(resident_bytes() - start)
"""


@pytest.mark.slow
@pytest.mark.skipif(heap._trim() is None, reason="only glibc can give memory back")
def test_1_a_loop() -> None:
    held = {
        how: int(subprocess.run([sys.executable, "-c", LOOP, how], capture_output=True, text=True, check=True).stdout)
        for how in ("bound", "free")
    }
    assert held["bound"] < 0.8 * held["free"], held


def test_2_when(monkeypatch: pytest.MonkeyPatch) -> None:
    held, given = [1000, 1100, 900, 1101, 1000, 1100, 1101], []
    now = iter(held)
    monkeypatch.setattr(heap, "resident_bytes", lambda: next(now))
    growth = heap.Growth(100)
    for step in range(len(held)):
        monkeypatch.setattr(heap, "give_back", lambda step=step: given.append(step))
        growth.bound()
    assert given == [3, 6]


def test_3_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heap, "Path", lambda path: tmp_path / "absent")
    monkeypatch.setattr(heap, "give_back", lambda: pytest.fail("there is nothing to give back"))
    growth = heap.Growth(0)
    for _ in range(3):
        growth.bound()
    assert heap.resident_bytes() == 0
