"""The chats of one episode: requests of an outside agent, recorded as steps token by token.

A request whose messages go on from the last reply of a chat is the next turn of that chat, and adds to its segment. A
request that changes or leaves out an earlier message, or goes back to an earlier point, begins a new conversation. Its
prompt has all its messages as the chat template writes them. So what a step records is always what the model has read.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jinja2 import TemplateError

from palaestra.chat import ChatRenderer, FullHistory
from palaestra.chat.lengths import ContextFull
from palaestra.chat.messages import Message
from palaestra.chat.readers import Bare
from palaestra.data import Action, Observation, Step, StopReason, derive
from palaestra.data.interaction import FinishReason
from palaestra.data.protocols import Sampling
from palaestra.errors import ContractError, EpisodeFailure
from palaestra.gateway.backend import Backend, Event
from palaestra.gateway.faults import failed, too_long
from palaestra.gateway.loops import across
from palaestra.gateway.messages import digests, for_template, read_messages
from palaestra.gateway.replies import Reading, Reply
from palaestra.gateway.requests import ChatBody, CompletionBody
from palaestra.gateway.sizes import Sizes
from palaestra.http.rules import Refusal
from palaestra.policies.language_sampler import LanguageSession
from palaestra.rollout.episode import Agent, Episode
from palaestra.rollout.limits import LimitReached
from palaestra.rollout.teaching import TaughtSession

NONE = np.zeros(0, np.int32)
Tools = Sequence[Mapping[str, Any]]


@dataclass(slots=True, eq=False)
class _Conversation:
    """One conversation of the agent's role: its agent, and the session with the policy."""

    agent: Agent
    session: LanguageSession
    sampling: Sampling


