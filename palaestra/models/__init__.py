"""Torch modules and tokenizers: small causal language models, value heads, actor-critics and adapters."""

from __future__ import annotations

from palaestra.models.causal_lm import load_causal_lm, make_causal_lm
from palaestra.models.heads import ValueHead
from palaestra.models.tokenizer import load_tokenizer, train_tokenizer

__all__ = ["ValueHead", "load_causal_lm", "load_tokenizer", "make_causal_lm", "train_tokenizer"]
