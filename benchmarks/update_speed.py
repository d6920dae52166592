"""Seconds per update of a pretrained model: a plain loop, padded batches, packed rows, and bfloat16, in one run.

    python benchmarks/update_speed.py --threads 2

Each way makes the same update: log-probabilities and entropies of all responses, and the backward pass, through LoRA of
rank 16 on all linear layers. The plain loop is transformers with peft, on padded batches of 8 samples. Ways take turns,
and the best of the rounds counts. "faster" is the ratio to the plain loop, by the time of the processor: on a machine
that other programs use, wall time says little. On a GPU it is the ratio of wall times.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe

from palaestra.data import RunSetup
from palaestra.data.batches import micro_batches_of
from palaestra.models.precision import set_dtype
from palaestra.policies.adapter import AdapterPolicy, LoraSettings
from palaestra.policies.language import LanguagePolicy
from palaestra.policies.sequences import LanguageSamples, samples_of

RESULT = Path(__file__).parent / "results" / "update_speed.json"
PLAIN = "plain loop"
WAYS = {
    PLAIN: (False, "float32"),
    "padded": (False, "float32"),
    "packed": (True, "float32"),
    "packed bfloat16": (True, "bfloat16"),
}
BUDGET = 8192
PLAIN_BATCH = 8  # samples


def groups(
    count: int, size: int, *, vocabulary: int, prompt: int, shortest: int, longest: int
) -> tuple[list[np.ndarray], list[int]]:
    """Sequences of `size` answers to each of `count` prompts, and the lengths of their prompts.

    The logarithm of an answer's length is uniform: short answers are frequent, as they are in training.
    """
    draw = np.random.default_rng(0)
    ids, lengths = [], []
    for _ in range(count):
        asked = draw.integers(5, vocabulary, prompt)
        for _ in range(size):
            answer = draw.integers(5, vocabulary, round(np.exp(draw.uniform(np.log(shortest), np.log(longest)))))
            ids.append(np.concatenate([asked, answer]).astype(np.int32))
            lengths.append(prompt)
    return ids, lengths


def answers_of(ids: Sequence[np.ndarray], prompts: Sequence[int], token_cost: float | None) -> LanguageSamples:
    """Samples whose responses begin after their prompts."""
    places = [np.arange(prompt, len(one)) for prompt, one in zip(prompts, ids, strict=True)]
    return samples_of(ids, places, token_cost=token_cost)


def made(model: str, *, packing: bool, dtype: str, device: str = "cpu") -> AdapterPolicy:
    """The policy of one way."""
    lora = LoraSettings(rank=16, alpha=32)
    base = LanguagePolicy("main", RunSetup(seed=0, device=device), model=model, packing=packing, lora=lora)
    set_dtype(base.module, dtype)
    policy = base.as_trained()
    assert isinstance(policy, AdapterPolicy)
    return policy


def update(policy: AdapterPolicy, samples: LanguageSamples) -> None:
    """One update without the optimizer's step."""
    for which in micro_batches_of(samples, range(len(samples.cost)), budget=BUDGET):
        out = policy.forward(samples, which, ("logprob", "entropy"))
        (out["logprob"].sum() + out["entropy"].sum()).backward()
    policy.module.zero_grad()


def plain_update(policy: AdapterPolicy, samples: LanguageSamples) -> None:
    """The same update as in a loop that one writes with transformers and peft."""
    model = policy.model
    for begin in range(0, len(samples.ids), PLAIN_BATCH):
        some = samples.ids[begin : begin + PLAIN_BATCH]
        prompt = int(samples.places[begin][0])
        ids = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(one).long() for one in some], batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(one)) for one in some], batch_first=True)
        ids, mask = ids.to(model.device), mask.to(model.device)
        kept = ids.shape[1] - prompt + 1
        logits = model(input_ids=ids, attention_mask=mask.long(), use_cache=False, logits_to_keep=kept).logits
        logprobs = torch.log_softmax(logits[:, :-1].float(), -1)
        taken = logprobs.gather(2, ids[:, prompt:, None])[..., 0]
        entropies = -(logprobs.exp() * logprobs).sum(-1)
        ((taken + entropies) * mask[:, prompt:]).sum().backward()
    policy.module.zero_grad()


def seconds(way: str, policy: AdapterPolicy, samples: LanguageSamples) -> tuple[float, float]:
    """The wall time and the processor's time of one update."""
    begin, used = time.perf_counter(), time.process_time()
    (plain_update if way == PLAIN else update)(policy, samples)
    if policy.model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin, time.process_time() - used


def measured(
    policies: Mapping[str, AdapterPolicy], ids: Sequence[np.ndarray], prompts: Sequence[int], *, rounds: int
) -> list[dict[str, Any]]:
    """The best times of each way, on the same samples."""
    best = dict.fromkeys(policies, (float("inf"), float("inf")))
    for _ in range(rounds):
        for way, policy in policies.items():
            now = seconds(way, policy, answers_of(ids, prompts, policy.token_cost))
            best[way] = min(best[way][0], now[0]), min(best[way][1], now[1])
    by = 0 if next(iter(policies.values())).model.device.type == "cuda" else 1
    tokens = sum(map(len, ids))
    return [
        {
            "way": way,
            "seconds": round(wall, 3),
            "processor_seconds": round(used, 3),
            "tokens_per_second": round(tokens / best[way][by]),
            "faster": round(best[PLAIN][by] / best[way][by], 2),
        }
        for way, (wall, used) in best.items()
    ]


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
    size = policies[PLAIN].model.config.vocab_size
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
        for row in measured(policies, ids, prompts, rounds=given.rounds):
            rows.append({"case": case, **row})
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    machine = describe(("torch", "transformers", "peft")) | {"threads": given.threads}
    result = {"model": given.model, "token_budget": BUDGET, "machine": machine, "rows": rows}
    RESULT.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
