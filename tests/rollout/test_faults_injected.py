"""Faults of environments, policies and programs, each beside good episodes: in the event loop, in lock step, in
threads, in processes, and asynchronously. Each rule is checked by the test of the same number.

1. The episode with the fault fails with the boundary of the fault, or what no file can hold is replaced and counted.
2. The good episodes are, byte for byte, those of a run without the others.
3. Every episode, also a failed one, can be written and read again; the others make a table of finite numbers.
4. A run trains on the good episodes and ends with status 0.
5. If everything fails, or there are no tasks, it ends with status 2 and a line that names the environment.
6. What a policy or a program raises fails its episode alone, too.
7. A `close` that hangs or raises changes no episode.
8. An environment that cannot be made, or whose agents cannot be read, fails its episodes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palaestra.commands import cli
from palaestra.data import Action, Play, RunSetup, StepTable, StopReason, Task, Trajectory
from palaestra.data.protocols import Response
from palaestra.recipe import load
from palaestra.rollout.programs import play
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.rollout.vector import VectorRunner
from palaestra.store.episodes import from_json, to_json
from palaestra.store.json_text import to_line
from palaestra.testing import EchoEnvironment, ScriptedPolicy
from palaestra.training.async_collector import AsyncCollector
from palaestra.training.setup import build_setup
from tests.rollout.injected import BAD, ENVIRONMENT, ERRORS, FAULTS, FINE, REPLACED, Faulty

WAYS: dict[str, dict[str, Any]] = {
    "loop": {},
    "vector": {"runner": VectorRunner},
    "threads": {"workers": 4},
    "processes": {"workers": 2, "worker_kind": "process"},
    "loop, large values too": {},
}
SHORT = ("loop", "vector", "threads")
LONG = 100.0  # seconds: nobody waits for a `close` that takes as long
KINDS = [pytest.param(way, marks=() if way in SHORT else pytest.mark.slow) for way in (*WAYS, "asynchronous")]


def echo(turn: int, seen: Any) -> str:
    return str(seen.text or "red").split()[-1][:20]


def setup(make: Callable[[], Any] = Faulty, *, policy: Any = None, program: Any = play) -> RunSetup:
    return RunSetup(
        environment_name="faulty",
        make_environment=make,
        roles={"*": Role(policy=policy or ScriptedPolicy(echo))},
        program=program,
        environment_options={},
    )


def perform(on: RunSetup, plays: list[Play], *, runner: type = EpisodeRunner, **settings: Any) -> list[Trajectory]:
    made = runner(on, RolloutSettings(**settings))
    try:
        return made.collect(plays)
    finally:
        made.close()


def plays_of(names: list[str]) -> list[Play]:
    """For each fault a play with it, and a good one before and after it."""
    return [
        Play(
            task=Task(env="faulty", seed=2 * (3 * number + sample), params={BAD: name} if sample == 1 else {}),
            group=name,
            sample=sample,
            seed=3 * number + sample,
        )
        for number, name in enumerate(names)
        for sample in range(3)
    ]


HEAVY = [name for name in FAULTS if name.endswith((" long message", " long text", " of billions", " 10 MB"))]


def names_of(way: str) -> list[str]:
    """The faults that are played in this way. Only one way has the largest values, which take a minute to write."""
    return [name for name in FAULTS if way.endswith("large values too") or name not in HEAVY]


def asynchronously(plays: list[Play], folder: Path) -> list[Trajectory]:
    """The episodes as the asynchronous collector plays them, ahead of the updates."""
    recipe = {
        "environment": f"{Path(__file__).with_name('injected.py')}:Faulty",
        "policies": {"main": {"policy": {"network": {"hidden": [8]}}}},
        "rollout": {"tasks": 4, "group": 2, "max_turns": 4},
        "training": {"iterations": 1, "max_staleness": 1, "threads": 1},
    }
    made = build_setup(load([recipe]).settings)
    made.folder = folder
    collector = AsyncCollector(made)
    collector._inner.acting.roles = {"*": Role(policy=ScriptedPolicy(echo))}
    collector._inner.plays = lambda step: plays  # type: ignore[method-assign]
    try:
        return sorted(collector.collect(0).played, key=lambda t: (t.group, t.sample))
    finally:
        collector.close()
        made.runner.close()


@functools.cache
def played(way: str, folder: Path, *, good: bool = False) -> dict[tuple[str, int], Trajectory]:
    """All episodes, or only the good ones, by fault and sample."""
    plays = plays_of(names_of(way))
    plays = [one for one in plays if BAD not in one.task.params] if good else plays
    if way == "asynchronous":
        found = asynchronously(plays, folder / f"{good}")
    else:
        found = perform(setup(), plays, **WAYS[way])
    return {(one.group, one.sample): one for one in found}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("faults")
    for name in ("True", "False"):
        (made / name).mkdir()
    yield made
    played.cache_clear()


def line(trajectory: Trajectory) -> str:
    return to_line(to_json(trajectory), sort=False)


def end_of(trajectory: Trajectory) -> str:
    """What became of the episode: the boundary of its failure, or whether something was replaced."""
    if trajectory.error is not None:
        assert trajectory.stop is StopReason.ERROR
        return trajectory.error.boundary
    return REPLACED if trajectory.replaced else FINE


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) - len(HEAVY) >= 100


@pytest.mark.parametrize("way", KINDS)
def test_1_the_fault_is_recorded(way: str, folder: Path, record_property: Callable[[str, object], None]) -> None:
    found = played(way, folder)
    record_property("trials", len(names_of(way)))
    ends = {name: (end_of(found[name, 1]), FAULTS[name][0]) for name in names_of(way)}
    assert {name: end for name, end in ends.items() if end[0] != end[1]} == {}
    for name in ends:
        error = found[name, 1].error
        if error is not None and error.boundary == ENVIRONMENT:
            assert "environment " in error.message and len(error.message) <= 10_000, name


@pytest.mark.parametrize("way", KINDS)
def test_2_the_others_are_untouched(way: str, folder: Path) -> None:
    found, alone = played(way, folder), played(way, folder, good=True)
    assert len(alone) == 2 * len(names_of(way))
    for name, one in alone.items():
        assert one.stop is StopReason.COMPLETED and line(found[name]) == line(one)


@pytest.mark.parametrize("way", KINDS)
def test_3_everything_can_be_stored(way: str, folder: Path) -> None:
    found = played(way, folder)
    for name, one in found.items():
        text = line(one)
        assert "\x00" not in text and "\x1b" not in text and text.encode(), name
        assert line(from_json(json.loads(text))) == text, name
    fine = [dataclasses.replace(one, group=one.id) for one in found.values() if one.error is None]
    table = StepTable.from_trajectories(fine)
    assert bool(table["reward"].isfinite().all())


# ---- runs -------------------------------------------------------------------------------------------------
RECIPE = """\
environment:
  {file}:
    {options}
