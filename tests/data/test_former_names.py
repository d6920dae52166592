"""Former names: (1) who imports a name of an earlier version gets one error that says the present one, also where its
module is no more; (2) any other wrong name is what Python makes of it.
"""

from __future__ import annotations

import importlib

import pytest

from palaestra.errors import ContractError


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("palaestra.data", "Assignment", "`Play` now"),
        ("palaestra.data", "Tail", "`NextPrompt` now"),
        ("palaestra.data.protocols", "Setting", "`palaestra.data.RunSetup` now"),
        ("palaestra.data.protocols", "Acted", "`Response` now"),
        ("palaestra.data.protocols", "Generation", "`Response` now"),
    ],
)
def test_names(module: str, name: str, now: str) -> None:  # rule 1
    with pytest.raises(ContractError, match=now):
        exec(f"from {module} import {name}")


@pytest.mark.parametrize(
    ("module", "now"),
    [
        ("palaestra.rollout.field", "palaestra.rollout.strategies.RolloutContext"),
        ("palaestra.rollout.stage", "palaestra.data.RunSetup"),
    ],
)
def test_modules(module: str, now: str) -> None:  # rule 1
    with pytest.raises(ContractError, match=now):
        importlib.import_module(module)


def test_other_names() -> None:  # rule 2
    with pytest.raises(ImportError):
        exec("from palaestra.data import Tsak")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("palaestra.rollout.nothing")