class EpisodeChats(Backend):
    """Answers the requests of one episode's agent, and lets it act in the environment.

    The recipe says how replies are drawn, since training needs their probabilities: `temperature`, `top_p`, `top_k` and
    `seed` of a request are ignored. `max_tokens` can only lower the recipe's limit.

    Args:
        episode: whose event loop is running. name: of the role. model: what the agent calls the model.

    Attributes:
        limit: the last limit that a request has reached. fault: the last failure of the policy or its engine.
        shown: what the environment shows now; None: it is over.
    """

    def __init__(self, episode: Episode, *, name: str, model: str) -> None:
        self._episode, self._name, self._model = episode, name, model
        self._loop = asyncio.get_running_loop()
        self._policy: Any = episode.setup.role(episode.play.roles.get(name, name)).policy
        self._renderer = self._policy.renderer
        self._tips: dict[bytes, _Conversation] = {}  # chats up to their last reply, which may go on
        self._thoughts: dict[bytes, str] = {}  # chats up to a reply → the thought before it
        self._asked: Counter[bytes] = Counter()
        self._calls = itertools.count(1)
        self._opened = False
        self._acting = asyncio.Lock()
        self.limit: StopReason | None = None
        self.fault: EpisodeFailure | None = None
        self.shown: Observation | None = None

    def names(self) -> Sequence[str]:
        """The name of the model. Requests may use any name."""
        return (self._model,)

    def sizes(self) -> Sizes:
        """The most of a prompt."""
        return Sizes(self._policy.longest, self._renderer.encoder.longest, self._overflown)

    def _overflown(self) -> None:
        self.limit = StopReason.CONTEXT_OVERFLOW

    def chat(self, body: ChatBody) -> AsyncIterator[Event]:
        """The next message of a chat, at once."""
        return across(self._loop, lambda: self._chat(body))

    async def complete(self, body: CompletionBody) -> AsyncIterator[Event]:
        """Raises: Refusal."""
        raise Refusal("an episode answers chats alone. Use /v1/chat/completions.", status=404, code="not_found")
        yield  # makes this an iterator

    # ---- requests -----------------------------------------------------------------------------------------
    async def _chat(self, body: ChatBody) -> AsyncIterator[Event]:
        if body.chat_template_kwargs:
            raise Refusal(
                "the recipe sets the variables of the template: `agents.*.context: {full_history: {template: …}}`.",
                param="chat_template_kwargs",
            )
        said = read_messages(body.messages)
        tasks = [asyncio.ensure_future(self._reply(body, said)) for _ in range(body.sampled.n)]
        try:
            replies = await asyncio.gather(*tasks)
        finally:  # if one was refused, the client hears none of the others
            for task in tasks:
                task.cancel()
        for number, reply in enumerate(replies):
            yield number, reply

    async def _reply(self, body: ChatBody, said: Sequence[Message]) -> Reply:
        tools = body.tools if body.tool_choice != "none" else []
        start = json.dumps(tools, sort_keys=True)
        keys = digests(said, start)
        conversation, begin = self._going_on(said, keys)
        if conversation is None:
            conversation = self._opened_anew()
            said = self._with_thoughts(said, keys)
        observation = self._observation(said[begin:], keys[-1], tools, begins=begin == 0)
        seed = derive(self._episode.play.seed, self._name, keys[-1].hex(), self._asked[keys[-1]])
        self._asked[keys[-1]] += 1
        most = conversation.sampling.max_tokens
        conversation.session.sampling = replace(conversation.sampling, max_tokens=min(most, body.most or most))
        step = await self._act(conversation, observation, seed)
        reply = self._read(conversation, step, body, tools)
        spoken = Message(role="assistant", content=reply.text, calls=reply.calls)
        tip = digests([*said, spoken], start)[-1]
        if reply.thinking:
            self._thoughts[tip] = reply.thinking
        if reply.exact:
            self._tips[tip] = conversation
        return reply

    def _going_on(self, said: Sequence[Message], keys: Sequence[bytes]) -> tuple[_Conversation | None, int]:
        """The conversation whose last reply stands in this chat, and how many messages it has; (None, 0) without."""
        for count in range(len(keys) - 1, 0, -1):
            found = self._tips.pop(keys[count - 1], None)
            if found is not None:
                # Without a role for tools, results are words of the user, and templates may refuse two of these in a
                # row. Where a chat begins, they are joined.
                roles = [one.role for one in said[count:]]
                mixed = "tool" in roles and set(roles) != {"tool"} and not self._renderer.support.declares
                return (None, 0) if mixed else (found, count)
        return None, 0

    def _with_thoughts(self, said: Sequence[Message], keys: Sequence[bytes]) -> list[Message]:
        """The messages with the thoughts of the role's own replies, which clients leave out. The template decides what
        becomes of them."""
        thoughts = [one.thinking or self._thoughts.get(key, "") for one, key in zip(said, keys, strict=True)]
        return [replace(one, thinking=thought) for one, thought in zip(said, thoughts, strict=True)]

    def _opened_anew(self) -> _Conversation:
        """A new conversation of the role."""
        if self._opened:
            agent = self._episode.invoke(self._name)
        else:
            self._opened, agent = True, self._episode.agents[self._name]
        session = agent.session
        assert isinstance(session, LanguageSession)  # `refuse_role` has looked
        return _Conversation(agent, session, session.sampling)

    def _observation(self, said: Sequence[Message], key: bytes, tools: Tools, *, begins: bool) -> Observation:
        """What the policy reads: the messages that are new, and the tools where the chat begins."""
        return Observation(
            text="\n\n".join(one.text for one in said if one.role != "assistant"),
            messages=for_template(said),
            tools=list(tools) if tools and begins else None,
            state_key=key.hex(),
        )

    async def _act(self, conversation: _Conversation, observation: Observation, seed: int) -> Step:
        """Let the policy answer, and record the step. Raises: Refusal, if it cannot."""
        episode, agent = self._episode, conversation.agent
        try:
            most = episode.limits.turns
            if most is not None and episode.turns >= most:
                raise LimitReached(StopReason.MAX_TURNS)
            with episode.turn(agent, observation) as turn:
                turn.seed = seed
                response = await agent.answer(turn)
                return turn.file(response)
        except LimitReached as reached:
            self.limit = reached.reason
            raise self._refusal(reached.reason, conversation) from None
        except EpisodeFailure as error:
            if isinstance(error.__cause__, ContextFull):  # by the first prompt
                self._overflown()
                raise self._refusal(StopReason.CONTEXT_OVERFLOW, conversation) from None
            if isinstance(error.__cause__, TemplateError):
                raise Refusal(f"the model's chat template cannot write these messages: {error.__cause__}.") from error
            self.fault = error
            raise failed(error.what) from error

    def _refusal(self, reason: StopReason, conversation: _Conversation) -> Refusal:
        if reason is StopReason.CONTEXT_OVERFLOW:
            session = conversation.session
            length, longest = session.conversation.length, session.policy.longest
            return too_long(length if length >= longest else None, None, longest)
        limits = self._episode.limits
        most = {
            StopReason.MAX_TURNS: f"rollout.max_turns, {limits.turns}",
            StopReason.MAX_TOKENS: f"rollout.max_tokens, {limits.tokens}",
            StopReason.TIMEOUT: f"rollout.max_seconds, {limits.seconds}",
        }
        return Refusal(f"the episode has reached its limit ({most.get(reason, reason.value)}).", code=reason.value)

    def _read(self, conversation: _Conversation, step: Step, body: ChatBody, tools: Tools) -> Reply:
        """The reply in a step. What a text of `stop` cuts off leaves the step, too."""
        session, action, renderer = conversation.session, step.action, self._renderer
        reading = Reading(
            renderer=renderer,
            tokenizer=session.policy.tokenizer,
            prompt=step.prompt,
            prompt_tokens=session.conversation.length - len(action.tokens),
            tools=tools,
            several=body.parallel_tool_calls,
            stops=body.sampled.stops,
            pieces=body.logprobs,
            new_call=lambda: f"call_{next(self._calls):06d}",
        )
        count = reading.stopped(action.tokens, new=len(action.tokens))
        if count is not None:
            action = step.action = _cut(action, count)
            step.action.text = step.action.value = renderer.text(action.tokens, tools=tools, prompt=step.prompt)
        logprobs = NONE if action.logprobs is None else action.logprobs
        reply = reading.read(action.tokens, logprobs, action.finish, stopped=count is not None)
        step.action.tool_calls = reply.calls
        if tools and reply.exact:
            # The conversation reads calls out of the whole reply; it must have seen the same.
            ended = len(action.tokens) > 0 and int(action.tokens[-1]) in renderer.stop
            parsed = renderer.calls(renderer.said(action.tokens[: len(action.tokens) - ended]), tools)
            reply = replace(reply, exact=len(parsed.calls) == len(reply.calls) and parsed.fault is None)
        return reply

    # ---- the environment ----------------------------------------------------------------------------------
    async def act(self, given: Any) -> dict[str, Any]:
        """Act in the environment, for agents that ask by HTTP: `{"text": …}`. Raises: Refusal."""
        text = given.get("text") if isinstance(given, Mapping) else None
        if not isinstance(text, str):
            raise Refusal('the body must be {"text": …}, what the agent does.', param="text")
        try:
            shown = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.step(text), self._loop))
        except ContractError as error:
            raise Refusal(error.what) from error
        except EpisodeFailure as error:
            raise failed(error.what) from error
        return {"observation": shown, "over": shown is None}

    def act_from_thread(self, text: str) -> str | None:
        """Act in the environment, for agents in a thread. Returns what it shows next; None: it is over."""
        return asyncio.run_coroutine_threadsafe(self.step(text), self._loop).result()

    async def step(self, text: str) -> str | None:
        """Act in the environment, in the event loop of the episode. Returns what it shows next; None: it is over.

        Raises: ContractError, if it is over already or the act is no text; EpisodeFailure, if it fails.
        """
        async with self._acting:
            if self.shown is None or not isinstance(text, str):
                what = "the episode is over" if self.shown is None else f"an act must be a text, not {text!r}"
                raise ContractError(where="outside_agent, act", what=f"{what}.")
            last = self._episode.latest.get(self._name)
            tokens = NONE if last is None else last.action.tokens
            try:
                result = await self._episode.step({self._name: Action(text=text, value=text, tokens=tokens)})
            except EpisodeFailure as error:
                self.fault, self.shown = error, None
                raise
            self.shown = result.observations.get(self._name)
            return None if self.shown is None else text_of(self.shown)


