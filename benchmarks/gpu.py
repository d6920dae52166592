"""Speed on one device: generation, updates and whole training, with the share of the device's peak that is used.

    python benchmarks/gpu.py                    SmolLM2-135M and a random model of 0.5 billion parameters, on `cuda`
    python benchmarks/gpu.py --device cpu --small   a run of seconds, which only shows that all of it works

Generation: the engine, with and without CUDA graphs, beside `generate` of transformers. Update: packed rows beside
padded batches, and beside a loop that is written with transformers and peft. Training: `palaestra train` of
`models/smollm2-words.yaml` on this device, with advantages of +1 and −1 in turn in place of those of the recipe. So
every answer is updated, also those of a random model, which are all wrong.
Model flops utilization (MFU) counts 2 operations for each weight and sampled token, and 4 for each weight and token of
an update, whose own weights are frozen. Padding does not count, nor does a prompt that packed samples share. The peak
is that of the data sheet, or that of one large product on devices that are not listed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import update_speed
from jaxtyping import Float
from machine import describe
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from palaestra.data import StepTable
from palaestra.data.batches import micro_batches_of
from palaestra.data.protocols import Request
from palaestra.engines import InProcessEngine
from palaestra.models.causal_lm import load_causal_lm
from palaestra.models.pretrained import SMOLLM2, located
from palaestra.models.tokenizer import load_tokenizer
from palaestra.policies.adapter import AdapterPolicy
from palaestra.recipe import load
from palaestra.registry import register
from palaestra.store.metrics import MetricsLog
from palaestra.training.start import train

RESULT = Path(__file__).parent / "results" / "gpu.json"
HALF_BILLION: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 28}
HALF_BILLION |= {"num_attention_heads": 16, "num_key_value_heads": 8}
# Dense products of bfloat16, in 10¹² operations a second, by a part of the device's name.
PEAKS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "L40": 181, "L4": 121, "A10": 125, "4090": 165, "3090": 71}
SAMPLED = ("time/rollout", "time/update")


@register("advantage", "alternating", reads=(), writes=("advantage",))
def alternating(table: StepTable) -> Float[Tensor, " rows"]:
    """+1 and −1 in turn."""
    return 1.0 - 2.0 * (torch.arange(len(table)) % 2)


# ---- the device -------------------------------------------------------------------------------------------
def synchronized(device: str) -> float:
    """The time, once the device has finished its work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def peak(device: str, size: int) -> tuple[float, str]:
    """Operations a second of the device in bfloat16, and where the number is from."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else ""
    for part, tera in PEAKS.items():
        if part in name:
            return tera * 1e12, "data sheet"
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    left @ right
    begin = synchronized(device)
    for _ in range(5):
        left @ right
    return 5 * 2 * size**3 / (synchronized(device) - begin), f"product of {size} × {size}"


def weights_of(model: Any) -> tuple[int, int]:
    """The weights that each token is multiplied by, without and in the output layer."""
    inner = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name)
    return inner, model.get_output_embeddings().weight.numel()


# ---- models -----------------------------------------------------------------------------------------------
def random_model(folder: Path, sizes: Mapping[str, Any]) -> str:
    """Write a Llama with random weights and the tokenizer of SmolLM2. Returns its folder."""
    tokenizer = load_tokenizer(located(SMOLLM2))
    config = LlamaConfig(
        **sizes, vocab_size=len(tokenizer), max_position_embeddings=4096, tie_word_embeddings=True, pad_token_id=None
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


# ---- what is measured -------------------------------------------------------------------------------------
def generation(model: str, *, device: str, sessions: int, prompt: int, tokens: int) -> list[dict[str, Any]]:
    """Tokens per second of the engine and of `generate`, in bfloat16, with the same prompts and lengths."""
    lm: Any = load_causal_lm(model, dtype=torch.bfloat16)
    lm.to(device)
    prompts = np.random.default_rng(0).integers(5, lm.config.vocab_size, (sessions, prompt)).astype(np.int32)
    ids = torch.from_numpy(prompts).long().to(device)

    def plain() -> int:
        out = lm.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )
        return int(out.shape[1] - prompt) * sessions

    async def sampled(engine: InProcessEngine) -> int:
        requests = [
            Request(policy="p", session=number, prompt=one, seed=number, max_tokens=tokens, stop=())
            for number, one in enumerate(prompts)
        ]
        given = await asyncio.gather(*(engine.generate(request) for request in requests))
        for number in range(sessions):
            engine.close(number)
        return sum(len(one.action.tokens) for one in given)

    def engine(*, graphs: bool) -> Callable[[], int]:
        made = InProcessEngine(models={"p": lm}, device=device, graphs=graphs)
        return lambda: asyncio.run(sampled(made))

    ways = {"engine": engine(graphs=True), "engine, no graphs": engine(graphs=False), "generate": plain}
    rows = []
    for way, call in ways.items():
        call()  # kernels are chosen in the first call
        begin = synchronized(device)
        made = call()
        taken = synchronized(device) - begin
        rows.append({"part": "generation", "way": way, "tokens": made, "tokens_per_second": round(made / taken)})
    return rows


def updates(model: str, *, device: str, groups: int, shortest: int, longest: int) -> list[dict[str, Any]]:
    """Seconds, tokens per second and MFU of an update, in each way."""
    ways = {update_speed.PLAIN: False, "padded": False, "packed": True}
    policies = {
        way: update_speed.made(model, packing=packing, dtype="bfloat16", device=device) for way, packing in ways.items()
    }
    first = next(iter(policies.values()))
    ids, prompts = update_speed.groups(
        groups, 8, vocabulary=first.model.config.vocab_size, prompt=256, shortest=shortest, longest=longest
    )
    rows = update_speed.measured(policies, ids, prompts, rounds=3)
    for row, policy in zip(rows, policies.values(), strict=True):
        row["flops"] = work(policy, update_speed.answers_of(ids, prompts, policy.token_cost))
    return [{"part": "update", **row} for row in rows]


def work(policy: AdapterPolicy, samples: Any) -> int:
    """The operations that an update needs: each token once, and a beginning that packed samples share once."""
    inner, head = weights_of(policy.model)
    cuts = micro_batches_of(samples, range(len(samples.cost)), budget=update_speed.BUDGET)
    read = sum(len(samples.batch(which).ids[0]) for which in cuts) if samples.token_cost else int(samples.cost.sum())
    return 4 * (inner * read + head * int(samples.token_start[-1]))


def training(model: str, *, device: str, iterations: int, overrides: list[str]) -> dict[str, Any]:
    """Seconds and generated tokens of a whole run of a recipe."""
    with tempfile.TemporaryDirectory() as folder:
        run = f"{folder}/run"
        settings = [f"run={run}", f"device={device}", "dtype=bfloat16", f"policies.main.policy.language.model={model}"]
        settings += [f"training.iterations={iterations}", "training.checkpoint_every=null", *overrides]
        settings += ["selection=[all]", f"advantage={Path(__file__).resolve()}:alternating"]
        recipe = load(["models/smollm2-words.yaml"], settings)
        train(recipe.settings, recipe=recipe.to_json(), quiet=True)
        log = MetricsLog(run)
        timings, last = log.timings.read(), log.metrics.read()[-1]
    later = timings[1:] or timings  # the first one loads kernels
    seconds = {key: sum(line[key] for line in later) / len(later) for key in SAMPLED}
    tokens = last["tokens"] / last["step"]
    rates = {"seconds_per_iteration": round(sum(seconds.values()), 3), "tokens_per_iteration": round(tokens)}
    rates |= {"updates": last["updates"], "grad_norm": round(last.get("policy/grad_norm", 0.0), 4)}
    return {"part": "training", "way": "palaestra train", **rates} | {key: round(s, 3) for key, s in seconds.items()}


def rows_of(model: str, *, device: str, most: float, small: bool) -> list[dict[str, Any]]:
    """All measurements of one model. most: the peak of the device."""
    sampled = {"sessions": 4, "prompt": 8, "tokens": 4} if small else {"sessions": 256, "prompt": 128, "tokens": 256}
    trained = {"groups": 1, "shortest": 2, "longest": 4} if small else {"groups": 32, "shortest": 64, "longest": 640}
    inner, head = weights_of(load_causal_lm(model))
    rows = generation(model, device=device, **sampled)
    for row in rows:
        row["mfu"] = round(2 * (inner + head) * row["tokens_per_second"] / most, 4)
    for row in updates(model, device=device, **trained):
        rows.append(row | {"mfu": round(row.pop("flops") / row["seconds"] / most, 4)})
    less = ["rollout.tasks=2", "rollout.group=2", "rollout.response_tokens=4", "evaluation.tasks=2"] if small else []
    return [*rows, training(model, device=device, iterations=1 if small else 8, overrides=less)]


def main() -> None:
    """Print and store the rows of all models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models and sizes, which measure nothing")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    small, device = given.small, given.device
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sizes: dict[str, Any] = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
        }
        made = random_model(Path(folder), sizes if small else HALF_BILLION)
        models = {"random, tiny": made} if small else {SMOLLM2: located(SMOLLM2), "random, 0.5B": made}
        most, source = peak(device, 256 if small else 8192)
        for name, model in models.items():
            for row in rows_of(model, device=device, most=most, small=small):
                rows.append({"model": name, **row})
                print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else device
    result = {"device": name, "peak_tflops": round(most / 1e12, 2), "peak": source, "rows": rows}
    result["machine"] = describe(("torch", "transformers", "peft"))
    given.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
