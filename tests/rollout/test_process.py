"""What code of a user changes in its process (docs/rollout.md has the same list). In the event loop, the code is an
environment; in a phase, any part.

1. torch's recording of gradients and its inference mode; 2. its default dtype; 3. its number of threads, autocast and
kernels of attention; 4. the working folder; 5. Python's recursion limit; 6. `sys.stdout` and `sys.stderr`; 7. handlers
of signals; 8. filters that make warnings errors; 9. the locale; 10. NumPy's handling of errors; 11. torch's
deterministic mode, default device, modes of functions, hooks of saved tensors and of all modules, precision of
products, detection of anomalies and flags of cuDNN, and levels, handlers and filters of logging: each is undone, and
the log says once who changed it. Those in `QUICK` are undone after each call of an environment, also in its constructor
and after an error, and the others after the rollout.
12. An environment has again, in its next call, what it has set.
13. While several coroutines of environments run, nothing is undone.
14. A run in which an environment, a reward and a loss change all of it, and draw from all global generators, has the
same numbers as an undisturbed one.
15. Variables of the environment stay, since programs that are started later read them.
16. Worker processes keep what their environments change, and Ctrl-C does not reach them.
17. A user's file or module that changes the working folder while it is imported does not move it, also if it fails.
18. Outputs that it closes are opened again, and the result is printed.
19. An environment that cancels all tasks of the event loop, or stops it, ends the run with one error that names it.
"""

from __future__ import annotations

import asyncio
import locale
import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from palaestra.boundary import process
from palaestra.boundary.process import QUICK, SLOW, Home, Lent, learning, protected
from palaestra.errors import PalaestraError
from palaestra.recipe import load
from palaestra.registry import part
from palaestra.rollout.hosts import InlineCalls
from palaestra.store.metrics import MetricsLog
from palaestra.training.start import train
from tests.messages import told

ENTERED: list[Any] = []


def enter(context: Any) -> None:
    ENTERED.append(context)
    context.__enter__()


def fewer_threads() -> None:
    torch.set_num_threads(torch.get_num_threads() + 1)


def other_cudnn() -> None:
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark


def other_locale() -> None:
    locale.setlocale(locale.LC_ALL, "C" if locale.setlocale(locale.LC_ALL) != "C" else "C.UTF-8")


CHANGES: dict[str, Callable[[], Any]] = {
    "torch's inference mode": lambda: enter(torch.inference_mode()),
    "torch's recording of gradients": lambda: torch.set_grad_enabled(False),
    "torch's default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's number of threads": fewer_threads,
    "torch's autocast": lambda: enter(torch.autocast("cpu", dtype=torch.bfloat16)),
    "torch's default device or modes": lambda: enter(torch.device("meta")),
    "torch's hooks of saved tensors": lambda: enter(torch.autograd.graph.saved_tensors_hooks(lambda t: t * 0, abs)),
    "torch's kernels of attention": lambda: enter(sdpa_kernel(SDPBackend.MATH)),
    "the working folder": lambda: os.chdir("/"),
    "Python's recursion limit": lambda: sys.setrecursionlimit(4321),
    "sys.stdout": lambda: setattr(sys, "stdout", open(os.devnull, "w")),  # noqa: SIM115
    "sys.stderr": lambda: setattr(sys, "stderr", open(os.devnull, "w")),  # noqa: SIM115
    "levels of logging": lambda: logging.disable(logging.CRITICAL),
    "torch's deterministic mode": lambda: torch.set_deterministic_debug_mode("warn"),
    "handlers of signals": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    "filters that make warnings errors": lambda: warnings.simplefilter("error"),
    "the locale": other_locale,
    "NumPy's handling of errors": lambda: np.seterr(all="raise"),
    "torch's dtypes of autocast": lambda: torch.set_autocast_dtype("cuda", torch.bfloat16),
    "torch's hooks of all modules": lambda: register_module_forward_hook(lambda *one: one[2] * 0.5),
    "torch's precision of products": lambda: torch.set_float32_matmul_precision("medium"),
    "torch's detection of anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "flags of cuDNN": other_cudnn,
    "handlers and filters of logging": lambda: logging.getLogger("palaestra").addFilter(lambda line: False),
}


class DoubleSums(TorchFunctionMode):
    """A mode that changes functions of torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result + result if func is torch.add else result


class NegateSums(TorchDispatchMode):
    """A mode that changes operations of torch."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return -result if func is torch.ops.aten.add.Tensor else result


def other_handlers() -> None:
    logging.basicConfig(level=logging.CRITICAL, handlers=[logging.NullHandler()], force=True)


