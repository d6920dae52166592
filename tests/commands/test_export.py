"""`palaestra export`: (1) a language policy becomes a folder that Transformers loads; (2) training starts from it;
(3) a network policy; (4) an unknown policy.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.commands.conftest import TINY, Command


def test_1_and_2_language(recipe: Path, palaestra: Command) -> None:
    layer = {"policies": {"main": {"policy": TINY}}, "warm_start": {"episodes": 8, "epochs": 1}}
    layer |= {"rollout": {"response_tokens": 2}, "training": {"iterations": 1}}
    Path("language.yaml").write_text(json.dumps(layer))
    assert palaestra("train", recipe, "language.yaml", "--quiet").code == 0
    done = palaestra("export", "runs/small", "hf")
    assert done.code == 0 and done.out == ["wrote policy main to hf"]

    model, tokenizer = AutoModelForCausalLM.from_pretrained("hf"), AutoTokenizer.from_pretrained("hf")
    ids = torch.tensor([tokenizer.encode(" say red", add_special_tokens=False)])
    assert tokenizer.decode(ids[0]).strip() == "say red"
    assert model(ids).logits.shape == (1, ids.shape[1], len(tokenizer))
    trained = load_file("runs/small/checkpoints/step-000001/main.safetensors")
    assert all(torch.equal(trained[f"model.{name}"], tensor) for name, tensor in model.named_parameters())

    again = ["policies.main.load=hf", "run=runs/again", "warm_start=null"]
    assert palaestra("train", recipe, "language.yaml", *again, "--quiet").code == 0
    start = load_file("runs/again/checkpoints/step-000000/main.safetensors")
    assert all(torch.equal(start[name], tensor) for name, tensor in trained.items())


def test_3_network(folder: Path, palaestra: Command) -> None:
    assert palaestra("export", folder, "out").out == ["wrote policy main to out"]
    assert any(path.suffix == ".safetensors" for path in Path("out").iterdir())


def test_4_unknown(folder: Path, palaestra: Command) -> None:
    done = palaestra("export", folder, "out", "--policy", "mian")
    assert done.code == 2 and "no policy `mian`" in done.err and "Candidates: main" in done.err
    assert not Path("out").exists()
