"""Parts with state, and what the update asks of whole trajectories.

(1) A run makes one object of a part with state, starts it with the trained policies and calls it with the iteration at
the episodes; (2) what it remembers is in the checkpoint: a stopped and resumed run is the same byte for byte;
(3) it may choose which episodes the update learns from; (4) while it warms up, iterations without an update do not
stop the run; (5) its columns reach the estimator; (6) a ratio over trajectories keeps them in one mini-batch, and
with one update all ratios agree; (7) gradient norms per agent; (8) strict refuses lone peers and repeated rows;
(9) the value loss reaches rows whose policy weight is 0; (10) an iteration's updates end where the policy has
moved too far, whatever its loss reports, also where the epochs are the policy's own; (11) an environment in a file of
one's own plays in other processes too; (12) a function that names the iteration gets it;
(13) the members of StatefulPart change nothing by default, and a class that lacks one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palaestra.data import Batch, Iteration, StepTable, TokenBatch
from palaestra.data.batches import micro_batches, mini_batches
from palaestra.data.protocols import StatefulPart
from palaestra.errors import ContractError, InvalidData, NoSignal
from palaestra.parts.losses import ppo_clip
from palaestra.registry import register
from palaestra.registry.bound import BoundPart, bind
from palaestra.training.stages import started
from tests.training.conftest import curve, final_weights, stopped_before

Run = Callable[..., Path]
HERE = f"{Path(__file__).resolve()}"


@register("reward", "counting")
class Counting(StatefulPart):
    """Adds the number of rows it has ever seen to a column of its own."""

    def __init__(self, *, scale: float = 1.0) -> None:
        self.scale, self.total, self.policies = scale, torch.zeros(1), {}

    def start(self, setup: Any, policies: Mapping[str, Any]) -> None:
        self.policies = dict(policies)

    def __call__(self, table: StepTable, iteration: Any) -> dict[str, Tensor]:
        assert len(iteration.rows) == len(table) and set(iteration.policies) == set(self.policies) == {"main"}
        assert torch.isfinite(iteration.logprob(iteration.policies["main"], "main")).all()
        self.total = self.total + len(table)
        return {"process": torch.full((len(table),), float(self.total) * self.scale)}

    def update(self, batch: Batch, iteration: Any) -> dict[str, float]:
        return {"counting/total": float(self.total), "counting/column": float(batch.table["process"].mean())}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


class Latest(StatefulPart):
    """An estimator that learns from the first half of the episodes, after a warm-up."""

    def __init__(self, *, warm: int = 0) -> None:
        self.warm, self.seen, self.ready = warm, 0, False

    def choose(self, trajectories: list[Any], iteration: Any) -> list[Any]:
        self.seen += 1
        self.ready = self.seen > self.warm
        return trajectories[: len(trajectories) // 2]

    def __call__(self, table: StepTable, iteration: Any) -> Tensor:
        return table["reward"] - table["reward"].mean() if self.ready else torch.zeros(len(table))

    def update(self, batch: Batch, iteration: Any) -> dict[str, float]:
        return {"latest/rows": float(len(batch.table))}

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def numbered(table: StepTable, iteration: Iteration, *, size: float = 1.0) -> Tensor:
    """Pays the number of the iteration."""
    return torch.full((len(table),), size * iteration.number)


class Partial:
    """A part with state that inherits no defaults and lacks a member."""

    def __call__(self, table: StepTable, iteration: Any) -> Tensor:
        return table["reward"]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Bare(StatefulPart):
    """A part with state that has every member by default."""

    def __call__(self, table: StepTable, iteration: Any) -> Tensor:
        return table["reward"]


COUNTED = {"reward": [{f"{HERE}:Counting": {"scale": 2.0}}]}


def test_1_made_once_and_called(echo: Run) -> None:
    lines = curve(echo("a", layers=COUNTED))
    totals = [line["counting/total"] for line in lines]
    assert totals == sorted(totals) and totals[0] == 32 and totals[-1] > 64
    assert lines[0]["counting/column"] == 64.0


def test_2_resumes(echo: Run) -> None:
    whole = echo("whole", layers=COUNTED)
    with stopped_before(3):
        echo("parts", layers=COUNTED)
    parts = echo("parts", layers=COUNTED, resume=True)
    assert (parts / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert final_weights(parts) == final_weights(whole)


def test_3_chooses(echo: Run) -> None:
    lines = curve(echo("a", layers={"advantage": [{f"{HERE}:Latest": {}}]}))
    assert [line["latest/rows"] for line in lines] == [16.0] * 4


def test_4_warms_up(echo: Run) -> None:
    layers = {"advantage": [{f"{HERE}:Latest": {"warm": 3}}]}
    lines = curve(echo("a", "training.max_empty=2", layers=layers))
    assert ["policy/loss" in line for line in lines] == [False, False, False, True]
    never = {"advantage": [{f"{Path(__file__).resolve()}:no_advantage": {}}]}
    with pytest.raises(NoSignal):
        echo("b", "training.max_empty=2", layers=never)


def no_advantage(table: StepTable) -> Tensor:
    return torch.zeros(len(table))


def same_process(table: StepTable) -> Tensor:
    return table["process"]


def test_5_columns_reach_the_estimator(echo: Run) -> None:
    lines = curve(echo("a", layers=COUNTED | {"advantage": [{f"{HERE}:same_process": {}}]}))
    assert [line["advantage/mean"] for line in lines] == [line["counting/column"] for line in lines]


def test_6_whole_trajectories(echo: Run) -> None:
    several = ("training.epochs=2", "training.minibatches=3", "training.token_budget=64")

    def norm(ratio: str, *overrides: str) -> float:
        given = (f"loss.ppo_clip.ratio={ratio}", "training.iterations=1", *overrides)
        folder = echo(f"{ratio}-{len(overrides)}", *given, layers={"loss": {"ppo_clip": {}}})
        return curve(folder)[0]["policy/grad_norm"]

    by_token, one_update_by_token = norm("token", *several), norm("token")
    for ratio in ("invocation", "trajectory"):
        assert norm(ratio, *several) != by_token
        assert norm(ratio) == pytest.approx(one_update_by_token, rel=1e-4)


def test_6_batches_keep_units_together() -> None:
    cost, together = np.array([3, 1, 4, 1, 5, 9]), np.array([7, 8, 7, 9, 8, 9])
    for batches in (
        micro_batches(cost, range(6), budget=8, together=together),
        mini_batches(range(6), 2, seed=1, together=together),
    ):
        assert sorted(i for batch in batches for i in batch) == list(range(6))
        for code in (7, 8, 9):
            assert sum(bool({i for i in batch if together[i] == code}) for batch in batches) == 1


def test_7_agent_gradients(echo: Run) -> None:
    line = curve(echo("a", "environment.echo.agents=[a,b]", "training.agent_gradients=true"))[0]
    norms = [line[f"policy/agent/{name}/grad_norm"] for name in ("a", "b")]
    assert all(norm > 0 for norm in norms) and norms[0] != norms[1]
    assert sum(norms) >= line["policy/grad_norm"] * 0.99  # triangle inequality: the shares sum to the whole
    alone = curve(echo("b", "training.agent_gradients=true"))[0]
    (name,) = [key for key in alone if key.startswith("policy/agent/")]
    assert alone[name] == pytest.approx(alone["policy/grad_norm"], rel=1e-3)


def test_8_strict_refuses_lone_peers(echo: Run) -> None:
    assert bind("advantage", BoundPart(name="gigpo")).options["singleton"] == "zero"
    lone = {"advantage": {"grpo": {"by": ["group", "turn", "trajectory"], "unit": "row"}}}
    with pytest.raises(InvalidData, match="single member"):
        echo("strict", "strict=true", layers=lone)


def test_8_strict_refuses_repeated_rows() -> None:
    columns: dict[str, Any] = {"group": ["g"] * 3, "trajectory": ["a", "a", "b"], "agent": ["x"] * 3}
    table = StepTable(**columns, turn=[0, 0, 0], reward=[1, 1, 0])
    with pytest.raises(InvalidData, match="1 rows repeat an act"):
        table.refuse_duplicates()
    table.replace(row_weight=[0.5, 0.5, 1.0]).refuse_duplicates()


def test_8_groups_hold_one_task() -> None:
    with pytest.raises(InvalidData, match="different tasks"):
        StepTable(
            group=["g", "g"], trajectory=["a", "b"], agent=["x"] * 2, turn=[0, 0], reward=[1, 0], task=["t1", "t2"]
        )


def half(table: StepTable) -> Tensor:
    return (table["turn"] > 0).float()


def test_9_values_learn_where_the_policy_does_not(echo: Run) -> None:
    layers = {
        "advantage": "ppo",
        "weights": [f"{HERE}:half"],
        "regularizers": [{"value": {}}],
        "policies": {"main": {"policy": {"language": {"value_head": True}}}},
    }
    masked = curve(echo("masked", "training.iterations=1", layers=layers))[0]
    plain = curve(echo("plain", "training.iterations=1", layers=layers | {"weights": []}))[0]
    assert masked["value/loss"] == pytest.approx(plain["value/loss"], rel=1e-5)


def test_10_stops_where_the_policy_moved_too_far(echo: Run) -> None:
    several = ("training.epochs=4", "training.iterations=1", "optimizer.adamw.lr=0.01")
    free, bound = echo("free", *several), echo("bound", *several, "training.stop_kl=0.0001")
    assert "policy/left_out" not in curve(free)[0]
    left_out = curve(bound)[0]["policy/left_out"]
    assert 1 <= left_out <= 3
    assert (curve(free)[0]["updates"], curve(bound)[0]["updates"]) == (4, 4 - left_out)


@pytest.mark.parametrize("loss", ["reinforce", "behavior_cloning"])
def test_10_whatever_the_loss_reports(echo: Run, loss: str) -> None:
    several = ("training.epochs=4", "training.iterations=1", "optimizer.adamw.lr=0.01")
    line = curve(echo("a", *several, "training.stop_kl=0.0001", layers={"loss": loss}))[0]
    assert 1 <= line["policy/left_out"] <= 3 and line["updates"] == 4 - line["policy/left_out"]
    assert "policy/kl" not in curve(echo("b", *several, layers={"loss": loss}))[0]


def test_10_measured_as_losses_report_it(echo: Run) -> None:
    several = ("training.epochs=2", "training.iterations=1", "training.minibatches=2", "training.stop_kl=9")
    silent = {"loss": f"{HERE}:silent"}
    lines = [curve(echo(name, *several, layers=layer))[0] for name, layer in (("a", {}), ("b", silent))]
    assert lines[0]["policy/kl"] > 0
    assert lines[1]["policy/kl"] == pytest.approx(lines[0]["policy/kl"], rel=1e-3)


def silent(batch: TokenBatch) -> tuple[Tensor, dict[str, Tensor]]:
    return ppo_clip(batch)[0], {}


def test_10_epochs_of_a_policy(echo: Run) -> None:
    own = {"policies": {"main": {"epochs": 4}}}
    several = ("training.iterations=1", "optimizer.adamw.lr=0.01")
    whole, one = echo("a", "training.epochs=4", *several), echo("b", *several, layers=own)
    assert curve(one)[0]["policy/kl"] == curve(whole)[0]["policy/kl"] > 0
    assert "policy/left_out" in curve(echo("c", *several, "training.stop_kl=0.0001", layers=own))[0]


OWN = '''
from palaestra.testing.fakes import EchoEnvironment


class Mine(EchoEnvironment):
    """An environment of one's own, in a file."""
