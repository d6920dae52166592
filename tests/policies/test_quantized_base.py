"""Policies whose base holds its weights in 4 or 8 bits: (1) engine, trainer and transformers agree, at the start and
after updates, with policies of both kinds on one base in one engine; (2) the gradient of the additions is that on the
base with whole weights; (3) updates reduce a loss, and codes and scales stay; (4) a checkpoint holds the additions and
the value head, a resumed run has the same weights, and another kind is refused; (5) an export is the merged model with
whole weights, and the adapter for peft; a base is exported whole; (6) weights that would be trained are refused before
they are loaded, and so are a model made on the spot and shards; (7) the plan counts them as they are held; (8) another
process generates the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from palaestra.commands import export
from palaestra.data import RunSetup
from palaestra.data.protocols import PolicyOutputs
from palaestra.engines import InProcessEngine
from palaestra.engines.forward import TransformersForward, forward_of
from palaestra.errors import CheckpointError, RecipeError
from palaestra.models.adapters import load_adapter
from palaestra.models.causal_lm import load_causal_lm
from palaestra.models.packing import cost_of_token
from palaestra.models.quantized import QuantizedLinear, is_quantized
from palaestra.models.sharding import shard
from palaestra.models.sizes import size_of
from palaestra.policies.adapter import AdapterPolicy
from palaestra.policies.language import LanguagePolicy
from palaestra.policies.sequences import LanguageSamples, samples_of
from palaestra.recipe import load
from palaestra.store.folder import RunFolder
from palaestra.testing import TinyModel
from palaestra.training.checkpoint import load_policy
from palaestra.training.memory import Need, needs_of
from palaestra.training.setup import build_setup
from tests.messages import told
from tests.training.conftest import ECHO, clones, echo, final_weights, stopped_before  # noqa: F401, the fixtures

KINDS = ("nf4", "int8")
IDS = torch.tensor([[5, 9, 40, 7, 3, 250, 11]])
PAID = "regularizers=[{entropy: {coefficient: 0.1}}]"  # so that every update changes weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("model")
    tiny = TinyModel(seed=2)
    with torch.no_grad():
        for p in tiny.model.model.layers.parameters():
            p.mul_(3.0)  # so that its tokens are not all equally likely
    tiny.save(str(place))
    return str(place)


def policy(folder: str, kind: str | None, **options: Any) -> Any:
    return LanguagePolicy(
        "main", RunSetup(seed=0), model=folder, quantize=kind, lora={"rank": 3}, **options
    ).as_trained()  # type: ignore[arg-type]


def stirred(made: Any, seed: int = 0) -> Any:
    """With additions that do something."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.module.adapter.parameters():
            p.normal_(std=0.2, generator=draw)
    return made


def served(*made: Any) -> None:
    engine = InProcessEngine(models={one.name: one.model for one in made})
    for one in made:
        one.engine = engine


def samples(made: Any) -> LanguageSamples:
    ids = [np.array([5, 9, 7, 3, 8, 2, 60, 61]), np.array([5, 9, 7, 4, 90]), np.array([6, 2, 9, 9, 1, 1, 200])]
    return samples_of(ids, [np.arange(3, len(one)) for one in ids], token_cost=made.token_cost)


def outputs(made: Any) -> PolicyOutputs:
    return made.forward(samples(made), range(3), ("logprob", "entropy"))  # type: ignore[no-any-return]


def gradient(made: Any) -> torch.Tensor:
    columns = outputs(made).columns
    loss = (columns["logprob"] * torch.arange(len(columns["logprob"]))).sum() + columns["entropy"].sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(made.module.adapter.parameters()))])


def whole_layers(made: Any) -> None:
    """Give the shared module of a policy the whole weights of its codes."""
    for name, part in list(made.network.model.named_modules()):
        if isinstance(part, QuantizedLinear):
            made.network.model.set_submodule(name, part.dequantized(torch.float32))


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_1_engine_and_trainer(folder: str, kind: str, packing: bool) -> None:
    made = policy(folder, kind, packing=packing, value_head=True)
    assert isinstance(forward_of(made.model, length=16), TransformersForward)
    served(made)
    made.check_numbers()
    stirred(made).weights_changed(1)
    made.check_numbers()


