"""Layers: (1) imports go only downwards and never between rooms of one line (contracts in pyproject.toml);
(2) no import inside a function, except of an optional extra and of what few need and all would wait for; (3) an extra
that a message names exists; (4) something imports each package that pyproject.toml names, and `make develop` installs
all extras: a test that is skipped there runs nowhere.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source_text import ROOT, functions, package_files, project, python_files, shown

EXTRAS = project()["project"]["optional-dependencies"]
PACKAGES = {re.split(r"[<>=\[; ]", line)[0].replace("-", "_") for lines in EXTRAS.values() for line in lines}
HEAVY = {"matplotlib"}  # core, but half a second to import, and only drawing needs it
SLOW = ("torch.distributed", "torch.export")  # of torch: only several processes need them
OTHERWISE = {"fast_downward"}  # the package of fast-downward-textworld is imported by another name
IMPORTED_AS = {
    "pillow": "PIL",
    "open_spiel": "pyspiel",
    "fast-downward-textworld": "fast_downward",
    "pyyaml": "yaml",
}  # others by their own names
LATE = PACKAGES | HEAVY | OTHERWISE


def test_imports_go_only_downwards() -> None:  # rule 1
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def late_imports(path: Path) -> Iterator[str]:
    for name, function in functions(path):
        for node in ast.walk(function):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = ["." * node.level + (node.module or "")]
            else:
                continue
            for module in modules:
                if module.partition(".")[0] not in LATE and not module.startswith(SLOW):
                    yield f"{shown(path)}:{node.lineno} {name} imports {module}"


def test_imports_stand_at_the_top() -> None:  # rule 2
    assert not [line for path in package_files() for line in late_imports(path)]


def test_named_extras_exist() -> None:  # rule 3
    texts = [path.read_text(encoding="utf-8") for path in package_files()]
    named = {extra for text in texts for extra in re.findall(r'missing_extra\([^)]*extra="(\w+)"', text)}
    assert named and named <= set(EXTRAS)


def import_names(requirements: list[str]) -> list[str]:
    """What the packages of requirements are imported as."""
    packages = [re.split(r"[<>=\[; ]", line)[0] for line in requirements]
    return [IMPORTED_AS.get(package, package.replace("-", "_")) for package in packages]


def never_imported(modules: list[str], code: str) -> list[str]:
    """The modules that no code imports, and that no recipe or option names as the place of an environment."""
    used = r"""^ *(import|from) {0}\b|import_module\("{0}\b|[ "]{0}\.\w+\b"""
    return [module for module in modules if not re.search(used.format(module), code, re.MULTILINE)]


def test_every_package_is_used_and_installed() -> None:  # rule 4
    written = (ROOT / "Makefile").read_text(encoding="utf-8")
    installed, apart = (re.findall(rf"^{name} [?:]= (\S+)$", written, re.MULTILINE) for name in ("EXTRAS", "APART"))
    assert {extra for line in (*installed, *apart) for extra in line.split(",")} == set(EXTRAS)
    for line in apart:  # `make develop` installs the packages of these one by one
        for extra in line.split(","):
            for package in EXTRAS[extra]:
                name = re.split(r"[<>=\[; ]", package)[0]
                assert re.search(rf"^\t-?\$\(PIP\) install .*\b{name}$", written, re.MULTILINE), name
    files = [*package_files(), *python_files("benchmarks")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for extra in EXTRAS.keys() - {"dev"}:
        assert not never_imported(import_names(EXTRAS[extra]), code), f"nothing imports them: extra `{extra}`"
    assert not never_imported(import_names(project()["project"]["dependencies"]), code)


def test_a_package_that_nothing_imports_is_found() -> None:  # rule 4
    code = 'import json\n    from yaml import load\nimport_module("mcp.client")\nenv: str = "mpe2.spread"\n# ray.\n'
    modules = import_names(["json>=1", "pyyaml", "mcp>=2.0,<3", "mpe2", "ray[default]>=2", "wandb"])
    assert never_imported(modules, code) == ["ray", "wandb"]


def test_late_imports_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.shown", str)
    file = tmp_path / "a.py"
    file.write_text("import json\ndef f():\n    import json\n    import textworld.challenges\n    from .b import c\n")
    assert [line.split(" ", 1)[1] for line in late_imports(file)] == ["f imports json", "f imports .b"]
