"""How a language policy reads: (1) a reply ends at the template's end of a turn, at the tokenizer's end, and at all
ends of the model's generation config, be they a list or one number; (2) where prompts end before the model's context
does, a note says so with the reason, and the engine ends them there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from palaestra.data import RunSetup
from palaestra.policies.language import LanguagePolicy
from tests.chat.templates import PATHS, with_template
from tests.engines.test_architectures import CONFIGS
from tests.policies.test_agreement import loaded

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}
TURN, EOS = "<end_of_turn>", "<eos>"


def gemma(folder: Path, ends: list[str] | str | None) -> LanguagePolicy:
    """A small Gemma. The template and the tokenizer end with the turn, so only the generation config names `<eos>`."""
    tokenizer = with_template(PATHS["gemma"].read_text(encoding="utf-8"))
    tokenizer.add_special_tokens({"additional_special_tokens": [EOS]})
    config = AutoConfig.for_model("gemma", vocab_size=len(tokenizer), num_key_value_heads=1, **SIZES)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ids = {} if ends is None else {"eos_token_id": tokenizer.convert_tokens_to_ids(ends)}
    (folder / "generation_config.json").write_text(json.dumps(ids), encoding="utf-8")
    return LanguagePolicy("main", RunSetup(seed=0), model=str(folder))


@pytest.mark.parametrize(
    ("ends", "found"), [([EOS, TURN], {EOS, TURN}), (EOS, {EOS, TURN}), (TURN, {TURN}), (None, {TURN})]
)
def test_1_ends_of_the_generation_config(ends: list[str] | str | None, found: set[str], tmp_path: Path) -> None:
    policy = gemma(tmp_path, ends)
    assert set(policy.tokenizer.convert_ids_to_tokens(policy.renderer.stop)) == found
    assert policy.renderer.stop[0] == policy.tokenizer.convert_tokens_to_ids(TURN)  # it closes a cut reply


@pytest.mark.parametrize(
    ("name", "room", "word"), [("phi3 longrope", 128, "longrope"), ("llama4", 128, "chunks"), ("llama", 256, None)]
)
def test_2_a_note_of_a_shorter_context(name: str, room: int, word: str | None, tmp_path: Path) -> None:
    policy = loaded(AutoModelForCausalLM.from_config(CONFIGS[name]), tmp_path)
    assert policy.longest == room
    assert [word in line and f"at most {room} tokens" in line for line in policy.notes] == ([True] if word else [])
