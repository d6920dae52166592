"""Episodes played beside the updates: (1) with a bound of 0 it is the synchronous run, bit for bit; (2) nothing that
is learned from is older than the bound, and the log says how old it was; (3) no more than the bound allows is begun;
(4) after a kill no finished episode is played again, and the run ends as far as one that was not killed; (5) what a
strategy raises ends the run, and so does an interrupt, without a thread left behind; (6) the slowest episode of a batch
is waited for, or not; (7) weights change in the middle of a response, and every token knows by which it was drawn;
(8) weights that are old on purpose are exactly as old as asked, also after a resume; (9) what cannot be is refused;
(10) a strategy that must be called once an iteration is refused before anything is written; every registered strategy
says which it is; (11) a strategy's state is read and put back on the thread that calls it, and is a copy;
(12) a run that is killed while it writes a checkpoint goes on from the one before, with all that this one lists.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import palaestra.training.start as start
from palaestra.data.protocols import Request
from palaestra.engines import InProcessEngine
from palaestra.errors import ContractError, RecipeError
from palaestra.models.causal_lm import make_causal_lm
from palaestra.recipe import load
from palaestra.registry import names, part
from palaestra.store import atomic
from palaestra.store.journal import Journal
from palaestra.training.async_collector import AsyncCollector
from palaestra.training.collector import Collector
from palaestra.training.start import train
from tests.messages import told
from tests.training.conftest import ECHO, curve, final_weights

Run = Callable[..., Path]
NETWORK: dict[str, Any] = {"policies": {"main": {"policy": {"network": {"hidden": [16]}}}}, "warm_start": None}


def ahead(setup: Any) -> AsyncCollector:
    """Plays beside the updates whatever the settings say."""
    return AsyncCollector(setup)


def test_1_a_bound_of_0_changes_nothing(echo: Run) -> None:
    before = echo("synchronous")

    forced = {"experience": f"{Path(__file__).resolve()}:ahead"}
    assert final_weights(echo("asynchronous", layers=forced)) == final_weights(before)


@pytest.mark.parametrize("stale", ["wait", "drop"])
@pytest.mark.parametrize("bound", [1, 3])
def test_2_nothing_is_older_than_the_bound(echo: Run, bound: int, stale: str) -> None:
    log = curve(echo("run", f"training.max_staleness={bound}", f"training.stale={stale}", "training.iterations=6"))
    assert [line["step"] for line in log] == list(range(1, 7))
    for line in log:
        shares = [line[f"staleness/{age}"] for age in range(bound + 1)]
        assert sum(shares) == pytest.approx(1.0)
        assert line["staleness/mean"] == pytest.approx(np.dot(shares, range(bound + 1)))
        assert line["staleness/max"] <= bound, "what was given up for its age is not learned from"
    assert any(line["staleness/mean"] > 0 for line in log), "something was played ahead"


def test_3_the_queue_is_bounded(echo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[int, int]] = []
    plain = AsyncCollector.collect

    def noted(self: AsyncCollector, step: int) -> Any:
        batch = plain(self, step)
        begun.append((step, self._begun))
        return batch

    monkeypatch.setattr(AsyncCollector, "collect", noted)
    echo("run", "training.max_staleness=2", "training.iterations=6")
    assert begun == [(step, 4 * min(step + 3, 6)) for step in range(6)], "4 groups a batch, 2 batches ahead"


SLOW = '''
import asyncio, os, random
from palaestra.testing.fakes import EchoEnvironment


class Slow(EchoEnvironment):
    """Echo whose steps take a while, and which writes down whose episodes are over."""

    def __init__(self, *, log: str, turns: int = 3) -> None:
        super().__init__(turns=turns)
        self._log = log

    async def step(self, actions):
        result = super().step(actions)
        await asyncio.sleep(random.Random(self._task.seed).uniform(0.005, 0.05))
        return result
'''


def _slow(tmp_path: Path, **training: Any) -> dict[str, Any]:
    (tmp_path / "slow.py").write_text(SLOW)
    return {
        **ECHO,
        **NETWORK,
        "environment": {f"{tmp_path / 'slow.py'}:Slow": {"log": str(tmp_path / "log")}},
        "rollout": {"tasks": 4, "group": 4, "max_turns": 3},
        "training": {"iterations": 30, "checkpoint_every": 3, "threads": 1, "max_staleness": 2, **training},
    }


@pytest.mark.slow
def test_4_a_kill_loses_no_finished_episode(tmp_path: Path) -> None:
    recipe, folder = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(json.dumps(_slow(tmp_path)))
    command = [sys.executable, "-m", "palaestra", "train", str(recipe), f"run={folder}", "--quiet"]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 120
    finished: dict[Any, Any] = {}
    # Until it is stopped while finished episodes wait.
    while time.monotonic() < deadline and process.poll() is None and not finished:
        time.sleep(0.05)
        if len(_lines(folder / "metrics.jsonl")) >= 5:
            process.send_signal(signal.SIGSTOP)
            finished = {name: to_compare(trajectory) for name, trajectory in Journal(folder).finished.items()}
            process.send_signal(signal.SIGCONT if not finished else signal.SIGKILL)
    process.kill()
    process.wait()
    assert finished, "it was killed while episodes waited to be learned from"

    settings = load([recipe], [f"run={folder}"])
    played: list[Any] = []
    plain = Journal.finish

    def noted(self: Journal, play: Any, trajectory: Any) -> None:
        played.append((play.group, play.sample, play.seed))
        plain(self, play, trajectory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "finish", noted)
        train(settings.settings, recipe=settings.to_json(), resume=True, quiet=True)
    assert not set(played) & set(finished), "nothing that was over is played again"
    assert [line["step"] for line in _lines(folder / "metrics.jsonl")] == list(range(1, 31))
    assert max(Counter(played).values()) == 1


def test_5_faults_and_interrupts_end_the_run(echo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.py").write_text(
        "from palaestra.registry import register\n\n\n"
        "@register('strategy', 'broken')\nclass Broken:\n    called_per = 'group'\n"
        "    async def __call__(self, plays, rollout):\n        raise ValueError('no way')\n"
    )
    with pytest.raises(ValueError, match="no way"):
        echo("broken", f"strategy={tmp_path / 'broken.py'}:Broken", "training.max_staleness=1")

    def interrupted(self: Collector, played: Any, step: int) -> dict[str, float]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Collector, "learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        echo("interrupted", "training.max_staleness=1")
    assert not [thread for thread in threading.enumerate() if thread.name == "rollouts"]


@pytest.mark.slow
@pytest.mark.parametrize(("stale", "waits"), [("wait", True), ("drop", False)])
def test_6_the_slowest_is_waited_for_or_not(
    echo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: str, waits: bool
) -> None:
    (tmp_path / "one.py").write_text(
        "import asyncio\nfrom palaestra.testing.fakes import EchoEnvironment\n\n\n"
        "class One(EchoEnvironment):\n"
        "    async def step(self, actions):\n"
        "        result = super().step(actions)\n"
        "        await asyncio.sleep(1.0 if self._task.seed % 7 == 0 else 0.0)\n"
        "        return result\n"
    )
    taken: list[set[int]] = []
    plain = AsyncCollector.collect

    def noted(self: AsyncCollector, step: int) -> Any:
        batch = plain(self, step)
        taken.append({int(trajectory.group.partition("-")[0]) for trajectory in batch.kept})
        return batch

    monkeypatch.setattr(AsyncCollector, "collect", noted)
    layers = {**NETWORK, "environment": f"{tmp_path / 'one.py'}:One"}
    overrides = [f"training.stale={stale}", "training.max_staleness=3", "rollout.tasks=8", "rollout.group=2"]
    echo("run", *overrides, "evaluation.tasks=1", layers=layers)
    own = all(batches == {step} for step, batches in enumerate(taken))
    assert own is waits, "an iteration has its own batch, or whatever is done"


def test_7_weights_change_inside_a_response() -> None:
    """Log-probabilities of each token are those of the weights that its version names."""
    torch.manual_seed(0)
    models = [make_causal_lm(vocabulary=32, hidden=32, layers=2, heads=2, context=64, seed=seed) for seed in (0, 1)]
    acting = make_causal_lm(vocabulary=32, hidden=32, layers=2, heads=2, context=64, seed=0)
    engine = InProcessEngine(models={"main": acting})
    prompt = np.arange(1, 6, dtype=np.int32)

    async def generate() -> Any:
        request = Request(policy="main", session=0, prompt=prompt, seed=1, max_tokens=8)
        waiting = asyncio.create_task(engine.generate(request))
        while engine.statistics.sampled_tokens < 4:
            await asyncio.sleep(0)
        acting.load_state_dict(models[1].state_dict())
        engine.publish("main", (), 1)
        return (await waiting).action

    found = asyncio.run(generate())
    drawn_by = found.versions.tolist()
    assert drawn_by == sorted(drawn_by) and set(drawn_by) == {0, 1}, "the change came in the middle"
    ids = torch.from_numpy(np.concatenate([prompt, found.tokens])).long()[None]
    for place, (token, drawn) in enumerate(zip(found.tokens.tolist(), found.versions.tolist(), strict=True)):
        logits = models[drawn](input_ids=ids).logits[0, len(prompt) + place - 1]
        expected = torch.log_softmax(logits.detach().float(), -1)[token]
        assert found.logprobs[place] == pytest.approx(float(expected), abs=1e-4)


def test_8_weights_old_on_purpose(echo: Run) -> None:
    log = curve(echo("run", "training.lag=2", "training.iterations=6"))
    assert [line["staleness/max"] for line in log] == [0, 1, 2, 2, 2, 2]
    whole = echo("whole", "training.lag=2")
    parts = echo("parts", "training.lag=2", "training.iterations=2")
    echo("parts", "training.lag=2", resume=True)
    assert final_weights(whole) == final_weights(parts)
    assert final_weights(echo("none", "training.lag=0", "training.actor_noise=0")) == final_weights(echo("plain"))
    disturbed = curve(echo("disturbed", "training.actor_noise=0.1"))
    assert min(line["mismatch/abs"] for line in disturbed) > 10 * log[0]["mismatch/abs"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.runner=vector", "training.max_staleness=1"], "`vector`"),
        (["training.max_staleness=1", "training.lag=1"], "`training.lag`"),
        (["training.max_staleness=-1"], "max_staleness"),
        (["training.stale=sometimes"], "stale"),
    ],
)
def test_9_refusals(overrides: list[str], message: str) -> None:
    with told(RecipeError, message):
        load([ECHO, NETWORK], overrides)


PER_ITERATION = {
    "question_pool": {},
    "instruction_population": {"instructions": ["a"], "every": None},
    "dynamic_sampling": {},
    "adaptive_temperature": {},
}


@pytest.mark.parametrize("name", PER_ITERATION)
def test_10_strategies_of_iterations_are_refused(echo: Run, tmp_path: Path, name: str) -> None:
    layers = {"strategy": [{name: PER_ITERATION[name]}]}
    with pytest.raises(RecipeError, match=f"`{name}` must be called once an iteration") as caught:
        echo("run", "training.max_staleness=2", layers=layers)
    assert caught.value.where == f"strategy: {name}, training.max_staleness: 2"
    assert not (tmp_path / "run").exists()


def test_10_those_of_users_say_nothing_or_one_of_two_words(echo: Run, tmp_path: Path) -> None:
    code = "class Own:\n{}    async def __call__(self, plays, rollout):\n        return await rollout.collect(plays)\n"
    for number, said in enumerate(("", "    called_per = 'group'\n", "    called_per = 'turn'\n")):
        (tmp_path / f"own{number}.py").write_text(code.format(said))
    strategies = [f"strategy={tmp_path / f'own{number}.py'}:Own" for number in range(3)]
    with pytest.raises(RecipeError, match="must be called once an iteration"):
        echo("silent", strategies[0], "training.max_staleness=1")
    echo("group", strategies[1], "training.max_staleness=1", "training.iterations=1", layers=NETWORK)
    with pytest.raises(ContractError, match="`called_per` is 'turn'"):
        echo("wrong", strategies[2], "training.max_staleness=1")


def test_10_every_strategy_says_which() -> None:
    said = {name: vars(part("strategy", name).target).get("called_per") for name in names("strategy")}
    assert {name for name, word in said.items() if word == "iteration"} == set(PER_ITERATION)
    assert set(said.values()) == {"iteration", "group"}


COUNTS = """
import asyncio, threading
from palaestra.registry import register

