"""Tokenizers for chat templates: one for each template that TRL ships and for Mistral's, with the special tokens that
they write."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(trl.__file__).parent / "chat_templates"
OWN = Path(__file__).parent  # templates that TRL does not ship
PATHS = {path.stem: path for path in sorted([*FOLDER.glob("*.jinja"), *OWN.glob("*.jinja")])}
NAMES = sorted(PATHS)
SPECIAL = re.compile(
    r"<\|[^|<>\s'\"{}]+\|>|<｜[^<>\s'\"{}]+｜>|</?[A-Za-z_]+>|\[/?[A-Z_]{3,}\]|<\|[a-z_]+>|<[a-z_]+\|>"
)
ENDS = (  # of a turn, the first that a template writes
    "<|return|>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<turn|>", "<|END_OF_TURN_TOKEN|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>", "<|eot|>",
)  # fmt: skip
PLAIN = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}


@lru_cache
def tokenizer_of(name: str) -> Any:
    """A tokenizer of bytes with the template of this name and the special tokens that it writes."""
    return with_template(PATHS[name].read_text())


def with_template(template: str) -> Any:
    found = list(dict.fromkeys(SPECIAL.findall(template)))
    special = [one for one in found if one not in PLAIN and re.match(r"<\||<｜|\[|<\w+_\w+(_\w+)*>|<\w+\|>", one)]
    end = next((one for one in ENDS if one in template), "</s>")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: place for place, character in enumerate(alphabet)}
    encoder = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    for one in dict.fromkeys(["<s>", end, *special]):
        encoder.add_special_tokens([AddedToken(one, normalized=False, special=True)])
    encoder.add_tokens([AddedToken(one, normalized=False, special=False) for one in found if one in PLAIN])
    made = PreTrainedTokenizerFast(tokenizer_object=encoder, bos_token="<s>", eos_token=end, pad_token="<s>")
    made.chat_template = template
    return made


def with_normalizer(name: str, normalizer: Any, *, normalized: bool = True) -> Any:
    """The tokenizer of a template, which normalizes texts, and with `normalized` also what it compares special tokens
    with."""
    made = tokenizer_of.__wrapped__(name)
    encoder = made.backend_tokenizer
    added = [token for _, token in sorted(made.added_tokens_decoder.items())]
    plain = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    plain.pre_tokenizer, plain.decoder, plain.normalizer = encoder.pre_tokenizer, encoder.decoder, normalizer
    for token in added:
        again = AddedToken(token.content, normalized=normalized, special=token.special)
        plain.add_special_tokens([again]) if token.special else plain.add_tokens([again])
    made = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token=made.eos_token, pad_token="<s>")
    made.chat_template = PATHS[name].read_text()
    return made
