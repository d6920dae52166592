"""Responses: what a policy of token ids would say now to prompts that were recorded earlier.

Knows an engine and prompts by protocol. Knows nothing of episodes, models or training.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from palaestra.data import Action
from palaestra.data.protocols import Engine, Request
from palaestra.errors import EpisodeFailure

TOGETHER = 512  # prompts in the engine at the same time


def responses(
    engine: Engine,
    requests: Sequence[Request],
    *,
    text: Callable[[np.ndarray], str],
) -> list[Action]:
    """One sampled action for each request, in their order; no session is left behind.

    It runs an event loop of its own, so it is for the time between rollouts, not for programs.

    Args:
        requests: with sessions of their own. text: of sampled ids.

    Raises: EpisodeFailure, if a prompt leaves no room or the engine fails.
    """

    async def everything() -> list[Action]:
        gate = asyncio.Semaphore(TOGETHER)
        return list(await asyncio.gather(*(_one(engine, request, gate, text) for request in requests)))

    return asyncio.run(everything())


async def _one(engine: Engine, request: Request, gate: asyncio.Semaphore, text: Callable[[np.ndarray], str]) -> Action:
    if request.max_tokens < 1:
        raise EpisodeFailure(
            boundary="engine",
            where=f"policy {request.policy}",
            what=f"a prompt of {len(request.prompt)} tokens leaves no room for a response.",
            remedy="Raise `policies.….policy.language.context`, or use a context that forgets.",
        )
    async with gate:
        try:
            action = (await engine.generate(request)).action
        finally:
            engine.close(request.session)
    return Action(text=text(action.tokens), tokens=action.tokens, logprobs=action.logprobs, finish=action.finish)
