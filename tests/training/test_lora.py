"""What must hold of `language: {lora: …}`: (1) only the additions are trained, and a checkpoint holds them alone;
(2) a resumed run has the same weights; (3) an export is the merged model, and the adapter for peft; (4) a base that
was loaded from a folder and is not trained is not written, and is read from its folder again; (5) tied weights are
written once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from palaestra.commands import export
from palaestra.models.causal_lm import load_causal_lm
from palaestra.policies.adapter import AdapterPolicy
from palaestra.recipe import load
from palaestra.store.folder import RunFolder
from palaestra.testing import TinyModel
from palaestra.training.checkpoint import RunState, load_checkpoint, save_checkpoint
from palaestra.training.setup import build_setup
from tests.training.conftest import ECHO, stopped_before

LORA = "policies.main.policy.language.lora={rank: 4, alpha: 8}"
PAID = "regularizers=[{entropy: {coefficient: 0.1}}]"  # so that every update changes weights


def newest(run: Path) -> Path:
    place = RunFolder.open(str(run)).latest_checkpoint()
    assert place is not None
    return Path(place)


def test_1_2_3_a_run(echo: Callable[..., Path], tmp_path: Path) -> None:
    run = echo("straight", LORA, PAID)
    written = load_file(newest(run) / "main.safetensors")
    assert written
    assert all(".lora_" in name for name in written)
    with stopped_before(2):
        echo("stopped", LORA, PAID)
    again = load_file(newest(echo("stopped", LORA, PAID, resume=True)) / "main.safetensors")
    assert all(torch.equal(written[name], again[name]) for name in written)
    export.run(folder=str(run), out=str(tmp_path / "exported"), policy=None, checkpoint=None)
    assert (tmp_path / "exported" / "adapter" / "adapter_model.safetensors").exists()
    merged = load_causal_lm(tmp_path / "exported")
    setup = build_setup(load([ECHO], [LORA]).settings)
    policy = setup.policies["main"]
    assert isinstance(policy, AdapterPolicy)
    assert {id(p) for p in policy.module.parameters() if p.requires_grad} == {id(p) for p in policy.module.parameters()}
    assert not any(p.requires_grad for p in policy.network.model.parameters())
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        before = policy.model(ids).logits
        policy.module.load_state_dict(written)
        torch.testing.assert_close(policy.model(ids).logits, merged(ids).logits, atol=1e-4, rtol=1e-4)
    assert not torch.equal(before, policy.model(ids).logits)


def test_4_a_loaded_base_is_not_written(tmp_path: Path) -> None:
    TinyModel().save(str(tmp_path / "model"))
    base = {"policy": {"language": {"model": str(tmp_path / "model")}}, "trainable": False}
    two = {"policies": {"main": {"policy": {"adapter": {"of": "base", "rank": 2}}}, "base": base}, "warm_start": None}
    setup = build_setup(load([ECHO, two], []).settings)
    folder = RunFolder.create(str(tmp_path / "run"))
    save_checkpoint(folder, 1, RunState(setup.policies), counters={}, keep=1)
    place = newest(tmp_path / "run")
    assert sorted(path.name for path in place.glob("*.safetensors")) == ["main.safetensors"]
    described = json.loads((place / "state.json").read_text())["policies"]
    assert described["base"]["weights"] == str(tmp_path / "model")
    assert load_checkpoint(place, RunState(setup.policies))[0] == 1
    setup.policies["base"].version = 1  # as after a warm start of the base
    save_checkpoint(folder, 2, RunState(setup.policies), counters={}, keep=1)
    assert (newest(tmp_path / "run") / "base.safetensors").exists()


def test_5_tied_weights_are_written_once(tmp_path: Path) -> None:
    policy, other = TinyModel(), TinyModel(seed=5)
    folder = RunFolder.create(str(tmp_path / "run"))
    save_checkpoint(folder, 1, RunState({"main": policy}), counters={}, keep=1)
    place = newest(tmp_path / "run")
    written = load_file(place / "main.safetensors")
    assert "model.model.embed_tokens.weight" in written
    assert "model.lm_head.weight" not in written
    assert not torch.equal(other.model.lm_head.weight, policy.model.lm_head.weight)
    load_checkpoint(place, RunState({"main": other}))
    assert torch.equal(other.model.lm_head.weight, policy.model.lm_head.weight)
    assert other.model.lm_head.weight is other.model.model.embed_tokens.weight