threads, states = [], []


@register("strategy", "counts")
class Counts:
    called_per = "group"

    def __init__(self):
        self.seen = {}

    async def __call__(self, plays, rollout):
        self.seen[plays[0].group] = len(self.seen)
        threads.append(("call", threading.current_thread().name))
        return await rollout.collect(plays)

    def state_dict(self):
        threads.append(("save", threading.current_thread().name))
        states.append(self.seen)
        return {"seen": self.seen}

    def load_state_dict(self, state):
        threads.append(("load", threading.current_thread().name))
        self.seen = state["seen"]
"""


def test_11_state_is_of_one_thread(echo: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    given = (f"strategy={tmp_path / 'counts.py'}:Counts", "training.max_staleness=2", "training.checkpoint_every=1")
    saved: list[Any] = []
    plain = start.RunState

    def noted(*data: Any, **fields: Any) -> Any:
        made = plain(*data, **fields)
        keeper = made.others["strategy.0"]
        saved.append((keeper, getattr(keeper, "held", keeper)))
        return made

    monkeypatch.setattr(start, "RunState", noted)
    folder = echo("run", *given, "training.iterations=3", layers=NETWORK)
    keeper, held = saved[0]
    counts = sys.modules[type(held).__module__]
    first = counts.threads.index(("call", "rollouts"))
    assert {what for what, _ in counts.threads[:first]} <= {"save"}, "nothing plays yet"
    assert set(counts.threads[first:]) == {("call", "rollouts"), ("save", "rollouts")}
    kept = torch.load(folder / "checkpoints/step-000003/strategy.0.state.pt", weights_only=True)
    assert len(kept["seen"]) == 12 and keeper.state_dict()["seen"] is not held.seen
    counts.threads.clear()
    echo("run", *given, "training.iterations=5", layers=NETWORK, resume=True)
    assert counts.threads[0][0] == "load" and {name for _, name in counts.threads[1:]} == {"rollouts"}
    assert len(counts.states[-1]) == 20


@pytest.mark.parametrize("stale", ["wait", "drop"])
def test_12_killed_inside_a_checkpoint(echo: Run, monkeypatch: pytest.MonkeyPatch, stale: str) -> None:
    options = ["training.max_staleness=2", f"training.stale={stale}", "training.checkpoint_every=2"]
    plain = atomic._swap

    def killed(temporary: Path, target: Path) -> None:
        if target.name == "step-000006":
            raise KeyboardInterrupt
        plain(temporary, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(atomic, "_swap", killed)
        echo("run", *options, "training.iterations=12", layers=NETWORK)
    taken: list[list[str]] = []
    take = AsyncCollector.collect

    def noted(self: AsyncCollector, step: int) -> Any:
        batch = take(self, step)
        taken.append(sorted({trajectory.group for trajectory in batch.kept}))
        return batch

    monkeypatch.setattr(AsyncCollector, "collect", noted)
    folder = echo("run", *options, "training.iterations=12", layers=NETWORK, resume=True)
    assert [line["step"] for line in curve(folder)] == list(range(1, 13))
    assert [len(groups) for groups in taken] == [4] * 8 and len({g for groups in taken for g in groups}) == 32
    assert len(_lines(folder / "ahead.jsonl")) < 200, "what no checkpoint needs is forgotten"


def to_compare(trajectory: Any) -> list[Any]:
    return [(step.agent, step.action.tokens.tolist()) for step in trajectory.steps]


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
