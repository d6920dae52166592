"""Speed of the in-process engine on multi-turn episodes with a tiny model.

    python benchmarks/engine_profile.py --sessions 64 --turns 8 --forward both

Every session plays `turns` turns: 20 to 60 new prompt ids, then 1 to 4 sampled ids. `llama` is the direct pass,
`transformers` the model's own modules with our attention. A decode step is one more token for all sessions at the
end of such an episode, when nothing else is to be computed. Prints one JSON line per case.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import statistics
import time

import numpy as np
import torch

from palaestra.data.protocols import Request
from palaestra.engines import InProcessEngine
from palaestra.engines.forward import TransformersForward
from palaestra.models.causal_lm import make_causal_lm

VOCABULARY = 1024


async def episode(engine: InProcessEngine, number: int, turns: int) -> None:
    """One session's turns; its prompts and response lengths depend on its number only."""
    random = np.random.default_rng(number)
    for turn in range(turns):
        prompt = random.integers(0, VOCABULARY, random.integers(20, 61)).astype(np.int32)
        length = int(random.integers(1, 5))
        await engine.generate(
            Request(policy="p", session=number, prompt=prompt, seed=1000 * number + turn, max_tokens=length)
        )


async def episodes(engine: InProcessEngine, sessions: int, turns: int) -> float:
    """Seconds that all sessions' episodes take together."""
    begin = time.perf_counter()
    await asyncio.gather(*(episode(engine, number, turns) for number in range(sessions)))
    return time.perf_counter() - begin


async def decode(engine: InProcessEngine, sessions: int, steps: int = 20) -> float:
    """Milliseconds per decode step of sessions that exist."""
    empty = np.zeros(0, np.int32)

    async def continue_all(tokens: int) -> float:
        begin = time.perf_counter()
        requests = [
            Request(policy="p", session=number, prompt=empty, seed=number, max_tokens=tokens)
            for number in range(sessions)
        ]
        await asyncio.gather(*(engine.generate(request) for request in requests))
        return time.perf_counter() - begin

    await continue_all(1)
    return 1000 * await continue_all(steps) / steps


async def measure(engine: InProcessEngine, sessions: int, turns: int, repeats: int) -> dict[str, float]:
    """Medians over repeated episodes, after one to warm up."""
    seconds, steps = [], []
    for repeat in range(repeats + 1):
        engine.statistics.reset()
        took = await episodes(engine, sessions, turns)
        counted = engine.statistics.computed_tokens
        sampled = engine.statistics.sampled_tokens
        step = await decode(engine, sessions)
        if repeat:
            seconds.append(took)
            steps.append(step)
        for number in range(sessions):
            engine.close(number)
    middle = statistics.median(seconds)
    return {
        "seconds": round(middle, 3),
        "tokens_per_second": round(counted / middle),
        "sampled_per_second": round(sampled / middle),
        "milliseconds_per_decode_step": round(statistics.median(steps), 2),
    }


def main() -> None:
    """Measure each asked-for forward pass."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--chunk-tokens", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--forward", choices=["llama", "transformers", "both"], default="both")
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    model = make_causal_lm(vocabulary=VOCABULARY, hidden=options.hidden, layers=options.layers)
    for kind in ["llama", "transformers"] if options.forward == "both" else [options.forward]:
        engine = InProcessEngine(models={"p": model}, chunk_tokens=options.chunk_tokens)
        if kind == "transformers":
            engine._servers["p"]._forward = TransformersForward(model)
        profile = cProfile.Profile()
        if options.profile:
            profile.enable()
        result = asyncio.run(measure(engine, options.sessions, options.turns, options.repeats))
        case = {key: getattr(options, key) for key in ("sessions", "turns", "hidden", "layers", "chunk_tokens")}
        print(json.dumps({"forward": kind, "threads": torch.get_num_threads(), **case, **result}))
        if options.profile:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(28)


if __name__ == "__main__":
    main()
