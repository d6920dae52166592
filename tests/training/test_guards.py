"""When a run stops because it cannot learn.

1. Iterations without an advantage in a row stop the run whatever its regularizers are.
2. A regularizer does not hide that a policy's own tokens have no advantage; those of frozen roles and of policies that
   are not trained are no signal.
3. A loss that learns without advantages is not stopped.
4. A resumed run goes on counting; a checkpoint from before has nothing to go on from.
5. The message says whether the policy was better before and whether its acts can be read. The run leaves the
   episodes of its last iteration, a report that says how it ended, and no result, which only a complete run has.
6. With `max_failed: 1` all episodes of an iteration may fail. Updates that make the weights many times larger, and
   `exit()` in a part of the user, end the run with an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import NoSignal, PalaestraError
from palaestra.recipe import load
from palaestra.store.checksums import SUMS
from palaestra.store.episodes import EpisodeLog
from palaestra.store.folder import RunFolder
from palaestra.store.metrics import MetricsLog
from palaestra.training.checkpoint import STATE
from palaestra.training.loop import Trainer
from palaestra.training.monitor.guards import Guard
from palaestra.training.policy_gradient import refuse_exploded, weight_norm
from palaestra.training.start import train

HERE = str(Path(__file__).resolve())
NETWORK = {"network": {"hidden": [8]}}
SETUP: dict[str, Any] = {
    "seed": 5,
    "environment": {"echo": {"turns": 1, "agents": ["a", "b"]}},
    "policies": {"main": {"policy": NETWORK}},
    "rollout": {"tasks": 2, "group": 4, "max_turns": 4},
    "reference": "start",
    "advantage": [f"{HERE}:nothing"],
    "training": {"iterations": 6, "max_empty": 3, "threads": 1, "checkpoint_every": 1, "keep_checkpoints": 9},
    "evaluation": {"tasks": 2},
}
Run = Callable[..., Path]


def nothing(table: StepTable) -> Tensor:
    return torch.zeros(len(table))


def of_b(table: StepTable) -> Tensor:
    """Advantages on the rows of the agent b."""
    return (table["agent"] == table.labels("agent").index("b")).float()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Trains the small setup with further layers and overrides, returns its folder."""

    def trained(name: str, *arguments: Any, **options: bool) -> Path:
        layers = [one for one in arguments if isinstance(one, dict)]
        overrides = [one for one in arguments if isinstance(one, str)]
        recipe = load([SETUP, *layers], [f"run={tmp_path / name}", *overrides])
        train(recipe.settings, recipe=recipe.to_json(), quiet=True, **options)
        return tmp_path / name

    return trained


def steps(folder: Path) -> int:
    return len(MetricsLog(folder).metrics.read())


@pytest.mark.parametrize("regularizers", [[], ["entropy"], ["kl", {"entropy": {"coefficient": 0.0}}]])
def test_1_regularizers_are_no_signal(run: Run, tmp_path: Path, regularizers: list[Any]) -> None:
    with pytest.raises(NoSignal, match="3 iterations in a row"):
        run("a", {"regularizers": regularizers})
    assert steps(tmp_path / "a") == 3


@pytest.mark.parametrize("other", [{"policy": "main", "frozen": True}, {"policy": "two"}, {"policy": "main"}])
def test_2_whose_signal_it_is(run: Run, other: dict[str, Any]) -> None:
    policies = {"main": {"policy": NETWORK}, "two": {"policy": NETWORK, "trainable": False}}
    layer = {
        "agents": {"a": {"policy": "main"}, "b": other},
        "policies": policies if other["policy"] == "two" else SETUP["policies"],
        "advantage": [f"{HERE}:of_b"],
        "regularizers": ["entropy"],
    }
    if other == {"policy": "main"}:
        assert steps(run("a", layer)) == 6
    else:
        with pytest.raises(NoSignal):
            run("a", layer)


@pytest.mark.parametrize("loss", ["behavior_cloning", "squared_objective", "preference"])
def test_3_losses_without_advantages(run: Run, loss: str) -> None:
    assert steps(run("a", {"loss": loss}, "aggregate.how=sequence-sum")) == 6


@pytest.mark.parametrize("known", [True, False])
def test_4_resumed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    plain = Trainer.iterate

    def stops(self: Trainer) -> dict[str, float]:
        if self.step == 2:
            raise KeyboardInterrupt
        return plain(self)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Trainer, "iterate", stops)
        run("a")
    if not known:  # as it was written before
        place = tmp_path / "a" / "checkpoints" / "step-000002" / STATE
        content = json.loads(place.read_text())
        del content["guard"], content[SUMS]
        place.write_text(json.dumps(content))
        (place.parent / SUMS).unlink()
    with pytest.raises(NoSignal, match="3 iterations in a row"):
        run("a", resume=True)
    assert steps(tmp_path / "a") == (3 if known else 5)


