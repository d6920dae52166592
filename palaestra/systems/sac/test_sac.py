"""SAC:

1. The formulas give the numbers of golden.yaml.
2. The log-density is a density, equals PyTorch's and Stable-Baselines3's, and is finite everywhere.
3. Actions lie within the bounds and depend on seed, vector and weights alone, under both runners.
4. A truncated episode is bootstrapped, a terminated one is not.
5. An update changes actor, critics, target networks and alpha, each by its own loss.
6. Rewards and selections of the recipe count.
7. A resumed run is the same byte for byte.
8. Impossible options, environments and policies are refused with one error.
9. A saved actor acts as before; files that are damaged, or not as `save` writes them, are refused.
10. It learns.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from palaestra.data import Action, Observation, Play, RunSetup, Step, StepResult, Task, Trajectory
from palaestra.data.protocols import Sampling
from palaestra.envs.adapters.gymnasium.world import GymnasiumEnvironment
from palaestra.errors import (
    CheckpointError,
    ContractError,
    EpisodeFailure,
    InvalidData,
    PalaestraError,
    RecipeError,
)
from palaestra.policies.network import NetworkPolicy
from palaestra.recipe import load
from palaestra.registry import register
from palaestra.replay import transitions
from palaestra.rollout.programs import play
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.vector import VectorRunner
from palaestra.systems.sac.learner import Pupil, SoftActorCritic, stacked
from palaestra.systems.sac.policy import SacActor, squashed_logprob
from palaestra.testing import check_environment
from palaestra.training.start import train
from tests.golden_cases import Golden, GoldenCase
from tests.registered import target
from tests.training.conftest import curve, stopped_before

HERE = Path(__file__).resolve()
CASES = Golden().cases(file="sac")
SMALL: dict[str, Any] = {
    "policies": {"main": {"policy": {"sac_actor": {"hidden": [8]}}}},
    "learner": [{"sac": {"hidden": [8], "batch": 16, "capacity": 50}}],
    "rollout": {"max_turns": 12},
    "training": {"iterations": 4, "checkpoint_every": 2},
    "evaluation": {"tasks": 2},
}


@register("environment", "half_right_test")
class HalfRight:
    """One act with the reward −(a − (0.5, −1))²."""

    agents = ("player",)
    abilities = ("tasks", "vector", "box")
    vector_size, action_count = 2, None
    action_box = np.float32([-1, -3]), np.float32([1, 1])
    seen = Observation(vector=np.float32([1, 0]))

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        return [Task(env="half_right_test", seed=number, split=split, params={"split": split}) for number in range(n)]

    def reset(self, task: Task) -> StepResult:
        return StepResult(observations={"player": self.seen})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        value = actions["player"].value
        if isinstance(value, str):
            return StepResult(observations={}, terminated=frozenset(self.agents), info={"invalid": {"player": True}})
        reward = -float(np.square(value - np.float32([0.5, -1])).sum())
        return StepResult(observations={}, rewards={"player": reward}, terminated=frozenset(self.agents))

    def close(self) -> None:
        pass


@register("reward", "ten_times_test")
def ten_times(table: Any) -> torch.Tensor:
    """Ten times the environment's reward."""
    return 10 * table["reward"]


@register("selection", "first_turns_test")
def first_turns(table: Any) -> torch.Tensor:
    """The first three turns of each episode."""
    return (table["turn"] < 3).float()


def actor(environment: Any = None, *, seed: int = 0, **options: Any) -> SacActor:
    source = environment or HalfRight()
    setup = RunSetup(seed=seed, source=source, vector_size=source.vector_size)
    return SacActor("main", setup, **{"hidden": (8,), **options})


def pupil(**options: Any) -> Pupil:
    return Pupil(actor(), SoftActorCritic(**{"hidden": (8,), "batch": 4, "lr": 1e-2, **options}), seed=0)


