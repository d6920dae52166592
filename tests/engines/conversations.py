"""Conversations with an engine, and what a model says of them without any cache."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from palaestra.data.protocols import Request, Response
from palaestra.engines import InProcessEngine
from palaestra.engines.forward import shape_of
from palaestra.engines.sampling import log_distribution
from palaestra.models.causal_lm import make_causal_lm

VOCABULARY = 97


def lively(model: Any, factor: float = 4.0) -> Any:
    """Enlarge the initial weights, so that an untrained model is far from uniform."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(factor)
    return model.eval()


def small_model(seed: int = 0, **options: Any) -> Any:
    return lively(make_causal_lm(**{"vocabulary": VOCABULARY, "hidden": 32, "heads": 2, "seed": seed} | options))


def block_bytes(model: Any) -> int:
    """The memory of 64 ids."""
    return 4 * 64 * shape_of(model).numbers


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def some_ids(random: np.random.Generator, low: int = 1, high: int = 30) -> np.ndarray:
    return random.integers(0, VOCABULARY, random.integers(low, high + 1)).astype(np.int32)


@dataclass
class Turn:
    request: Request
    before: list[int]  # ids of the session when it was sampled, prompt included
    answer: Response


@dataclass
class Talker:
    """Talks in one session and remembers every turn."""

    engine: InProcessEngine
    session: Hashable
    policy: str = "p"
    ids: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    async def say(self, prompt: np.ndarray, *, seed: int = 0, **options: Any) -> Response:
        request = Request(policy=self.policy, session=self.session, prompt=prompt, seed=seed, **options)
        answer = await self.engine.generate(request)
        self.ids += prompt.tolist()
        self.turns.append(Turn(request, list(self.ids), answer))
        self.ids += answer.action.tokens.tolist()
        return answer

    async def talk(self, turns: int, *, seed: int, **options: Any) -> None:
        """Several turns with random prompts and lengths that depend on `seed` only; yields at random places."""
        random = np.random.default_rng(seed)
        for turn in range(turns):
            for _ in range(random.integers(0, 12)):
                await asyncio.sleep(0)
            prompt, most = some_ids(random), int(random.integers(1, 7))
            await self.say(prompt, seed=1000 * seed + turn, **{"max_tokens": most, "entropy": True} | options)


def uncached(model: Any, turn: Turn) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities and entropies of a turn's tokens by one full forward pass."""
    sequence = torch.tensor([turn.before + turn.answer.action.tokens.tolist()])
    with torch.no_grad():
        logits = model(input_ids=sequence, use_cache=False).logits[0, len(turn.before) - 1 : -1]
    count, request = len(logits), turn.request
    logprobs = log_distribution(
        logits, temperature=[request.temperature] * count, top_k=[request.top_k] * count, top_p=[request.top_p] * count
    )
    chosen = logprobs.gather(1, torch.tensor(turn.answer.action.tokens.tolist())[:, None])[:, 0]
    entropy = -(logprobs.exp() * logprobs.masked_fill(logprobs.isinf(), 0)).sum(-1)
    return chosen.numpy(), entropy.numpy()


def assert_true_to(model: Any, talker: Talker) -> None:
    """Every log-probability and entropy is the uncached model's, within 2e-5: processors round in other ways."""
    assert talker.turns
    for turn in talker.turns:
        logprobs, entropy = uncached(model, turn)
        np.testing.assert_allclose(turn.answer.action.logprobs, logprobs, atol=2e-5, rtol=0)
        if turn.answer.action.entropy is not None:
            np.testing.assert_allclose(turn.answer.action.entropy, entropy, atol=2e-5, rtol=0)
