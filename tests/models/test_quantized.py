"""Weights in 4 or 8 bits: (1) they are the rounded weights of the folder, by the definition of their kind; (2) a model
computes what its copy with whole weights computes, bit for bit, with a gradient and without one, however large the
batch; (3) gradients are those through the copy, and between the passes only codes are kept; (4) copies for adapters
share codes and scales in memory, other copies do not; (5) a folder with quantized weights is read: those of
bitsandbytes as they are, FP8 as whole weights; (6) what cannot be read or quantized is refused with the reason; (7) a
model is an ordinary one for transformers after loading, and nothing is printed; (8) an empty model of another process
takes over codes and scales.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.autograd.graph import saved_tensors_hooks
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GPT2Config, GPT2LMHeadModel

from palaestra.engines import wire
from palaestra.errors import CheckpointError, MissingExtra
from palaestra.models.adapters import sharing
from palaestra.models.causal_lm import load_causal_lm, make_causal_lm
from palaestra.models.packing import cost_of_token
from palaestra.models.quantized import QuantizedLinear, dequantized, is_quantized, package, without_notices
from tests.messages import told

KINDS = ("nf4", "int8")
LAYER = "model.layers.1.mlp.up_proj"
IDS = torch.tensor([[5, 9, 40, 7, 3, 25, 11], [8, 8, 1, 30, 2, 10, 60]])
# arXiv 2305.14314, appendix E
NF4 = """-1.0 -0.6961928 -0.52507305 -0.39491749 -0.28444138 -0.18477343 -0.09105004 0.0 0.0795803 0.1609302 0.2461123
0.33791524 0.44070983 0.562617 0.72295684 1.0"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    make_causal_lm(vocabulary=70, hidden=64, layers=2, heads=4, context=64, seed=1).save_pretrained(place)
    return place


