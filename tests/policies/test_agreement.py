"""What must hold at the start of a run: (1) models of all families that the engine serves pass, padded and packed. So
do additions and a model in bfloat16; (2) a model whose trainer or engine gives other numbers is refused with the
numbers; (3) it is compared before anything is trained, and a model made on the spot is not compared; (4) what a policy
saves agrees with it: whole weights, additions, and one to the output layer, also in bfloat16. A folder with other
weights, or with another tokenizer or template, is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra.data import RunSetup
from palaestra.engines import InProcessEngine
from palaestra.errors import ContractError
from palaestra.models.own_head import is_plain
from palaestra.models.packing import enable
from palaestra.models.precision import set_dtype
from palaestra.policies.agreement import refuse_disagreement, refuse_other_copy
from palaestra.policies.language import LanguagePolicy
from palaestra.recipe import load
from palaestra.testing import TinyModel
from palaestra.training.setup import build_setup
from tests.engines.conversations import lively
from tests.engines.test_families import FAST, SERVED, made, some
from tests.messages import told
from tests.models.test_own_head import model_of
from tests.training.conftest import ECHO

# Families whose logits are more than a product with the output embeddings: scaled, capped, or with a layer before it.
OWN_HEAD = (
    "beam",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "gemma2",
    "gemma3n_text",
    "granite",
    "granite_swa",
    "granitemoe",
)
OWN_HEAD += (
    "granitemoe_swa",
    "granitemoeshared",
    "hyperclovax",
    "minicpm3",
    "modernbert-decoder",
    "nanochat",
    "vaultgemma",
)


def loaded(model: Any, folder: Path, **options: Any) -> Any:
    """A policy of this model, with an engine."""
    tokenizer = TinyModel().tokenizer
    if model.config.get_text_config().vocab_size < len(tokenizer):
        model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    policy = LanguagePolicy("p", RunSetup(seed=0), model=str(folder), **options).as_trained()
    policy.engine = InProcessEngine(models={"p": policy.model})
    return policy


@pytest.mark.parametrize("kind", some(SERVED, fast=(*FAST, *OWN_HEAD, "llama", "phi3")))
def test_1_families(kind: str, tmp_path: Path) -> None:
    """The engine reads cached keys and values, the trainer hidden states and then the output layer."""
    policy = loaded(made(kind, vocab_size=300), tmp_path, packing=False)
    assert is_plain(policy.model) == (kind not in OWN_HEAD)
    policy.check_numbers()
    if not enable(policy.model):  # no obstacle: it reads packed rows
        assert policy.token_cost is not None
        policy.check_numbers()


def test_1_additions_and_bfloat16(tmp_path: Path) -> None:
    loaded(model_of("llama"), tmp_path / "a", packing=True, lora={"rank": 2}).check_numbers()
    low = loaded(model_of("llama"), tmp_path / "b", packing=True)
    set_dtype(low.module, "bfloat16")
    low.engine = InProcessEngine(models={"p": low.model})
    low.check_numbers()


def test_2_other_numbers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = loaded(model_of("granite"), tmp_path)
    policy.network._plain = True  # as if the division by `logits_scaling` were forgotten
    with told(ContractError, "trainer and transformers"):
        policy.check_numbers()
    refuse_disagreement(policy, trained=False)  # a policy that only answers


def test_2_an_engine_with_other_numbers_is_refused(tmp_path: Path) -> None:
    policy = loaded(model_of("llama"), tmp_path)
    policy.engine = InProcessEngine(models={"p": lively(copy.deepcopy(policy.model))})
    with pytest.raises(ContractError, match="engine and transformers by"):
        refuse_disagreement(policy, trained=False)


def test_3_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr("palaestra.policies.language.refuse_disagreement", lambda policy: compared.append(policy.name))
    build_setup(load([ECHO], []).settings)
    assert compared == []
    TinyModel().save(str(tmp_path / "model"))
    model = {"policies": {"main": {"policy": {"language": {"model": str(tmp_path / "model")}}}}}
    build_setup(load([{**ECHO, **model}], []).settings)
    assert compared == ["main"]


@pytest.mark.parametrize("targets", [None, ["lm_head"]])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_4_additions(targets: list[str] | None, dtype: str, tmp_path: Path) -> None:
    policy = loaded(TinyModel().model, tmp_path / "model", lora={"rank": 2, "targets": targets})
    set_dtype(policy.network, dtype)
    set_dtype(policy.adapter, dtype)
    for addition in policy.module.additions.values():
        torch.nn.init.normal_(addition.b.weight, std=0.05)
    policy.save(str(tmp_path / "copy"))
    refuse_other_copy(policy, str(tmp_path / "copy"))


@pytest.mark.parametrize("kind", some(SERVED, fast=FAST))
def test_4_families(kind: str, tmp_path: Path) -> None:
    policy = loaded(made(kind, vocab_size=300), tmp_path / "model")
    policy.save(str(tmp_path / "copy"))
    refuse_other_copy(policy, str(tmp_path / "copy"))


def test_4_other_folders(tmp_path: Path) -> None:
    policy = loaded(model_of("llama"), tmp_path / "model")
    policy.save(str(tmp_path / "copy"))
    lively(policy.model)
    with pytest.raises(ContractError, match="nats"):
        refuse_other_copy(policy, str(tmp_path / "copy"))
    set_dtype(policy.module, "bfloat16")
    with pytest.raises(ContractError, match="bfloat16"):
        refuse_other_copy(policy, str(tmp_path / "copy"))
    policy.save(str(tmp_path / "copy"))
    refuse_other_copy(policy, str(tmp_path / "copy"))
    (tmp_path / "copy" / "chat_template.jinja").write_text("{{ messages }}")
    with told(ContractError, "tokenizer"):
        refuse_other_copy(policy, str(tmp_path / "copy"))