policies: {{main: {{policy: {{network: {{hidden: [8]}}}}}}}}
rollout: {{tasks: 8, group: 2, max_turns: 4{rollout}}}
training: {{iterations: 2, threads: 1, max_failed: {most}{training}}}
evaluation: {{tasks: 4}}
"""
BROKEN = """
import asyncio
from palaestra.testing import EchoEnvironment


class OwnError(BaseException):
    pass


class Broken(EchoEnvironment):
    def __init__(self, *, at: str = "", error: str = "exit", every: int = 1):
        super().__init__(turns=2, every=every)
        self._at, self._error = at, error

    def fail(self, at, hit=True):
        if at == self._at and hit:
            raise {"exit": SystemExit(0), "own": OwnError("own"), "cancel": asyncio.CancelledError()}[self._error]

    def tasks(self, split, n, seed):
        self.fail("tasks")
        return super().tasks(split, n, seed)

    def step(self, actions):
        self.fail("step", self._task.seed % 2 == 0 and (self._task.seed // 2) % self._every == 0)
        return super().step(actions)
"""
RUNS = {
    "loop": ("", ""),
    "vector": (", runner: vector", ""),
    "threads": (", workers: 2", ""),
    "processes": (", workers: 2, worker_kind: process", ""),
    "asynchronous": ("", ", max_staleness: 1"),
}


def trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, options: str, *, most: float = 0.9, own: str = BROKEN
) -> int:
    """The exit status of `palaestra train`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "world.py").write_text(own)
    rollout, training = RUNS[way]
    text = RECIPE.format(file="world.py:Broken", options=options, rollout=rollout, training=training, most=most)
    (tmp_path / "recipe.yaml").write_text(text)
    monkeypatch.setattr(sys, "argv", ["palaestra", "train", "recipe.yaml", "run=run"])
    return cli._run()


@pytest.mark.parametrize("error", ["exit", "own", "cancel"])
@pytest.mark.parametrize("way", [pytest.param(way, marks=() if way == "vector" else pytest.mark.slow) for way in RUNS])
def test_4_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, error: str) -> None:
    assert trained(tmp_path, monkeypatch, way, f"{{at: step, error: {error}, every: 2}}") == 0
    lines = [json.loads(text) for text in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2 and any(0 < one["stop/error/environment"] < 1 for one in lines if "stop/error" in one)


@pytest.mark.parametrize("error", ["exit", "own", "cancel"])
@pytest.mark.parametrize("at", ["step", "tasks"])
@pytest.mark.parametrize("way", [pytest.param(way, marks=() if way == "loop" else pytest.mark.slow) for way in RUNS])
def test_5_a_run_that_cannot_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], way: str, at: str, error: str
) -> None:
    assert trained(tmp_path, monkeypatch, way, f"{{at: {at}, error: {error}}}") == 2
    said = capsys.readouterr().err
    assert "environment " in said and "Traceback" not in said and at in said