# Other ways to the same states.
FURTHER: dict[str, tuple[str, Callable[[], Any]]] = {
    "autocast by flags": ("torch's autocast", lambda: torch.set_autocast_enabled("cuda", True)),
    "the depth of autocast": ("torch's dtypes of autocast", lambda: enter(torch.autocast("cpu", enabled=False))),
    "the default device": ("torch's default device or modes", lambda: torch.set_default_device("meta")),
    "a mode of functions": ("torch's default device or modes", lambda: enter(DoubleSums())),
    "a mode of operations": ("torch's default device or modes", lambda: enter(NegateSums())),
    "tensors without data": ("torch's default device or modes", lambda: enter(FakeTensorMode())),
    "no hooks of tensors": (
        "torch's hooks of saved tensors",
        lambda: enter(torch.autograd.graph.disable_saved_tensors_hooks("none")),
    ),
    "the order of kernels": (
        "torch's kernels of attention",
        lambda: enter(sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], set_priority=True)),
    ),
    "precision by device": (
        "torch's precision of products",
        lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    ),
    "the level of the package": ("levels of logging", lambda: logging.getLogger("palaestra").setLevel(99)),
    "the common level": ("levels of logging", lambda: logging.getLogger().setLevel(99)),
    "the level of a module": (
        "handlers and filters of logging",
        lambda: logging.getLogger("palaestra.process").setLevel(99),
    ),
    "no line goes up": (
        "handlers and filters of logging",
        lambda: setattr(logging.getLogger("palaestra.process"), "propagate", False),
    ),
    "handlers of all": ("handlers and filters of logging", other_handlers),
}
QUICK_NAMES = [name for name, _, _ in QUICK]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(process, "_REPORTED", set())
    with protected(""):
        yield


def numbers_of_torch() -> list[Any]:
    """What a few computations give."""
    weight = torch.ones(2, 2, requires_grad=True)
    product = torch.nn.functional.linear(torch.ones(1, 2), weight)
    (torch.add(product, product) ** 2).sum().backward()
    return [product.dtype, product.tolist(), weight.grad.tolist(), str(torch.empty(1).device)]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", [*CHANGES, *FURTHER])
def test_computations(name: str, caplog: pytest.LogCaptureFixture) -> None:  # rules 1 to 11
    kind, change = FURTHER.get(name, (name, CHANGES.get(name, str)))
    before, now = numbers_of_torch(), state()
    for _ in range(2):
        with protected("loss mine"):
            change()
    assert state() == now and numbers_of_torch() == before
    assert len([line for line in caplog.messages if line.startswith(f"loss mine changed {kind}.")]) == 1


@pytest.mark.parametrize("name", [name for name, (kind, _) in FURTHER.items() if kind in {one[0] for one in QUICK}])
def test_further_ways_in_a_call(name: str, caplog: pytest.LogCaptureFixture) -> None:  # rules 1 to 11
    kind, change = FURTHER[name]
    before, now = numbers_of_torch(), state()
    calls = InlineCalls("mine", Changing(change), Lent("environment mine", Home()))
    asyncio.run(calls("step", {}))
    assert state()[: len(QUICK)] == now[: len(QUICK)] and numbers_of_torch() == before
    assert [line for line in caplog.messages if line.startswith(f"environment mine changed {kind}.")]


def state() -> list[Any]:
    return [read() for _, read, _ in (*QUICK, *SLOW)]


class Changing:
    """An environment whose calls run a function."""

    def __init__(self, change: Callable[[], Any], *, fails: bool = False) -> None:
        self.change, self.fails = change, fails

    def step(self, actions: Any) -> Any:
        self.change()
        if self.fails:
            raise ValueError
        return actions


def test_the_list_is_complete() -> None:  # rules 1 to 11
    assert list(CHANGES) == [name for name, _, _ in (*QUICK, *SLOW)]
    text = (Path(__file__).parents[2] / "docs" / "rollout.md").read_text()
    assert all(name.removeprefix("the ") in text for name in CHANGES), "docs/rollout.md lists what is protected"


