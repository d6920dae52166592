"""Seconds per update of a pretrained model: padded batches, packed rows, and bfloat16, in one run.

    python benchmarks/update_speed.py --threads 2

Each way makes the same update: log-probabilities and entropies of all responses, and the backward pass, through LoRA of
rank 16 on all linear layers. Ways take turns, and the best of the rounds counts. "faster" compares with the padded way.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from machine import describe

from palaestra.data import RunSetup
from palaestra.data.batches import micro_batches_of
from palaestra.models.precision import set_dtype
from palaestra.policies.adapter import AdapterPolicy
from palaestra.policies.language import LanguagePolicy
from palaestra.policies.sequences import LanguageSamples

RESULT = Path(__file__).parent / "results" / "update_speed.json"
WAYS = {"padded": (False, "float32"), "packed": (True, "float32"), "packed bfloat16": (True, "bfloat16")}
BUDGET = 8192


def groups(
    count: int, size: int, *, vocabulary: int, prompt: int, shortest: int, longest: int
) -> tuple[list[np.ndarray], list[int]]:
    """Sequences of `size` answers to each of `count` prompts, and the lengths of their prompts."""
    draw = np.random.default_rng(0)
    ids, lengths = [], []
    for _ in range(count):
        asked = draw.integers(5, vocabulary, prompt)
        for _ in range(size):
            answer = draw.integers(5, vocabulary, int(draw.integers(shortest, longest + 1)))
            ids.append(np.concatenate([asked, answer]).astype(np.int32))
            lengths.append(prompt)
    return ids, lengths


def samples_of(ids: Sequence[np.ndarray], prompts: Sequence[int], token_cost: float | None) -> LanguageSamples:
    """Samples whose responses begin after their prompts."""
    places = [np.arange(prompt, len(one)) for prompt, one in zip(prompts, ids, strict=True)]
    nothing = np.full(len(ids), -1, np.int64)
    return LanguageSamples(
        ids=list(ids),
        places=places,
        token_index=np.arange(sum(map(len, places))),
        token_start=np.cumsum([0, *map(len, places)]),
        end_row=nothing,
        ends=nothing,
        temperature=1.0,
        token_cost=token_cost,
    )


def made(model: str, *, packing: bool, dtype: str) -> AdapterPolicy:
    """The policy of one way."""
    base = LanguagePolicy("main", RunSetup(seed=0), model=model, packing=packing, lora={"rank": 16, "alpha": 32})
    set_dtype(base.module, dtype)
    policy = base.as_trained()
    assert isinstance(policy, AdapterPolicy)
    return policy


def seconds(policy: AdapterPolicy, samples: LanguageSamples) -> float:
    """The time of one update without the optimizer's step."""
    begin = time.perf_counter()
    for which in micro_batches_of(samples, range(len(samples.cost)), budget=BUDGET):
        out = policy.forward(samples, which, ("logprob", "entropy"))
        (out["logprob"].sum() + out["entropy"].sum()).backward()
    policy.module.zero_grad()
    return time.perf_counter() - begin


def main() -> None:
    """Print and store the seconds of each case and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--groups", type=int, default=16)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    policies = {way: made(given.model, packing=packing, dtype=dtype) for way, (packing, dtype) in WAYS.items()}
    size = policies["padded"].model.config.vocab_size
    cases = {
        f"{given.groups} groups × 8 short answers": groups(
            given.groups, 8, vocabulary=size, prompt=100, shortest=8, longest=24
        ),
        "lengths 1:10, nothing shared": groups(
            4 * given.groups, 1, vocabulary=size, prompt=20, shortest=20, longest=380
        ),
    }
    rows = []
    for case, (ids, prompts) in cases.items():
        best = dict.fromkeys(WAYS, float("inf"))
        for _ in range(given.rounds):
            for way, policy in policies.items():
                best[way] = min(best[way], seconds(policy, samples_of(ids, prompts, policy.token_cost)))
        tokens = sum(map(len, ids))
        for way, taken in best.items():
            row = {"case": case, "way": way, "seconds": round(taken, 3), "tokens_per_second": round(tokens / taken)}
            rows.append(row | {"faster": round(best["padded"] / taken, 2)})
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    machine = describe(("torch", "transformers", "peft")) | {"threads": given.threads}
    result = {"model": given.model, "token_budget": BUDGET, "machine": machine, "rows": rows}
    RESULT.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