@pytest.mark.parametrize(
    ("outcomes", "unreadable", "said"),
    [
        ([0.4, 0.6, 0.1, 0.0], 1.0, ["100 % of the acts", "0.600 in iteration 2", "a lower `optimizer.lr`"]),
        ([0.0, 0.0, 0.0, 0.0], 0.9, ["90 % of the acts"]),
        ([0.4, 0.4, 0.4, 0.4], 0.2, []),
    ],
)
def test_5_what_is_said(outcomes: list[float], unreadable: float, said: list[str]) -> None:
    guard = Guard(load([SETUP]).settings.training)
    first, *others = [{"outcome/mean": x, "invalid/mean": unreadable, "advantage/nonzero": 0.0} for x in outcomes]
    guard.learned(first, True, number=1)
    resumed = Guard(load([SETUP]).settings.training)
    resumed.load_state_dict(guard.state_dict())
    with pytest.raises(NoSignal) as caught:
        for number, metrics in enumerate(others, start=2):
            resumed.learned(metrics, False, number=number)
    text = str(caught.value)
    assert all(words in text for words in said)
    every = ("could not be read", "Later updates spoiled it", "`optimizer.lr`")
    assert [words in text for words in every] == [unreadable > 0.5, len(said) == 3, len(said) == 3]


def test_5_what_is_left(run: Run, tmp_path: Path) -> None:
    with pytest.raises(NoSignal):
        run("a")
    assert "Iteration 3 of 6, ended by NoSignal." in (tmp_path / "a" / "report.html").read_text()
    assert not (tmp_path / "a" / "result.json").exists()
    assert [(step, name) for step, name, _ in EpisodeLog(tmp_path / "a").read()][-1] == (3, "train")


@pytest.mark.parametrize("fault", ["raise OSError('down')", "raise SystemExit(0)", "exit()"])
def test_6_all_may_fail(run: Run, tmp_path: Path, fault: str) -> None:
    """With `max_failed: 1` an iteration without an episode is skipped, and such iterations have no signal."""
    (tmp_path / "fails.py").write_text(FAILS.format(fault=fault))
    failing = {"environment": {f"{tmp_path}/fails.py:Fails": {"until": 16}}}
    folder = run("a", failing, "training.max_failed=1.0", "training.max_empty=50", "training.iterations=4")
    lines = MetricsLog(folder).metrics.read()
    assert [line["episodes/failed"] for line in lines] == [8.0, 8.0, 0.0, 0.0]
    assert "selection/kept" not in lines[0] and lines[0]["updates"] == 0 and lines[0]["stop/error"] == 1.0
    failing["environment"][f"{tmp_path}/fails.py:Fails"]["until"] = 10**6
    with pytest.raises(NoSignal, match=r"3 iterations in a row(.|\n)*all episodes failed"):
        run("b", failing, "training.max_failed=1.0", "training.max_empty=3", "training.iterations=9")
    with pytest.raises(PalaestraError, match="8 of 8 episodes failed"):
        run("c", failing, "training.max_failed=0.9")


FAILS = """
from palaestra.testing.fakes import EchoEnvironment

class Fails(EchoEnvironment):
    abilities = EchoEnvironment.abilities
    begun = 0

    def __init__(self, *, until: int):
        super().__init__()
        self.until = until

    def reset(self, task):
        if task.split == "train":
            Fails.begun += 1
            if Fails.begun <= self.until:
                {fault}
        return super().reset(task)
"""


def test_6_weights_that_explode(run: Run, tmp_path: Path) -> None:
    pays = {"advantage": [f"{HERE}:of_b"], "regularizers": [{"entropy": {"coefficient": 0.1}}]}
    with pytest.raises(PalaestraError, match="changed the norm of its weights from"):
        run("a", pays, "optimizer.adamw.lr=1e30")
    assert RunFolder.open(tmp_path / "a").checkpoint_steps() == [0]
    assert steps(run("b", pays, "optimizer.adamw.lr=1e-2")) == 6


def test_6_weight_norms() -> None:
    for before, after in ((2.0, 199.0), (0.0, 5.0)):
        refuse_exploded("policy main", before, after, rate="optimizer.adamw.lr")
    for after in (201.0, float("inf"), float("nan")):
        with pytest.raises(PalaestraError):
            refuse_exploded("policy main", 2.0, after, rate="optimizer.adamw.lr")
    module = torch.nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    assert weight_norm(module) == pytest.approx(float(module.weight.norm()))


def test_6_an_exit_in_a_reward_part(run: Run, tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("def leaves(table):\n    exit()\n")
    with pytest.raises(PalaestraError, match=r"reward.py, line 2(.|\n)*it ended the program"):
        run("a", {"reward": ["environment", f"{tmp_path}/reward.py:leaves"]})
