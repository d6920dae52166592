"""`palaestra run`: (1) a table of the system and its baselines, and last a line with both; (2) arms have the same
tasks, and the same weights unless the baseline changes policies or warm start; (3) the systems' own files run; (4)
what is trained is refused, and so is a baseline that cannot be.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from palaestra.commands import run as module
from tests.commands.conftest import SMALL, Command

OWN: dict[str, Any] = SMALL | {
    "name": "voters",
    "program": {"independent": {"roles": ["a", "b", "c"]}},
    "policies": {"main": {"policy": {"network": {"hidden": [8]}}, "trainable": False}},
    "warm_start": {"episodes": 8, "epochs": 1, "frozen": True},
    "evaluation": {"tasks": 16, "temperature": 1.0},
    "baselines": {"one answer": {"program": "play"}, "before": {"warm_start": None}},
}
OWN.pop("optimizer")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(json.dumps(OWN))
    return tmp_path / "own.yaml"


def test_1_what_is_printed(own: Path, palaestra: Command) -> None:
    done = palaestra("run", own, "--quiet")
    assert done.code == 0 and not done.err
    number = r"[01]\.\d{3}"
    assert re.fullmatch(
        rf"success {number} on 16 tasks of the split eval; one answer {number}; before {number}", done.out[-1]
    )
    assert re.fullmatch(rf"success {number}, 95 % interval {number} to {number} \(Wilson, \d+ of 16\)", done.out[-2])
    rows = [line for line in done.out if line.strip().startswith(("voters", "one answer", "before"))]
    assert [" ".join(row.split()).count("95 % interval") for row in rows] == [1, 2, 2]
    assert not Path("runs").exists()


def test_2_weights(own: Path, palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, tasks, plain = [], [], module.Panel.play

    def play(self: Any) -> Any:
        found = plain(self)
        (policy,) = {id(role.policy): role.policy for role in self._runner._setup.roles.values()}.values()
        weights.append(sum(float(weight.sum()) for weight in policy.module.state_dict().values()))
        tasks.append([one.task.content_hash for one in found[1]])
        return found

    monkeypatch.setattr(module.Panel, "play", play)
    assert palaestra("run", own, "--quiet").code == 0
    assert weights[0] == weights[1] != weights[2], "only the last one has another warm start"
    assert tasks[0] == tasks[1] == tasks[2]


@pytest.mark.parametrize(
    "name", ["behavior_cloning", "debate", pytest.param("self_consistency", marks=pytest.mark.slow)]
)
def test_3_systems(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, palaestra: Command) -> None:
    monkeypatch.chdir(tmp_path)
    done = palaestra("run", name, "--smoke", "--quiet")
    assert done.code == 0, done.err
    assert re.match(
        r"success \S+ on 4 (held-out )?tasks(, \d+ of them also trained on| of the split eval)?; ", done.out[-1]
    )


def test_4_refusals(own: Path, palaestra: Command) -> None:
    done = palaestra("run", own, "policies.main.trainable=true")
    assert done.code == 2 and "this recipe trains policy `main`" in done.err
    assert "Candidates: behavior_cloning, debate, self_consistency." in done.err
    own.write_text(json.dumps(OWN | {"baselines": {"other": {"program": "plya"}}}))
    assert "no program is called `plya`" in palaestra("run", own).err
    own.write_text(json.dumps(OWN | {"baselines": {"other": 3}}))
    assert "`baselines` takes keys of a recipe, found `3`" in palaestra("run", own).err
