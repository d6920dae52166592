"""Compares a language model's numbers: engine, trainer, and a plain pass of transformers. A run does so at its start,
and `palaestra export` with the folder that it wrote.

A model whose engine and trainer differ would learn from wrong importance ratios, and nothing else would show it. An
engine that computes in another way than the trainer, such as a server, may differ more, and the difference is reported.
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
from palaestra.models.causal_lm import load_causal_lm
from palaestra.models.pictures import own_inputs
from palaestra.models.tokenizer import load_tokenizer
from palaestra.policies.language_trainer import LanguageTrainer
from palaestra.policies.sequences import LanguageSamples, samples_of
from palaestra.registry import declared

PROMPTS = ((5, 9, 7, 3, 8, 2), (5, 9, 7, 4), (6, 2, 9, 9, 1))  # ids; two prompts begin alike
RESPONSE = 16  # tokens of a response: in low precision one unlikely token would decide the mean of fewer
BOUNDS = {torch.float64: 1e-4, torch.float32: 1e-3}  # largest differences of log-probabilities, in nats
TEXT = 'The agent opens 2 doors (red, blue), says "é, 你好" and writes: x = 17 * 4.\n'  # what a copy reads
LOW_BOUND = 0.25  # largest mean difference with low precision or other code, whose unlikely tokens differ by more


class _Prompt(NamedTuple):
    ids: np.ndarray
    pictures: tuple[Picture, ...] = ()


def must_compare(policy: Any, *, loaded: bool) -> bool:
    """Whether a policy is compared: if its model was loaded, or if its engine computes in another way."""
    return loaded or (policy.engine is not None and _is_elsewhere(policy.engine))


def _is_elsewhere(engine: Any) -> bool:
    """Whether another program computes the engine's numbers, with other code or in another precision."""
    return declared(type(engine), "elsewhere") is not None


def refuse_disagreement(policy: Any, *, trained: bool = True) -> None:
    """Compare the log-probabilities of a few sampled tokens.

    The engine samples responses to three prompts at once. The trainer evaluates them in one batch. transformers reads
    each sequence alone. A policy that reads pictures is also asked about two images. In bfloat16, and if the engine
    computes in another way than the trainer, the differences become a note of the policy.

    Args:
        trained: False: the policy only answers, so the trainer's numbers do not count.

    Raises: ContractError with the largest differences, or the mean ones for weights of low precision, if one of them
        is too large.
    """
    size = policy.network.model.config.get_text_config().vocab_size
    _compare(policy, [_Prompt(np.array([i % size for i in prompt], np.int32)) for prompt in PROMPTS], trained)
    if policy.renderer.pictures is not None and not _is_elsewhere(policy.engine):
        _compare(policy, [_pictured(policy, number) for number in range(2)], trained)


