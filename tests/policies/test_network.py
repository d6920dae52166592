"""Rules of the network policy, each pinned by the test of the same number.

1.  Acts follow softmax(logits / temperature) over legal actions, and their log-probability and entropy are
    of that distribution.
2.  An act is a function of seed, vector and weights: not of the batch, its order, or the global random state.
3.  Temperature 0 takes the best legal action; its log-probability and entropy are 0.
4.  Concurrent acts are answered in one forward pass; an interrupted event loop leaves nothing behind.
5.  Training reads the log-probabilities and entropies that acting recorded.
6.  A cut-off episode has the value of the observation after its end; other samples have NaN there.
7.  `forward` answers in the order of `which`, however samples are cut; without a critic it gives no values.
8.  A chain reads steps whose rows were dropped, and trains on the kept ones only.
9.  A missing vector, one of a wrong length, and logits that are no numbers fail that episode, boundary
    `engine`; others in the batch go on.
10. A saved policy acts the same; another architecture is refused, and so are an empty folder and files that are
    damaged, too large, too deep, or not as `save` writes them.
11. Environments without vectors, and top-k or top-p, are refused.
12. Recorded actions become indices and move memory on; what has no index is refused.
13. A policy can be copied, and the copy is on its own.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from palaestra.data import Action, Observation, Row, RunSetup, Step, Task, Trajectory, rows_of
from palaestra.data.protocols import Sampling
from palaestra.errors import CheckpointError, EpisodeFailure, InvalidData, RecipeError
from palaestra.policies.drawing import draw, uniform
from palaestra.policies.network import NetworkPolicy
from tests.messages import told

SIZE, ACTIONS = 4, 3
BODIES = pytest.mark.parametrize("body", ["mlp", "gru"])


def make(body: str = "mlp", **options: object) -> NetworkPolicy:
    policy = NetworkPolicy("main", RunSetup(seed=1, vector_size=SIZE, action_count=ACTIONS), body=body, **options)
    with torch.no_grad():
        policy.module.actor.weight.mul_(200)  # far from undecided
    return policy


def vectors(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, SIZE)).astype(np.float32)


def play(policy: NetworkPolicy, lengths: list[int], *, cut: tuple[int, ...] = (), legal: list | None = None) -> list:
    """Episodes over random vectors, all at once, as trajectories."""

    async def episode(number: int) -> Trajectory:
        session = policy.session(context=None, sampling=Sampling(temperature=0.7, entropy=True), key=number)
        trajectory = Trajectory(task=Task(env="test", seed=number), group=f"{number:02d}")
        seen = vectors(lengths[number] + 1, seed=number)
        for turn in range(lengths[number]):
            observation = Observation(vector=seen[turn], legal=legal)
            acted = await session.act(observation, seed=1000 * number + turn)
            step = Step(agent="player", turn=turn, action=acted.action, observation=observation, policy="main")
            trajectory.steps.append(step)
        step.truncated, step.terminated = number in cut, number not in cut
        if number in cut:
            trajectory.last["player"] = Observation(vector=seen[-1])
        return trajectory

    async def everybody() -> list[Trajectory]:
        return list(await asyncio.gather(*(episode(number) for number in range(len(lengths)))))

    return asyncio.run(everybody())


def everything(policy: NetworkPolicy, rows: list[Row]) -> tuple:
    samples = policy.collate(rows, temperature=0.7)
    return samples, policy.forward(samples, range(len(samples.cost)), {*policy.outputs, "bootstrap_value"})


def test_1_acts_follow_the_distribution() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0, 3.0]]).repeat(40_000, 1)
    legal = np.array([[True, True, True, False]]).repeat(40_000, 0)
    choice = draw(logits, range(40_000), temperature=0.5, legal=legal, entropy=True)
    p = torch.softmax(torch.tensor([2.0, 0.0, -2.0]), 0).numpy()
    np.testing.assert_allclose(np.bincount(choice.index, minlength=4)[:3] / 40_000, p, atol=0.006)  # 3 deviations
    assert not (choice.index == 3).any()
    np.testing.assert_allclose(choice.logprob, np.log(p)[choice.index], rtol=1e-5)
    np.testing.assert_allclose(choice.entropy, -(p * np.log(p)).sum(), rtol=1e-5)
    drawn = uniform(range(100_000))
    assert drawn.min() >= 0 and drawn.max() < 1
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.01  # neighboring seeds have nothing in common


@BODIES
def test_2_the_seed_decides(body: str) -> None:
    policy, seen, seeds = make(body), vectors(33), list(range(33))
    together = policy.act_batch(seen, seeds)
    torch.manual_seed(5)
    np.random.seed(5)
    backwards = policy.act_batch(seen[::-1].copy(), seeds[::-1])
    np.testing.assert_array_equal(together.index, backwards.index[::-1])
    for row in (0, 7, 32):
        alone = policy.act_batch(seen[row : row + 1], [row])
        assert alone.index[0] == together.index[row]
        assert alone.logprob[0] == pytest.approx(together.logprob[row], abs=1e-6)
    assert (together.index != policy.act_batch(seen, [seed + 1 for seed in seeds]).index).any()


def test_3_temperature_0_is_the_best_legal_action() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [0.0, 2.0, 1.0]])
    legal = np.array([[True, True, True], [True, False, True]])
    choice = draw(logits, [1, 2], temperature=0.0, legal=legal, entropy=True)
    assert choice.index.tolist() == [1, 2]
    assert choice.logprob.tolist() == choice.entropy.tolist() == [0.0, 0.0]


def test_4_concurrent_acts_are_one_pass() -> None:
    policy, sizes = make(), []
    answer = policy.answer
    policy.answer = lambda questions: sizes.append(len(questions)) or answer(questions)
    play(policy, [2, 2, 2, 3, 1])
    assert sizes == [5, 4, 1]

    async def interrupted() -> None:
        session = policy.session(context=None, sampling=Sampling(), key=0)
        waiting = asyncio.ensure_future(session.act(Observation(vector=vectors(1)[0]), seed=0))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(interrupted())
    play(policy, [1, 1])
    assert sizes[-1] == 2


@BODIES
@pytest.mark.parametrize("legal", [None, [0, 2]])
def test_5_training_reads_what_acting_recorded(body: str, legal: list | None) -> None:
    policy = make(body)
    rows = rows_of(play(policy, [5, 9, 1, 20], legal=legal))
    samples, now = everything(policy, rows)
    steps = [rows[token].step for token in samples.token_index]  # one token a row
    logprobs = torch.tensor([float(step.action.logprobs[0]) for step in steps])
    entropies = torch.tensor([float(step.action.entropy[0]) for step in steps])
    tolerance = 1e-6 if body == "mlp" else 1e-5  # a fused pass over time rounds differently
    torch.testing.assert_close(now["logprob"], logprobs, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(now["entropy"], entropies, atol=1e-5, rtol=1e-5)
    assert sorted(samples.token_index) == list(range(35))
    assert len(samples.cost) == (35 if body == "mlp" else 4)
    now["logprob"].sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in policy.module.parameters() if p.grad is not None)


@BODIES
def test_6_value_after_a_cut(body: str) -> None:
    policy = make(body)
    trajectories = play(policy, [3, 4], cut=(1,))
    rows = rows_of(trajectories)
    samples, now = everything(policy, rows)
    (sample,) = np.flatnonzero(samples.end_row >= 0)
    assert samples.end_row[sample] == 6  # the last row of the second episode
    assert torch.isfinite(now.bootstrap_value).nonzero().tolist() == [[sample]]
    seen = np.stack([step.observation.vector for step in trajectories[1].steps] + [vectors(5, seed=1)[-1]])
    _, values = policy.module.read(torch.from_numpy(seen), torch.tensor([5]), values=True)
    torch.testing.assert_close(now.bootstrap_value[sample], values[-1])
    assert int(samples.cost.sum()) == 8


@BODIES
def test_7_order_of_which(body: str) -> None:
    policy = make(body)
    rows = rows_of(play(policy, [3, 4, 2], cut=(0,)))
    samples, whole = everything(policy, rows)
    for which in ([2, 0, 1], [1], [0, 2]):
        cut = policy.forward(samples, which, ("logprob", "value", "bootstrap_value"))
        tokens = np.concatenate([np.arange(*samples.token_start[i : i + 2]) for i in which])
        torch.testing.assert_close(cut["logprob"], whole["logprob"][tokens])
        torch.testing.assert_close(cut["value"], whole["value"][tokens])
        torch.testing.assert_close(cut.bootstrap_value, whole.bootstrap_value[which], equal_nan=True)
        assert "entropy" not in cut.columns
    bare = make(body, critic=False)
    assert "value" not in everything(bare, rows)[1].columns and not bare.has_critic
    assert NetworkPolicy.abilities({"critic": False}) == frozenset()
    assert NetworkPolicy.abilities({}) == frozenset({"critic"})


def test_8_dropped_rows_are_read() -> None:
    policy = make("gru")
    rows = rows_of(play(policy, [6]))
    _, whole = everything(policy, rows)
    samples, some = everything(policy, [rows[2], rows[4]])
    torch.testing.assert_close(some["logprob"], whole["logprob"][[2, 4]])
    assert samples.token_index.tolist() == [2, 4] and samples.cost.tolist() == [5]


def test_9_failures_are_of_one_episode() -> None:
    policy = make()

    async def ask(*seen: np.ndarray | None) -> list:
        sessions = [policy.session(context=None, sampling=Sampling(), key=i) for i in range(len(seen))]
        acts = (s.act(Observation(vector=v), seed=0) for s, v in zip(sessions, seen, strict=True))
        return await asyncio.gather(*acts, return_exceptions=True)

    spoiled = np.array([np.nan, 0, 0, 0], np.float32)
    none, short, bad, fine = asyncio.run(ask(None, np.zeros(2, np.float32), spoiled, vectors(1)[0]))
    assert all(isinstance(error, EpisodeFailure) and error.boundary == "engine" for error in (none, short, bad))
    assert "no `vector`" in none.what and "2 numbers instead of 4" in short.what and "not finite" in bad.what
    assert fine.action.value in range(ACTIONS) and fine.action.tokens.dtype == np.int32


@BODIES
def test_10_files(body: str, tmp_path: Path) -> None:
    policy = make(body, hidden=(8, 8))
    policy.save(str(tmp_path / "a"))
    setup = RunSetup(seed=99, vector_size=SIZE, action_count=ACTIONS)
    loaded = NetworkPolicy("other", setup, model=str(tmp_path / "a"))
    assert loaded.architecture() == policy.architecture()
    np.testing.assert_array_equal(
        policy.act_batch(vectors(9), range(9)).logprob, loaded.act_batch(vectors(9), range(9)).logprob
    )
    with told(CheckpointError, "4 numbers"):
        NetworkPolicy("other", RunSetup(seed=0, vector_size=5, action_count=ACTIONS), model=str(tmp_path / "a"))
    with told(CheckpointError, "network.json"):
        NetworkPolicy("other", setup, model=str(tmp_path))
    architecture = (tmp_path / "a" / "network.json").read_text()
    weights = (tmp_path / "a" / "network.safetensors").read_bytes()
    for damaged in (b"", b"{", weights[: len(weights) // 2]):
        (tmp_path / "a" / "network.safetensors").write_bytes(damaged)
        with pytest.raises(CheckpointError, match="its weights cannot be read"):
            NetworkPolicy("other", setup, model=str(tmp_path / "a"))
    for text in ("", "{", "[]", "{}", "NaN", architecture.replace('"kind"', '"sort"')):
        (tmp_path / "a" / "network.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"its network\.json cannot be read"):
            NetworkPolicy("other", setup, model=str(tmp_path / "a"))
    (tmp_path / "a" / "network.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="nested more than"):
        NetworkPolicy("other", setup, model=str(tmp_path / "a"))


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("hidden", [-1], "greater than 0"),
        ("hidden", ["x"], "valid integer"),
        ("hidden", [1.5], "valid integer"),
        ("hidden", [8] * 100_000, "at most 1000 items"),
        ("hidden", [10**9], "at least 7,000,000,000 weights"),
        ("size", "x" * 10_000, "whole number"),
        ("actions", True, "whole number"),
        ("kind", "os.system", "`kind` is 'os.system'"),
        ("extra", 1, "`extra` has no meaning"),
        ("activation", "eval", "'tanh' or 'relu'"),
        ("shared", [1], "valid boolean"),
    ],
)
def test_10_architectures_of_others(key: str, value: object, word: str, tmp_path: Path) -> None:
    make().save(str(tmp_path))
    file, setup = tmp_path / "network.json", RunSetup(seed=0, vector_size=SIZE, action_count=ACTIONS)
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(CheckpointError, match=re.escape(word)) as caught:
        NetworkPolicy("other", setup, model=str(tmp_path))
    assert len(str(caught.value)) < 1000


def test_11_refusals() -> None:
    with told(RecipeError, "vectors"):
        NetworkPolicy("main", RunSetup(seed=0, action_count=2))
    box = SimpleNamespace(action_box=(np.float32([-1]), np.float32([1])))
    with told(RecipeError, "vectors") as caught:
        NetworkPolicy("main", RunSetup(vector_size=3, source=box))
    assert "`sac_actor`" in caught.value.remedy
    with told(RecipeError, "fixed number"):
        NetworkPolicy("main", RunSetup(seed=0, vector_size=2))
    for sampling in (Sampling(top_k=3), Sampling(top_p=0.9)):
        with told(RecipeError, "top_"):
            make().session(context=None, sampling=sampling, key=0)


def test_12_recorded_actions() -> None:
    policy = make("gru")
    one, other = (policy.session(context=None, sampling=Sampling(), key=key) for key in range(2))
    seen = [Observation(vector=vector, legal=("left", "right", "stay")) for vector in vectors(3)]
    assert one.record(seen[0], Action(text="right")).action.tokens.tolist() == [1]
    assert one.record(seen[1], Action(text="go", value=2)).action.value == 2
    for observation in seen[:2]:
        asyncio.run(other.act(observation, seed=0))
    torch.testing.assert_close(one.memory, other.memory)  # memory follows what was seen, not who acted
    with told(EpisodeFailure, "from 0 to 2"):
        one.record(seen[2], Action(text="fly"))
    step = Step(agent="player", turn=0, action=Action(text="fly"), observation=seen[0])
    trajectory = Trajectory(task=Task(env="test", seed=0), group="g", steps=[step])
    with told(InvalidData, "index"):
        policy.collate(rows_of([trajectory]), temperature=1.0)


def test_13_copies_are_on_their_own() -> None:
    policy = make()

    async def act_and_copy() -> NetworkPolicy:
        await policy.session(context=None, sampling=Sampling(), key=0).act(Observation(vector=vectors(1)[0]), seed=0)
        return copy.deepcopy(policy)  # while the event loop runs: loops cannot be copied

    clone = asyncio.run(act_and_copy())
    with torch.no_grad():
        policy.module.actor.bias.add_(torch.tensor([50.0, 0.0, 0.0]))
    play(clone, [1])
    assert (policy.act_batch(vectors(20), range(20)).index == 0).all()
    assert (clone.act_batch(vectors(20), range(20)).index != 0).any()
    assert clone.session(context=None, sampling=Sampling(), key=0).batcher.policy is clone
