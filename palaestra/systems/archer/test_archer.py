"""Rules of `archer`, in addition to its golden numbers:

1. The Q target is r + gamma · V'(o') where the episode goes on and r where it is over: .95 · .6 = .57, or 0.
2. On a chain of two states with one action Q and V become the discounted return, for slow and for copied targets.
3. No gradient of the policy's loss reaches a weight of the critic, and the advantage carries none.
4. In an iteration the fresh episodes are added, the critic learns, and the update gets replayed situations with the
   policy's present answers; with `fresh` it gets the episodes themselves.
5. During the warm-up every advantage is 0 and `ready` is false; afterwards advantages come from the critic's heads.
6. Rows of weight 0 and of other policies get 0.
7. With `token_baseline` the policy's value is subtracted and gets A as its target; without a critic that is refused.
8. A run that is stopped and resumed is the same byte for byte, with vectors and with tokens, also during the warm-up.
9. Refused: a buffer smaller than a batch, `choose` before `start`, other policies.
10. `filtered` refuses rows without an outcome.
11. While the buffer holds fewer transitions than a batch, the critic does not learn and the policies wait. Acts that
    were cut off without a next observation are counted and not kept, and the run goes on.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.algebra import Credit
from palaestra.data import Action, Batch, Observation, RunSetup, Step, StepTable, Task, TokenBatch, Trajectory, rows_of
from palaestra.data.iteration import Iteration
from palaestra.errors import CheckpointError, ContractError, InvalidData, MissingColumn, PalaestraError, RecipeError
from palaestra.parts.losses import reinforce
from palaestra.policies.network import NetworkPolicy
from palaestra.recipe import load
from palaestra.replay.buffer import ReplayBuffer
from palaestra.replay.transitions import transitions
from palaestra.systems.archer.advantage import Archer, UtteranceCritic
from palaestra.systems.archer.critics import TwinCritic
from palaestra.systems.filtered_cloning import filtered
from palaestra.training.loop import Trainer
from palaestra.training.start import train
from tests.messages import told

SETUP = RunSetup(seed=0, vector_size=2, action_count=2)
STATES = {0: np.array([1, 0], np.float32), 1: np.array([0, 1], np.float32)}


def chain(number: int, *, actions: tuple[int, int] = (0, 0), policy: str = "main") -> Trajectory:
    """State 0, then state 1, then the end with reward 1."""
    steps = [
        Step(
            agent="x",
            turn=turn,
            action=Action(value=taken, tokens=np.array([taken], np.int32), logprobs=np.zeros(1, np.float32)),
            observation=Observation(vector=STATES[turn]),
            reward=float(turn),
            policy=policy,
            terminated=turn == 1,
        )
        for turn, taken in enumerate(actions)
    ]
    return Trajectory(task=Task(env="chain", seed=0), group=f"{number:03d}", steps=steps, outcome=1.0)


def chains(count: int = 8, **more: Any) -> list[Trajectory]:
    return [chain(i, actions=(i % 2, i // 2 % 2), **more) for i in range(count)]


def policy() -> NetworkPolicy:
    return NetworkPolicy("main", SETUP, hidden=(8,))


def at(step: int = 0, acting: Any = None) -> Iteration:
    return Iteration({"main": acting or policy()}, step, seed=step, temperature=1.0, token_budget=64)


def started(**options: Any) -> tuple[Archer, NetworkPolicy]:
    options = {"batch": 4, "critic_updates": 2, "warmup": 0, "hidden": 8, **options}
    archer, acting = Archer(**options), policy()
    archer.start(SETUP, {"main": acting})
    return archer, acting


def experience(archer: Archer, seen: Iteration, trajectories: list[Trajectory]) -> tuple[StepTable, Any]:
    """Run one iteration up to the advantage."""
    chosen = archer.choose(trajectories, seen)
    seen.rows = rows_of(chosen)
    table = StepTable.from_trajectories(chosen)
    return table, archer(table, seen)


def critic_of(*, gamma: float = 0.95, tau: float = 0.1, lr: float = 0.01) -> UtteranceCritic:
    buffer = ReplayBuffer(capacity=100, policy="main")
    buffer.add([chain(0)])
    online = TwinCritic({"size": 2, "actions": 2}, hidden=16, seed=1)
    return UtteranceCritic(online, buffer, gamma=gamma, tau=tau, lr=lr)


# ---- rules 1 to 3 -----------------------------------------------------------------------------------------
def test_1_q_targets() -> None:
    critic = critic_of()
    with torch.no_grad():
        for weight in critic.target.parameters():
            weight.zero_()
        critic.target.v_heads.biases[-1].fill_(0.6)
    goes_on, done = transitions([chain(0)], policy="main")
    done.reward = 0.0
    torch.testing.assert_close(critic.q_target([goes_on, done]), torch.tensor([[0.57, 0.0]] * 2))
    done.reward = 2.0
    torch.testing.assert_close(critic.q_target([done, goes_on]), torch.tensor([[2.0, 0.57]] * 2))


@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_2_the_fixed_point_is_the_discounted_return(tau: float) -> None:
    critic = critic_of(tau=tau)
    both = transitions([chain(0)], policy="main")
    same = [one.utterance for one in both]
    for _ in range(400):
        critic.update(both, same)
    with torch.no_grad():
        for found in critic.online.both([one.observation for one in both], same):
            torch.testing.assert_close(found, torch.tensor([[0.95, 1.0]] * 2), atol=0.02, rtol=0)


def test_2_tau_1_copies() -> None:
    critic = critic_of(tau=1.0)
    both = transitions([chain(0)], policy="main")
    critic.update(both, [one.utterance for one in both])
    for slow, fast in zip(critic.target.parameters(), critic.online.parameters(), strict=True):
        assert torch.equal(slow, fast)


def test_3_the_policy_gradient_stays_out_of_the_critic() -> None:
    archer, acting = started()
    seen = at(0, acting)
    table, advantage = experience(archer, seen, chains())
    assert not advantage.requires_grad
    for weight in archer.critics["main"].online.parameters():
        weight.grad = None
    now = acting.forward(seen.samples("main"), range(len(table)), ("logprob",))
    row = torch.arange(len(table))
    batch = TokenBatch(
        advantage=advantage,
        logprob=now["logprob"],
        proximal=now["logprob"].detach(),
        weight=table.row_weight,
        row=row,
        sequence=row,
        trajectory=row,
    )
    reinforce(batch)[0].sum().backward()
    assert all(weight.grad is None for weight in archer.critics["main"].online.parameters())
    assert any(weight.grad is not None and bool(weight.grad.any()) for weight in acting.module.parameters())


# ---- rules 4 to 7 -----------------------------------------------------------------------------------------
def test_4_the_update_sees_replayed_situations() -> None:
    archer, acting = started()
    before = [weight.clone() for weight in archer.critics["main"].online.parameters()]
    table, _ = experience(archer, at(0, acting), chains())
    assert len(archer.critics["main"].buffer) == len(table) == 16
    assert {name.partition("-")[0] for name in table.labels("group")} == {"replay"}
    assert bool((table["reward"] == 0).all()) and bool(torch.isfinite(table["logprob_behavior"]).all())
    after = archer.critics["main"].online.parameters()
    assert not all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    metrics = archer.update(Batch.of((), table), at())
    assert set(metrics) == {"critic/q_loss", "critic/v_loss", "critic/q", "critic/buffer", "critic/left_out"}
    assert metrics["critic/buffer"] == 16.0
    again, _ = experience(archer, at(1, acting), chains(2))
    assert (len(archer.critics["main"].buffer), len(again)) == (20, 4)


def test_4_what_is_said_comes_from_the_present_policy() -> None:
    archer, acting = started(actor_rows=16)
    with torch.no_grad():
        acting.module.actor.bias.copy_(torch.tensor([-50.0, 50.0]))
    seen = at(0, acting)
    experience(archer, seen, [chain(i) for i in range(8)])  # these episodes chose 0 in every state
    assert {row.step.action.value for row in seen.rows} == {1}
    one, other = ([row.step.action.value for row in rows_of(archer.choose(chains(), at(2)))] for _ in range(2))
    assert len(one) == len(other) == 16


def test_4_fresh_rows_are_the_episodes_themselves() -> None:
    archer, acting = started(fresh=True)
    played = chains()
    assert archer.choose(played, at(0, acting)) is played


def test_5_warm_up() -> None:
    archer, acting = started(warmup=2)
    assert not archer.ready
    played = chains()
    assert archer.choose(played, at(1, acting)) is played
    seen = at(1, acting)
    _, advantage = experience(archer, seen, played)
    assert not archer.ready and not bool(advantage.any())
    _, advantage = experience(archer, at(2, acting), chains())
    assert archer.ready and bool(advantage.any())


def test_5_advantages_are_what_the_heads_say() -> None:
    archer, acting = started()
    seen = at(0, acting)
    _, advantage = experience(archer, seen, chains())
    online = archer.critics["main"].online
    situations = [row.step.observation.vector for row in seen.rows]
    q, v = online.both(situations, [row.step.action.tokens for row in seen.rows])
    torch.testing.assert_close(advantage, q.min(0).values - v.min(0).values)


def test_6_padding_and_other_policies() -> None:
    archer, acting = started(fresh=True)
    seen = at(0, acting)
    played = [*chains(), chain(99, policy="other")]
    table, _ = experience(archer, seen, played)
    weight = torch.ones(len(table))
    weight[:3] = 0
    advantage = archer(table.replace(row_weight=weight), seen)
    assert not bool(advantage[:3].any()) and not bool(advantage[-2:].any())
    assert bool(advantage[3:-2].all())


def test_7_token_baselines() -> None:
    archer, acting = started(token_baseline=True)
    seen = at(0, acting)
    archer.token_baseline = False
    table, plain = experience(archer, seen, chains())
    archer.token_baseline = True
    values = torch.linspace(-1, 1, table.tokens)
    values[0] = torch.nan
    found = archer(table.replace(value_old=values), seen)
    assert isinstance(found, Credit)
    torch.testing.assert_close(found.advantage[1:], plain[1:] - values[1:])
    torch.testing.assert_close(found.target[1:], plain[1:])
    assert found.advantage[0] == plain[0] and bool(found.target[0].isnan())
    archer.ready = False
    found = archer(table.replace(value_old=values), seen)
    assert not bool(found.advantage.any()) and bool(found.target.isnan().all())
    with pytest.raises(MissingColumn, match="no policy gives values"):
        archer(table, seen)


# ---- rule 8 -----------------------------------------------------------------------------------------------
RUN: dict[str, Any] = {
    "name": "archer",
    "seed": 3,
    "environment": {"twenty_questions": {"objects": 4, "attributes": 3, "questions": 3}},
    "advantage": {"archer": {"batch": 8, "critic_updates": 3, "warmup": 1, "capacity": 40, "hidden": 8}},
    "loss": {"reinforce": {}},
    "optimizer": {"adamw": {"lr": 1e-2}},
    "training": {"iterations": 4, "token_budget": 512, "checkpoint_every": 2, "threads": 1, "max_empty": 1},
    "evaluation": {"tasks": 8},
}
NETWORK: dict[str, Any] = {
    "policies": {"main": {"policy": {"network": {"hidden": [8]}}}},
    "rollout": {"runner": "vector", "tasks": 2, "group": 4, "max_turns": 4, "in_flight": 8},
    "warm_start": {"episodes": 8, "epochs": 2},
}
LANGUAGE: dict[str, Any] = {
    "agents": {"*": {"policy": "main", "context": "latest_only"}},
    "policies": {
        "main": {"policy": {"language": {"hidden": 32, "layers": 1, "heads": 2, "context": 96, "vocabulary": 320}}}
    },
    "rollout": {"tasks": 2, "group": 4, "max_turns": 4, "response_tokens": 4},
    "warm_start": {"episodes": 16, "epochs": 4, "batch_tokens": 256, "optimizer": {"adamw": {"lr": 1e-2}}},
}
COPIED = {**LANGUAGE, "advantage": {"archer": {**RUN["advantage"]["archer"], "encoder": "policy"}}}


def run(folder: Path, layers: dict[str, Any], **options: Any) -> Path:
    recipe = load([RUN, layers], [f"run={folder}"])
    train(recipe.settings, recipe=recipe.to_json(), quiet=True, **options)
    return folder


def test_8_weights_that_explode(tmp_path: Path) -> None:
    advantage = {"archer": {**RUN["advantage"]["archer"], "critic_lr": 1e30}}
    with pytest.raises(PalaestraError, match="changed the norm of its weights"):
        run(tmp_path, {**NETWORK, "advantage": advantage})


@pytest.mark.parametrize("layers", [NETWORK, LANGUAGE, COPIED], ids=["network", "language", "copied"])
def test_8_resume_is_bit_for_bit(layers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tmp_path / "whole", layers)
    plain = Trainer.iterate

    def stops(self: Trainer) -> dict[str, float]:
        if self.step == 3:
            raise KeyboardInterrupt
        return plain(self)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Trainer, "iterate", stops)
        run(tmp_path / "parts", layers)
    parts = run(tmp_path / "parts", layers, resume=True)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    one, other = (sorted((folder / "checkpoints").iterdir())[-1] for folder in (parts, whole))
    names = sorted(path.name for path in other.iterdir())
    assert {f"advantage.0.main_{module}.safetensors" for module in ("critic", "target")} < {*names}
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


# ---- rules 9 and 10 ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{"capacity": 10, "batch": 11}, {"capacity": 10, "batch": 4, "actor_rows": 11}])
def test_9_small_buffers_are_refused(options: dict[str, int]) -> None:
    with told(RecipeError, "10 transitions, but"):
        Archer(**options)


def test_9_a_part_that_was_not_started_is_refused() -> None:
    with pytest.raises(ContractError, match="before `start`"):
        Archer().choose(chains(), at())


def test_9_checkpoints_of_other_policies_are_refused() -> None:
    archer, _ = started()
    with told(CheckpointError, "run has ['main']"):
        archer.load_state_dict({"other": {}})


def test_9_policies_with_memory_are_refused() -> None:
    acting = NetworkPolicy("main", SETUP, hidden=(8,), body="gru")
    archer = Archer(batch=4)
    archer.start(SETUP, {"main": acting})
    with told(RecipeError, "memory"):
        archer.choose(chains(), at(0, acting))


def test_9_other_kinds_of_policies_are_refused() -> None:
    painter = SimpleNamespace(architecture=lambda: {"kind": "painting"})
    with told(InvalidData, "`painting`"):
        Archer().start(SETUP, {"main": painter})


def test_10_filtered_needs_outcomes() -> None:
    table = StepTable(group=["g"] * 2, trajectory=["a", "b"], agent=["x"] * 2, turn=[0, 0], reward=[0, 0])
    with pytest.raises(InvalidData, match="an episode has no outcome"):
        filtered(table.replace(outcome=[1.0, float("nan")]))
    with pytest.raises(MissingColumn):
        filtered(table)


# ---- rule 11 ----------------------------------------------------------------------------------------------
def test_11_policies_wait_until_a_batch_is_there() -> None:
    archer, acting = started(batch=32, actor_rows=100)
    before = [weight.clone() for weight in archer.critics["main"].online.parameters()]
    played = chains()
    assert archer.choose(played, at(0, acting)) is played and not archer.ready
    assert all(map(torch.equal, before, archer.critics["main"].online.parameters()))
    assert archer.update(Batch.of((), StepTable.from_trajectories(played)), at()) == {
        "critic/buffer": 16.0,
        "critic/left_out": 0.0,
    }
    assert len(archer.choose(chains(), at(1, acting))) == 32 and archer.ready


@pytest.mark.parametrize("more", [{}, {"value_head": True}], ids=["no value head", "value head"])
def test_11_cut_episodes(more: dict[str, Any], tmp_path: Path) -> None:
    language = {**LANGUAGE["policies"]["main"]["policy"]["language"], **more}
    cut = {**LANGUAGE["rollout"], "max_turns": 2}
    layers = {**LANGUAGE, "policies": {"main": {"policy": {"language": language}}}, "rollout": cut}
    folder = run(tmp_path, {**layers, "evaluation": {"tasks": 1}})
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    left_out = [line["critic/left_out"] for line in lines if "critic/left_out" in line]
    assert len(left_out) == 4 and any(left_out) is not bool(more)  # with a value head the next prompt is known
    assert any("policy/loss" in line for line in lines)
