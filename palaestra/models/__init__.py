"""Torch modules and tokenizers: small causal language models, value heads, actor-critics and adapters.

The package imports none of its modules, so that a run of small networks need not wait for transformers.
"""
