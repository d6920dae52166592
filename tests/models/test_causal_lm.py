"""What must hold of language models: (1) equal seeds give equal weights and the global random state stays;
(2) sizes are as asked, embeddings are tied, weights are float32; (3) a saved folder loads as the same model, and
loading prints nothing; (4) impossible sizes and folders that hold no model are refused with a way out."""

from __future__ import annotations

import pytest
import torch
from transformers.utils import logging

from palaestra.errors import CheckpointError, InvalidData
from palaestra.models.causal_lm import load_causal_lm, make_causal_lm


def test_seeds_decide_weights():  # rule 1
    before = torch.random.get_rng_state()
    one, same, other = (make_causal_lm(vocabulary=50, hidden=16, heads=2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    states = [model.state_dict() for model in (one, same, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["lm_head.weight"], states[2]["lm_head.weight"])


def test_sizes():  # rule 2
    model = make_causal_lm(vocabulary=50, hidden=32, layers=3, heads=4, context=77)
    assert model.lm_head.weight is model.model.embed_tokens.weight and model.dtype == torch.float32
    assert len(model.model.layers) == 3 and model.config.max_position_embeddings == 77
    assert model.config.intermediate_size == 96  # 8/3 · 32 = 85.3, rounded up to a multiple of 16
    assert model(torch.tensor([[1, 2]])).logits.shape == (1, 2, 50)
    assert make_causal_lm(vocabulary=50, intermediate=40).config.intermediate_size == 40


def test_a_folder_loads_as_it_was_saved(tmp_path, capfd):  # rule 3
    model = make_causal_lm(vocabulary=50, hidden=16, heads=2)
    model.save_pretrained(tmp_path)
    capfd.readouterr()
    loaded = load_causal_lm(tmp_path)
    assert capfd.readouterr() == ("", "") and logging.is_progress_bar_enabled()
    ids = torch.tensor([[1, 2, 3]])
    assert torch.equal(model(ids).logits, loaded(ids).logits)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight and not loaded.training


def test_impossible_sizes():  # rule 4
    with pytest.raises(InvalidData, match=r"hidden=64 cannot be cut into heads=5.*\n.*heads=4"):
        make_causal_lm(vocabulary=50, heads=5)
    with pytest.raises(InvalidData, match="even width"):
        make_causal_lm(vocabulary=50, hidden=6, heads=2)


@pytest.mark.parametrize("fault", ["missing", "empty", "no model", "damaged"])
def test_folders_without_a_model(tmp_path, fault):  # rule 4
    folder = tmp_path / "model"
    if fault != "missing":
        folder.mkdir()
    if fault == "no model":
        (folder / "config.json").write_text('{"model_type": "no such thing"}')
    if fault == "damaged":
        make_causal_lm(vocabulary=50, hidden=16, heads=2).save_pretrained(folder)
        (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="palaestra export") as caught:
        load_causal_lm(folder)
    assert str(folder) in str(caught.value)
