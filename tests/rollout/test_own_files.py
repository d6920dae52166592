"""Environments of files of one's own in worker processes: (1) they play as in the run's own process, from any working
folder, and their objects go to and fro, those in info as JSON values; (2) an exception of a class of the file fails
its episode alone; (3) so does an answer or an action that cannot be sent, or that cannot be read on the other side, and
nothing hangs; (4) modules of files have one name in all processes, and one object for one file; (5) training works;
(6) what makes no environment in another process is refused; (7) methods may be coroutines; (8) no time limit counts
what the file imports; (9) other threads, and objects that end meanwhile, may import modules while files are loaded.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palaestra.data import Play, RunSetup, StopReason, Task, Trajectory
from palaestra.errors import ContractError, RecipeError, missing_extra
from palaestra.recipe import load
from palaestra.registry import part, user_files
from palaestra.rollout.programs import demonstrate
from palaestra.rollout.programs import play as playing
from palaestra.rollout.roles import Role
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.store.folder import RunFolder
from palaestra.store.metrics import MetricsLog
from palaestra.testing import ScriptedPolicy
from palaestra.training.start import train
from tests.messages import told

OWN = '''
import asyncio
import os
from dataclasses import dataclass

from palaestra.testing import EchoEnvironment


@dataclass
class Place:
    name: str
    process: int


class Broken(Exception):
    def __init__(self, turn, place):
        super().__init__(f"broken at {turn}")
        self.turn, self.place = turn, place

    def __reduce__(self):
        return Broken, (self.turn, self.place)


class Unreadable:
    """Can be sent, and raises where it is read outside the process that made it."""

    def __init__(self, process):
        if process != os.getpid():
            raise ValueError("not of this process")

    def __reduce__(self):
        return Unreadable, (os.getpid(),)


class UnreadableError(Exception):
    def __reduce__(self):
        return Unreadable, (os.getpid(),)


class World(EchoEnvironment):
    def __init__(self, *, fault: str = "", every: int = 3, folder: str = ""):
        super().__init__(turns=2, every=every)
        if folder:
            assert os.path.exists(folder), f"no {folder} in {os.getcwd()}"
        self.fault = fault

    def reset(self, task):
        self.task = task
        return super().reset(task)

    def step(self, actions):
        result = super().step(actions)
        if self.task.seed // 2 % self._every == 0 and self._turn == 1:
            if self.fault == "own":
                raise Broken(self._turn, Place("hall", os.getpid()))
            if self.fault == "unreadable error":
                raise UnreadableError("nobody reads me")
            if self.fault == "stop":
                raise StopIteration("no more")
            return result
        result.info["place"] = Place("hall", os.getpid())
        result.info["map"] = lambda: 0
        return result

    def expert(self, agent):
        if self.task.seed // 2 % self._every == 0 and self._turn == 1:
            if self.fault == "unsendable":
                return lambda: 0
            if self.fault == "unreadable":
                return Unreadable(os.getpid())
        return super().expert(agent)


class Late(World):
    async def reset(self, task):
        await asyncio.sleep(0)
        return super().reset(task)

    async def step(self, actions):
        self.waiting = asyncio.ensure_future(asyncio.sleep(60))  # goes on from call to call
        await asyncio.sleep(0)
        return super().step(actions)
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of one's own in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own world.py").write_text(OWN)
    return tmp_path


def run(
    options: dict[str, Any], said: Callable[..., Any], count: int = 9, kind: str = "World", program: Any = playing,
    **settings: Any,
) -> list[Trajectory]:  # fmt: skip
    name = f"own world.py:{kind}"
    on = RunSetup(
        environment_name=name,
        make_environment=functools.partial(part("environment", name).target, **options),
        roles={"*": Role(policy=ScriptedPolicy(said))},
        program=program,
        environment_options=options,
    )
    runner = EpisodeRunner(on, RolloutSettings(max_turns=4, **settings))
    try:
        return runner.collect(
            [Play(task=Task(env="own", seed=2 * n), group=f"{n:03d}", sample=0, seed=n) for n in range(count)]
        )
    finally:
        runner.close()


def echo(turn: int, seen: Any) -> str:
    return str(seen.text.split()[-1])


WORKERS: dict[str, Any] = {"workers": 2, "worker_kind": "process"}


@pytest.mark.slow
def test_1_as_in_this_process(own: Path) -> None:
    options = {"folder": "own world.py"}
    here, there = run(options, echo), run(options, echo, **WORKERS)
    for one, other in zip(here, there, strict=True):
        assert one.stop is other.stop is not StopReason.ERROR, (one.error, other.error)
        assert [step.reward for step in one.steps] == [step.reward for step in other.steps]
        assert one.info["map"] == other.info["map"] == "<function>"
        assert one.info["place"]["name"] == other.info["place"]["name"] == "hall"
        assert other.info["place"]["process"] != one.info["place"]["process"]
        assert one.replaced == other.replaced and one.replaced["values"] > 0


def failures(played: list[Trajectory]) -> list[str]:
    failed = {t.task.seed // 2: t.error.message for t in played if t.error is not None}
    assert list(failed) == list(range(0, len(played), 3)), failed
    return list(failed.values())


def test_2_an_exception_of_the_own_file(own: Path) -> None:
    for settings in ({}, WORKERS):
        assert all("Broken: broken at 1" in message for message in failures(run({"fault": "own"}, echo, **settings)))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("unreadable error", "UnreadableError: nobody reads me"),
        ("unreadable", "the worker's answer cannot be read: ValueError: not of this process"),
        ("unsendable", "lambda"),
        ("stop", "StopIteration: no more"),
    ],
)
def test_3_what_cannot_go_to_and_fro(own: Path, fault: str, said: str) -> None:
    program = demonstrate if fault in ("unreadable", "unsendable") else playing
    assert all(said in message for message in failures(run({"fault": fault}, echo, program=program, **WORKERS)))


def test_3_actions_that_cannot_be_sent(own: Path) -> None:
    async def unsendable(episode: Any) -> None:
        result = await episode.reset()
        while result.observations:
            action = await episode.agents["player"].act(result.observations["player"])
            value = (lambda: 0) if action.text == "red" else action.value
            result = await episode.step({"player": dataclasses.replace(action, value=value)})

    played = run({}, echo, count=12, program=unsendable, step_seconds=5.0, **WORKERS)
    red = {t.group for t in played if any(step.action.text == "red" for step in t.steps)}
    assert 0 < len(red) < 12
    assert {t.group for t in played if t.stop is StopReason.ERROR} == red


@pytest.mark.slow
def test_4_one_name_in_all_processes(own: Path) -> None:
    ask = "from palaestra.registry import part; print(part('environment', 'own world.py:World').target.__module__)"
    names = {subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout for _ in range(2)}
    world = part("environment", "own world.py:World").target
    assert names == {world.__module__ + "\n"}
    assert part("environment", f"{own}/own world.py:World").target is world  # one file, one module
    assert user_files.user_files()[world.__module__] == str(own / "own world.py")
    assert type(pickle.loads(pickle.dumps(world()))) is world
    assert str(pickle.loads(pickle.dumps(missing_extra("a", extra="b", needed_for="c")))).startswith("c\n")


def test_4_files_of_one_name_in_other_folders(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = part("environment", "own world.py:World").target
    (own / "below").mkdir()
    monkeypatch.chdir(own / "below")
    Path("own world.py").write_text(OWN)
    assert part("environment", "own world.py:World").target is not first


def test_4_a_file_that_failed_can_be_mended(own: Path) -> None:
    Path("mended.py").write_text("1 / 0\n")
    with told(RecipeError, "ZeroDivisionError"):
        part("reward", "mended.py:f")
    Path("mended.py").write_text("def f(table): return table['reward']\n")
    assert part("reward", "mended.py:f").name == "mended.py:f"


def test_5_training(own: Path) -> None:
    (own / "env.py").write_text(OWN)
    recipe = load(
        [
            {
                "environment": "env.py:World",
                "policies": {"main": {"policy": {"network": {"hidden": [8]}}}},
                "rollout": {"tasks": 4, "group": 4, "max_turns": 4, **WORKERS},
                "training": {"iterations": 2, "threads": 1},
                "evaluation": {"tasks": 4},
            }
        ]
    )
    train(recipe.settings, recipe=recipe.to_json(), quiet=True)
    assert len(MetricsLog(RunFolder.open(own / "runs" / "run")).metrics.read()) == 2


def test_6_what_cannot_be_made_elsewhere() -> None:
    lock = threading.Lock()
    on = RunSetup(
        environment_name="x", make_environment=lambda: lock, roles={}, program=playing, environment_options={}
    )
    with pytest.raises(ContractError, match=r"cannot be sent to a worker process(.|\n)*worker_kind=thread"):
        EpisodeRunner(on, RolloutSettings(**WORKERS))


def test_7_coroutines(own: Path) -> None:
    played = run({}, echo, kind="Late", **WORKERS)
    assert all(t.outcome == 1.0 for t in played), [t.error for t in played]
    assert all(
        "Broken: broken at 1" in message for message in failures(run({"fault": "own"}, echo, kind="Late", **WORKERS))
    )


def test_8_imports_belong_to_the_start(own: Path) -> None:
    (own / "own world.py").write_text("import time\ntime.sleep(1.0)\n" + OWN)
    played = run({}, echo, count=4, step_seconds=0.5, **WORKERS)
    assert all(t.outcome == 1.0 for t in played), [t.error for t in played]


class ImportsAtItsEnd:
    """Garbage that only the collector finds, and that leaves more of its kind."""

    left = 100

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        sys.modules[f"late_{ImportsAtItsEnd.left}"] = sys
        ImportsAtItsEnd.left -= 1
        if ImportsAtItsEnd.left:
            ImportsAtItsEnd()


def test_9_modules_that_come_meanwhile(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, often = set(sys.modules), gc.get_threshold()
    monkeypatch.setattr(user_files, "_FILES", {"other": str(own / "elsewhere" / "file.py")})
    try:
        gc.set_threshold(100)
        ImportsAtItsEnd()
        assert user_files.neighbors(str(own / "file.py")) == []
        assert user_files._namesakes(str(own)) == []
    finally:
        gc.set_threshold(*often)
        gc.collect()
        for name in sys.modules.keys() - before:
            del sys.modules[name]