def _pictured(policy: LanguageTrainer, number: int) -> _Prompt:
    """A prompt that asks about an image. Different numbers give different images with equal ids."""
    draw = np.random.default_rng(number)
    image = draw.integers(0, 256, (4, 4, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    prompt = FullHistory().start(policy.renderer).observe(Observation(text=str(number), image=image))
    return _Prompt(prompt.ids, prompt.pictures)


def _compare(policy: Any, prompts: list[_Prompt], trained: bool) -> None:
    room = min(RESPONSE, policy.longest - max(len(prompt.ids) for prompt in prompts))
    if room < 1:
        return
    sampled = asyncio.run(_sampled(policy, prompts, room))
    ids = [np.concatenate([prompt.ids, action.tokens]) for prompt, action in zip(prompts, sampled, strict=True)]
    places = [np.arange(len(prompt.ids), len(one)) for prompt, one in zip(prompts, ids, strict=True)]
    pictures = [prompt.pictures for prompt in prompts]
    engine = torch.from_numpy(np.concatenate([action.logprobs for action in sampled])).float()
    with torch.no_grad():
        reader = policy.renderer.pictures
        plain = torch.cat([_plain(policy.model, reader, *one) for one in zip(ids, places, pictures, strict=True)])
        pairs = {"engine and transformers": (engine, plain)}
        if trained:
            samples = _samples(policy, ids, places, pictures)
            trainer = policy.forward(samples, range(len(ids)), ("logprob",))["logprob"].float().cpu()
            pairs = {"engine and trainer": (engine, trainer), "trainer and transformers": (trainer, plain)}
    same_code, dtype = not _is_elsewhere(policy.connected()), next(policy.network.model.parameters()).dtype
    apart = {names: (left - right).abs() for names, (left, right) in pairs.items()}
    exact = {names: dtype in BOUNDS and (same_code or "engine" not in names) for names in apart}
    found = {names: float(each.max() if exact[names] else each.mean()) for names, each in apart.items()}
    bounds = {names: BOUNDS[dtype] if exact[names] else LOW_BOUND for names in apart}
    if any(not found[names] <= bounds[names] for names in found):
        _refuse(policy, found, exact, bounds, dtype, pictured=any(pictures))
    if trained and not exact["engine and trainer"]:
        worst = float(apart["engine and trainer"].max())
        line = (
            f"engine and trainer: log-probabilities of policy {policy.name} differ by "
            f"{found['engine and trainer']:.2g} nats on average and {worst:.2g} at most, over {len(engine)} tokens"
        )
        policy.notes = (*policy.notes, line)


def _refuse(
    policy: Any,
    found: dict[str, float],
    exact: dict[str, bool],
    bounds: dict[str, float],
    dtype: torch.dtype,
    *,
    pictured: bool,
) -> None:
    """Raises: ContractError with the differences."""
    mean = "" if all(exact.values()) else " on average"
    shown = ", ".join(f"{name} by {difference:.2g}" for name, difference in found.items())
    right = min(bounds.values()) if not mean else max(bounds.values())
    remedy = "Use a model of another architecture, or report this one."
    if pictured:
        remedy = "Set `pictures: false` of the policy, use a model of another architecture, or report this one."
    elif _is_elsewhere(policy.engine) and found["trainer and transformers"] <= bounds["trainer and transformers"]:
        remedy = (
            "Check that the server has loaded the same base model, or leave out `initial_weights: false`, so that it "
            "is sent. Check that the server's precision is not lower than bfloat16."
        )
    raise ContractError(
        where=f"policy {policy.name}, {type(policy.network.model).__name__}",
        what=f"log-probabilities of the same tokens{' after an image' if pictured else ''} differ: {shown} nats{mean}. "
        f"With {dtype} at most {right:g} is right.",
        remedy=remedy,
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


def _plain(
    model: Any, reader: Any, ids: np.ndarray, places: np.ndarray, pictures: tuple[Picture, ...] = ()
) -> torch.Tensor:
    """Log-probabilities of the tokens at these places, by the model's own forward pass over one sequence."""
    tokens = torch.from_numpy(ids).long().to(model.device)
    at = torch.from_numpy(places).to(model.device)
    own = own_inputs(model, reader, ids, pictures)
    logits = model(input_ids=tokens[None], **own, use_cache=False).logits[0, at - 1].float()
    return torch.log_softmax(logits, -1).gather(1, tokens[at][:, None])[:, 0].cpu()


def refuse_other_copy(policy: Any, folder: str) -> None:
    """Compare the policy's log-probabilities of a short text with those of the model and tokenizer in a folder, which
    transformers reads.

    With merged additions in low precision, the mean difference counts. It is larger, since weights are rounded again.

    Raises: ContractError with the difference, if it is too large; CheckpointError, if the folder cannot be loaded.
    """
    dtype = next(policy.network.model.parameters()).dtype
    copy, tokenizer = load_causal_lm(folder, dtype=dtype), load_tokenizer(folder)
    ids = np.array(policy.tokenizer.encode(TEXT, add_special_tokens=False)[: policy.limit], np.int32)
    same = ids.tolist() == tokenizer.encode(TEXT, add_special_tokens=False)[: policy.limit]
    if not same or tokenizer.chat_template != policy.tokenizer.chat_template:
        raise _other_copy(policy, "its tokenizer is another one")
    if len(ids) < 2:
        return
    places, reader = np.arange(1, len(ids)), policy.renderer.pictures
    merged = policy.adapter_module is not None
    with torch.no_grad():
        if dtype in BOUNDS or merged:
            expected = (
                policy.forward(_samples(policy, [ids], [places], [()]), [0], ("logprob",))["logprob"].float().cpu()
            )
        else:  # the same code, so that rounding hides nothing
            expected = _plain(policy.model, reader, ids, places)
        apart = (expected - _plain(copy, reader, ids, places)).abs()
    rounded = merged and dtype not in BOUNDS
    difference = float(apart.mean() if rounded else apart.max())
    bound = LOW_BOUND if rounded else BOUNDS.get(dtype, BOUNDS[torch.float32])
    if not difference <= bound:
        mean = " on average" if rounded else ""
        what = f"log-probabilities of the same tokens differ by {difference:.2g} nats{mean}"
        raise _other_copy(policy, f"{what}. With {dtype} at most {bound:g} is right")


def _other_copy(policy: Any, fault: str) -> ContractError:
    return ContractError(
        where=f"policy {policy.name}, {type(policy.network.model).__name__}",
        what=f"what was written is not the policy of the run: {fault}.",
        remedy="Use a model of another architecture, or report this one.",
    )