@pytest.mark.parametrize("name", CHANGES)
def test_a_phase(name: str, caplog: pytest.LogCaptureFixture) -> None:  # rules 1 to 11
    before = state()
    for _ in range(2):
        with pytest.raises(ValueError), caplog.at_level(logging.WARNING), protected("reward mine"):
            CHANGES[name]()
            assert state() != before
            raise ValueError
        assert state() == before
    said = [line for line in caplog.messages if line.startswith(f"reward mine changed {name}.")]
    assert len(said) == 1


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("name", QUICK_NAMES)
def test_a_call_of_an_environment(name: str, fails: bool, caplog: pytest.LogCaptureFixture) -> None:  # rules 1 to 6, 11
    before = state()
    calls = InlineCalls("mine", Changing(CHANGES[name], fails=fails), Lent("environment mine", Home()))
    with caplog.at_level(logging.WARNING):
        try:
            asyncio.run(calls("step", {}))
        except Exception:
            assert fails
    assert state()[: len(QUICK)] == before[: len(QUICK)]
    assert [line for line in caplog.messages if line.startswith(f"environment mine changed {name}.")]


def test_an_environment_keeps_its_own() -> None:  # rule 12
    seen: list[Any] = []

    def change() -> None:
        seen.append((torch.get_default_dtype(), os.getcwd(), torch.is_grad_enabled()))
        torch.set_default_dtype(torch.float64 if len(seen) < 5 else torch.float32)
        os.chdir("/")
        torch.set_grad_enabled(False)

    home, here = Home(), os.getcwd()
    mine = InlineCalls("mine", Changing(change), Lent("environment mine", home))
    other = InlineCalls("other", Changing(lambda: seen.append(os.getcwd())), Lent("environment other", home))

    async def play() -> None:
        for calls in (mine, other, mine, other, mine, mine):
            await calls("step", {})

    asyncio.run(play())
    own = (torch.float64, "/", False)
    assert seen == [(torch.float32, here, True), here, own, here, own, (torch.float32, "/", False)]
    assert torch.get_default_dtype() == torch.float32 and os.getcwd() == here


CONTEXTS: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "device": lambda: torch.device("meta"),
    "function mode": DoubleSums,
    "operation mode": NegateSums,
    "hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor * 0, abs),
    "attention": lambda: sdpa_kernel(SDPBackend.MATH),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_over_several_calls(name: str) -> None:  # rule 12
    contexts, inside = [CONTEXTS[name](), CONTEXTS[name]()], []
    acts = iter(
        [
            *(one.__enter__ for one in contexts),
            *(lambda one=one: one.__exit__(None, None, None) for one in contexts[::-1]),
        ]
    )

    def change() -> None:
        next(acts)()
        inside.append(state()[: len(QUICK)])

    calls, before = InlineCalls("mine", Changing(change), Lent("environment mine", Home())), state()

    async def play() -> None:
        for _ in range(4):
            await calls("step", {})
            assert state()[: len(QUICK)] == before[: len(QUICK)]

    with protected("a part of the rollout"):
        asyncio.run(play())
    assert state() == before
    assert before[: len(QUICK)] == inside[3] != inside[2] == inside[0]


def test_coroutines() -> None:  # rule 13
    class Waiting:
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        async def step(self, actions: Any) -> Any:
            torch.set_default_dtype(torch.float64)
            await asyncio.sleep(self.seconds)
            return torch.get_default_dtype()

    home = Home()
    calls = [InlineCalls("mine", Waiting(seconds), Lent("environment mine", home)) for seconds in (0.0, 0.05)]

    async def play() -> list[Any]:
        return await asyncio.gather(*(one("step", {}) for one in calls))

    assert asyncio.run(play()) == [torch.float64, torch.float64] and torch.get_default_dtype() == torch.float32
    with torch.no_grad(), learning():
        assert torch.is_grad_enabled()
    with torch.inference_mode(), learning():
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


