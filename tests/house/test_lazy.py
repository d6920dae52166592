"""What must cost nothing: (1) `palaestra --help` and (2) listing parts, methods and recipes import no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.house.source_text import ROOT

HEAVY = ("torch", "transformers", "matplotlib", "gymnasium")


def imported(code: str) -> str:
    """The heavy modules that running `code` in a fresh interpreter imports."""
    report = f"\nimport sys; print('imported', [name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + report], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def command(*arguments: str) -> str:
    return (
        f"import sys\nsys.argv = ['palaestra', *{arguments!r}]\nfrom palaestra.commands.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code"
    )


@pytest.mark.parametrize("arguments", [("--help",), ("train", "--help"), ("methods",), ("envs",)])
def test_the_command_line_is_lazy(arguments: tuple[str, ...]) -> None:  # rule 1
    assert imported(command(*arguments)) == "imported []"


@pytest.mark.parametrize(
    "code",
    [
        "import palaestra",
        "from palaestra.registry import SLOTS, names\n[names(slot) for slot in SLOTS]",
        "from palaestra.catalogue import declarations, heads, systems\ndeclarations(); heads(); systems()",
        "import palaestra.recipe",
    ],
)
def test_listing_is_lazy(code: str) -> None:  # rule 2
    assert imported(code) == "imported []"


def test_the_rule_can_fail() -> None:
    assert imported("import torch") != "imported []"