@pytest.mark.parametrize("kind", KINDS)
def test_1_adapters_on_one_base(folder: str, kind: str) -> None:
    base = LanguagePolicy("base", RunSetup(seed=0), model=folder, quantize=kind)  # type: ignore[arg-type]
    setup = RunSetup(seed=1, policies={"base": base})
    one, two = (stirred(AdapterPolicy(name, setup, of="base"), seed) for seed, name in enumerate(("one", "two")))
    served(base, one, two, one.clone())
    for each in (base, one, two):
        each.check_numbers()
    codes = [part for part in base.model.modules() if isinstance(part, QuantizedLinear)]
    assert codes and {p.data_ptr() for part in codes for p in part.parameters()} <= {
        p.data_ptr() for p in one.model.parameters()
    } & {p.data_ptr() for p in one.clone().network.model.parameters()}
    assert not torch.equal(outputs(one).columns["logprob"], outputs(two).columns["logprob"])


@pytest.mark.parametrize("way", ["padded", "packed", "recomputed"])
@pytest.mark.parametrize("kind", KINDS)
def test_2_gradients(folder: str, kind: str, way: str) -> None:
    made = stirred(policy(folder, kind, packing=way == "packed", recompute=way == "recomputed"))
    assert (made.token_cost is None) == (way != "packed")
    found, columns = gradient(made), outputs(made).columns
    whole_layers(made)
    assert not is_quantized(made.network.model)
    assert torch.equal(columns["logprob"], outputs(made).columns["logprob"])
    expected = gradient(made)
    assert float(expected.abs().max()) > 0
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    plain = stirred(policy(folder, None, packing=way == "packed"))
    assert not torch.equal(columns["logprob"], outputs(plain).columns["logprob"])


