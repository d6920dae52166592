"""Generation with a pretrained model: the in-process engine and transformers' `generate`, in float32 and bfloat16.

    OMP_NUM_THREADS=2 python benchmarks/generation.py

Both sides read `prompt` ids per session, all different, and sample `tokens` ids at temperature 1 without a stop id.
Each measures twice: with one sampled id, which gives the prompts' ids per second, and with all of them; the difference
gives the sampled ids per second. The two sides take turns in one process. Ratios are of processor seconds, since other
programs may use the machine; `…_wall` are figures of the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe
from transformers import AutoModelForCausalLM

from palaestra.data.protocols import Request
from palaestra.engines import InProcessEngine
from palaestra.models.joined import join_weights
from palaestra.models.pretrained import located

RESULT = Path(__file__).parent / "results" / "generation.json"
Seconds = tuple[float, float]  # of the processor and of the clock


def ours(engine: InProcessEngine, prompts: np.ndarray, tokens: int) -> None:
    """Generate with the engine. Its sessions are new, and it has no cached prompts."""

    async def all_sessions() -> None:
        await asyncio.gather(
            *(
                engine.generate(Request(policy="p", session=number, prompt=prompt, seed=number, max_tokens=tokens))
                for number, prompt in enumerate(prompts)
            )
        )

    asyncio.run(all_sessions())
    for number in range(len(prompts)):
        engine.close(number)
    engine.publish("p", (), 0)


def theirs(model: Any, prompts: np.ndarray, tokens: int) -> None:
    """Generate with transformers."""
    ids = torch.from_numpy(prompts).long()
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0, "eos_token_id": None}
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, **options
    )
    assert made.shape[1] == prompts.shape[1] + tokens


def timed(run: Callable[[], None]) -> Seconds:
    """Seconds of the processor and of the clock."""
    processor, clock = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - processor, time.perf_counter() - clock


def speeds(first: Seconds, whole: Seconds, sessions: int, prompt: int, tokens: int) -> dict[str, float]:
    """Ids per second: of prompts from the runs with one token, of sampled ids from the difference."""
    found = {}
    for name, one, all_ in zip(("", "_wall"), first, whole, strict=True):
        found[f"prefill{name}"] = sessions * prompt / one
        found[f"decode{name}"] = sessions * (tokens - 1) / max(all_ - one, 1e-9)
    return found


def measure(model: Any, sessions: int, prompt: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Medians over the rounds of both sides and of their ratio."""
    random = np.random.default_rng(0)
    prompts = random.integers(3, model.config.vocab_size, (sessions, prompt)).astype(np.int32)
    engine = InProcessEngine(models={"p": model})
    sides: dict[str, Callable[[int], None]] = {
        "ours": lambda count: ours(engine, prompts, count),
        "generate": lambda count: theirs(model, prompts, count),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for round_ in range(rounds + 1):
        for name in sides if round_ % 2 else reversed(sides):
            first, whole = (timed(lambda name=name, count=count: sides[name](count)) for count in (1, tokens))
            if round_:  # the first one warms up
                found[name].append(speeds(first, whole, sessions, prompt, tokens))
    row: dict[str, Any] = {"sessions": sessions, "prompt": prompt, "tokens": tokens, "rounds": rounds}
    for name, rows in found.items():
        row[name] = {key: round(statistics.median(one[key] for one in rows), 1) for key in rows[0]}
    pairs = list(zip(found["ours"], found["generate"], strict=True))
    for kind in ("prefill", "decode"):
        row[f"{kind}_ratio"] = round(statistics.median(one[kind] / other[kind] for one, other in pairs), 2)
    return row


def main() -> None:
    """Measure each number format and number of sessions, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="a folder, or the name of one")
    parser.add_argument("--sessions", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--prompt", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=33)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = []
    for dtype in options.dtypes:
        model = AutoModelForCausalLM.from_pretrained(
            located(options.model), dtype=getattr(torch, dtype), trust_remote_code=False
        ).eval()
        join_weights(model)  # as in training and in `palaestra serve`
        for sessions in options.sessions:
            row = measure(model, sessions, options.prompt, options.tokens, options.rounds)
            rows.append({"model": Path(options.model).name, "dtype": dtype, **row})
            print(json.dumps(rows[-1]), flush=True)
    options.out.write_text(json.dumps({"machine": describe(), "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