'''


def test_11_an_environment_in_a_file_plays_in_processes(echo: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    layers = {"environment": {f"{file}:Mine": {"turns": 2}}, "warm_start": None}
    folder = echo("a", "rollout.workers=2", "rollout.worker_kind=process", "training.iterations=1", layers=layers)
    assert curve(folder)[0]["episodes/failed"] == 0


def test_12_a_function_names_the_iteration(echo: Run) -> None:
    part = bind("reward", BoundPart(name=f"{HERE}:numbered", options={"size": 2.0}))
    table = StepTable(group=["g"], trajectory=["a"], agent=["x"], turn=[0], reward=[0.5])
    at = [part.at(Iteration({}, number, 0, 1.0, 64))(table).tolist() for number in (0, 3)]
    assert at == [[0.0], [6.0]] and part.part.data == ("table",)
    lines = curve(echo("a", layers={"reward": [f"{HERE}:numbered"]}))
    assert len(lines) == 4


def test_13_members_by_default(echo: Run) -> None:
    plain, bare = (
        curve(echo(name, layers={"reward": parts}))
        for name, parts in (("plain", ["environment"]), ("bare", ["environment", f"{HERE}:Bare"]))
    )
    timeless = [
        [{k: v for k, v in line.items() if not k.startswith(("time/", "reward/shaped"))} for line in lines]
        for lines in (plain, bare)
    ]
    assert timeless[0] == timeless[1]


def test_13_a_class_that_lacks_a_member() -> None:
    with pytest.raises(ContractError, match=r"Partial has no `ready`(.|\n)*`class Partial\(StatefulPart\)`"):
        started([bind("reward", BoundPart(name=f"{HERE}:Partial"))])