@pytest.mark.parametrize("kind", KINDS)
def test_3_updates(folder: str, kind: str) -> None:
    made = policy(folder, kind)
    before = {name: tensor.clone() for name, tensor in made.network.model.state_dict().items() if ".lora" not in name}
    optimizer = torch.optim.AdamW(made.module.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        loss = -outputs(made).columns["logprob"].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.3
    after = made.network.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert {str(tensor.dtype) for tensor in before.values()} >= {"torch.uint8" if kind == "nf4" else "torch.int8"}


def recipe(folder: str, kind: str, **options: Any) -> dict[str, Any]:
    chosen = {"model": folder, "quantize": kind, "lora": {"rank": 4}, "value_head": True} | options
    return {"policies": {"main": {"policy": {"language": chosen}}}, "warm_start": None}


@pytest.mark.parametrize("kind", KINDS)
def test_4_5_a_run(echo: Callable[..., Path], folder: str, kind: str, tmp_path: Path) -> None:  # noqa: F811
    given: dict[str, Any] = {"layers": recipe(folder, kind) | {"dtype": "bfloat16"}}
    short = (PAID, "training.iterations=2", "training.checkpoint_every=1", "evaluation.tasks=2")
    run = echo("straight", *short, **given)
    place = Path(RunFolder.open(str(run)).latest_checkpoint() or "")
    written = load_file(place / "main.safetensors")
    assert {name.partition(".")[0] for name in written} == {"adapter", "value"}
    assert all(".lora_" in name or name.startswith("value.") for name in written)
    with stopped_before(1):
        echo("stopped", *short, **given)
    assert final_weights(echo("stopped", *short, **given, resume=True)) == final_weights(run)

    other = build_setup(load([ECHO, recipe(folder, "int8" if kind == "nf4" else "nf4")], []).settings)
    with told(CheckpointError, f"weights {kind} there"):
        load_policy(place, "main", other.policies["main"])

    export.run(folder=str(run), out=str(tmp_path / "exported"), policy=None, checkpoint=None)
    assert "quantization_config" not in json.loads((tmp_path / "exported" / "config.json").read_text())
    merged = load_causal_lm(tmp_path / "exported")
    made = build_setup(load([ECHO, recipe(folder, kind)], []).settings).policies["main"]
    made.module.load_state_dict(written)
    logits = made.model(IDS).logits.detach()
    assert not is_quantized(merged)
    assert float((merged(IDS).logits - logits).abs().max()) < 0.1  # it was merged in bfloat16
    base = load_causal_lm(folder, quantize=kind)
    again = load_adapter(base, str(tmp_path / "exported"))
    torch.testing.assert_close(again.get_base_model()(IDS).logits, logits)
    assert not torch.allclose(base(IDS).logits, logits, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_5_merged_and_base(folder: str, kind: str, tmp_path: Path) -> None:
    made = stirred(policy(folder, kind))
    made.save(str(tmp_path / "merged"))
    torch.testing.assert_close(load_causal_lm(tmp_path / "merged")(IDS).logits, made.model(IDS).logits)
    assert is_quantized(made.model)
    base = LanguagePolicy("base", RunSetup(seed=0), model=folder, quantize=kind)  # type: ignore[arg-type]
    base.save(str(tmp_path / "base"))
    assert torch.equal(load_causal_lm(tmp_path / "base")(IDS).logits, base.model(IDS).logits)


def test_6_refused(folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("palaestra.policies.language.load_causal_lm", None)  # nothing is loaded
    with told(RecipeError, "`nf4`"):
        build_setup(load([ECHO, recipe(folder, "nf4", lora=None)], []).settings)
    with told(RecipeError, "made on the spot"):
        LanguagePolicy("main", RunSetup(seed=0), quantize="nf4")
    config = json.loads((Path(folder) / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    layers = recipe(str(place), "nf4", lora=None)
    del layers["policies"]["main"]["policy"]["language"]["quantize"]
    with told(RecipeError, "`int8`"):
        build_setup(load([ECHO, layers], []).settings)


def test_6_shards(folder: str) -> None:
    with told(RecipeError, "spread over processes"):
        shard(policy(folder, "nf4").network, returns=PolicyOutputs)


@pytest.mark.parametrize(("kind", "dtype"), [("nf4", "bfloat16"), ("int8", "float32")])
def test_7_the_plan(folder: str, kind: str, dtype: str) -> None:
    def rows(quantize: str | None) -> dict[str, Need]:
        text = recipe(folder, kind, quantize=quantize) | {"dtype": dtype}
        return {row.what: row for row in needs_of(load([ECHO, text], []).settings)}

    found, whole = rows(kind), rows(None)
    model = load_causal_lm(folder, quantize=kind, dtype=getattr(torch, dtype))
    scales = [buffer for name, buffer in model.named_buffers() if name.endswith(".scales")]
    held = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *scales))
    assert found["weights of main"].size == pytest.approx(held, rel=0.02 if kind == "nf4" else 0.05)
    assert f" in {kind}, " in found["weights of main"].how
    assert found["training of main"] == whole["training of main"]
    (larger,) = {found[name].size - whole[name].size for name in found if name.startswith("one pass")}
    size = size_of(folder)
    assert size is not None and larger == max(i * o for i, o in size.linear.values()) * (
        2 if dtype == "bfloat16" else 4
    )


def test_7_the_plan_of_a_quantized_folder(folder: str, tmp_path: Path) -> None:
    config = json.loads((Path(folder) / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (rows, same) = (
        {row.what: row for row in needs_of(load([ECHO, recipe(place, "nf4", quantize=kind)], []).settings)}
        for place, kind in ((str(tmp_path), None), (folder, "nf4"))
    )
    assert rows == same


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_8_another_process(echo: Callable[..., Path], folder: str, kind: str) -> None:  # noqa: F811
    base = {"policy": {"language": {"model": folder, "quantize": kind}}, "trainable": False}
    policies = {"base": base, "main": {"policy": {"adapter": {"of": "base", "rank": 2}}}}
    given: dict[str, Any] = {"layers": {"policies": policies, "warm_start": None}}
    short = (PAID, "training.iterations=2", "evaluation.tasks=2")
    there = echo("there", "engine={remote: {start: true}}", *short, **given)
    assert final_weights(there) == final_weights(echo("here", *short, **given))


def test_cost_of_a_token(folder: str) -> None:
    made = policy(folder, "nf4", packing=True)
    assert made.token_cost == cost_of_token(load_causal_lm(folder))
