"""The device of a run: (1) on another device than the CPU every kind of run has the metrics and weights that it has on
the CPU; (2) what a run writes is on the CPU, so one device goes on where another stopped, to the same end; (3) clones
are kept and taken in the same way; (4) an exported policy is read on the CPU, wherever it was trained.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from palaestra.commands import export
from palaestra.data import RunSetup
from palaestra.policies.language import LanguagePolicy
from palaestra.training import start
from palaestra.training.loop import Trainer
from tests.extras import some
from tests.fake_device import FakeDevice
from tests.training.devices import RUNS, log, newest, played

EVERY = ("training.checkpoint_every=1", "training.iterations=2")
STOPPED = ["language", "gru", "adapters", "implicit", "progress", "archer", "muon"]
Run = Callable[[str], Path]


def weights(folder: Path) -> dict[str, bytes]:
    """The files of all weights in the last checkpoint."""
    return {path.name: path.read_bytes() for path in sorted(newest(folder).glob("*.safetensors"))}


def assert_same(one: Path, other: Path) -> None:
    assert log(one) == log(other)
    assert weights(one) == weights(other)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The folder of the run of this name on the CPU; it is made once, and only read."""
    return cache(lambda name: played(name, tmp_path_factory.mktemp("here") / name, *EVERY))


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The folder of the run of this name on another device; it is made once, and only read."""

    @cache
    def run(name: str) -> Path:
        with FakeDevice() as device:
            return played(name, tmp_path_factory.mktemp("there") / name, *EVERY, f"device={device}")

    return run


@pytest.mark.parametrize("name", some(RUNS, fast=5))
def test_1_a_run_is_the_same_on_another_device(name: str, here: Run, there: Run) -> None:
    assert_same(here(name), there(name))


@pytest.mark.parametrize("first", [pytest.param("cpu", marks=pytest.mark.slow), "device"])
@pytest.mark.parametrize("name", some(STOPPED, fast=3))
def test_2_resume_on_another_device(
    name: str, first: str, here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, plain = here(name), Trainer.iterate

    def stops(self: Trainer) -> dict[str, float]:
        if self.step == 1:
            raise KeyboardInterrupt
        return plain(self)

    with FakeDevice() as device:
        one, other = ("cpu", device) if first == "cpu" else (device, "cpu")
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Trainer, "iterate", stops)
            played(name, tmp_path / "parts", *EVERY, f"device={one}")
        for path in newest(tmp_path / "parts").glob("*.pt"):
            torch.load(path, weights_only=True)  # without the device
        played(name, tmp_path / "parts", *EVERY, f"device={other}", resume=True)
    assert_same(whole, tmp_path / "parts")


def test_3_clones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = f"warm_start.keep={tmp_path / 'clones'}"
    with FakeDevice() as device:
        first = played("grouped", tmp_path / "first", keep, f"device={device}")
        (kept,) = (tmp_path / "clones").iterdir()
        assert torch.load(kept, weights_only=True)["main"]["weights"]["model.lm_head.weight"].device.type == "cpu"
        monkeypatch.setattr(start, "warm_start", None)  # a second run has no need of it
        second = played("grouped", tmp_path / "second", keep, f"device={device}")
    assert_same(first, second)


@pytest.mark.parametrize(("name", "policy"), [("language", "main"), ("adapters", "one"), ("mlp", "main")])
def test_4_export(name: str, policy: str, there: Run, tmp_path: Path) -> None:
    export.run(folder=str(there(name)), out=str(tmp_path / "out"), policy=policy, checkpoint=None)  # the device is gone
    assert any((tmp_path / "out").glob("*.safetensors"))
    files = [file for place in (tmp_path / "out", there(name)) for file in place.rglob("*") if file.is_file()]
    (tmp_path / "new").touch()
    assert {file.stat().st_mode for file in files} == {(tmp_path / "new").stat().st_mode}  # others may read them


def test_4_a_policy_is_saved_where_it_is(tmp_path: Path) -> None:
    here = LanguagePolicy(
        "main", RunSetup(seed=0, texts=lambda: ["say red"]), hidden=16, layers=1, heads=2, context=64, value_head=True
    )
    with FakeDevice() as device:
        there = here.clone()
        there.module.to(device)
        there.save(str(tmp_path / "there"))
    here.save(str(tmp_path / "here"))
    for name in ("model.safetensors", "value_head.safetensors"):
        one, other = (load_file(tmp_path / place / name) for place in ("here", "there"))
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
