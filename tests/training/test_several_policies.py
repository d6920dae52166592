"""Several policies in one run: (1) each trainable one learns with its own optimizer and has its own metrics;
(2) a frozen one does not change; (3) a run that is stopped and resumed is the same byte for byte; (4) scripted and
random policies play beside a trained one; (5) all roles may share one policy, with metrics per agent; (6) two
language policies share one engine; (7) one policy alone may have a reference.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from palaestra.recipe import load
from palaestra.store.metrics import MetricsLog
from palaestra.training.start import train
from tests.training.conftest import stopped_before

NETWORK = {"network": {"hidden": [8]}}
TINY = {"language": {"hidden": 16, "layers": 1, "heads": 2, "context": 64, "vocabulary": 300}}
PAIR: dict[str, Any] = {
    "name": "pair",
    "seed": 1,
    "environment": {"echo": {"turns": 2, "agents": ["a", "b"]}},
    "policies": {
        "one": {"policy": NETWORK, "optimizer": {"adamw": {"lr": 0.01}}},
        "two": {"policy": {"network": {"hidden": [16]}}, "optimizer": {"adamw": {"lr": 0.02}}},
    },
    "agents": {"a": {"policy": "one"}, "b": {"policy": "two"}},
    "rollout": {"tasks": 4, "group": 4, "max_turns": 4, "response_tokens": 2},
    "training": {"iterations": 3, "checkpoint_every": 1, "keep_checkpoints": 9},
    "evaluation": {"tasks": 4},
}
Run = Callable[..., Path]


@pytest.fixture
def pair(tmp_path: Path) -> Run:
    """Trains two policies with changes to the recipe, returns the folder."""

    def start(name: str = "run", *overrides: str, policies: Any = None, agents: Any = None, **options: bool) -> Path:
        recipe = load(
            [PAIR | {"policies": policies or PAIR["policies"], "agents": agents or PAIR["agents"]}],
            [f"run={tmp_path / name}", *overrides],
        )
        train(recipe.settings, recipe=recipe.to_json(), quiet=True, **options)
        return tmp_path / name

    return start


def weights(folder: Path, step: int, policy: str) -> dict[str, Tensor]:
    return load_file(folder / "checkpoints" / f"step-{step:06d}" / f"{policy}.safetensors")


def changed(folder: Path, policy: str, last: int = 3) -> bool:
    before, after = weights(folder, 0, policy), weights(folder, last, policy)
    return any(not bool((before[name] == after[name]).all()) for name in before)


def test_1_each_learns(pair: Run) -> None:
    folder = pair()
    assert changed(folder, "one") and changed(folder, "two")
    for line in MetricsLog(folder).metrics.read():
        assert (line["policy/one/lr"], line["policy/two/lr"]) == (0.01, 0.02)
        assert line["policy/one/grad_norm"] != line["policy/two/grad_norm"]
        assert "policy/lr" not in line
        assert {"agent/a/reward/mean", "agent/b/reward/mean"} <= set(line)


def test_2_frozen(pair: Run) -> None:
    folder = pair("run", "policies.two.trainable=false")
    assert changed(folder, "one") and not changed(folder, "two")
    line = MetricsLog(folder).metrics.read()[-1]
    assert "policy/lr" in line and not any(key.startswith("policy/two/") for key in line)


def test_3_resume(pair: Run) -> None:
    whole = pair("whole")
    with stopped_before(2):
        pair("parts")
    parts = pair("parts", resume=True)
    names = ["metrics.jsonl", "evaluations.jsonl"]
    names += [f"checkpoints/step-000003/{policy}.safetensors" for policy in ("one", "two")]
    for name in names:
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.parametrize("other", ["expert", "random"])
def test_4_beside_a_scripted_policy(pair: Run, other: str) -> None:
    policies = {"one": {"policy": NETWORK}, "two": {"policy": other, "trainable": False}}
    folder = pair(policies=policies)
    assert changed(folder, "one")
    line = MetricsLog(folder).metrics.read()[-1]
    if other == "expert":
        assert line["agent/b/reward/mean"] == 1.0 > line["agent/a/reward/mean"]


def test_5_shared(pair: Run) -> None:
    folder = pair(policies={"one": {"policy": NETWORK}}, agents={"*": {"policy": "one"}})
    line = MetricsLog(folder).metrics.read()[-1]
    assert {"agent/a/reward/mean", "agent/b/reward/mean", "policy/lr"} <= set(line)
    assert changed(folder, "one")


def test_6_language_policies_share_an_engine(pair: Run) -> None:
    own = {"context": "latest_only"}
    folder = pair(
        policies={"one": {"policy": TINY}, "two": {"policy": TINY, "trainable": False}},
        agents={"a": {"policy": "one"}, "b": {"policy": "two", **own}},
    )
    assert not changed(folder, "two")


def test_7_a_reference_of_one_policy_alone(pair: Run) -> None:
    own = "policies.one.regularizers=kl", "policies.one.reference=start"
    folder = pair("run", *own)
    assert (folder / "checkpoints" / "step-000003" / "one.reference.safetensors").exists()
    assert not (folder / "checkpoints" / "step-000003" / "two.reference.safetensors").exists()
