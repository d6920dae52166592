"""Tokenizers: small ones that are trained on transcripts of an environment, and those of Hugging Face folders."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import regex
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from palaestra.errors import CheckpointError, InvalidData, is_panic
from palaestra.models.pretrained import ANOTHER, fault_apart, refuse_endless, refuse_own_code

PAD = "<|pad|>"
OBSERVATION = "<|observation|>"
ACTION = "<|action|>"
END = "<|end|>"
LONGER = 64  # times as long as it was, the most that a tokenizer may make a text before or after it reads it
# A group that is repeated, or a reference to a group: such a pattern may take for ever.
REPEATED = regex.compile(r"\)[*+{]|\\[1-9k]")
# Splits texts of growing length, made of the letters of a pattern.
TRIAL = """
import itertools, json, sys
from tokenizers import Regex, pre_tokenizers

for pattern in json.load(sys.stdin):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    letters = list(dict.fromkeys("a0 .\\n" + "".join(filter(str.isalnum, pattern))))[:12]
    words = [*letters, *map("".join, itertools.permutations(letters, 2))]
    for count in (64, 2048):
        for word in words:
            split.pre_tokenize_str(word * count + "\\0")
            split.pre_tokenize_str(word + word[-1] * count + "\\0")
"""
SPECIAL = (PAD, OBSERVATION, ACTION, END)

# Special tokens and the 256 bytes, so that every text can be encoded.
SMALLEST_VOCABULARY = len(SPECIAL) + 256

# A run of letters, digits, signs or white space is one word of the training, whose time grows with the square of the
# longest word. So a longer run is read as several words.
LONGEST_WORD = 1000
_LONG = regex.compile(
    "|".join(rf"({kind}{{{LONGEST_WORD}}})" for kind in (r"\p{L}", r"\p{N}", r"[^\s\p{L}\p{N}]", r"\s"))
)


def train_tokenizer(texts: Iterable[str], *, vocabulary: int = 1024) -> transformers.PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on `texts`. It encodes any text without loss; frequent words are single tokens.

    A word includes the space before it, so " left" can be one token and is never " " and "left". Ids 0 to 3 are
    `<|pad|>`, `<|observation|>`, `<|action|>` and `<|end|>` (end of turn, eos). Pass `split_special_tokens=True` to
    encode text that may contain their spelling as plain text.

    Args:
        texts: transcripts; their order does not matter.
        vocabulary: the most ids. Higher: fewer tokens per turn, larger embedding. Usual: 512 to 2048.
            The result is smaller if the texts give fewer merges.

    Raises: InvalidData, if `vocabulary` cannot hold the bytes and the special tokens.
    """
    if vocabulary < SMALLEST_VOCABULARY:
        raise InvalidData(
            where="train_tokenizer(…)",
            what=f"vocabulary={vocabulary} cannot hold 256 bytes and {len(SPECIAL)} special tokens.",
            remedy=f"Set vocabulary to {SMALLEST_VOCABULARY} or more.",
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces = (piece for text in texts for piece in _LONG.split(text) if piece)
    tokenizer.train_from_iterator(pieces, trainer=trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[OBSERVATION, ACTION],
        clean_up_tokenization_spaces=False,
    )


def _growth(said: Any) -> float:
    """By how much a part of `tokenizers` can make a text longer, by its JSON value."""
    if isinstance(said, list):
        return math.prod(map(_growth, said))
    if not isinstance(said, dict):
        return 1.0
    kind, pattern = said.get("type"), said.get("pattern")
    if kind == "Prepend":
        return float(1 + len(said["prepend"]))
    if kind == "Replace" and isinstance(pattern, dict):
        length = len(pattern["String"]) if "String" in pattern else 1
        return max(1.0, len(said["content"]) / length) if length else math.inf
    return math.prod(map(_growth, said.values()))


def _patterns(said: Any) -> list[str]:
    """The regular expressions in a part of `tokenizers`, by its JSON value."""
    if isinstance(said, list):
        return [pattern for value in said for pattern in _patterns(value)]
    if not isinstance(said, dict):
        return []
    here = said.get("Regex")
    return [here] if isinstance(here, str) else _patterns(list(said.values()))


def _refuse_parts(tokenizer: Any, folder: str | Path) -> None:
    """Refuse a tokenizer with parts that make a text much longer, that panic, or whose time has no end.

    Raises: CheckpointError.
    """
    where = f"load_tokenizer({str(folder)!r})"
    encoder = getattr(tokenizer, "backend_tokenizer", None)
    if encoder is None:
        return
    parts = (encoder.normalizer, encoder.pre_tokenizer, encoder.decoder)
    said = [None if part is None else json.loads(part.__getstate__()) for part in parts]
    for part in (said[0], said[2]):
        growth = _growth(part)
        if growth > LONGER:
            raise CheckpointError(
                where=where,
                what=f"its tokenizer.json makes a text up to {growth:g} times as long, and at most {LONGER} is read.",
                remedy="Take the replacements out of its `normalizer` and `decoder`.",
            )
    slow = [pattern for pattern in _patterns(said) if REPEATED.search(pattern)]
    fault = fault_apart(TRIAL, slow) if slow else ""
    if fault:
        raise CheckpointError(
            where=where,
            what=f"a regular expression in its tokenizer.json fails on short texts: {fault.rstrip('.')}.",
            remedy="Use a pattern in which no repeated group can match the same text in several ways.",
        )
    try:
        tokenizer.decode(tokenizer.encode("A text, of 2 lines\n"))
    except BaseException as error:
        if is_panic(error):
            what = f"its tokenizer fails on a short text: {error}."
            raise CheckpointError(where=where, what=what, remedy=ANOTHER) from error
        if not isinstance(error, Exception):
            raise  # a vocabulary may lack letters


def load_tokenizer(folder: str | Path) -> transformers.PreTrainedTokenizerBase:
    """Load the tokenizer of a Hugging Face folder on this machine. Nothing is downloaded.

    Raises: CheckpointError, if the folder holds no tokenizer, or one that is code of the folder.
    """
    place = str(folder)
    refuse_endless(place)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except BaseException as error:  # `tokenizers` raises plain exceptions, and panics, which inherit from BaseException
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        refuse_own_code(place, error)
        if not isinstance(error, OSError | ValueError | KeyError | TypeError | RuntimeError):
            first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
            raise CheckpointError(
                where=f"load_tokenizer({str(folder)!r})",
                what=f"its tokenizer cannot be read: {first}.",
                remedy="Give a folder that `save_pretrained` or `palaestra export` wrote.",
            ) from error
        raise CheckpointError(
            where=f"load_tokenizer({str(folder)!r})",
            what=f"`{folder}` holds no tokenizer.",
            remedy="Give a folder that `save_pretrained` or `palaestra export` wrote.",
        ) from error
    _refuse_parts(tokenizer, folder)
    return tokenizer  # type: ignore[no-any-return]