# ---- policies and programs --------------------------------------------------------------------------------
class Failing(ScriptedPolicy):
    """Answers the second play in a way of its own."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(echo)
        self._act = act

    def session(self, *, key: Any, **given: Any) -> Any:
        made = super().session(key=key, **given)
        if key[1] != 1:
            return made
        act = self._act

        class Session(type(made)):  # type: ignore[misc]
            async def act(_, observation: Any, *, seed: int) -> Any:
                return act()

        return Session(made.answers)


def _answer(**fields: Any) -> Callable[[], Response]:
    return lambda: Response(action=Action(**fields))


def _raising(error: Callable[[], BaseException]) -> Callable[[], Any]:
    def act() -> Any:
        raise error()

    return act


ANSWERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "None": ("engine", lambda: None),
    "a text": ("engine", lambda: "red"),
    "an action": ("engine", lambda: Action(text="red")),
    "no action": ("engine", lambda: Response(action="red")),  # type: ignore[arg-type]
    "a text that is a number": ("engine", _answer(text=5)),
    "tokens in a list": ("engine", _answer(text="red", tokens=[1, 2])),
    "tokens of floats": ("engine", _answer(text="red", tokens=np.ones(2))),
    "calls that are texts": ("engine", _answer(text="red", tool_calls=("find",))),
    "half a character": (REPLACED, _answer(text="red\ud800")),
    "NUL": (REPLACED, _answer(text="r\x00ed")),
    "10 MB": (REPLACED, _answer(text="red" * 4_000_000)),
    "other characters": (FINE, _answer(text="é\u202e\U0001f600\n")),
} | {f"raises {name}": ("engine", _raising(error)) for name, error in ERRORS.items() if name != "GeneratorExit"}


@pytest.mark.parametrize("way", SHORT)
@pytest.mark.parametrize("name", ANSWERS)
def test_6_policies(way: str, name: str) -> None:
    end, act = ANSWERS[name]
    found = perform(setup(EchoEnvironment, policy=Failing(act)), plays_of([""]), **WAYS[way])
    assert [end_of(one) for one in found] == [FINE, end, FINE]
    assert all(line(from_json(json.loads(line(one)))) == line(one) for one in found)


def _writing(name: str, value: Any) -> Callable[[Any], None]:
    return lambda episode: episode.agents["player"].last.info.update({name: value})


def _acting(value: Any) -> Callable[[Any], None]:
    def act(episode: Any) -> None:
        episode.agents["player"].last.action = value

    return act


NOTES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "an object": (REPLACED, _writing("given", object())),
    "half a character": (REPLACED, _writing("given", "\ud800")),
    "NaN": ("part", _writing("given", float("nan"))),
    "1e200": ("part", _writing("given", 1e200)),
    "an action that is none": ("part", _acting("red")),
    "info of the episode": (REPLACED, lambda episode: episode.trajectory.info.update(given=object())),
    "a reward of 1e308": (ENVIRONMENT, lambda episode: episode.reward("player", 1e308)),
}


def _program(act: Callable[[Any], Any]) -> Any:
    async def program(episode: Any) -> None:
        await play(episode)
        if episode.play.sample == 1:
            act(episode)

    return program


@pytest.mark.parametrize("way", SHORT)
@pytest.mark.parametrize("name", [*NOTES, *ERRORS])
def test_6_programs(way: str, name: str) -> None:
    end, act = NOTES.get(name) or ("part", lambda episode: _raising(ERRORS[name])())
    found = perform(setup(EchoEnvironment, program=_program(act)), plays_of([""]), **WAYS[way])
    assert [end_of(one) for one in found] == [FINE, end, FINE]
    assert all(line(from_json(json.loads(line(one)))) == line(one) for one in found)


# ---- ends -------------------------------------------------------------------------------------------------
class Sleepy(EchoEnvironment):
    """`close` sleeps where the task is the second one."""

    def close(self) -> None:
        if self._task is not None and self._task.params:
            time.sleep(LONG)


class SleepyAsync(EchoEnvironment):
    async def close(self) -> None:  # type: ignore[override]
        if self._task is not None and self._task.params:
            await asyncio.sleep(LONG)


@pytest.mark.parametrize("make", [Sleepy, SleepyAsync])
@pytest.mark.parametrize("way", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_7_a_close_that_hangs(way: str, make: type) -> None:
    began = time.monotonic()
    found = perform(setup(make), plays_of(["sleeps", "sleeps too"]), step_seconds=0.5, **WAYS[way])
    assert {end_of(one) for one in found} == {FINE} and time.monotonic() - began < LONG


class Nameless(EchoEnvironment):
    """Has no readable agents."""

    wrong: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.agents = type(self).wrong() if callable(type(self).wrong) else type(self).wrong


AGENTS = {
    "a text": "player",
    "none": (),
    "a number": 5,
    "numbers": (1, 2),
    "two of one name": ("player", "player"),
    "half a character": ("\ud800",),
    "an exit": _raising(lambda: SystemExit(0)),
    "an error that is no Exception": _raising(ERRORS["an error that is no Exception"]),
}


@pytest.mark.parametrize("way", SHORT)
@pytest.mark.parametrize("name", AGENTS)
def test_8_agents_that_cannot_be_read(way: str, name: str) -> None:
    wrong = AGENTS[name]
    make = type("Wrong", (Nameless,), {"wrong": staticmethod(wrong) if callable(wrong) else wrong})
    found = perform(setup(make), plays_of([""]), **WAYS[way])
    assert {end_of(one) for one in found} == {ENVIRONMENT}