def text_of(observation: Observation) -> str:
    """The text of an observation: its own, or that of its last message."""
    if observation.text is not None:
        return observation.text
    return str(observation.messages[-1]["content"]) if observation.messages else ""


def _cut(action: Action, count: int) -> Action:
    """An action with its first `count` tokens."""
    columns = {"logprobs": action.logprobs, "entropy": action.entropy, "versions": action.versions}
    shorter: dict[str, Any] = {name: value[:count] for name, value in columns.items() if value is not None}
    return replace(action, tokens=action.tokens[:count], finish=FinishReason.STOP, **shorter)


def refuse_role(episode: Episode, name: str) -> None:
    """Raises: ContractError, for a role whose policy the gateway cannot record, or whose settings have no effect."""
    agent = episode.agents[name]
    role, session = agent.role, agent.session
    where = f"program outside_agent, role {name}"
    if isinstance(session, TaughtSession):
        raise ContractError(
            where=where,
            what="the agent itself asks the policy's model, so a teacher cannot answer in its place.",
            remedy="Leave `warm_start.teacher` out.",
        )
    if not isinstance(session, LanguageSession) or not isinstance(role.policy.renderer, ChatRenderer):
        raise ContractError(
            where=where,
            what=f"policy `{role.policy.name}` is no language model with a chat template that is played as it is.",
            remedy="Use a policy of the kind `language` or `adapter` with a pretrained model, the runner `episodes`, "
            "and no strategy that branches.",
        )
    if not isinstance(role.context, FullHistory | None):
        raise ContractError(
            where=f"{where}, context",
            what="the agent itself decides what the model reads, and this context may leave turns out.",
            remedy="Use `context: full_history`.",
        )
    own = {
        "tools": role.tools is not None,
        "prompt": role.prompt is not None,
        "reader": not isinstance(role.reader, Bare),
    }
    used = next((key for key, is_set in own.items() if is_set), None)
    if used is not None:
        raise ContractError(
            where=f"{where}, {used}",
            what=f"`{used}` has no effect: the agent itself writes prompts, runs tools and reads replies.",
            remedy="Leave it out.",
        )