OWN = """
import logging, os, random, signal, sys, warnings

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from palaestra.envs.probes.rooms import Rooms
from palaestra.registry import part, register

HELD = []

def change_contexts():
    for context in (
        torch.autocast("cpu", dtype=torch.bfloat16),
        sdpa_kernel(SDPBackend.MATH),
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor * 0, lambda tensor: tensor),
        torch.device("meta"),
    ):
        HELD.append(context)
        context.__enter__()

def change():
    if os.environ["PALAESTRA_TEST_MARK"] == "quiet":
        return
    HELD.append(torch.inference_mode())
    HELD[-1].__enter__()
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    change_contexts()
    logging.disable(logging.CRITICAL)
    os.chdir("/")
    sys.setrecursionlimit(300)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    random.random(), np.random.rand(), torch.rand(1)
    os.environ["PALAESTRA_TEST_MARK"] = "done"

def change_more():
    change()
    if os.environ["PALAESTRA_TEST_MARK"] == "quiet":
        return
    warnings.simplefilter("error")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    np.seterr(all="raise")
    torch.set_deterministic_debug_mode("error")
    torch.set_default_device("meta")

class Bad(Rooms):
    def __init__(self, **options):
        super().__init__(**options)
        change()

    def reset(self, task):
        change()
        return super().reset(task)

    def step(self, actions):
        change()
        return super().step(actions)

@register("reward", "same", reads=())
def same(table):
    reward = table["reward"].clone()
    change_more()
    return reward

@register("loss", "clipped", reads=("logprob", "logprob_old", "advantage", "weight"))
def clipped(batch, *, low: float = 0.2):
    found = part("loss", "ppo_clip").target(batch, low=low)
    change_more()
    return found
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path}/own.py"


def numbers(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    """The metrics of a short run."""
    small = ["training.iterations=2", "evaluation.tasks=4", "rollout.tasks=4", "rollout.group=4", "warm_start=null"]
    recipe = load(["setups/rooms-tiny.yaml", "grpo/method.yaml"], [*small, f"run={folder}", *overrides])
    train(recipe.settings, recipe=recipe.to_json(), quiet=True)
    return MetricsLog(folder).metrics.read()


@pytest.mark.parametrize("runner", ["episodes", "vector"])
def test_a_run(runner: str, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rules 14 and 15
    monkeypatch.chdir(tmp_path)
    before, found = state(), []
    for mark in ("quiet", "set"):
        monkeypatch.setenv("PALAESTRA_TEST_MARK", mark)
        parts = ["environment=own.py:Bad", "reward=[environment, own.py:same]", "loss={own.py:clipped: {low: 0.2}}"]
        found.append(numbers(Path("runs") / mark, f"rollout.runner={runner}", *parts))
        assert state() == before
    quiet, changed = found
    assert len(quiet) == 2 and quiet[1]["policy/grad_norm"] > 0 and "policy/unchanged" not in quiet[1]
    assert changed == quiet and os.environ["PALAESTRA_TEST_MARK"] == "done"


WORKER = """
import os, signal, torch
from palaestra.envs.probes.rooms import Rooms

class Bad(Rooms):
    def step(self, actions):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.set_default_dtype(torch.float64)
        os.chdir("/")
        os.kill(os.getpid(), signal.SIGINT)
        result = super().step(actions)
        result.info["double"] = float(torch.get_default_dtype() == torch.float64 and os.getcwd() == "/")
        return result
"""


def test_workers(tmp_path: Path) -> None:  # rule 16
    (tmp_path / "worker.py").write_text(WORKER)
    before = state()
    workers = ["rollout.runner=episodes", "rollout.workers=1", "rollout.worker_kind=process"]
    found = numbers(tmp_path / "run", f"environment={tmp_path}/worker.py:Bad", *workers)
    assert state() == before
    assert [one["episodes/failed"] for one in found] == [0.0, 0.0] and found[0]["info/double/mean"] == 1.0


@pytest.mark.parametrize("last", ["def same(table): ...", "raise ValueError"])
@pytest.mark.parametrize("place", ["moving.py", "moving_module"])
def test_an_import(
    place: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # rule 17
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, place, raising=False)
    Path(place).with_suffix(".py").write_text(f"import os\nos.chdir('/')\n{last}\n")
    with nullcontext() if last.startswith("def") else pytest.raises(ValueError):
        part("reward", f"{place}:same")
    assert os.getcwd() == str(tmp_path)
    assert len([line for line in caplog.messages if line.startswith(f"{place} changed the working folder.")]) == 1


CLOSING = """
import sys
from palaestra.boundary.process import protected
from palaestra.process.terminal import tell

with protected("a rollout"), protected("reward mine"):
    sys.stdout.close()
    sys.stderr.close()
print("first")
sys.stdout.close()
tell("result")
"""


def test_closed_outputs() -> None:  # rule 18
    ended = subprocess.run([sys.executable, "-c", CLOSING], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "first\nresult\n")
    assert "reward mine changed sys.stdout." in ended.stderr and "reward mine changed sys.stderr." in ended.stderr


ENDING = """
import asyncio
from palaestra.envs.probes.rooms import Rooms

class Cancels(Rooms):
    def step(self, actions):
        for task in asyncio.all_tasks():
            task.cancel()
        return super().step(actions)

class Stops(Rooms):
    def step(self, actions):
        asyncio.get_running_loop().stop()
        return super().step(actions)
"""


@pytest.mark.parametrize(("name", "word"), [("Cancels", "canceled its tasks"), ("Stops", "stopped it")])
def test_the_end_of_the_loop(name: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 19
    (tmp_path / "ending.py").write_text(ENDING)
    monkeypatch.chdir(tmp_path)
    with told(PalaestraError, word):
        numbers(Path("run"), f"environment=ending.py:{name}", "rollout.runner=episodes")
