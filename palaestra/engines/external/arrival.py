"""Whether weights have arrived at a server: its log-probabilities of a few tokens are compared with the trainer's.

A server may answer that it has taken over weights, and compute with others. Nothing else would show it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

# Factor of all weights of a test. With SmolLM2-135M, a server in bfloat16 then differs by 0.06 nats on average, and one
# whose output layer is missing by 0.58. With 1.2 these are 0.86 and 0.39, since rounding grows from layer to layer.
CHANGE = 0.8
MOST = 0.25  # largest mean difference in nats
SHARE = 0.1  # … and for the weights of the test, largest share of what they change
ROUNDING = 0.002  # nats; a difference below that is never taken for weights that are missing
PROMPTS = tuple(tuple(row) for row in np.random.default_rng(0).integers(0, 2**31, (16, 5)).tolist())  # mod vocabulary


class Expected(NamedTuple):
    """The log-probabilities of all next tokens after each prompt, of shape (prompts, vocabulary).

    Attributes:
        now: with the weights that are sent. before: with those that the server should have lost; None: there are none.
    """

    now: Tensor
    before: Tensor | None


def prompts(model: Any) -> list[list[int]]:
    """The ids of the prompts."""
    size = model.config.get_text_config().vocab_size
    return [[number % size for number in prompt] for prompt in PROMPTS]


@torch.no_grad()
def next_tokens(model: Any, *, factor: float = 1.0) -> Tensor:
    """The log-probabilities of all next tokens after each prompt, with all weights of the model times `factor`."""
    given = {"input_ids": torch.tensor(prompts(model), device=model.device), "use_cache": False}
    weights = {} if factor == 1 else {name: factor * weight for name, weight in model.named_parameters()}
    logits = functional_call(model, weights, kwargs=given).logits if weights else model(**given).logits
    return torch.log_softmax(logits[:, -1].float(), -1).cpu()


def changed(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those tensors of a model that are weights, times CHANGE, and the others as they are."""
    weights = {weight.data_ptr() for weight in model.parameters()}
    return {name: CHANGE * one if one.data_ptr() in weights else one for name, one in tensors.items()}


def fault(expected: Expected, tokens: Sequence[int], logprobs: Sequence[float], *, usual: float | None) -> str:
    """What a server's answers show: "", if it has the weights.

    Args:
        tokens, logprobs: one for each prompt.
        usual: the difference when the server had the weights; None: these are the weights of a test.
    """
    at, given = torch.tensor(tokens)[:, None], torch.tensor(logprobs)
    apart, moved, stale = difference(expected, tokens, logprobs), 0.0, math.inf
    if expected.before is not None:
        before, now = (one.gather(1, at)[:, 0] for one in (expected.before, expected.now))
        moved, stale = float((before - now).abs().mean()), float((before - given).abs().mean())
    if usual is None:
        wrong = not apart <= max(ROUNDING, min(MOST, SHARE * moved))  # also if it is not a number
    else:
        wrong = not apart <= MOST or (stale < apart / 2 and apart > max(ROUNDING, 4 * usual))
    if not wrong:
        return ""
    return f"log-probabilities differ by {apart:.2g} nats on average from those of the weights that it was sent"


def difference(expected: Expected, tokens: Sequence[int], logprobs: Sequence[float]) -> float:
    """The mean difference in nats between a server's log-probabilities and those that are expected."""
    return float((expected.now.gather(1, torch.tensor(tokens)[:, None])[:, 0] - torch.tensor(logprobs)).abs().mean())
