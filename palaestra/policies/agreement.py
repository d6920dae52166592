"""Compares a language model's numbers at the start of a run: engine, trainer, and a plain pass of transformers.

A model whose engine and trainer differ would learn from wrong importance ratios, and nothing else would show it.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import numpy as np
import torch

from palaestra.chat import FullHistory
from palaestra.data import Observation
from palaestra.data.protocols import Request
from palaestra.data.trajectory import Picture
from palaestra.errors import ContractError
from palaestra.models.pictures import own_inputs
from palaestra.policies.language_trainer import LanguageTrainer
from palaestra.policies.sequences import LanguageSamples, samples_of

PROMPTS = ((5, 9, 7, 3, 8, 2), (5, 9, 7, 4), (6, 2, 9, 9, 1))  # ids; two prompts begin alike
RESPONSE = 4  # tokens
BOUNDS = {torch.float64: 1e-4, torch.float32: 1e-4}  # largest differences of log-probabilities, in nats
LOW_BOUND = 0.25  # largest mean difference with weights of low precision, whose unlikely tokens differ by more


class _Prompt(NamedTuple):
    ids: np.ndarray
    pictures: tuple[Picture, ...] = ()


def refuse_disagreement(policy: LanguageTrainer, *, trained: bool = True) -> None:
    """Compare the log-probabilities of a few sampled tokens.

    The engine samples responses to three prompts at once. The trainer evaluates them in one batch. transformers reads
    each sequence alone. A policy that reads pictures is also asked about two images.

    Args:
        trained: False: the policy only answers, so the trainer's numbers do not count.

    Raises: ContractError with the largest differences, or the mean ones for weights of low precision, if one of them
        is too large.
    """
    size = policy.network.model.config.get_text_config().vocab_size
    _compare(policy, [_Prompt(np.array([i % size for i in prompt], np.int32)) for prompt in PROMPTS], trained)
    if policy.renderer.pictures is not None:
        _compare(policy, [_pictured(policy, number) for number in range(2)], trained)


def _pictured(policy: LanguageTrainer, number: int) -> _Prompt:
    """A prompt that asks about an image. Different numbers give different images with equal ids."""
    draw = np.random.default_rng(number)
    image = draw.integers(0, 256, (4, 4, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    prompt = FullHistory().start(policy.renderer).observe(Observation(text=str(number), image=image))
    return _Prompt(prompt.ids, prompt.pictures)


def _compare(policy: LanguageTrainer, prompts: list[_Prompt], trained: bool) -> None:
    room = min(RESPONSE, policy.limit - max(len(prompt.ids) for prompt in prompts))
    if room < 1:
        return
    sampled = asyncio.run(_sampled(policy, prompts, room))
    ids = [np.concatenate([prompt.ids, action.tokens]) for prompt, action in zip(prompts, sampled, strict=True)]
    places = [np.arange(len(prompt.ids), len(one)) for prompt, one in zip(prompts, ids, strict=True)]
    pictures = [prompt.pictures for prompt in prompts]
    engine = torch.from_numpy(np.concatenate([action.logprobs for action in sampled])).float()
    with torch.no_grad():
        plain = torch.cat([_plain(policy, *one) for one in zip(ids, places, pictures, strict=True)])
        pairs = {"engine and transformers": (engine, plain)}
        if trained:
            samples = _samples(policy, ids, places, pictures)
            trainer = policy.forward(samples, range(len(ids)), ("logprob",))["logprob"].float().cpu()
            pairs = {"engine and trainer": (engine, trainer), "trainer and transformers": (trainer, plain)}
    dtype = next(policy.network.model.parameters()).dtype
    exact = dtype in BOUNDS
    bound = BOUNDS.get(dtype, LOW_BOUND)
    apart = {names: (left - right).abs() for names, (left, right) in pairs.items()}
    found = {names: float(each.max() if exact else each.mean()) for names, each in apart.items()}
    if any(not difference <= bound for difference in found.values()):
        shown = ", ".join(f"{names} by {difference:.2g}" for names, difference in found.items())
        mean = "" if exact else " on average"
        after = " after an image" if any(pictures) else ""
        raise ContractError(
            where=f"policy {policy.name}, {type(policy.network.model).__name__}",
            what=f"log-probabilities of the same tokens{after} differ: {shown} nats{mean}. With {dtype} at most "
            f"{bound:g} is right.",
            remedy="Set `pictures: false` of the policy, use a model of another architecture, or report this one."
            if any(pictures)
            else "Use a model of another architecture, or report this one.",
        )


async def _sampled(policy: Any, prompts: list[_Prompt], room: int) -> list[Any]:
    engine = policy.connected()

    async def one(number: int, prompt: _Prompt) -> Any:
        session = ("agreement", number)
        request = Request(
            policy=policy.name,
            session=session,
            prompt=prompt.ids,
            pictures=prompt.pictures,
            seed=number,
            max_tokens=room,
        )
        try:
            return (await engine.generate(request)).action
        finally:
            engine.close(session)

    return list(await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts))))


def _samples(
    policy: LanguageTrainer,
    ids: list[np.ndarray],
    places: list[np.ndarray],
    pictures: list[tuple[Picture, ...]],
) -> LanguageSamples:
    reader = policy.renderer.pictures
    return samples_of(ids, places, token_cost=policy.token_cost, pictures=pictures, reader=reader)


def _plain(policy: Any, ids: np.ndarray, places: np.ndarray, pictures: tuple[Picture, ...]) -> torch.Tensor:
    """Log-probabilities of the tokens at these places, by the model's own forward pass over one sequence."""
    model = policy.model
    tokens = torch.from_numpy(ids).long().to(model.device)
    at = torch.from_numpy(places).to(model.device)
    own = own_inputs(model, policy.renderer.pictures, ids, pictures)
    logits = model(input_ids=tokens[None], **own, use_cache=False).logits[0, at - 1].float()
    return torch.log_softmax(logits, -1).gather(1, tokens[at][:, None])[:, 0].cpu()
