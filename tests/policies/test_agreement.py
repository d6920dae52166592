"""What must hold at the start of a run: (1) models of many families pass, alone, packed, as a base of additions and in
bfloat16; (2) a model whose trainer or engine gives other numbers is refused with the numbers; (3) it is compared before
anything is trained, and a model made on the spot is not compared."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from palaestra.data import RunSetup
from palaestra.engines import InProcessEngine
from palaestra.errors import ContractError
from palaestra.models.precision import set_dtype
from palaestra.policies.agreement import refuse_disagreement
from palaestra.policies.language import LanguagePolicy
from palaestra.recipe import load
from palaestra.testing import TinyModel
from palaestra.training.setup import build_setup
from tests.engines.conversations import lively
from tests.engines.test_families import made
from tests.messages import told
from tests.models.test_own_head import model_of
from tests.training.conftest import ECHO


def loaded(model: Any, folder: Path, **options: Any) -> Any:
    """A policy of this model, with an engine."""
    size = model.config.get_text_config().vocab_size
    tiny = TinyModel()
    model.resize_token_embeddings(max(size, len(tiny.tokenizer)))
    model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)
    policy = LanguagePolicy("p", RunSetup(seed=0), model=str(folder), **options).as_trained()
    policy.engine = InProcessEngine(models={"p": policy.model})
    return policy


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("kind", ["cohere", "cohere2", "granite", "gemma2", "llama", "qwen3"])
def test_1_families(kind: str, packing: bool, tmp_path: Path) -> None:
    loaded(model_of(kind), tmp_path, packing=packing).check_numbers()


@pytest.mark.parametrize("kind", ["deepseek_v3", "gpt_oss"])
def test_1_latent_attention_and_sinks(kind: str, tmp_path: Path) -> None:
    loaded(made(kind), tmp_path).check_numbers()


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
