"""The slots `learner` and `experience`: (1) the examples of docs/learners.md train and log what they measure;
(2) a learner beside the policy gradient leaves the weights as they are without it, byte for byte; (3) modules of a
learner are in checkpoints, and a resumed run is the same byte for byte; (4) without the learner `policy_gradient` no
estimator runs and no column is computed for it; (5) a learner without signal stops the run after `training.max_empty`
iterations; (6) an object that lacks a member is refused by one line; (7) updates that leave all weights as they were
are said once, counted by `policy/unchanged`, and said again at the end of a run in which no update changed a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from palaestra.data import Batch, Iteration
from palaestra.data.protocols import Learner, Optimizer
from palaestra.errors import ContractError, NoSignal, RecipeError
from palaestra.policies.language import LanguagePolicy
from palaestra.recipe import load
from palaestra.registry import register
from palaestra.training.start import train
from tests.docs.pages import ROOT, Page
from tests.training.conftest import ECHO, curve, final_weights, stopped_before

Run = Callable[..., Path]
HERE = Path(__file__).resolve()
PAGE = Page(ROOT / "docs" / "learners.md", (ROOT / "docs" / "learners.md").read_text(encoding="utf-8"))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    PAGE.write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@register("learner", "columns_noted", reads=())
class Columns(Learner):
    """Moves nothing and notes what the table holds."""

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        names = ("advantage", "logprob_old", "weight")
        return {f"columns/{name}": float(name in batch.table) for name in names}


@register("learner", "silent", reads=())
class Silent(Columns):
    """Learns nothing."""

    def has_signal(self, batch: Batch, iteration: Iteration) -> bool:
        return False


def incomplete(setup: Any) -> object:
    """No experience at all."""
    return object()


def test_1_a_learner_of_ones_own(echo: Run, files: Path) -> None:
    plain = echo("plain")
    beside = echo("beside", layers={"learner": ["policy_gradient", "slow_copy.py:SlowCopy"]})
    assert final_weights(beside) == final_weights(plain)  # rule 2
    distances = [line["slow/main/distance"] for line in curve(beside)]
    assert all(distance > 0 for distance in distances)


def test_1_an_experience_of_ones_own(echo: Run, files: Path) -> None:
    lines = curve(echo("twice", layers={"experience": {"again.py:EachTwice": {"times": 2}}}))
    rewards = [line["reward/mean"] for line in lines]
    assert rewards[0] == rewards[1] and rewards[2] == rewards[3] and len({*rewards}) == 2


def test_3_modules_are_kept(echo: Run, files: Path) -> None:
    layers = {"learner": ["policy_gradient", "slow_copy.py:SlowCopy"]}
    whole = echo("whole", layers=layers)
    with stopped_before(3):
        echo("parts", layers=layers)
    parts = echo("parts", layers=layers, resume=True)
    last = "checkpoints/step-000004"
    slow, fast = (load_file(whole / last / f"{name}.safetensors") for name in ("learner.1.main", "main"))
    assert slow.keys() == fast.keys() and not all(torch.equal(slow[key], fast[key]) for key in slow)
    for name in ("learner.1.main.safetensors", "main.safetensors", "learner.0.state.pt"):
        assert (parts / last / name).read_bytes() == (whole / last / name).read_bytes()


def test_4_nothing_is_computed_that_nobody_reads(echo: Run) -> None:
    lines = curve(echo("a", layers={"learner": f"{HERE}:Columns"}))
    assert all((line["columns/advantage"], line["columns/logprob_old"]) == (0, 0) for line in lines)
    assert all(line["columns/weight"] == 1 and line["updates"] == 0 for line in lines)
    both = curve(echo("b", layers={"learner": [f"{HERE}:Columns", "policy_gradient"]}))
    assert all(line["columns/advantage"] == 1 for line in both)


def test_4_what_does_not_run_needs_nothing(echo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LanguagePolicy, "collate", None)  # nobody reads its samples
    layers = {"learner": f"{HERE}:Columns", "rollout": {"group": 1}, "warm_start": None}
    assert len(curve(echo("a", layers=layers))) == 4
    with pytest.raises(RecipeError, match="`grpo` uses a group of at least 2"):
        echo("b", layers={"learner": [f"{HERE}:Columns", "policy_gradient"], "rollout": {"group": 1}})


def test_5_no_signal(echo: Run) -> None:
    with pytest.raises(NoSignal, match="2 iterations in a row"):
        echo("a", "training.max_empty=2", layers={"learner": f"{HERE}:Silent"})


def test_6_refused(echo: Run) -> None:
    with pytest.raises(ContractError, match="object has no `instruction`"):
        echo("a", layers={"experience": f"{HERE}:incomplete"})


class Still(Optimizer):
    """An optimizer that moves nothing from its second step on, or from its first."""

    lr, metrics = 0.1, {}  # type: ignore[assignment]

    def __init__(self, parameters: Any, *, steps: int = 0) -> None:
        self.parameters, self.left = list(parameters), steps

    def zero(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> float:
        self.left -= 1
        if self.left >= 0:
            with torch.no_grad():
                self.parameters[0].view(-1)[0] += 1e-6
        return 1.0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize(("steps", "unchanged"), [(0, 4), (1, 3), (4, 0)])
def test_7_updates_that_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int, unchanged: int
) -> None:
    small = [f"run={tmp_path / 'run'}", "warm_start=null", f"optimizer={{{HERE}:Still: {{steps: {steps}}}}}"]
    recipe = load([ECHO], [*small, "training.minibatches=1", "rollout.temperature=1", "loss=behavior_cloning"])
    line = train(recipe.settings, recipe=recipe.to_json())
    lines = curve(tmp_path / "run")
    assert all(one["updates"] == place + 1 for place, one in enumerate(lines))
    assert sum(one.get("policy/unchanged", 0) for one in lines) == unchanged
    assert capsys.readouterr().err.count("left all weights as they were") == min(unchanged, 1)
    assert line.startswith("no update changed a weight") is (unchanged == 4)