def episode(length: int = 2, *, name: str = "e", **end: Any) -> Trajectory:
    steps = [
        Step(
            agent="player",
            turn=turn,
            action=Action(value=np.float32([0.5, turn])),
            observation=Observation(vector=np.float32([turn, 1])),
            reward=float(turn),
            policy="main",
        )
        for turn in range(length)
    ]
    for mark, value in (end or {"terminated": True}).items():
        setattr(steps[-1], mark, value)
    last = {"player": Observation(vector=np.float32([length, 1]))} if steps[-1].truncated else {}
    return Trajectory(task=Task(env="half_right_test", seed=0), group=name, steps=steps, last=last)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Runs a small recipe with overrides and returns its folder."""

    def small(name: str, *overrides: str, layers: Mapping[str, Any] | None = None, **options: Any) -> Path:
        recipe = load(["sac/recipe.yaml", SMALL, *([layers] if layers else [])], [f"run={tmp_path / name}", *overrides])
        train(recipe.settings, recipe=recipe.to_json(), quiet=True, **options)
        return tmp_path / name

    return small


def held(folder: Path, step: int) -> dict[str, Any]:
    """The buffer in a checkpoint."""
    state = torch.load(folder / f"checkpoints/step-{step:06d}/learner.0.state.pt")
    return state["main"]["buffer"]  # type: ignore[no-any-return]


# ---- formulas ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.extra["method"])
def test_1_golden(case: GoldenCase) -> None:
    numbers = {name: torch.tensor(given) for name, given in case.extra["numbers"].items()}
    slopes = case.extra.get("gradient", {})
    for name in slopes:
        numbers[name].requires_grad_()
    formula = getattr(sys.modules[target(case.slot, case.part).__module__], case.extra["method"])
    found = formula(**numbers, **case.options)
    assert torch.allclose(found, torch.tensor(case.expected), atol=2e-5, rtol=0), case.derivation
    if slopes:
        found.backward()
    for name, slope in slopes.items():
        assert numbers[name].grad.item() == pytest.approx(slope, abs=1e-5)


def drawn(rows: int = 64, *, spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    before, mean, log_std = torch.randn((3, rows, 2), generator=draw, dtype=torch.float64)
    return spread * before, mean, 0.5 * log_std


def test_2_torch_says_the_same() -> None:
    before, mean, log_std = drawn()
    normal = torch.distributions.Normal(mean, log_std.exp())
    squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform()])
    assert torch.allclose(squashed_logprob(before, mean, log_std), squashed.log_prob(before.tanh()).sum(-1), atol=1e-7)


def test_2_it_is_a_density() -> None:
    actions = torch.linspace(-1, 1, 200_003, dtype=torch.float64)[1:-1]
    mean, log_std = torch.full_like(actions, 0.4), torch.full_like(actions, -0.3)
    density = squashed_logprob(actions.atanh()[:, None], mean[:, None], log_std[:, None]).exp()
    assert torch.trapezoid(density, actions).item() == pytest.approx(1, abs=1e-4)


def test_2_finite_everywhere() -> None:
    before = torch.tensor([[-80.0], [-12.0], [0.0], [12.0], [80.0]], requires_grad=True)
    found = squashed_logprob(before, torch.zeros(5, 1), torch.zeros(5, 1))
    found.sum().backward()
    assert found.isfinite().all() and before.grad is not None and before.grad.isfinite().all()


# ---- acting -----------------------------------------------------------------------------------------------
def test_3_actions() -> None:
    policy, world = actor(), HalfRight()
    low, high = world.action_box
    state = torch.get_rng_state()
    acts = np.stack([policy.act(world.seen, temperature=5.0, seed=seed).value for seed in range(300)])
    assert acts.dtype == np.float32 and (acts >= low).all() and (acts <= high).all()
    assert (acts.min(0) < low + 0.2).all() and (acts.max(0) > high - 0.2).all()
    again = np.stack([actor().act(world.seen, temperature=5.0, seed=seed).value for seed in range(300)])
    assert np.array_equal(acts, again) and len(np.unique(acts)) > 500
    still = [policy.act(world.seen, temperature=0.0, seed=seed).value for seed in range(2)]
    mean = policy.module.layers(torch.from_numpy(world.seen.vector)[None])[0, :2].tanh().detach().numpy()
    assert np.array_equal(*still) and np.allclose(still[0], policy.middle + policy.half * mean, atol=1e-6)
    assert torch.equal(state, torch.get_rng_state())
    unit = policy.unit(torch.from_numpy(np.stack([low, high, policy.middle, high + 9])))
    assert unit.tolist() == [[-1, -1], [1, 1], [0, 0], [1, 1]]


def test_3_both_runners() -> None:
    make = functools.partial(GymnasiumEnvironment, id="Pendulum-v1")
    setup = RunSetup(
        environment_name="gymnasium",
        make_environment=make,
        program=play,
        roles={"*": Role(policy=actor(make()))},
    )
    plays = [Play(task=task, group=str(task.seed), sample=0, seed=7) for task in make().tasks("train", 3, seed=0)]
    made = [kind(setup, RolloutSettings(max_turns=9)).collect(plays) for kind in (EpisodeRunner, VectorRunner)]
    for one, other in zip(*made, strict=True):
        assert one.returns == other.returns and one.steps[-1].truncated and one.last.keys() == {"player"}
        assert all(np.array_equal(a.action.value, b.action.value) for a, b in zip(one.steps, other.steps, strict=True))


def test_3_what_cannot_be_played() -> None:
    policy = actor()
    for seen, said in (
        (Observation(text="a hall"), "no vector"),
        (Observation(vector=np.zeros(3, np.float32)), "a vector of 3 numbers"),
        (Observation(vector=np.float32([np.nan, 0])), "not finite"),
        (Observation(vector=np.zeros(2, np.float32), instruction="Be quick."), "an instruction"),
    ):
        with pytest.raises(EpisodeFailure, match=said):
            policy.act(seen, temperature=1.0, seed=0)
    session = policy.session(context=None, sampling=Sampling(), key=0)
    taken = Action(value=np.float32([0.5, 0]))
    assert session.record(HalfRight.seen, taken).action is taken
    with pytest.raises(EpisodeFailure, match="not one of its vectors"):
        session.record(HalfRight.seen, Action(value=1))
    with pytest.raises(RecipeError, match="top_k=3"):
        policy.session(context=None, sampling=Sampling(top_k=3), key=0)
    check_environment(HalfRight())


# ---- learning ---------------------------------------------------------------------------------------------
def test_4_truncated_is_not_terminated() -> None:
    ended, cut = (
        stacked(transitions([one], policy="main"), torch.device("cpu"))
        for one in (episode(terminated=True), episode(truncated=True))
    )
    assert ended.done.tolist() == [False, True] and cut.done.tolist() == [False, False]
    assert cut.following.tolist() == [[1, 1], [2, 1]] and ended.following.isfinite().all()
    with pytest.raises(InvalidData, match="neither terminated nor truncated"):
        transitions([episode(terminated=False)], policy="main")


def test_5_each_part_learns_by_its_own_loss() -> None:
    learns = pupil(tau=0.25)
    learns.buffer.add([episode(4)])
    parts = {"actor": learns.policy.module, "critics": learns.critics, "slow": learns.slow}
    before = {name: [p.detach().clone() for p in part.parameters()] for name, part in parts.items()}
    said = learns.learn(seed=1)
    moved = {
        name: all(not torch.equal(a, b) for a, b in zip(before[name], part.parameters(), strict=True))
        for name, part in parts.items()
    }
    assert moved == {"actor": True, "critics": True, "slow": True}
    for was, slow, critic in zip(before["slow"], learns.slow.parameters(), learns.critics.parameters(), strict=True):
        assert torch.allclose(slow, 0.75 * was + 0.25 * critic, atol=1e-6)
        assert slow.grad is None
    rises = learns.log_alpha.item() > 0
    assert rises == (said["entropy"] < learns.target_entropy) and learns.target_entropy == -2.0
    assert set(said) == {"q_loss", "q", "entropy", "alpha"} and said["alpha"] == 1.0


def test_5_the_actor_moves_no_critic() -> None:
    losses: dict[str, list[bool]] = {}
    learns = pupil()
    learns.buffer.add([episode(4)])
    descend = learns._descend

    def noted(name: str, loss: torch.Tensor) -> None:
        learns.critics.zero_grad()
        descend(name, loss)
        losses[name] = [p.grad is not None for p in (*learns.policy.module.parameters(), *learns.critics.parameters())]

    learns._descend = noted  # type: ignore[method-assign]
    learns.learn(seed=1)
    own = len(list(learns.policy.module.parameters()))
    assert all(losses["critics"][own:]) and not any(losses["critics"][:own])
    assert all(losses["actor"][:own]) and not any(losses["actor"][own:])


def test_6_rewards_and_selections_count(run: Callable[..., Path]) -> None:
    layers = {"reward": f"{HERE}:ten_times", "selection": f"{HERE}:first_turns"}
    folders = run("plain", "training.iterations=2"), run("other", "training.iterations=2", layers=layers)
    plain, other = (held(folder, 2)["reward"] for folder in folders)
    assert len(plain) == 24 and len(other) == 6
    assert torch.allclose(other[:3], 10 * plain[:3])
    lines = curve(folders[0])
    assert [line["updates"] for line in lines] == [0, 12], "none before there is a batch, then one for each act"
    assert lines[1]["sac/buffer"] == 24 and curve(folders[1])[1]["updates"] == 0


def test_7_resumed(run: Callable[..., Path]) -> None:
    whole = run("whole")
    with stopped_before(3):
        run("parts")
    parts = run("parts", resume=True)
    files = sorted((whole / "checkpoints/step-000004").iterdir())
    names = [file.name for file in files]
    assert {"main.safetensors", "learner.0.main.critics.safetensors", "learner.0.main.slow.safetensors"} <= {*names}
    for file in files:
        assert file.read_bytes() == (parts / "checkpoints/step-000004" / file.name).read_bytes(), file.name
    assert len(held(whole, 4)["reward"]) == 48


# ---- refusals ---------------------------------------------------------------------------------------------
def test_8_refused_by_the_policy(tmp_path: Path) -> None:
    sizes = {"vector_size": 2, "action_count": None}
    endless = SimpleNamespace(action_box=(np.float32([-np.inf]), np.float32([np.inf])), **sizes)
    with pytest.raises(ContractError, match="two finite float32 vectors"):
        actor(endless)
    with pytest.raises(RecipeError, match="the environment takes none"):
        actor(GymnasiumEnvironment(id="CartPole-v1"))
    with pytest.raises(RecipeError, match="the environment shows none"):
        actor(SimpleNamespace(action_box=HalfRight.action_box, vector_size=None, action_count=None))
    with pytest.raises(CheckpointError, match="no policy `sac_actor`"):
        actor(model=str(tmp_path))


def test_8_refused_by_the_learner() -> None:
    with pytest.raises(RecipeError, match="`capacity` is 4, less than the 8 transitions"):
        SoftActorCritic(batch=8, capacity=4)
    network = NetworkPolicy("main", RunSetup(vector_size=2, action_count=2))
    with pytest.raises(RecipeError, match="`main` is a NetworkPolicy"):
        SoftActorCritic().start(RunSetup(), {"main": network})
    learner = SoftActorCritic()
    learner.start(RunSetup(), {"main": actor()})
    with pytest.raises(CheckpointError, match=r"of the policies \['other'\]"):
        learner.load_state_dict({"other": {}})


def test_8_refused_recipes(run: Callable[..., Path]) -> None:
    with pytest.raises(RecipeError, match="`box` of the environment, and `rooms` has none"):
        load(["sac/recipe.yaml", SMALL, {"environment": "rooms"}])
    with pytest.raises(RecipeError, match="its acts have no tokens"):
        run("a", layers={"learner": "policy_gradient", "advantage": "reinforce"})
    with pytest.raises(RecipeError, match="takes vectors as actions"):
        run("b", layers={"policies": {"main": {"policy": "network"}}})


@pytest.mark.parametrize("lr", [1e30, 1e4])
def test_8_weights_that_explode(run: Callable[..., Path], lr: float) -> None:
    with pytest.raises(PalaestraError, match="changed the norm of its weights"):
        run("a", f"learner.sac.lr={lr}")


def test_9_saved(tmp_path: Path) -> None:
    policy = actor(seed=5)
    policy.save(str(tmp_path))
    again = actor(seed=6, model=str(tmp_path), hidden=(32, 32))
    assert again.architecture() == policy.architecture()
    for seed in range(3):
        acts = [one.act(HalfRight.seen, temperature=1.0, seed=seed).value for one in (policy, again, policy.clone())]
        assert np.array_equal(acts[0], acts[1]) and np.array_equal(acts[0], acts[2])
    with pytest.raises(CheckpointError, match="reads vectors of 2 numbers; the environment has 3"):
        actor(GymnasiumEnvironment(id="Pendulum-v1"), model=str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"hidden": [-1]}, "greater than 0"),
        ({"hidden": [8] * 100_000}, "at most 1000 items"),
        ({"hidden": [10**9]}, "at least 6,000,000,000 weights"),
        ({"size": None}, "whole number"),
        ({"extra": 1}, "`extra` has no meaning"),
    ],
)
def test_9_architectures_of_others(changes: dict[str, Any], word: str, tmp_path: Path) -> None:
    policy = actor(seed=5)
    policy.save(str(tmp_path))
    (tmp_path / "sac_actor.json").write_text(json.dumps({**policy.architecture(), **changes}))
    with pytest.raises(CheckpointError, match=word):
        actor(model=str(tmp_path))


def test_9_damaged_files(tmp_path: Path) -> None:
    actor(seed=5).save(str(tmp_path))
    weights = tmp_path / "sac_actor.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="its weights cannot be read"):
        actor(model=str(tmp_path))
    for text in ("", "[]", "[" * 100_000):
        (tmp_path / "sac_actor.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"cannot be read|nested more than"):
            actor(model=str(tmp_path))


def test_10_it_learns(run: Callable[..., Path]) -> None:
    layers = {
        "environment": f"{HERE}:HalfRight",
        "policies": {"main": {"policy": {"sac_actor": {"hidden": [32]}}}},
        "learner": [{"sac": {"hidden": [32], "batch": 64, "capacity": 2000, "lr": 1e-2, "tau": 0.1}}],
        "rollout": {"tasks": 32},
        "training": {"iterations": 20, "checkpoint_every": None},
    }
    lines = [line["reward/mean"] for line in curve(run("a", layers=layers))]
    assert lines[0] < -1 and np.mean(lines[-3:]) > -0.3