def with_config(folder: Path, place: Path, said: dict[str, Any]) -> Path:
    """A copy of the folder whose configuration names this quantization."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"quantization_config": said}))
    return place


@pytest.mark.parametrize("kind", KINDS)
def test_1_rounded_weights(folder: Path, kind: str) -> None:
    whole = load_file(folder / "model.safetensors")[f"{LAYER}.weight"]
    layer = load_causal_lm(folder, quantize=kind).get_submodule(LAYER)
    assert isinstance(layer, QuantizedLinear)
    if kind == "nf4":
        levels, blocks = torch.tensor([float(level) for level in NF4.split()]), whole.reshape(-1, 64)
        scales = blocks.abs().amax(1, keepdim=True)
        nearest = (blocks[..., None] / scales[..., None] - levels).abs().argmin(-1)
        expected = (levels[nearest] * scales).reshape(whole.shape)
    else:
        scales = whole.half().abs().amax(1, keepdim=True).float()
        expected = (whole.half().float() * 127 / scales).round() * scales / 127
    found = layer.values(torch.float32)
    apart = (found - expected).abs()
    assert float(apart.median()) < 1e-6  # a weight near the middle of two levels may fall to either side
    assert float((apart > 1e-6).float().mean()) < 0.01
    assert torch.equal(layer.values(torch.float64).float(), found)
    torch.testing.assert_close(layer.values(torch.bfloat16), found.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_2_the_copy_with_whole_weights(folder: Path, kind: str, dtype: torch.dtype) -> None:
    model = load_causal_lm(folder, quantize=kind, dtype=dtype)
    plain = dequantized(model, dtype)
    assert is_quantized(model) and not is_quantized(plain) and plain.dtype == model.dtype == dtype
    found = model(input_ids=IDS).logits
    assert torch.equal(found, plain(input_ids=IDS).logits)
    with torch.inference_mode():
        assert torch.equal(found, model(input_ids=IDS).logits)
        if dtype != torch.bfloat16:
            torch.testing.assert_close(found[:1, :3], model(input_ids=IDS[:1, :3]).logits)
    assert not torch.equal(found, load_causal_lm(folder, dtype=dtype)(input_ids=IDS).logits)
    assert cost_of_token(model) == cost_of_token(plain)


@pytest.mark.parametrize("kind", KINDS)
def test_3_gradients(folder: Path, kind: str) -> None:
    model, kept = load_causal_lm(folder, quantize=kind), []
    given = model.get_input_embeddings()(IDS).detach().requires_grad_()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    found = []
    for one in (model, dequantized(model, torch.float32)):
        with saved_tensors_hooks(note, lambda tensor: tensor):
            logits = one(inputs_embeds=given).logits
        found += torch.autograd.grad(logits.logsumexp(-1).sum(), given)
        layer: Any = one.get_submodule(LAYER)
        turned = (layer.in_features, layer.out_features)
        assert (turned in kept or turned[::-1] in kept) == (one is not model)
        assert all(p.grad is None for p in one.parameters())
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-5)
    assert float(found[0].abs().max()) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_4_copies(folder: Path, kind: str) -> None:
    model = load_causal_lm(folder, quantize=kind)
    for copied, same in ((sharing(model), True), (copy.deepcopy(model), False)):
        here, there = (one.get_submodule(LAYER).state_dict() for one in (model, copied))
        assert set(here) == {"weight", "scales"}
        assert all((here[name].data_ptr() == there[name].data_ptr()) == same for name in here)
        assert torch.equal(copied(input_ids=IDS).logits, model(input_ids=IDS).logits)
        assert is_quantized(copied)


@pytest.mark.parametrize("kind", ["nf4", "fp4", "int8"])
def test_5_folders_of_bitsandbytes(folder: Path, tmp_path: Path, kind: str) -> None:
    package()
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": kind == "nf4"}
    config = BitsAndBytesConfig(**({"load_in_8bit": True} if kind == "int8" else four))  # type: ignore[arg-type]
    theirs = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, device_map={"": "cpu"})
    theirs.save_pretrained(tmp_path)
    model = load_causal_lm(tmp_path)
    assert torch.equal(model(input_ids=IDS).logits, dequantized(model, torch.float32)(input_ids=IDS).logits)
    whole: Any = theirs.dequantize(torch.float32).get_submodule(LAYER)
    torch.testing.assert_close(model.get_submodule(LAYER).values(torch.float32), whole.weight.float())
    with told(CheckpointError, f"`{kind}`"):
        load_causal_lm(tmp_path, quantize="nf4")


def test_5_fp8_becomes_whole(tmp_path: Path) -> None:
    model = make_causal_lm(vocabulary=70, hidden=128, layers=1, heads=4, intermediate=256, context=64)
    said = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    model.save_pretrained(tmp_path / "whole")
    place = with_config(tmp_path / "whole", tmp_path / "fp8", said)
    weights, written = load_file(place / "model.safetensors"), {}
    for name, weight in weights.items():
        if "_proj" in name:
            scales = torch.full((weight.shape[0] // 128, weight.shape[1] // 128), 1 / 512)
            written |= {name: (weight * 512).to(torch.float8_e4m3fn), f"{name}_scale_inv": scales}
        else:
            written[name] = weight
    save_file(written, place / "model.safetensors", {"format": "pt"})
    loaded = load_causal_lm(place)
    assert not is_quantized(loaded) and loaded.dtype == torch.float32
    expected = written["model.layers.0.mlp.up_proj.weight"].float() / 512
    torch.testing.assert_close(loaded.get_submodule("model.layers.0.mlp.up_proj").weight, expected)
    loaded.save_pretrained(tmp_path / "again")
    assert "quantization_config" not in json.loads((tmp_path / "again" / "config.json").read_text())


@pytest.mark.parametrize("kind", ["gptq", "awq", "compressed-tensors", "unheard_of"])
def test_6_other_kinds(folder: Path, tmp_path: Path, kind: str) -> None:
    place = with_config(folder, tmp_path / "model", {"quant_method": kind, "bits": 4})
    with told(CheckpointError, f"`{kind}`"):
        load_causal_lm(place)


def test_6_other_layers(tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(vocab_size=70, n_embd=64, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    with told(CheckpointError, "Conv1D"):
        load_causal_lm(tmp_path, quantize="nf4")


@pytest.mark.parametrize("missing", ["bitsandbytes", "accelerate"])
def test_6_without_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    package.cache_clear()
    monkeypatch.setitem(sys.modules, missing, None)
    with told(MissingExtra, "palaestra[quantize]"):
        load_causal_lm(folder, quantize="int8")


@pytest.mark.parametrize("kind", KINDS)
def test_7_an_ordinary_model(folder: Path, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    model: Any = load_causal_lm(folder, quantize=kind)
    assert capfd.readouterr() == ("", "")
    assert not {name for name in model.config.to_dict() if "quant" in name}
    assert model.to("cpu").to(torch.bfloat16).dtype == torch.bfloat16
    assert not any(p.requires_grad for layer in model.model.layers for p in layer.mlp.parameters())


def test_7_what_an_import_logs(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("bitsandbytes.backends.cpu.ops")
    with without_notices():
        log.warning("a kernel cannot be downloaded")
    assert not caplog.records
    log.warning("another word")
    assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_8_another_process(folder: Path, tmp_path: Path, kind: str) -> None:
    model = load_causal_lm(folder, quantize=kind, dtype=torch.bfloat16)
    config, additions = json.loads(json.dumps(wire.describe(model)))
    file = wire.write_tensors(tmp_path, "main", 1, wire.named_tensors(model))
    other = wire.empty_model(config)
    assert not additions and not torch.equal(other(input_ids=IDS).logits, model(input_ids=IDS).logits)
    with torch.no_grad():
        wire.read_tensors(file, other)
    assert torch.equal(other(input_ids=IDS).logits, model(input_ids=IDS).logits)
