"""Peak memory of log-probabilities and entropies with their backward pass, over a large vocabulary.

    python benchmarks/logit_memory.py

`chunked` is the way of the trainer. `naive` computes all logits at once. The model is so narrow that logits decide.
Each case runs in a process of its own, and counts what the resident memory grows during the pass. The naive way is
measured at few tokens, and `naive_expected` is the line through these at all tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from machine import describe, peak_bytes
from update_speed import answers_of

from palaestra.models.causal_lm import make_causal_lm
from palaestra.policies import language_trainer
from palaestra.policies.language_trainer import LanguageModule, LanguageTrainer

RESULT = Path(__file__).parent / "results" / "logit_memory.json"
WIDTH = 16


def grown(way: str, *, tokens: int, vocabulary: int) -> int:
    """The bytes by which the resident memory grows during one pass in this process."""
    model: Any = make_causal_lm(vocabulary=vocabulary, hidden=WIDTH, layers=1, heads=1, context=tokens + 1)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, vocabulary, tokens + 1))
    before = psutil.Process().memory_info().rss
    if way == "chunked":
        module = LanguageModule("p", model, None, LanguageTrainer.token_outputs, critic_gradient=True)
        samples = answers_of([ids.numpy().astype(np.int32)], [1], None)
        columns = module(samples.batch([0]), ("logprob", "entropy")).columns
        logprob, entropy = columns["logprob"], columns["entropy"]
    else:
        logprobs = torch.log_softmax(model(input_ids=ids[None, :-1], use_cache=False).logits[0], -1)
        logprob = logprobs.gather(1, ids[1:, None])[:, 0]
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    (logprob.sum() + entropy.sum()).backward()
    return peak_bytes() - before


def in_process(way: str, *, tokens: int, vocabulary: int, chunk: int) -> int:
    """`grown`, in a new process."""
    case = ["--way", way, "--tokens", str(tokens), "--vocabulary", str(vocabulary), "--chunk", str(chunk)]
    done = subprocess.run([sys.executable, __file__, *case], capture_output=True, text=True, check=True, env=os.environ)
    return int(done.stdout)


def main() -> None:
    """Print and store the peaks; with --way, print the bytes of this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--naive-tokens", type=int, nargs=2, default=[512, 1024])
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--chunk", type=int, default=language_trainer.CHUNK_LOGITS, help="most logits at once")
    parser.add_argument("--way", choices=["chunked", "naive"])
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    language_trainer.CHUNK_LOGITS = given.chunk
    if given.way is not None:
        print(grown(given.way, tokens=given.tokens, vocabulary=given.vocabulary))
        return
    sizes = {"vocabulary": given.vocabulary, "chunk": given.chunk}
    chunked = in_process("chunked", tokens=given.tokens, **sizes)
    naive = {tokens: in_process("naive", tokens=tokens, **sizes) for tokens in given.naive_tokens}
    (few, at_few), (more, at_more) = naive.items()
    expected = at_more + (at_more - at_few) / (more - few) * (given.tokens - more)
    result = {
        "tokens": given.tokens,
        **sizes,
        "chunked": chunked,
        "naive": naive,
        "naive_expected": round(expected),
        "share": round(chunked / expected, 4),
        "machine": describe(("torch", "transformers")),
    }
    print(json.dumps(result))
    given.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
