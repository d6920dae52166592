"""SmolLM2 in conversations with tools: the trainer's log-probabilities of what the engine has sampled (1) are the
engine's up to 1e-4 in float32, (2) and in bfloat16 the start says how far apart they are.
"""

from __future__ import annotations

import torch

from palaestra.data import Play, derive, rows_of
from palaestra.recipe import load
from palaestra.training.setup import build_setup

EPISODES = 6


def test_1_2_conversations(smollm2: str) -> None:
    small = ["rollout.response_tokens=16", "training.threads=1", "policies.main.policy.language.packing=true"]
    for dtype in ("float32", "bfloat16"):
        settings = load(["models/smollm2-tools.yaml"], [f"dtype={dtype}", *small]).settings
        setup = build_setup(settings)
        policy = setup.policies["main"]
        said = [line for line in policy.notes if line.startswith("engine and trainer: ")]
        if dtype == "bfloat16":
            assert len(said) == 1 and "nats on average" in said[0]  # 2
            continue
        assert not said
        tasks = setup.source.tasks("train", EPISODES, seed=0)
        plays = [Play(task=task, group=str(n), sample=0, seed=derive(0, n)) for n, task in enumerate(tasks)]
        rows = rows_of(setup.runner.collect(plays))
        assert sum(row.step.turn > 0 for row in rows) > 0  # answers of tools were read
        samples = policy.collate(rows, temperature=settings.rollout.temperature)
        with torch.no_grad():
            trained = policy.forward(samples, range(len(samples.cost)), ("logprob",))["logprob"].float().cpu()
        sampled = torch.cat([torch.as_tensor(row.step.action.logprobs) for row in rows]).float()
        assert len(trained) == len(sampled) > 100
        assert float((trained - sampled[torch.as_tensor(samples.token_index)]).abs().max()) <= 1e-4  # 1
