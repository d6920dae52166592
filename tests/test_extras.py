"""What tests need beside Palaestra: (1) a test without it is skipped, also one that meets it on a page; (2) the last
lines of pytest count what is absent and say how to install it; (3) with `--absent=fail` such a test fails, and says it
too; (4) tests have no other way to skip for what is absent; (5) `.ci/run` installs the Debian packages that these
lines name; (6) CONTRIBUTING.md names the steps of `.ci/run`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from palaestra.errors import MissingExtra, missing_extra
from tests import extras
from tests.extras import (
    ABSENT,
    PACKAGES,
    PROGRAMS,
    Program,
    absences,
    imported,
    install,
    skip_without,
    skipped_without_packages,
)

ROOT = Path(__file__).resolve().parent.parent
CI = (ROOT / ".ci/run").read_text(encoding="utf-8")
NEEDY = """
import pytest
from tests.extras import needs, skip_without

@pytest.fixture(scope="module")
def started():
    raise AssertionError("a fixture must not start what is absent")

@needs("no_such_package")
def test_a(started): ...

@pytest.mark.parametrize("n", range(3))
def test_b(n): skip_without("os", "no_such_package")

def test_c(): pytest.skip("for another cause")
"""


def test_1_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ABSENT, "skip")
    monkeypatch.setitem(PROGRAMS, "no such program", Program(lambda: False, "apt-get install it"))
    skip_without("os", "pytest")
    assert imported("os.path") is os.path
    for name in ("no_such_package", "no_such_package.inside", "no such program"):
        with pytest.raises(pytest.skip.Exception, match=f"absent: {name}"):
            skip_without("os", name)


def test_1_an_environment_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ABSENT, "skip")
    monkeypatch.setattr(extras, "LEFT_OUT", ["no_such_package"])
    with pytest.raises(pytest.skip.Exception, match="absent: no_such_package"), skipped_without_packages():
        raise missing_extra("no_such_package", extra="envs", needed_for="a page")
    with pytest.raises(MissingExtra), skipped_without_packages():
        raise missing_extra("no_other_package", extra="envs", needed_for="a page")


def test_2_counted() -> None:
    reasons = ["Skipped: absent: textworld", "absent: textworld, browser", "this machine has no CUDA device"]
    assert absences(reasons) == [
        f"textworld: 2 skipped; {PACKAGES['textworld']}",
        "browser: 1 skipped; apt-get install chromium chromium-driver",
    ]
    assert install("trl") == "make -B develop"


def test_3_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ABSENT, "fail")
    skip_without("os")
    with pytest.raises(pytest.fail.Exception, match=r"absent: no_such_package \(make -B develop\)"):
        skip_without("no_such_package")


@pytest.mark.smoke
@pytest.mark.parametrize("absent", ["skip", "fail"])
def test_3_by_pytest(absent: str, tmp_path: Path) -> None:
    (tmp_path / "test_needy.py").write_text(NEEDY)
    command = [sys.executable, "-m", "pytest", "-q", "-c", ROOT / "pyproject.toml", "-p", "conftest", "-n", "1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--rootdir", tmp_path, "--confcutdir", tmp_path, "--absent", absent, "test_needy.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    *_, line, last = done.stdout.strip().splitlines()
    if absent == "skip":
        assert done.returncode == 0 and "5 skipped" in last
        assert line == "no_such_package: 4 skipped; make -B develop"
    else:
        assert done.returncode == 1 and last.startswith("3 failed, 1 skipped, 1 error")
        assert "absent: no_such_package (make -B develop)" in done.stdout


def test_4_one_way() -> None:
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("palaestra/systems/**/test_*.py")]
    other = re.compile(r"importorskip|(skip|skipif)\(.*(not installed|find_spec|which\()")
    by_others = [str(file) for file in files if other.search(file.read_text(encoding="utf-8"))]
    assert by_others == [__file__] and len(files) > 400


def test_5_what_ci_installs() -> None:
    hows = [*(one.install for one in PROGRAMS.values()), *PACKAGES.values()]
    named = {word for how in hows for word in how.partition("apt-get install ")[2].partition(";")[0].split()}
    written = re.findall(r"[\w+-]+", CI)
    assert len(named) > 8 and not [one for one in named if one not in written]


def test_6_what_ci_runs() -> None:
    steps = re.findall(r"^ *step (\w+)", CI, flags=re.M)
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^ +\.ci/run +# (.*); every", page, flags=re.M)
    assert line.split(", ") == steps and {"lint", "test", "smoke"} < {*steps}
