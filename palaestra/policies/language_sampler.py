"""The sampling side of a language policy. It makes prompts from observations, and an engine generates the responses.

The code for training is in `palaestra.policies.language_trainer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol

import numpy as np
from torch import Tensor

from palaestra.chat import Context, ContextFull, Conversation, FullHistory, Prompt
from palaestra.chat.history import Dialogue
from palaestra.chat.lengths import SHORT, letters_of
from palaestra.chat.messages import words_beside
from palaestra.chat.template_tools import numbered
from palaestra.data import Action, NextPrompt, Observation, Row
from palaestra.data.protocols import Engine, Policy, Request, Response, Sampling, Session
from palaestra.data.trajectory import Picture
from palaestra.errors import EpisodeFailure, PalaestraError
from palaestra.models.adapters import named_tensors
from palaestra.models.pictures import read_again
from palaestra.policies.sequences import pictures_of

TOGETHER = 512  # most prompts of `respond` in the engine at the same time


class LanguageSampler(Policy, Protocol):
    """The methods of a language policy that the sessions of agents call.

    Attributes:
        tokenizer, renderer: make token ids from observations.
        limit: the most ids of a prompt with its response that the model can read.
        engine: generates with `model`. It must be set before the first act.
    """

    tokenizer: Any
    limit: int
    has_critic: bool
    engine: Engine | None = None
    waits: bool = True  # for the engine (palaestra.registry)

    @property
    def choices(self) -> int:  # type: ignore[override]
        """The size of the vocabulary. The entropy of a token is at most ln(choices)."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def longest(self) -> int:
        """The most ids of a prompt with its response. The engine may have a lower limit than the model."""
        held = None if self.engine is None else self.engine.context(self.name)
        return self.limit if held is None else min(self.limit, held)

    def session(self, *, context: Context | None, sampling: Sampling, key: Hashable) -> LanguageSession:
        """Open the session of one agent in one episode. Without a context, its prompts hold the full history."""
        context = context or FullHistory()
        return LanguageSession(self, context.start_for(self.renderer, key), sampling, key)

    def weights_changed(self, version: int) -> None:
        """Publish the weights to the engine, which drops what it computed with older ones. Training calls this."""
        self.version = version
        if self.engine is not None:
            self.engine.publish(self.name, self.trained_tensors(), version)

    def trained_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of the weights that an update changes."""
        return named_tensors(self.model)

    def connected(self) -> Engine:
        """The engine. Raises: PalaestraError, if it is not set."""
        if self.engine is None:
            raise PalaestraError(
                where=f"policy {self.name}",
                what="it has no engine, so it cannot generate.",
                remedy="Set `policy.engine = InProcessEngine(models={policy.name: policy.model})`.",
            )
        return self.engine

    def read_again(self, pictures: Sequence[Picture]) -> tuple[Picture, ...]:
        """Recorded pictures with their `inputs`.

        Raises: ContractError, if the policy reads no pictures.
        """
        return read_again(self.renderer.pictures, pictures, where=f"policy {self.name}") if pictures else ()

    def respond(
        self, rows: Sequence[Row], seeds: Sequence[int], *, temperature: float, max_tokens: int = 32
    ) -> list[Action]:
        """Sample a response with the current weights for the prompt of each row. Use it between rollouts.

        It runs a new event loop, so programs cannot call it. It closes the sessions that it opens in the engine.

        Args:
            rows: steps of episodes that this policy has played, in any version.
            seeds: one for each row; it decides the draw.
            max_tokens: largest number of response tokens. The model's context may leave room for fewer.

        Raises: EpisodeFailure, if a prompt leaves no room or the engine fails; PalaestraError, without an engine.
        """
        engine, gate = self.connected(), asyncio.Semaphore(TOGETHER)

        async def one(place: int, row: Row, seed: int) -> Action:
            prompt = row.trajectory.prompt_of(row.step)
            request = Request(
                policy=self.name,
                session=("respond", place),
                prompt=prompt,
                pictures=self.read_again(pictures_of(row.trajectory, row.step)),
                seed=int(seed),
                max_tokens=min(max_tokens, self.longest - len(prompt)),
                temperature=temperature,
                stop=self.renderer.stop,
            )
            if request.max_tokens < 1:
                raise EpisodeFailure(
                    boundary="engine",
                    where=f"policy {self.name}",
                    what=f"a prompt of {len(prompt)} tokens leaves no room for a response.",
                    remedy="Raise `policies.….policy.language.context`, or use a context that shortens the history.",
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


def _bare(prompt: Prompt) -> tuple[Picture, ...]:
    """The pictures of a prompt as steps record them."""
    return tuple(picture._replace(inputs=None) for picture in prompt.pictures)


@dataclass(slots=True)
class LanguageSession(Session):
    """The session of one agent: its conversation, and its place in the engine, which caches keys and values."""

    policy: LanguageSampler
    conversation: Conversation
    sampling: Sampling
    key: Hashable
    segment: int = -1
    unread: list[np.ndarray] = field(default_factory=list)  # recorded ids of this segment that the engine has not read
    unseen: list[Picture] = field(default_factory=list)  # the pictures in them
    in_engine: bool = False  # whether the engine has a session for this segment
    tools: tuple[Mapping[str, Any], ...] = ()  # that the chat template declares
    recorded: int = 0  # number of calls of tools that were recorded

    async def act(self, observation: Observation, *, seed: int) -> Response:
        """Sample a response.

        Raises: ContextFull, if the history leaves no room for a response; EpisodeFailure, if the first prompt leaves
            none.
        """
        engine = self.policy.connected()
        prompt = await self._read(observation)
        room = self.policy.longest - self.conversation.length
        if room < 1:
            self._overflow(first=prompt.fresh and self.segment < 0)
        self._enter(prompt)
        before = sum(map(len, self.unread))
        response = await engine.generate(
            Request(
                policy=self.policy.name,
                session=(self.key, prompt.segment),
                prompt=np.concatenate([*self.unread, prompt.ids]),
                pictures=(*self.unseen, *(picture.moved(before) for picture in prompt.pictures)),
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
        self.unread, self.unseen, self.in_engine = [], [], True
        self.conversation.respond(response.action.tokens)
        text = self.policy.renderer.text(response.action.tokens, tools=self.tools, prompt=prompt.ids)
        action = replace(response.action, text=text)
        return replace(response, action=action, prompt=prompt.ids, pictures=_bare(prompt), segment=prompt.segment)

    def record(self, observation: Observation, action: Action) -> Response:
        """Take a given action. Its text is tokenized as the response; calls of tools, as the chat template writes them
        beside the words of the text."""
        renderer, tools = self.policy.renderer, tuple(observation.tools or self.tools)
        calls = tuple(numbered(action.tool_calls, self.recorded))
        words = words_beside(action, tools) if calls else ""
        if calls and not tools and words != action.text:  # the role writes its calls in the form of the text
            calls = ()
        self.recorded += len(calls)
        prompt = self._observe(observation)
        with self._fitting():
            if calls:
                ids = renderer.call(calls, tools, said=words, prompt=prompt.ids)
            else:
                ids = renderer.action(action.text or str(action.value), prompt=prompt.ids)
        given = Action(text=action.text, value=action.value, tokens=ids, finish=action.finish, tool_calls=calls)
        if calls:
            given.reply = renderer.text(ids, tools=tools, prompt=prompt.ids)
        return self._taken(prompt, given)

    def replay(self, observation: Observation, action: Action) -> Response:
        """Take a recorded action of this policy again. Its token ids are the response; its text is not tokenized."""
        return self._taken(self._observe(observation), action)

    def _taken(self, prompt: Prompt, action: Action) -> Response:
        if self.conversation.length + len(action.tokens) > self.policy.longest:
            self._overflow(first=prompt.fresh and self.segment < 0)
        self._enter(prompt)
        self.conversation.respond(action.tokens)
        before = sum(map(len, self.unread))
        self.unseen += [picture.moved(before) for picture in prompt.pictures]
        self.unread += [prompt.ids, action.tokens]  # the engine reads them with the next request
        return Response(
            action=action,
            prompt=prompt.ids,
            pictures=_bare(prompt),
            segment=prompt.segment,
            version=self.policy.version,
        )

    def fork(self, key: Hashable) -> LanguageSession:
        """A copy that continues from here. The engine does not read the earlier ids again.

        Raises: ContractError, if the engine cannot fork.
        """
        renderer = self.policy.renderer
        conversation = copy.deepcopy(self.conversation, {id(renderer): renderer})
        copied = replace(self, conversation=conversation, key=key, unread=list(self.unread), unseen=list(self.unseen))
        if self.in_engine:
            self.policy.connected().fork((self.key, self.segment), (key, self.segment))
        return copied

    def history(self) -> Conversation:
        """The conversation that makes the prompts."""
        return self.conversation

    def end(self, observation: Observation | None) -> NextPrompt | None:
        """Close the engine's session. Returns the prompt ids of `observation`, if there is a critic and they fit."""
        self._forget()
        if observation is None or self.segment < 0 or not self.policy.has_critic:
            return None
        try:
            prompt = self.conversation.observe(observation)
        except ContextFull:
            return None
        if self.conversation.length > self.policy.limit:
            return None
        return NextPrompt(prompt.ids, prompt.segment, _bare(prompt))

    async def _read(self, observation: Observation) -> Prompt:
        """As `_observe`. A thread tokenizes a long observation, so that other episodes go on meanwhile."""
        if letters_of(observation) <= SHORT:
            return self._observe(observation)
        reading = asyncio.get_running_loop().run_in_executor(None, self._observe, observation)
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            await asyncio.gather(reading, return_exceptions=True)  # else two threads would use the conversation
            raise

    def _observe(self, observation: Observation) -> Prompt:
        """The prompt of an observation.

        Raises: PalaestraError, if the context cannot declare its tools or show its image.
        """
        whole = isinstance(self.conversation, Dialogue)
        if observation.image is not None and self.policy.renderer.pictures is not None and not whole:
            raise PalaestraError(
                where=f"policy {self.policy.name}, agents.*.context",
                what="the role's context puts turns together itself, so it cannot show the image of an observation.",
                remedy="Use the context `full_history`, `window` or `latest_only`. Or set "
                "`policies.….policy.language.pictures: false`, if the texts say enough.",
            )
        if observation.tools is not None:
            self.tools = tuple(observation.tools)
            if self.policy.renderer.instructed and not whole:
                raise PalaestraError(
                    where="agents.*.tools.native",
                    what="the role's context puts turns together itself, so the chat template cannot declare tools.",
                    remedy="Use the context `full_history`, `window` or `latest_only`, or `tools.format`.",
                )
        with self._fitting():
            return self.conversation.observe(observation)

    @contextlib.contextmanager
    def _fitting(self) -> Iterator[None]:
        """Raises: as `_overflow`, if a text is so long that it is not tokenized."""
        try:
            yield
        except ContextFull as full:
            self._overflow(first=self.segment < 0, cause=full)

    def _enter(self, prompt: Prompt) -> None:
        """Close the previous segment in the engine, if the prompt starts a new one."""
        if prompt.fresh:
            self._forget()
            self.segment, self.unread, self.unseen, self.in_engine = prompt.segment, [], [], False

    def _forget(self) -> None:
        if self.policy.engine is not None and self.segment >= 0:
            self.policy.engine.close((self.key, self.segment))

    def _overflow(self, *, first: bool, cause: ContextFull | None = None) -> NoReturn:
        """Raises: ContextFull; EpisodeFailure, caused by it, for the `first` prompt."""
        cause = cause or ContextFull()
        if not first:
            raise cause
        policy = self.policy
        size = f"{cause.letters} characters" if cause.letters else f"{self.conversation.length} tokens"
        shorter = policy.longest < policy.limit
        raise EpisodeFailure(
            boundary="engine",
            where=f"policy {policy.name}",
            what=f"the first prompt has {size} and the {'engine' if shorter else 'model'}'s "
            f"context {policy.longest}, so no response fits.",
            remedy="Shorten the observation, or raise "
            + ("`max_length` of the engine." if shorter else "`policies.….policy.language.context`."),
        ) from cause
