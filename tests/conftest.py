"""What every test may rely on.

(1) One thread of torch, so that results do not depend on the number of workers. (2) No network but the own
machine. (3) Shapes in signatures of tables, estimators and losses are checked at run time. (4) `golden` gives
the hand-derived numbers of tests/golden/*.yaml.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml
from jaxtyping import install_import_hook

CHECKED = tuple(f"palaestra.{room}" for room in ("data.segments", "data.stages", "data.table", "data.tokens"))
CHECKED += ("palaestra.advantages", "palaestra.weights", "palaestra.losses")
if os.environ.get("PALAESTRA_CHECK_SHAPES", "1") == "1":  # 0: faster, when timing tests
    install_import_hook(CHECKED, "beartype.beartype")  # before anything of palaestra is imported

import torch  # noqa: E402

from palaestra.data import StepTable  # noqa: E402

torch.set_num_threads(1)
GOLDEN = Path(__file__).parent / "golden"
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


# ---- golden numbers ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class GoldenCase:
    """One hand-derived result. `columns` are the file's table as it is written."""

    file: str
    slot: str
    part: str
    options: dict[str, Any]
    expected: Any
    derivation: str
    columns: dict[str, list[Any]]
    extra: dict[str, Any]  # any further keys of the case

    @cached_property
    def table(self) -> StepTable:
        """The file's columns, with the case's own `columns` over them, as a table."""
        return StepTable(**{**self.columns, **self.extra.get("columns", {})})


class Golden:
    """`golden.t1` is the table of tests/golden/t1.yaml; `golden.cases("gigpo")` its hand-derived results."""

    def __getattr__(self, name: str) -> StepTable:
        path = GOLDEN / f"{name}.yaml"
        if not path.exists():
            raise AttributeError(
                f"no golden file {path.name}; there are {[p.stem for p in sorted(GOLDEN.glob('*.yaml'))]}"
            )
        return StepTable(**_load(path)["table"])

    def cases(self, part: str | None = None, file: str | None = None) -> list[GoldenCase]:
        """All cases, or those of one part or one file."""
        return [c for c in golden_cases() if part in (None, c.part) and file in (None, c.file)]


def golden_cases() -> list[GoldenCase]:
    """Every case of every golden file, in the order of files."""
    return [case for path in sorted(GOLDEN.glob("*.yaml")) for case in _cases(path)]


def _cases(path: Path) -> Iterator[GoldenCase]:
    content = _load(path)
    known = ("slot", "part", "options", "expected", "derivation")
    for case in content.get("cases", []):
        yield GoldenCase(
            file=path.stem,
            slot=case.get("slot", ""),
            part=case.get("part", ""),
            options=case.get("options") or {},
            expected=case.get("expected"),
            derivation=case.get("derivation", ""),
            columns=content.get("table", {}),
            extra={key: value for key, value in case.items() if key not in known},
        )


def _load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="session")
def golden() -> Golden:
    """Hand-derived numbers: `golden.t1` is a table, `golden.cases("gigpo")` what must come out of it."""
    return Golden()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the argument `golden_case` runs once for each case of tests/golden."""
    if "golden_case" in metafunc.fixturenames:
        cases = golden_cases()
        metafunc.parametrize("golden_case", cases, ids=[f"{c.file}-{c.part}-{i}" for i, c in enumerate(cases)])
