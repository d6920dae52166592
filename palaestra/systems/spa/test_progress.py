"""The reward `progress`, its estimator, and `equal_split`:

1. They have the published numbers: step rewards and the estimator's loss.
2. A perfect estimator and beta 0 change no return; a single step carries the whole prediction.
3. Before the estimator is fitted the last step's reward is the outcome; afterwards rewards are alpha · c + beta · g.
4. g is `executable`, else 1 − `invalid`, else 1; `weight_by_steps_left` gives the last step 0.
5. The estimator learns online, or once after `explore` iterations; if all episodes have the same outcome it waits, and
   the metrics say so.
6. On rooms the contributions of taking the key, opening the door and reaching the goal exceed those of impossible
   actions, on held-out episodes, and the estimator's error is far below the outcome's variance.
7. State is saved and restored, collected episodes included; a stopped and resumed run is the same byte for byte.
8. A fit without failures or successes, unequal lengths, another number of turns than the episode had, negative factors,
   missing outcomes, policies with different inputs, and a call before `start` are refused.
9. An equal split keeps the return, per trajectory or agent, and gives padding 0.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.algebra import total_return
from palaestra.data import Batch, Play, StepTable, derive, rows_of
from palaestra.data.iteration import Iteration
from palaestra.errors import ContractError, InvalidData, NoSignal, PalaestraError, RecipeError
from palaestra.recipe import load
from palaestra.systems.spa.encoders import StepEstimator
from palaestra.systems.spa.equal_split import equal_split
from palaestra.systems.spa.progress import Progress, progress_loss, progress_rewards, rows_of_episodes
from palaestra.training.setup import build_setup
from palaestra.training.warm_start import warm_start
from tests.parts.episodes import LANGUAGE, NETWORK, RUN, SETUP, assert_resumes, at, episode, policy, table_of
from tests.parts.tables import quick, tables

# An episode with an action 1 succeeds.
WAYS = [([1, 0, 0], 1.0), ([0, 0, 2, 2], 0.0), ([0, 1, 2], 1.0), ([2, 0], 0.0)]


def batch(acting: Any) -> list[Any]:
    return [episode(acting, i, way, won) for i, (way, won) in enumerate(WAYS)]


def started(**options: Any) -> Progress:
    part = Progress(**{"hidden": 16, "lr": 1e-2, "batch": 4, **options})
    part.start(SETUP, {"main": policy()})
    return part


def prepared() -> tuple[StepTable, Iteration, Any]:
    acting = policy()
    played = batch(acting)
    return table_of(played), at(acting, played), played


def constant(contribution: list[float]) -> Any:
    """Replaces the estimator by these contributions."""
    return lambda episodes: torch.tensor(contribution)


# ---- rules 1 and 2 ----------------------------------------------------------------------------------------
def test_1_published_numbers() -> None:
    contribution, executable = torch.tensor([0.2, 0.5, 0.3]), torch.tensor([1.0, 0.0, 1.0])
    rewards = progress_rewards(contribution, executable, alpha=1.0, beta=0.5)
    torch.testing.assert_close(rewards, torch.tensor([0.7, 0.5, 0.8]).double(), atol=1e-7, rtol=0)
    both = torch.tensor([0.2, 0.5, 0.3, 0.2, 0.1, 0.1])
    losses = progress_loss(both, torch.tensor([3, 3]), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(losses, torch.tensor([0.0, 0.16]), atol=1e-6, rtol=0)


def test_2_a_perfect_estimator_leaves_returns_as_they_were() -> None:
    table, seen, _ = prepared()
    part = started(beta=0.0)
    part.fitted, part._estimator = True, constant([0.75, 0.0, 0.25, 0, 0, 0, 0, 0.5, 1.0, -0.5, 0, 0])
    rewards = part(table, seen)
    assert torch.equal(total_return(table.replace(reward=rewards)), total_return(table))
    assert not torch.equal(rewards, table["reward"])


def test_2_one_step_carries_the_prediction() -> None:
    acting = policy()
    played = [episode(acting, 0, [1], 1.0), episode(acting, 1, [0], 0.0)]
    table, seen = table_of(played), at(acting, played)
    part = started(beta=0.0, epochs=200)
    part.update(Batch.of((), table), seen)
    torch.testing.assert_close(part(table, seen), torch.tensor([1.0, 0.0]), atol=0.05, rtol=0)


# ---- rules 3 to 5 -----------------------------------------------------------------------------------------
def test_3_outcomes_until_it_is_fitted() -> None:
    table, seen, _ = prepared()
    part = started(alpha=2.0, beta=0.5)
    assert part(table.replace(reward=torch.full((12,), 9.0)), seen).tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    metrics = part.update(Batch.of((), table), seen)
    assert part.fitted and set(metrics) == {"progress/executable", "progress/skipped", "progress/loss"}
    assert "progress/held_out" in part.update(Batch.of((), table), seen)
    part._estimator = constant([0.25] * 12)
    assert part(table, seen).tolist() == [1.0] * 12


def test_3_rows_of_weight_0_get_nothing() -> None:
    table, seen, _ = prepared()
    part = started()
    weight = torch.ones(12)
    weight[:3] = 0
    assert part(table.replace(row_weight=weight), seen).tolist() == [0] * 9 + [1, 0, 0]
    part.update(Batch.of((), table), seen)
    assert part(table.replace(row_weight=weight), seen)[:3].tolist() == [0, 0, 0]


def test_4_what_counts_as_executable() -> None:
    table, seen, _ = prepared()
    part = started(alpha=0.0, beta=0.5)
    part.update(Batch.of((), table), seen)
    assert part(table, seen).tolist() == [0.5] * 12
    marked = table.replace(invalid=[1.0] + [0.0] * 11)
    assert part(marked, seen).tolist() == [0.0] + [0.5] * 11
    assert part.update(Batch.of((), marked), seen)["progress/executable"] == pytest.approx(11 / 12)
    assert part(marked.replace(executable=[0.0, 0.0] + [1.0] * 10), seen).tolist() == [0.0, 0.0] + [0.5] * 10


def test_4_weighted_by_steps_left() -> None:
    table, seen, _ = prepared()
    part = started(alpha=0.0, beta=1.0, weight_by_steps_left=True)
    part.update(Batch.of((), table), seen)
    assert part(table, seen).tolist() == [2, 1, 0, 3, 2, 1, 0, 2, 1, 0, 1, 0]


def test_5_online() -> None:
    table, seen, _ = prepared()
    part = started(epochs=10)
    losses = [part.update(Batch.of((), table), seen)["progress/loss"] for _ in range(10)]
    assert losses[-1] < 0.02 < losses[0]


def test_5_once_after_exploring() -> None:
    table, seen, _ = prepared()
    part = started(explore=2, epochs=5)
    assert "progress/loss" not in part.update(Batch.of((), table), seen) and not part.fitted
    assert "progress/loss" in part.update(Batch.of((), table), seen) and part.fitted
    before = part(table, seen)
    assert set(part.update(Batch.of((), table), seen)) == {"progress/executable", "progress/skipped"}
    assert torch.equal(part(table, seen), before) and not part._gathered


def test_5_all_episodes_end_alike() -> None:
    acting = policy()
    failed = [episode(acting, i, [0, 2], 0.0) for i in range(3)]
    table, seen = table_of(failed), at(acting, failed)
    part = started()
    assert part.update(Batch.of((), table), seen) == {"progress/executable": 1.0, "progress/skipped": 1.0}
    assert not part.fitted and part(table, seen).tolist() == [0.0] * 6
    waiting = started(explore=1)
    assert waiting.update(Batch.of((), table), seen)["progress/skipped"] == 1.0
    table, seen, _ = prepared()
    assert "progress/loss" in waiting.update(Batch.of((), table), seen)  # with the episodes collected before


# ---- rule 6 -----------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_6_contributions_stand_where_episodes_are_decided() -> None:
    settings = load(["recipes/setups/rooms-tiny.yaml", "palaestra/systems/spa/method.yaml"], []).settings
    setup = build_setup(settings)
    assert settings.warm_start is not None
    warm_start(setup, settings, say=lambda *told: None)

    def play(count: int, seed: int) -> tuple[StepTable, Iteration]:
        tasks = setup.source.tasks("train", count, seed)
        plays = [Play(task=task, group=f"{i:04d}", sample=0, seed=derive(seed, i)) for i, task in enumerate(tasks)]
        played = setup.runner.collect(plays)
        seen = Iteration(setup.policies, 0, seed, 1.0, 65536)
        seen.rows = rows_of(played)
        return StepTable.from_trajectories(played), seen

    part = Progress(epochs=20, beta=0.0)
    part.start(setup, setup.policies)
    table, seen = play(480, 1)
    part.update(Batch.of((), table), seen)
    table, seen = play(200, 2)
    contribution, progress = part(table, seen), table["progress"]
    error = part.update(Batch.of((), table), seen)["progress/held_out"]
    setup.runner.close()
    order, last = table.timeline("trajectory")
    before = torch.cat([torch.zeros(1), progress[:-1]])
    before[torch.cat([torch.ones(1, dtype=torch.bool), last[:-1]])] = 0  # rows are in time order here
    assert torch.equal(order, torch.arange(len(table)))

    def mean(rows: torch.Tensor) -> float:
        return float(contribution[rows].mean())

    impossible = mean(table["executable"] == 0)
    assert mean((progress == 2) & (before == 1)) > 0.05 + impossible  # the door
    assert mean((progress == 1) & (before == 0)) > impossible  # the key
    assert mean(table["terminated"]) > 0.1 + impossible  # the goal
    assert error < 0.25 * float(table["outcome"][last].var())


# ---- rule 7 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("explore", [0, 3])
def test_7_state_goes_round(explore: int, tmp_path: Path) -> None:
    table, seen, _ = prepared()
    part = started(explore=explore)
    part.update(Batch.of((), table), seen)
    torch.save(part.state_dict(), tmp_path / "state.pt")
    other = started(explore=explore)
    other.modules()["estimator"].load_state_dict(part.modules()["estimator"].state_dict())
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one in (part, other):
        one.update(Batch.of((), table), seen)
        one.update(Batch.of((), table), seen)
    assert part.fitted and torch.equal(part(table, seen), other(table, seen))


FILES = ("reward.0.state.pt", "reward.0.estimator.safetensors")


def recipe(explore: int) -> dict[str, Any]:
    return {
        "reward": [{"progress": {"explore": explore, "hidden": 16}}],
        "advantage": {"grpo": {"scale": "none"}},
    }


@pytest.mark.parametrize("explore", [0, 3])
def test_7_resume_is_bit_for_bit(explore: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_resumes([NETWORK, recipe(explore)], tmp_path, monkeypatch, *FILES)


def test_7_resume_is_bit_for_bit_with_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert RUN["training"]["iterations"] == 4
    assert_resumes([LANGUAGE, recipe(0)], tmp_path, monkeypatch, *FILES)


# ---- rule 8 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("outcome", [[1.0, 1.0, 1.0, 1.0], [0.0] * 4])
def test_8_nothing_to_tell_apart(outcome: list[float]) -> None:
    table, seen, _ = prepared()
    part = started()
    _, episodes = part._episodes(table, seen)
    with pytest.raises(NoSignal, match=rf"all 4 episodes have the outcome {outcome[0]}: a failed and a successful"):
        part.fit(episodes, outcome, seed=0)
    with pytest.raises(NoSignal, match="all 0 episodes"):
        part.fit([], [], seed=0)
    with pytest.raises(InvalidData, match="there are 3 outcomes for 4 episodes"):
        part.fit(episodes, [0.0, 1.0, 0.0], seed=0)


def test_8_another_number_of_turns() -> None:
    table, seen, played = prepared()
    played[1].steps.pop()
    with pytest.raises(InvalidData, match="the table has 12 rows, but the episodes have 11 steps"):
        rows_of_episodes(table, rows_of(played))
    seen.rows = seen.rows[:5]  # the second episode has three turns left, and the table has two of them
    with pytest.raises(InvalidData, match=r"trajectory g/1(.|\n)*2 of its rows, but the episode has 3 turns"):
        rows_of_episodes(table.take(torch.arange(5)), seen.rows)
    with pytest.raises(InvalidData, match="3 contributions for episodes of 4 turns"):
        progress_loss(torch.zeros(3), torch.tensor([2, 2]), torch.zeros(2))
    with pytest.raises(InvalidData, match="3 contributions for 2 steps"):
        progress_rewards(torch.zeros(3), torch.zeros(2), alpha=1.0, beta=0.0)


def test_8_negative_factors() -> None:
    for options in ({"alpha": -1.0}, {"beta": -0.5}):
        with pytest.raises(RecipeError, match="cannot take"):
            Progress(**options)
        with pytest.raises(InvalidData, match="is negative"):
            progress_rewards(torch.zeros(1), torch.zeros(1), **{"alpha": 1.0, "beta": 1.0, **options})


def test_8_missing_outcomes() -> None:
    table, seen, _ = prepared()
    outcome = table["outcome"].clone()
    outcome[3:7] = torch.nan
    with pytest.raises(InvalidData, match=r"trajectory g/1(.|\n)*it has no outcome; 1 of 4"):
        started()(table.replace(outcome=outcome), seen)


def test_8_policies_that_read_different_things() -> None:
    speaks = SimpleNamespace(architecture=lambda: {"kind": "language", "tokenizer": "a", "vocabulary": 300})
    with pytest.raises(RecipeError, match="have 2 kinds or tokenizers"):
        Progress().start(SETUP, {"main": policy(), "other": speaks})


def test_8_steps_that_cannot_be_read() -> None:
    table, seen, played = prepared()
    played[2].steps[1].action.tokens[0] = 7
    with pytest.raises(InvalidData, match=r"trajectory g/2, turn 1(.|\n)*no action index"):
        started().update(Batch.of((), table), seen)
    played[2].steps[0].observation.vector = None
    with pytest.raises(InvalidData, match="no vector of the environment's length"):
        started().update(Batch.of((), table), seen)


def test_8_weights_that_explode() -> None:
    table, seen, _ = prepared()
    part = started(lr=1e30)
    _, episodes = part._episodes(table, seen)
    with pytest.raises(PalaestraError, match="changed the norm of its weights"):
        part.fit(episodes, [won for _, won in WAYS], seed=0)


def test_8_before_start() -> None:
    table, seen, _ = prepared()
    with pytest.raises(ContractError, match="before `start`"):
        Progress().update(Batch.of((), table), seen)


# ---- the estimator ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("memory", [True, False])
def test_an_estimator_reads_each_episode_by_itself(memory: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    state = torch.random.get_rng_state()
    estimator = StepEstimator(vocabulary=9, hidden=8, memory=memory, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.nn.init.normal_(estimator.head.weight, generator=draw)
    episodes = [(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 3])), (torch.tensor([5, 6, 7]), torch.tensor([2, 1]))]
    together = estimator(episodes)
    torch.testing.assert_close(together, torch.cat([estimator([one]) for one in episodes]))
    first_only = estimator([(torch.tensor([1, 8, 8, 8]), torch.tensor([1, 3]))])
    torch.testing.assert_close(first_only[0], together[0])  # no step depends on a later one
    assert not torch.isclose(first_only[1], together[1])


# ---- rule 9 -----------------------------------------------------------------------------------------------
@quick
@given(tables())
def test_9_an_equal_split_keeps_the_return(table: StepTable) -> None:
    split = equal_split(table)
    torch.testing.assert_close(total_return(table.replace(reward=split)), total_return(table), atol=1e-5, rtol=1e-5)
    by_agent = table.replace(reward=equal_split(table, by=("trajectory", "agent")))
    own = ("trajectory", "agent")
    torch.testing.assert_close(total_return(by_agent, by=own), total_return(table, by=own), atol=1e-5, rtol=1e-5)


def test_9_shares() -> None:
    table = StepTable(group=["g"] * 5, trajectory=[1, 1, 1, 2, 2], agent=["x", "y", "x", "x", "x"],
                      turn=[0, 1, 2, 0, 1], reward=[0, 0, 3, 1, 7], row_weight=[1, 1, 1, 1, 0])  # fmt: skip
    assert equal_split(table).tolist() == [1, 1, 1, 1, 0]
    assert equal_split(table, by=("trajectory", "agent")).tolist() == [1.5, 0, 1.5, 1, 0]
