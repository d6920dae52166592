"""The sampler half of a language policy: observations in, prompts as token ids, an engine, text out.

How what was sampled is trained on is in `palaestra.policies.language_trainer`.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from palaestra.chat import Context, ContextFull, Conversation, FullHistory, Prompt
from palaestra.data import Action, NextPrompt, Observation, Row
from palaestra.data.protocols import Engine, Policy, Request, Response, Sampling, Session
from palaestra.errors import EpisodeFailure, PalaestraError
from palaestra.models.adapters import named_tensors

TOGETHER = 512  # prompts in the engine at the same time


class LanguageSampler(Policy, Protocol):
    """What agents' sessions ask of policies of a causal language model.

    Attributes:
        tokenizer, renderer, limit: how observations become ids, and the most ids of a prompt and its response.
        engine: what generates with `model`; set before the first act.
    """

    tokenizer: Any
    limit: int
    has_critic: bool
    engine: Engine | None = None

    @property
    def choices(self) -> int:  # type: ignore[override]
        """How many tokens there are to choose from: their entropy is at most ln(choices)."""
        return int(self.model.config.get_text_config().vocab_size)

    def session(self, *, context: Context | None, sampling: Sampling, key: Hashable) -> LanguageSession:
        """A conversation of one agent in one episode; without a context it has its full history."""
        context = context or FullHistory()
        return LanguageSession(self, context.start_for(self.renderer, key), sampling, key)

    def weights_changed(self, version: int) -> None:
        """Call after each update: the engine takes the weights over, and forgets what older ones computed."""
        self.version = version
        if self.engine is not None:
            self.engine.publish(self.name, self.trained_tensors(), version)

    def trained_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of what an update changes in the model that generates."""
        return named_tensors(self.model)

    def connected(self) -> Engine:
        """The engine that generates. Raises: PalaestraError, if there is none."""
        if self.engine is None:
            raise PalaestraError(
                where=f"policy {self.name}",
                what="it has no engine to generate with.",
                remedy="Set `policy.engine = InProcessEngine(models={policy.name: policy.model})`.",
            )
        return self.engine

    def respond(
        self, rows: Sequence[Row], seeds: Sequence[int], *, temperature: float, max_tokens: int = 32
    ) -> list[Action]:
        """What this policy would say now where these rows were acted; for the time between rollouts.

        It runs an event loop of its own, so it is not for programs. No session is left behind.

        Args:
            rows: steps of episodes that this policy (of any version) has played. seeds: one decides each draw.
            max_tokens: most response tokens, as far as the model's context has room.

        Raises: EpisodeFailure, if a prompt leaves no room or the engine fails; PalaestraError, without an engine.
        """
        engine, gate = self.connected(), asyncio.Semaphore(TOGETHER)

        async def one(place: int, row: Row, seed: int) -> Action:
            prompt = row.trajectory.prompt_of(row.step)
            request = Request(
                policy=self.name,
                session=("respond", place),
                prompt=prompt,
                seed=int(seed),
                max_tokens=min(max_tokens, self.limit - len(prompt)),
                temperature=temperature,
                stop=self.renderer.stop,
            )
            if request.max_tokens < 1:
                raise EpisodeFailure(
                    boundary="engine",
                    where=f"policy {self.name}",
                    what=f"a prompt of {len(prompt)} tokens leaves no room for a response.",
                    remedy="Raise `policies.….policy.language.context`, or use a context that forgets.",
                )
            async with gate:
                try:
                    action = (await engine.generate(request)).action
                finally:
                    engine.close(request.session)
            text = self.renderer.text(action.tokens)
            return Action(text=text, tokens=action.tokens, logprobs=action.logprobs, finish=action.finish)

        async def everybody() -> list[Action]:
            asked = enumerate(zip(rows, seeds, strict=True))
            return list(await asyncio.gather(*(one(place, row, seed) for place, (row, seed) in asked)))

        return asyncio.run(everybody())


