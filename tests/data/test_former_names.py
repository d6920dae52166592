"""Former names: (1) who imports a name of an earlier version gets one error that says the present one, also where its
module is no more; (2) any other wrong name is what Python makes of it; (3) so with attributes of a token batch and
columns of a table.
"""

from __future__ import annotations

import importlib

import pytest
import torch

from palaestra.data import StepTable, TokenBatch
from palaestra.errors import ContractError, InvalidData, MissingColumn


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
        ("palaestra.rollout.agent", "palaestra.rollout.episode"),
        ("palaestra.rollout.windows", "palaestra.systems.t_ppo.windows"),
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


@pytest.mark.parametrize(
    ("name", "now"),
    [("logprob", 'batch["logprob"]'), ("proximal", 'batch["logprob_old"]'), ("whole", "batch.scope")],
)
def test_attributes_of_a_batch(name: str, now: str) -> None:  # rule 3
    batch = TokenBatch(row=torch.zeros(1).long(), trajectory=torch.zeros(1).long(), logprob=torch.zeros(1))
    with pytest.raises(ContractError) as caught:
        getattr(batch, name)
    assert caught.value.what == f"it is `{now}` now."
    assert not hasattr(batch, "logprobs")


def test_columns_of_a_table() -> None:  # rule 3
    rows = {"group": ["g"], "trajectory": ["t"], "agent": ["a"], "turn": [0], "reward": [1.0]}
    with pytest.raises(MissingColumn, match="it is called `logprob_behavior` now"):
        StepTable(**rows)["token_logprob"]
    with pytest.raises(InvalidData, match="it is called `bootstrap_value` now"):
        StepTable(**rows, value_end=[0.0])
