"""Listings: (1) `methods`; (2) its `--slot` and `--without`, for columns and abilities; (3) `envs`; (4) `envs --check`;
(5) `doctor`; (6) `docs --check`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from palaestra.commands import docs
from palaestra.registry import names
from tests.commands.conftest import Command


def parts(lines: list[str], slot: str) -> set[str]:
    return {line.split()[1] for line in lines if line.lstrip("│ ").startswith(f"{slot} ") and line[:2].strip()}


def test_1_methods(palaestra: Command) -> None:
    done = palaestra("methods")
    assert done.code == 0 and any("GiGPO" in line and "2505.10978" in line for line in done.out)
    assert parts(done.out, "advantage") == set(names("advantage"))


def test_2_without_a_column(palaestra: Command) -> None:
    done = palaestra("methods", "--slot", "advantage", "--without", "state_key")
    assert parts(done.out, "advantage") == set(names("advantage")) - {"gigpo"}


@pytest.mark.parametrize(
    ("slot", "need", "gone"),
    [("advantage", "critic", "ppo"), ("regularizer", "reference", "kl"), ("advantage", "group", "grpo")],
)
def test_2_without_an_ability(palaestra: Command, slot: str, need: str, gone: str) -> None:
    assert gone in parts(palaestra("methods", "--slot", slot).out, slot)
    found = parts(palaestra("methods", "--slot", slot, "--without", need).out, slot)
    assert found and gone not in found


def test_2_unknown_slot(palaestra: Command) -> None:
    done = palaestra("methods", "--slot", "advantages")
    assert done.code == 2 and "Candidates: advantage" in done.err


def test_3_environments(palaestra: Command) -> None:
    done = palaestra("envs")
    assert {line.split()[0] for line in done.out if line.strip()} >= set(names("environment"))


def test_4_check(palaestra: Command, tmp_path: Path) -> None:
    assert palaestra("envs", "--check", "echo", "turns=3").out == ["echo: every rule of the environment protocol holds"]
    done = palaestra("envs", "--check", "echo", "nan_at=0")
    assert done.code == 2 and "Rewards must be finite numbers" in done.err
    assert palaestra("envs", "--check", "eco").code == 2


def test_5_doctor(palaestra: Command) -> None:
    text = "\n".join(palaestra("doctor").out)
    assert all(word in text for word in ("palaestra", "device: ", "sandbox: ", "torch", "lora"))


def test_6_docs(palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(docs, "write", lambda check, command: asked.append((check, command.name)) or ["docs/x.md"])
    done = palaestra("docs", "--check")
    assert (done.code, done.out) == (1, ["stale docs/x.md"]) and "run `palaestra docs`" in done.err
    assert palaestra("docs").out == ["wrote docs/x.md"]
    assert asked == [(True, "palaestra"), (False, "palaestra")]
