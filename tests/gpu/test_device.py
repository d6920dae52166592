"""Runs on a real GPU: (1) each has the metrics that it has on the CPU, but for rounding, in its first iteration, which
nothing has been drawn from yet that rounding may have moved; (2) what it wrote is read on the CPU, and a run goes on
there. The tests need CUDA and are skipped without it; `tests/training/test_device.py` finds a forgotten move without.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.training.devices import log, newest, played

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine, or its build of torch, has no CUDA device"),
]
# Rounding decides no metric of these by much; others may flip a count.
COMPARED = ("reward/mean", "policy/entropy", "policy/grad_norm", "value/loss", "policy/kl")
KINDS = ["language", "mlp", "gru", "adapters", "implicit", "archer", "muon"]


@pytest.mark.parametrize("name", KINDS)
def test_1_a_run_has_the_metrics_of_the_cpu(name: str, tmp_path: Path) -> None:
    plain = () if name in ("archer", "adapters") else ("warm_start=null",)  # many updates would let rounding grow
    here, there = (log(played(name, tmp_path / device, f"device={device}", *plain)) for device in ("cpu", "cuda"))
    assert len(here) == len(there) == 2
    assert all(math.isfinite(value) for line in there for value in line.values())
    shared = [key for key in here[0] if key in there[0] and key.endswith(COMPARED)]
    assert shared
    for key in shared:
        assert there[0][key] == pytest.approx(here[0][key], rel=0.05, abs=5e-3), key


@pytest.mark.parametrize("name", KINDS)
def test_2_a_run_goes_on_on_the_cpu(name: str, tmp_path: Path) -> None:
    folder = played(name, tmp_path / "run", "device=cuda")
    played(name, folder, "device=cpu", "training.iterations=3", resume=True)
    assert [line["step"] for line in log(folder)] == [1, 2, 3]
    assert newest(folder).name == "step-000003"
