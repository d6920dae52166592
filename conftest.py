"""What every test may rely on.

(1) One thread of torch, so that results do not depend on the number of workers. A process that only hands tests to
others imports no torch, which takes seconds. (2) No network but the own machine. (3) Shapes in signatures of tables,
estimators and losses are checked at run time (tests/shapes.py). (4) `golden` gives the hand-derived numbers of
`palaestra/systems/*/golden.yaml` and of tests/golden/*.yaml. (5) `tiny` is a tiny language policy that has learned
nothing. (6) `--write-messages` writes the messages of errors instead of comparing them (tests/messages.py).
(7) `smollm2` is the folder of a pretrained model, which `make model` fetches. (8) The tests of tests/long.txt have the
mark `long` (tests/long_tests.py). (9) A test that needs an absent package or program is skipped, and the last lines say
which; `--absent=fail` lets it fail (tests/extras.py).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # workers and the processes that tests start need not compile anew
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import gc
import socket
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.doctest import DoctestModule

from palaestra.registry.source_search import PACKAGE, search
from tests.shapes import check_signatures

gc.disable()  # until everything is imported and collected, which makes much and frees nothing
PARTS = search(PACKAGE)
FORMULAS = {target for slot in ("advantage", "weights", "loss", "regularizer") for target in PARTS[slot].values()}
CHECKED = ("palaestra.algebra", "palaestra.data.keys", "palaestra.data.table", "palaestra.data.tokens")
CHECKED += tuple(sorted({target.partition(":")[0] for target in FORMULAS}))
if os.environ.get("PALAESTRA_CHECK_SHAPES", "1") == "1":  # 0: faster, when timing tests
    check_signatures(CHECKED)  # before anything else of palaestra is imported

sys.dont_write_bytecode = False

from tests.extras import ABSENT, absences, skip_without, skipped_without_packages  # noqa: E402
from tests.long_tests import mark_long  # noqa: E402
from tests.messages import WRITE  # noqa: E402
from tests.transcripts_once import play_transcripts_once  # noqa: E402

if TYPE_CHECKING:
    from palaestra.testing import TinyModel
    from tests.golden_cases import Golden

LOOPBACK = ("127.", "localhost", "::1", "0.0.0.0")


# ---- network ----------------------------------------------------------------------------------------------
def _guarded(connect: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(self: socket.socket, address: Any) -> Any:
        if isinstance(address, tuple) and not str(address[0]).startswith(LOOPBACK):
            raise RuntimeError(f"tests use no network; something called connect({address!r})")
        return connect(self, address)

    return refuse


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Connecting to anything but this machine raises."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _guarded(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", _guarded(socket.socket.connect_ex))
        yield


# ---- a policy ---------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def tiny() -> TinyModel:
    """A tiny language policy with random weights, the same in every test."""
    from palaestra.testing import TinyModel

    return TinyModel()


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The folder of SmolLM2-135M-Instruct. Without it the test fails, and the message says how to get it."""
    from palaestra.models.pretrained import SMOLLM2, located

    return located(SMOLLM2)


# ---- messages ---------------------------------------------------------------------------------------------
def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-messages", action="store_true", help="store the messages that tests see")
    parser.addoption(
        "--absent", choices=("skip", "fail"), default="skip", help="tests whose packages are not installed"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--write-messages"):
        os.environ[WRITE] = "1"
    os.environ[ABSENT] = config.getoption("--absent")
    if config.getoption("dist", "no") == "no":  # otherwise this process hands tests to others, and needs no torch
        import torch

        torch.set_num_threads(1)
    else:
        gc.enable()


# ---- collection -------------------------------------------------------------------------------------------
@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_long(items)


@pytest.hookimpl(tryfirst=True)  # before a fixture starts what is absent
def pytest_runtest_setup(item: pytest.Item) -> None:
    skip_without(*dict.fromkeys(name for mark in item.iter_markers("needs") for name in mark.args))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    with skipped_without_packages():
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)  # after all that pytest writes
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    if lines := absences(one.longrepr[2] for one in skipped if isinstance(one.longrepr, tuple)):
        terminalreporter.section("absent on this machine")
        terminalreporter.write_line("\n".join(lines))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, Any, list[Any]]:
    """Look for examples only in files that have some: the others need not be imported."""
    found = yield
    without = ">>> " not in file_path.read_text(encoding="utf-8")
    return [one for one in found if not (without and isinstance(one, DoctestModule))]


def pytest_collection_finish() -> None:
    """What is imported by now stays; the garbage collector need not look at it again. Transcripts are played once."""
    play_transcripts_once()
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each worker begins with neighboring tests, which share what a module costs, and then takes from the others."""
    if config.getoption("dist") != "load":  # another order was asked for
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


# ---- golden numbers ---------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def golden() -> Golden:
    """Hand-derived numbers: `golden.t1` is a table, `golden.cases("gigpo")` what must come out of it."""
    from tests.golden_cases import Golden

    return Golden()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the argument `golden_case` runs once for each golden case."""
    if "golden_case" in metafunc.fixturenames:
        from tests.golden_cases import golden_cases

        cases, seen = golden_cases(), Counter[tuple[str, str]]()
        ids = []
        for case in cases:
            ids.append(f"{case.file}-{case.part}-{seen[case.file, case.part]}")
            seen[case.file, case.part] += 1
        metafunc.parametrize("golden_case", cases, ids=ids)
