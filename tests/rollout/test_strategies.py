"""The contract of strategies: each rule of `palaestra.rollout.strategies.Strategy` is pinned by tests of its number.

Whether runs with strategies repeat themselves, also after a resume, is tested where the strategies are.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from palaestra.data import Play, StopReason, Task, Trajectory
from palaestra.data.protocols import Sampling
from palaestra.errors import ContractError, RecipeError
from palaestra.recipe import load
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.strategies import RolloutContext, play_through
from palaestra.rollout.vector import VectorRunner
from palaestra.store.metrics import MetricsLog
from palaestra.testing import EchoEnvironment
from palaestra.training.async_collector import refuse_strategies
from palaestra.training.start import train
from tests.rollout.test_rules import make_setup
from tests.training.conftest import ECHO

TASKS = EchoEnvironment().tasks("train", 8, seed=1)


def plays(first: int = 0, groups: int = 2, size: int = 3) -> list[Play]:
    return [
        Play(task=TASKS[g], group=f"{g}", sample=sample, seed=10 * g + sample)
        for g in range(first, first + groups)
        for sample in range(size)
    ]


def perform(
    *strategies: Any, runner: type = EpisodeRunner, **options: Any
) -> tuple[list[Trajectory], RolloutContext, list[Play]]:
    """What the strategies give, the rollout afterwards, and the further plays that were asked for."""
    setup, settings, further = make_setup(**{"turns": 1, **options}), RolloutSettings(), list[Play]()

    def more(groups: int) -> list[Play]:
        further.extend(plays(2 + len(further) // 3, groups))
        return further[-3 * groups :]

    made = runner(setup, settings)
    rollout = RolloutContext(more=more, settings=settings, sampling=made.sampling(), step=0, seed=5, setup=setup)
    try:
        return made.perform(plays(), strategies, rollout), rollout, further
    finally:
        made.close()


@dataclasses.dataclass
class Collecting:
    """Passes on what it gets, in calls of so many plays, and notes the calls."""

    size: int = 100
    calls: list[list[str]] = dataclasses.field(default_factory=list)

    async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
        self.calls.append([f"{play.group}/{play.sample}" for play in plays])
        played: list[Trajectory] = []
        for start in range(0, len(plays), self.size):
            played += await rollout.collect(plays[start : start + self.size])
        return played


@pytest.mark.parametrize("runner", [EpisodeRunner, VectorRunner])
def test_1_the_outermost_gets_whole_groups(runner: type) -> None:
    outer, inner = Collecting(size=2), Collecting()
    played, _, _ = perform(outer, inner, runner=runner)
    names = ["0/0", "0/1", "0/2", "1/0", "1/1", "1/2"]
    assert outer.calls == [names] and inner.calls == [names[:2], names[2:4], names[4:]]
    assert [trajectory.id for trajectory in played] == names


def test_2_collect_plays_as_often_as_it_is_called() -> None:
    class Twice:
        async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
            return [*await rollout.collect(plays[:3]), *await rollout.collect(rollout.more(2))]

    played, rollout, further = perform(Twice())
    assert [t.group for t in played] == ["0"] * 3 + ["2"] * 3 + ["3"] * 3 and len(further) == 6
    assert [t.id for t in rollout.played] == [t.id for t in played]


class Own(Collecting):
    """What a user writes: it says nothing of calls."""


class PerGroup(Own):
    called_per = "group"


class PerIteration(Own):
    called_per = "iteration"


class PerTurn(Own):
    called_per = "turn"


@pytest.mark.parametrize("runner", [EpisodeRunner, VectorRunner])
def test_3_another_word_is_an_error_before_anything_is_played(runner: type) -> None:
    strategy, inside = PerTurn(), Collecting()
    with pytest.raises(ContractError, match="`called_per` is 'turn'") as caught:
        perform(inside, strategy, runner=runner)
    assert caught.value.where == "strategy PerTurn" and list(caught.value.options) == ["group", "iteration"]
    assert not strategy.calls and not inside.calls


@pytest.mark.parametrize("name", ["Own", "PerIteration", "PerTurn", "PerGroup"])
def test_3_the_asynchronous_collector_refuses_what_is_called_per_iteration(name: str) -> None:
    asynchronous = load([ECHO], [f"strategy={__file__}:{name}", "training.max_staleness=1"]).settings
    if name == "PerGroup":
        refuse_strategies(asynchronous)
        return
    error, message = (ContractError, "'turn'") if name == "PerTurn" else (RecipeError, "must be called once an iter")
    with pytest.raises(error, match=message):
        refuse_strategies(asynchronous)


def test_4_nothing_that_is_given_changes() -> None:
    class Colder:
        async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
            with pytest.raises(dataclasses.FrozenInstanceError):
                plays[0].seed = 7  # type: ignore[misc]
            colder = rollout.with_(sampling=dataclasses.replace(rollout.sampling, temperature=0.1))
            colder.metrics["colder/calls"] = 1.0
            seen.append(rollout.sampling.temperature)
            return await colder.collect([dataclasses.replace(play, turns=1) for play in plays])

    class Inside(Collecting):
        async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
            seen.append(rollout.sampling.temperature)
            return await rollout.collect(plays)

    seen: list[float] = []
    _, rollout, _ = perform(Colder(), Inside())
    assert seen == [1.0, 0.1] and rollout.sampling.temperature == 1.0
    assert rollout.metrics == {"colder/calls": 1.0} and len(rollout.played) == 6


NOTING = """
import threading

