"""`palaestra export`: (1) a language policy becomes a folder that Transformers loads; (2) training starts from it;
(3) a network policy; (4) an unknown policy; (5) an addition to an output layer that shares its weights with the
embeddings; (6) a folder is refused that holds something else, is inside of a run, or is the model of the run; an
earlier export is replaced as a whole; (7) a folder that is not the policy of the run is an error, and nothing of it
stays; (8) no other library writes a line.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from palaestra.policies.language_trainer import save_language
from tests.commands.conftest import TINY, Command


def test_1_and_2_language(recipe: Path, palaestra: Command) -> None:
    layer = {"policies": {"main": {"policy": TINY}}, "warm_start": {"episodes": 8, "epochs": 1}}
    layer |= {"rollout": {"response_tokens": 2}, "training": {"iterations": 1}}
    Path("language.yaml").write_text(json.dumps(layer))
    assert palaestra("train", recipe, "language.yaml", "--quiet").code == 0
    done = palaestra("export", "runs/small", "hf")
    assert done.code == 0 and done.out == ["wrote policy main to hf"] and not done.err  # 8

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


@pytest.fixture
def adapted(recipe: Path, palaestra: Command) -> Path:
    """A run of additions that differ from zero, one of them to the output layer."""
    tiny = {**TINY["language"], "lora": {"rank": 2, "targets": ["lm_head", "q_proj"]}}
    layer = {"policies": {"main": {"policy": {"language": tiny}}}, "optimizer": {"adamw": {"lr": 0.5}}}
    layer |= {"warm_start": {"episodes": 8, "epochs": 2}, "rollout": {"response_tokens": 2}}
    layer |= {"training": {"iterations": 1}}
    Path("adapted.yaml").write_text(json.dumps(layer))
    done = palaestra("train", recipe, "adapted.yaml", "--quiet")
    assert done.code == 0 and "tie_word_embeddings" not in done.err  # 8
    return Path("runs/small")


def test_5_8_output_layer(adapted: Path, palaestra: Command) -> None:
    done = palaestra("export", adapted, "hf")
    assert done.code == 0 and done.out == ["wrote policy main to hf"]
    assert not done.err  # 8
    model = AutoModelForCausalLM.from_pretrained("hf")
    table, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert not model.config.tie_word_embeddings and (table - output).abs().max() > 1e-3


def test_6_folders(adapted: Path, palaestra: Command) -> None:
    for inside in (adapted, adapted / "x", adapted / "checkpoints/y/z"):
        done = palaestra("export", adapted, inside)
        assert done.code == 2 and f"inside of the run {adapted.resolve()}" in done.err
    assert palaestra("export", adapted, "hf").code == 0
    assert palaestra("export", adapted, "hf").code == 0
    Path("hf/notes.txt").write_text("mine")
    done = palaestra("export", adapted, "hf")
    assert done.code == 2 and "did not write: notes.txt" in done.err
    Path("hf/notes.txt").rename("notes.txt")
    Path("hf/linked").symlink_to(Path.cwd())
    assert "did not write: linked" in palaestra("export", adapted, "hf").err
    Path("hf/linked").unlink()
    again = ["policies.main.policy.language={model: hf, lora: null}", "run=runs/again", "warm_start=null"]
    assert palaestra("train", "small.yaml", "adapted.yaml", *again, "--quiet").code == 0
    assert "starts from this folder" in palaestra("export", "runs/again", "hf").err
    assert Path("hf/adapter").is_dir()
    palaestra("export", "runs/again", "other")
    assert palaestra("export", "runs/again", "other").code == 0
    assert palaestra("export", adapted, "other").code == 0
    assert Path("other/adapter").is_dir()
    assert palaestra("export", "runs/again", "other").code == 0
    assert not Path("other/adapter").exists()  # of the export before


def test_7_wrong(adapted: Path, palaestra: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(folder: Path, model: torch.nn.Module, *rest: object) -> None:
        with torch.no_grad():
            model.get_input_embeddings().weight[5:].mul_(1.5)  # type: ignore[operator]
        save_language(folder, model, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("palaestra.policies.adapter.save_language", wrong)
    done = palaestra("export", adapted, "hf")
    assert done.code == 2 and "not the policy of the run: log-probabilities of the same tokens differ by" in done.err
    assert not Path("hf").exists()