@dataclass(slots=True)
class LanguageSession(Session):
    """One agent's conversation: a context that appends, and the engine's cached keys and values."""

    policy: LanguageSampler
    conversation: Conversation
    sampling: Sampling
    key: Hashable
    segment: int = -1
    unread: list[np.ndarray] = field(default_factory=list)  # recorded ids of this segment, new to the engine
    in_engine: bool = False  # the engine has a session for this segment

    async def act(self, observation: Observation, *, seed: int) -> Response:
        """Sample a response.

        Raises: ContextFull, when a grown history leaves no room; EpisodeFailure, when the very first
            prompt does not fit.
        """
        engine = self.policy.connected()
        prompt = self.conversation.observe(observation)
        room = self.policy.limit - self.conversation.length
        if room < 1:
            self._overflow(first=prompt.fresh and self.segment < 0)
        self._enter(prompt)
        response = await engine.generate(
            Request(
                policy=self.policy.name,
                session=(self.key, prompt.segment),
                prompt=np.concatenate([*self.unread, prompt.ids]),
                seed=seed,
                max_tokens=min(self.sampling.max_tokens, room),
                temperature=self.sampling.temperature,
                top_k=self.sampling.top_k,
                top_p=self.sampling.top_p,
                stop=self.policy.renderer.stop,
                entropy=self.sampling.entropy,
                entropy_temperature=self.sampling.entropy_temperature,
            )
        )
        self.unread, self.in_engine = [], True
        self.conversation.respond(response.action.tokens)
        action = replace(response.action, text=self.policy.renderer.text(response.action.tokens))
        return replace(response, action=action, prompt=prompt.ids, segment=prompt.segment)

    def record(self, observation: Observation, action: Action) -> Response:
        """Take a given action: its text becomes the response ids."""
        ids = self.policy.renderer.action(action.text or str(action.value))
        return self.replay(observation, Action(text=action.text, value=action.value, tokens=ids, finish=action.finish))

    def replay(self, observation: Observation, action: Action) -> Response:
        """Take an action of this very policy again: its ids are the response, whatever its text would give."""
        prompt = self.conversation.observe(observation)
        if self.conversation.length + len(action.tokens) > self.policy.limit:
            self._overflow(first=prompt.fresh and self.segment < 0)
        self._enter(prompt)
        self.conversation.respond(action.tokens)
        self.unread += [prompt.ids, action.tokens]  # the engine reads them when the next response is asked for
        return Response(action=action, prompt=prompt.ids, segment=prompt.segment, version=self.policy.version)

    def fork(self, key: Hashable) -> LanguageSession:
        """A copy that goes on from here; what the engine has read is not read again.

        Raises: ContractError, if the engine cannot fork.
        """
        renderer = self.policy.renderer
        conversation = copy.deepcopy(self.conversation, {id(renderer): renderer})
        copied = replace(self, conversation=conversation, key=key, unread=list(self.unread))
        if self.in_engine:
            self.policy.connected().fork((self.key, self.segment), (key, self.segment))
        return copied

    def history(self) -> Conversation:
        """What makes its prompts."""
        return self.conversation

    def end(self, observation: Observation | None) -> NextPrompt | None:
        """Free the engine's memory; the prompt ids that `observation` would have had, if they fit."""
        self._forget()
        if observation is None or self.segment < 0 or not self.policy.has_critic:
            return None
        prompt = self.conversation.observe(observation)
        return NextPrompt(prompt.ids, prompt.segment) if self.conversation.length <= self.policy.limit else None

    def _enter(self, prompt: Prompt) -> None:
        """Where a segment starts, the one before it is forgotten."""
        if prompt.fresh:
            self._forget()
            self.segment, self.unread, self.in_engine = prompt.segment, [], False

    def _forget(self) -> None:
        if self.policy.engine is not None and self.segment >= 0:
            self.policy.engine.close((self.key, self.segment))

    def _overflow(self, *, first: bool) -> None:
        length, limit = self.conversation.length, self.policy.limit
        if not first:
            raise ContextFull
        raise EpisodeFailure(
            boundary="engine",
            where=f"policy {self.policy.name}",
            what=f"the first prompt has {length} tokens and the model's context {limit}: no response fits.",
            remedy="Shorten the observation, or raise `policies.….policy.language.context`.",
        )