calls, threads = [], []


class Noting:
    called_per = "group"

    async def __call__(self, plays, rollout):
        calls.append((rollout.step, [play.task.split for play in plays], rollout.seed))
        threads.append(threading.get_ident())
        rollout.metrics["noting/seed"] = float(rollout.seed % 1000)
        rollout.metrics["noting/plays"] = float(len(plays))
        return await rollout.collect(plays)

    def state_dict(self):
        threads.append(threading.get_ident())
        return {"calls": len(calls)}

    def load_state_dict(self, state):
        pass
"""
Run = Callable[..., tuple[Any, list[dict[str, float]]]]


@pytest.fixture
def trained(tmp_path: Path) -> Run:
    """Trains a small run with the strategy `Noting`; its module, and the lines of the log."""

    def run(name: str, *overrides: str) -> tuple[Any, list[dict[str, float]]]:
        file = tmp_path / f"noting_{name}.py"
        file.write_text(NOTING)
        network = {"policies": {"main": {"policy": {"network": {"hidden": [16]}}}}, "warm_start": None}
        given = [f"strategy={file}:Noting", f"run={tmp_path / name}", "training.checkpoint_every=1", *overrides]
        recipe = load([ECHO, network], given)
        train(recipe.settings, recipe=recipe.to_json(), quiet=True)
        module = next(m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(file))
        return module, MetricsLog(tmp_path / name).metrics.read()

    return run


def test_1_evaluations_are_played_without(trained: Run) -> None:
    module, lines = trained("run", "training.iterations=2", "evaluation.every=1")
    assert [(step, len(splits), set(splits)) for step, splits, _ in module.calls] == [
        (0, 16, {"train"}),
        (1, 16, {"train"}),
    ]
    assert len(lines) == 2


def test_5_the_seed_is_of_the_iteration(trained: Run) -> None:
    (first, _), (again, _) = trained("one", "training.iterations=3"), trained("two", "training.iterations=3")
    seeds = [seed for _, _, seed in first.calls]
    assert seeds == [seed for _, _, seed in again.calls] and len(set(seeds)) == 3


@pytest.mark.parametrize("staleness", [0, 1])
def test_6_calls_and_state_are_of_one_thread(trained: Run, staleness: int) -> None:
    module, _ = trained("run", f"training.max_staleness={staleness}", "training.iterations=3")
    assert len(module.calls) == (12 if staleness else 3) and len(module.threads) > len(module.calls)
    assert len(set(module.threads[-10:])) == 1, "while anything plays"


def test_7_all_that_was_played_is_noted_and_nothing_else() -> None:
    class Half:
        async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
            played = await rollout.collect(plays)
            made_up = dataclasses.replace(played[0], sample=50)
            return [*played[:3], made_up]

    kept, rollout, _ = perform(Half(), Collecting(size=1))
    assert [t.id for t in kept] == ["0/0", "0/1", "0/2", "0/50"]
    assert Counter(t.id for t in rollout.played) == Counter(f"{play.group}/{play.sample}" for play in plays())


@pytest.mark.parametrize("staleness", [0, 1])
def test_8_metrics_are_logged(trained: Run, staleness: int) -> None:
    module, lines = trained("run", f"training.max_staleness={staleness}", "training.iterations=2")
    for line in lines:
        seeds = [seed % 1000 for step, _, seed in module.calls if step == line["step"] - 1]
        assert len(seeds) == (4 if staleness else 1), "calls of this iteration"
        assert line["noting/seed"] == pytest.approx(sum(seeds) / len(seeds))
        assert line["noting/plays"] == (4 if staleness else 16)


def test_9_failed_episodes_are_passed_on() -> None:
    played, rollout, _ = perform(Collecting(), turns=2, raise_at=1, every=2)
    failed = [t for t in played if t.stop is StopReason.ERROR]
    assert 0 < len(failed) < len(played) == len(rollout.played) == 6


@pytest.mark.parametrize("runner", [EpisodeRunner, VectorRunner])
def test_9_what_it_raises_ends_the_run(runner: type) -> None:
    class Broken:
        async def __call__(self, plays: Sequence[Play], rollout: RolloutContext) -> list[Trajectory]:
            await rollout.collect(plays)
            raise ValueError("no way")

    with pytest.raises(ValueError, match="no way"):
        perform(Collecting(), Broken(), runner=runner)


def test_without_any_plays_are_collected_as_they_are() -> None:
    async def collect(plays: Sequence[Play], sampling: Sampling | None = None) -> list[Trajectory]:
        return [Trajectory(task=Task(env="e", seed=0), group=play.group, sample=play.sample) for play in plays]

    rollout = RolloutContext(more=plays, settings=RolloutSettings(), sampling=Sampling(), step=0, seed=0)
    played = asyncio.run(play_through([], collect)(plays(), rollout))
    assert [t.id for t in played] == [f"{play.group}/{play.sample}" for play in plays()] and rollout.played == played
