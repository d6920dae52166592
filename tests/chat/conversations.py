"""Random conversations with tools and thoughts, played by a tiny model, and what its engine was asked to read."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from palaestra.chat import ChatRenderer, FullHistory, LatestOnly, Window
from palaestra.data import Action, FinishReason, Observation, Play, RunSetup, StepResult, Task, ToolCall
from palaestra.data.protocols import Engine, Request, Response
from palaestra.data.table import rows_of
from palaestra.engines import InProcessEngine
from palaestra.errors import InvalidData
from palaestra.models.causal_lm import make_causal_lm
from palaestra.policies.language import LanguagePolicy
from palaestra.rollout.roles import Role, RoleTools
from palaestra.rollout.runner import EpisodeRunner
from palaestra.rollout.settings import RolloutSettings
from palaestra.tools import tool
from tests.chat.templates import tokenizer_of

WORDS = ("go", "north", "a lamp", "7", "é ü", "x < y", "{}", "two\nlines", "<|im_start|>", "</think>", '"')
THOUGHT = "<think>\nhm\n</think>\n\n"
CONTEXTS = {
    "template": FullHistory(),
    "keep": FullHistory(thoughts="keep"),
    "strip": FullHistory(thoughts="strip"),
    "window": Window(turns=2, thoughts="keep"),
    "latest": LatestOnly(),
}


@tool
def find(id: int, words: str = "") -> str:
    """Find something by its number.

    Args:
        id: the number.
        words: further words.
    """
    return f"{id} is {words}"


@tool
def move(place: str) -> str:
    """Go to a place of the world."""
    raise AssertionError("the environment answers its own tools")


class Talk:
    """Shows random words to every agent, for two to five turns."""

    agents = tuple(CONTEXTS)
    abilities = ("instruction",)

    def reset(self, task: Task) -> StepResult:
        self._draw, self._turn = random.Random(task.seed), 0
        self._turns = self._draw.randint(2, 5)
        return StepResult(observations=self._seen())

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        self._turn += 1
        over = self._turn >= self._turns
        return StepResult(observations={} if over else self._seen(), terminated=frozenset(self.agents if over else ()))

    def close(self) -> None:
        return None

    def instruction(self, agent: str) -> str:
        return "Walk or look."

    def _seen(self) -> dict[str, Observation]:
        text = said(self._draw)
        messages = None
        if self._draw.random() < 0.2:
            messages = [{"role": "user", "content": f"{text}?"}]
        seen = Observation(text=text, messages=messages, tools=(move.declaration(),))
        return dict.fromkeys(self.agents, seen)


def said(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(1, 5)))


class Recorder(Engine):
    """Answers some requests by replies of its own, with thoughts and calls, and others by the model.

    Attributes:
        read: session → all ids that it was asked to read or that it answered.
    """

    def __init__(self, policy: Any, tools: tuple[Any, ...]) -> None:
        self.inner = InProcessEngine(models={policy.name: policy.model})
        self.renderer: ChatRenderer = policy.renderer
        self.tools = tools
        self.read: dict[Any, list[np.ndarray]] = defaultdict(list)
        self.unread: dict[Any, np.ndarray] = {}  # of a session: ids that the model has not read

    async def generate(self, request: Request) -> Response:
        draw, session = random.Random(request.seed), request.session
        unread = self.unread.pop(session, np.zeros(0, np.int32))
        whole = np.concatenate([unread, request.prompt]).astype(np.int32)
        if draw.random() < 0.2:
            response = await self.inner.generate(replace(request, prompt=whole, max_tokens=min(8, request.max_tokens)))
        else:
            ids = self.reply(draw)[: request.max_tokens]
            self.unread[session] = np.concatenate([whole, ids]).astype(np.int32)
            response = Response(action=Action(tokens=ids, finish=FinishReason.STOP))
        self.read[session] += [request.prompt, response.action.tokens]
        return response

    def reply(self, draw: random.Random) -> np.ndarray:
        """A reply: words, calls, calls that are wrong, with or without a thought and an end."""
        renderer, kind = (
            self.renderer,
            draw.choice(["words", "own", "act", "both", "two", "unknown", "broken", "empty"]),
        )
        if kind in ("words", "broken", "empty"):
            ids = renderer.action({"words": said(draw), "broken": '<tool_call>\n{"name": "find", '}.get(kind, ""))
        else:
            own = ToolCall(name="find", arguments={"id": draw.randint(0, 9), "words": said(draw)})
            other = ToolCall(name="move", arguments={"place": said(draw)})
            lost = ToolCall(name="fly", arguments={})
            calls = {"own": [own], "act": [other], "both": [own, other], "two": [own, own], "unknown": [lost]}[kind]
            ids = self.calling(calls)
        if draw.random() < 0.4:
            ids = np.concatenate([renderer.ids(renderer.as_written(THOUGHT)), ids])
        ended = draw.random()
        if ended < 0.15:
            ids = ids[:-1]  # cut by a limit
        elif ended < 0.25:
            ids = np.append(ids[:-1], renderer.stop[-1])  # another end
        return ids.astype(np.int32)

    def calling(self, calls: list[ToolCall]) -> np.ndarray:
        try:
            return self.renderer.call(calls, self.tools)
        except InvalidData:  # some templates do not write two calls at once, but a model may
            written = (json.dumps({"name": call.name, "parameters": dict(call.arguments)}) for call in calls)
            return self.renderer.action("\n".join(written))

    def close(self, session: Any) -> None:
        self.inner.close(session)
        self.unread.pop(session, None)

    def publish(self, policy: str, named_tensors: Any, version: int) -> None:
        self.inner.publish(policy, named_tensors, version)

    def context(self, policy: str) -> int:
        return self.inner.context(policy)


def policy_of(name: str, folder: Path) -> Any:
    """A tiny random model with the chat template of this name."""
    tokenizer = tokenizer_of(name)
    model = make_causal_lm(vocabulary=len(tokenizer), hidden=16, layers=1, heads=2, context=32_768, seed=1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return LanguagePolicy("main", RunSetup(), model=str(folder))


def played(policy: Any, episodes: range) -> tuple[Recorder, list[Any]]:
    """Play these episodes, in each of which one agent talks for each context. Returns the engine and the episodes."""
    tools = RoleTools(tools=(find,), native=True)
    engine = policy.engine = Recorder(policy, (find.declaration(), move.declaration()))
    setup = RunSetup(
        environment_name="talk",
        make_environment=Talk,
        source=Talk(),
        roles={name: Role(policy=policy, context=context, tools=tools) for name, context in CONTEXTS.items()},
        program=every_agent,
    )
    plays = [Play(task=Task(env="talk", seed=i), group=f"g{i}", sample=0, seed=i) for i in episodes]
    runner = EpisodeRunner(setup, RolloutSettings(response_tokens=400, in_flight=64, stuck_seconds=None))
    trajectories = runner.collect(plays)
    engine.inner.shutdown()
    return engine, trajectories


async def every_agent(episode: Any) -> None:
    """All agents act at once."""
    result = await episode.reset()
    while result.observations:
        actions = {name: await episode.agents[name].act(seen) for name, seen in result.observations.items()}
        result = await episode.step(actions)


def differences(policy: Any, engine: Recorder, trajectories: list[Any]) -> list[str]:
    """Where the sequences that training reads differ from what the engine has read."""
    found = [f"{one.group}: {one.error}" for one in trajectories if one.error is not None]
    rows = rows_of(trajectories)
    samples = policy.collate(rows, temperature=1.0)
    keys = list(dict.fromkeys(((r.trajectory.group, 0, r.step.agent), r.step.segment) for r in rows))
    read = {key: np.concatenate(pieces) for key, pieces in engine.read.items()}
    if len(keys) != len(samples.ids) or set(keys) != set(read):
        found.append(f"{len(keys)} segments, {len(samples.ids)} samples, {len(read)} sessions")
    found += [str(key) for key, ids in zip(keys, samples.ids, strict=True) if not np.array_equal(ids, read[key])]
    answered = np.concatenate([r.step.action.tokens for r in rows])
    trained = np.concatenate([ids[places] for ids, places in zip(samples.ids, samples.places, strict=True)])
    order = np.argsort(samples.token_index)
    if not np.array_equal(trained[order], answered):
        found.append("the tokens that are trained on are not the responses")
    return found
