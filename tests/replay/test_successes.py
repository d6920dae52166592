"""Stored successes: (1) packing gives episodes back without loss, and the same bytes again; (2) the store keeps the
newest successes of each task and gives them for that task only; (3) it refuses failures and unknown probabilities;
(4) a copy joins the group of its own task, or is refused; (5) `replay_success` changes only groups that all failed,
one member each; (6) with nothing stored, nothing changes; (7) two copies in a group are refused; (8) it learns from
the environment's expert where asked; (9) a run resumes with its store.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.data import Batch, FinishReason, NextPrompt, RunSetup, StepTable, StopReason, Task, Trajectory
from palaestra.data.protocols import PolicyOutputs
from palaestra.errors import InvalidData, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.replay import SuccessStore, again, in_group_of, is_replayed, pack, unpack
from palaestra.replay.selection import ReplaySuccess
from tests.messages import told
from tests.parts.episodes import NETWORK, assert_resumes, run
from tests.replay.episodes import at, episode
from tests.training.conftest import curve


def test_packing_is_exact() -> None:  # rule 1
    one = episode(1.0, texts=["go", "take"])
    one.next_prompts, one.stop = {"x": NextPrompt(np.array([4, 5], np.int32), 2)}, StopReason.MAX_TURNS
    one.info = {"path": [1, 2.5, "a"], "nested": {"pair": (1, 2), "none": None}}
    one.steps[0].action.finish = FinishReason.STOP
    one.steps[0].info = {"half": 0.1, "flag": True}
    packed = pack([one, episode(0.0)])
    back, other = unpack(packed)
    assert (back.id, back.outcome, back.stop, back.info) == (one.id, 1.0, StopReason.MAX_TURNS, one.info)
    assert back.task == one.task and other.outcome == 0.0
    assert back.next_prompts["x"].ids.tolist() == [4, 5] and back.next_prompts["x"].segment == 2
    for before, after in zip(one.steps, back.steps, strict=True):
        assert after.action.logprobs is not None and after.action.logprobs.dtype == np.float32
        assert np.array_equal(before.observation.vector, after.observation.vector)  # type: ignore[arg-type]
        assert (before.action.text, before.action.value, before.action.finish, before.info) == (
            after.action.text,
            after.action.value,
            after.action.finish,
            after.info,
        )
    once_more = pack(unpack(packed))
    assert once_more["text"] == packed["text"]
    assert all(torch.equal(once_more["arrays"][kind], packed["arrays"][kind]) for kind in packed["arrays"])
    assert unpack(pack([])) == []


def test_store_keeps_the_newest_of_a_task() -> None:  # rule 2
    store = SuccessStore(per_task=2)
    store.add([episode(1.0, sample=i) for i in range(3)] + [episode(1.0, task=7)])
    assert len(store) == 3
    drawn = {store.draw(Task(env="line", seed=0), seed=seed).sample for seed in range(20)}  # type: ignore[union-attr]
    assert drawn == {1, 2}
    assert store.draw(Task(env="line", seed=9), seed=0) is None and Task(env="line", seed=7) in store
    other = SuccessStore(per_task=2)
    other.load_state_dict(store.state_dict())
    assert other.draw(Task(env="line", seed=0), seed=3).id == store.draw(Task(env="line", seed=0), seed=3).id  # type: ignore[union-attr]


def test_store_refuses_failures() -> None:  # rule 3
    store = SuccessStore()
    with pytest.raises(InvalidData, match=r"its outcome is 0\.0"):
        store.add([episode(0.0)])
    with pytest.raises(InvalidData, match="stop reason error"):
        store.add([replace(episode(1.0), stop=StopReason.ERROR)])
    with told(InvalidData, "that sampled it"):
        store.add([episode(1.0, logprobs=False)])


def test_copies_join_their_own_task() -> None:  # rule 4
    failed, stored = episode(0.0, group="new", sample=2), episode(1.0, group="old")
    copy = in_group_of(failed, stored, sample=2)
    assert copy.id == failed.id and is_replayed(copy) and not is_replayed(stored)
    assert all(step.marks.replayed == 1.0 for step in copy.steps)
    with pytest.raises(InvalidData, match="is of task"):
        in_group_of(failed, episode(1.0, task=1), sample=0)
    with told(InvalidData, "5 numbers"):
        in_group_of(failed, episode(1.0, size=5), sample=0)
    foreign = episode(1.0)
    foreign.steps[-1].policy = "other"
    with pytest.raises(InvalidData, match="'other'"):
        in_group_of(failed, foreign, sample=0)


def group(name: str, *outcomes: float, task: int = 0) -> list[Trajectory]:
    return [episode(won, group=name, sample=i, task=task) for i, won in enumerate(outcomes)]


@pytest.mark.parametrize(("how", "size"), [("replace", 4), ("add", 5)])
def test_groups_that_failed_get_a_success(how: Any, size: int) -> None:  # rule 5
    part = ReplaySuccess(how=how)
    part.choose(group("a", 1, 0, 0, 0), at(0))
    played = [*group("b", 0, 0, 0, 0), *group("c", 0, 1, 0, 0), *group("d", 0, 0, 0, 0, task=5)]
    chosen = part.choose(played, at(1))
    by_group = {name: [t for t in chosen if t.group == name] for name in "bcd"}
    assert [len(by_group[name]) for name in "bcd"] == [size, 4, 4]
    assert sorted(t.outcome for t in by_group["b"] if t.outcome is not None) == [0.0] * (size - 1) + [1.0]
    assert [sum(map(is_replayed, by_group[name])) for name in "bcd"] == [1, 0, 0]
    assert len({t.id for t in chosen}) == len(chosen)
    table = StepTable.from_trajectories(chosen)
    assert bool(part(table, at(1)).all())
    assert part.update(Batch.of((), table), at(1)) == {
        "replay/failed_groups": 2,
        "replay/replayed": 1,
        "replay/stored": 2,
    }
    advantage = grpo(table, ddof=0)
    if how == "replace":
        first = [advantage[table["trajectory"] == code][0].item() for code in range(4)]
        assert sorted(first) == pytest.approx([-0.5773, -0.5773, -0.5773, 1.7320], abs=1e-4)


def test_what_a_limit_cut_off_has_failed() -> None:  # rule 5
    part = ReplaySuccess()
    part.choose([episode(1.0), episode(0.0, sample=1)], at(0))
    cut = [replace(episode(0.0, sample=i), outcome=None, stop=StopReason.MAX_TURNS) for i in range(2)]
    chosen = part.choose(cut, at(1))
    assert sorted(one.outcome or 0.0 for one in chosen) == [0.0, 1.0]


def test_another_member_each_time() -> None:  # rule 5
    part = ReplaySuccess()
    part.choose(group("a", 1), at(0))
    places = set()
    for step in range(1, 20):
        chosen = part.choose(group(f"b{step}", 0, 0, 0, 0), at(step))
        places |= {t.sample for t in chosen if is_replayed(t)}
    assert places == {0, 1, 2, 3}


def test_nothing_stored_changes_nothing() -> None:  # rule 6
    played = [*group("a", 0, 0), *group("b", 0, 1)]
    chosen = ReplaySuccess().choose(played, at(0))
    tables = [StepTable.from_trajectories(t) for t in (played, chosen)]
    assert torch.equal(grpo(tables[0]), grpo(tables[1]))


def test_what_is_refused() -> None:  # rules 5 and 7
    part = ReplaySuccess()
    unknown = [replace(t, outcome=None) for t in group("a", 0, 0)]
    with told(InvalidData, "has an outcome"):
        part.choose(unknown, at(0))
    copies = [again(t, group="a", sample=i) for i, t in enumerate(group("a", 1, 1))]
    with told(InvalidData, "trajectories is replayed"):
        part(StepTable.from_trajectories([*copies, episode(0.0, group="a", sample=2)]), at(0))
    with pytest.raises(RecipeError, match="asks the environment's expert"):
        ReplaySuccess(expert=True).start(RunSetup(seed=0), {})


class Says:
    """A policy that gives every token the log-probability −0.25."""

    def collate(self, rows: Any, *, temperature: float) -> Any:
        index = np.array([row.start for row in rows])
        return type("Samples", (), {"cost": np.ones(len(rows), int), "token_index": index})()

    def forward(self, samples: Any, which: Any, outputs: Any) -> PolicyOutputs:
        return PolicyOutputs(columns={"logprob": torch.full((len(which),), -0.25)})


def test_the_expert_solves_what_nobody_did() -> None:  # rule 8
    asked: list[Task] = []

    def demonstrate(tasks: Any) -> list[Trajectory]:
        asked.extend(tasks)
        return [episode(1.0, group="expert", logprobs=False)]

    part = ReplaySuccess(expert=True)
    part.start(RunSetup(seed=0, demonstrate=demonstrate), {})
    for step in range(2):
        chosen = part.choose(group(f"g{step}", 0, 0), at(step, policies={"main": Says()}))
        (copy,) = [t for t in chosen if is_replayed(t)]
        assert [float(s.action.logprobs[0]) for s in copy.steps] == [-0.25, -0.25]  # type: ignore[index]
    assert len(asked) == 1


RECIPE: dict[str, Any] = {
    "sampler": {"repeated": {"size": 4}},
    "selection": [{"replay_success": {"expert": True}}],
    "weights": [{"truncated_importance": {"cap": 1.0}}],
    "advantage": "grpo",
    "warm_start": {"episodes": 4, "epochs": 1},
}


def test_runs_resume_with_their_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 9
    assert_resumes([NETWORK, RECIPE], tmp_path, monkeypatch, "main.safetensors")  # the store itself holds wall times
    lines = curve(tmp_path / "whole")
    assert lines[-1]["replay/stored"] > 0 and sum(line["replay/replayed"] for line in lines) > 0


def test_an_empty_store_is_grpo(tmp_path: Path) -> None:  # rule 6
    plain = {**RECIPE, "selection": [], "weights": []}
    never = {**RECIPE, "selection": [{"replay_success": {"success": 9.0}}], "weights": []}
    runs = [run(tmp_path / name, [NETWORK, layer]) for name, layer in (("plain", plain), ("never", never))]
    weights = [(sorted((folder / "checkpoints").iterdir())[-1] / "main.safetensors").read_bytes() for folder in runs]
    assert weights[0] == weights[1]
