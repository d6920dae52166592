"""Fakes for users' tests: an environment that can fail on demand, a scripted policy, a tiny language policy.

They follow the protocols of the real ones. All randomness comes from their seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from palaestra.data import Action, NextPrompt, Observation, RunSetup, StepResult, Task, derive
from palaestra.data.protocols import Policy, Response, Sampling, Session
from palaestra.engines import InProcessEngine
from palaestra.envs.kit.results import several
from palaestra.policies.language import LanguagePolicy
from palaestra.registry import PositiveInt, register

WORDS = ("red", "green", "blue", "gold")


@register("environment", "echo")
class EchoEnvironment:
    """Agents repeat the word that they are shown, `turns` times. On demand it raises, hangs or pays a bad reward."""

    abilities: tuple[str, ...] = ("tasks", "expert", "vector")

    provides = frozenset({"state_key", "outcome"})

    def __init__(
        self,
        *,
        turns: PositiveInt = 2,
        agents: tuple[str, ...] = ("player",),
        raise_at: int | None = None,
        hang_at: int | None = None,
        nan_at: int | None = None,
        hang_seconds: float = 3600.0,
        every: PositiveInt = 1,
        padding: int = 0,
    ) -> None:
        """
        Args:
            turns: steps of an episode.
            agents: names of the agents, which all act at once.
            raise_at, hang_at, nan_at: the step, from 0, that raises, sleeps, or pays NaN. None: no step does.
            hang_seconds: how long the step `hang_at` sleeps.
            every: only tasks misbehave whose `seed // 2` is a multiple of this. 1: all tasks.
            padding: number of filler words in each observation.
        """
        self.agents = tuple(agents)
        self.vector_size, self.action_count = len(WORDS), len(WORDS)
        self._turns, self._every, self._padding = turns, every, padding
        self._raise_at, self._hang_at, self._nan_at, self._seconds = raise_at, hang_at, nan_at, hang_seconds
        self._task: Task | None = None
        self._turn, self._hits = 0, 0

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks. The tasks of the split "train" have even seeds, all others odd ones."""
        odd = 0 if split == "train" else 1
        return [Task(env="echo", seed=2 * (derive(seed, split, i) % 10**6) + odd, split=split) for i in range(n)]

    def reset(self, task: Task) -> StepResult:
        self._task, self._turn, self._hits = task, 0, 0
        return several(self._observations())

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        self._misbehave()
        said = {name: self._said(action) for name, action in actions.items()}
        hits = {name: float(word == self._word) for name, word in said.items()}
        invalid = {name: True for name, word in said.items() if word not in WORDS}
        self._hits += int(all(hits.values()))
        self._turn += 1
        over = self._turn >= self._turns
        rewards = {name: hit / self._turns for name, hit in hits.items()}
        if self._bad(self._nan_at, 1):
            rewards = dict.fromkeys(rewards, float("nan"))
        info: dict[str, Any] = {"invalid": invalid} if invalid else {}
        if over:
            info["success"] = self._hits == self._turns
        return several(
            {} if over else self._observations(), rewards=rewards, over=self.agents if over else (), info=info
        )

    def expert(self, agent: str) -> Action:
        return Action(text=self._word)

    def close(self) -> None:
        return None

    @property
    def _word(self) -> str:
        assert self._task is not None
        return WORDS[derive(self._task.seed, self._turn) % len(WORDS)]

    def _said(self, action: Action) -> str:
        value = action.value
        return WORDS[int(value)] if isinstance(value, int | np.integer) else str(value).strip()

    def _observations(self) -> dict[str, Observation]:
        word = self._word
        text = " ".join([f"say {word}", *["please"] * self._padding])
        vector = np.array([word == other for other in WORDS], np.float32)
        seen = Observation(text=text, vector=vector, legal=list(WORDS), state_key=f"{self._turn}:{word}")
        return dict.fromkeys(self.agents, seen)

    def _bad(self, turn: int | None, after: int = 0) -> bool:
        assert self._task is not None
        return turn is not None and self._turn - after == turn and (self._task.seed // 2) % self._every == 0

    def _misbehave(self) -> None:
        if self._bad(self._raise_at):
            raise ValueError("the echo is broken")
        if self._bad(self._hang_at):
            time.sleep(self._seconds)


@dataclass(slots=True)
class _ScriptedTurns(Session):
    answers: Callable[[int, Observation], str]
    turn: int = 0

    async def act(self, observation: Observation, *, seed: int) -> Response:
        text = self.answers(self.turn, observation)
        self.turn += 1
        return Response(action=Action(text=text))

    def record(self, observation: Observation, action: Action) -> Response:
        self.turn += 1
        return Response(action=action)

    def fork(self, key: Hashable) -> _ScriptedTurns:
        return _ScriptedTurns(self.answers, self.turn)

    def end(self, observation: Observation | None) -> NextPrompt | None:
        return None


class ScriptedPolicy(Policy):
    """A policy that answers from a list, whose last answer repeats, or by a function of turn and observation."""

    def __init__(self, answers: Sequence[str] | Callable[[int, Observation], str], *, name: str = "scripted") -> None:
        self.name, self.trainable, self.version = name, False, 0
        if callable(answers):
            self._answers = answers
        else:
            listed = list(answers)
            self._answers = lambda turn, observation: listed[min(turn, len(listed) - 1)]

    def session(self, *, context: Any, sampling: Sampling, key: Hashable) -> _ScriptedTurns:
        return _ScriptedTurns(self._answers)


def TinyModel(
    *, name: str = "main", texts: Sequence[str] = (), seed: int = 0, context: int = 256, value_head: bool = False
) -> LanguagePolicy:
    """Make a language policy of a few thousand weights with its own engine. It can act and be trained."""
    words = [*texts, *(f"say {word}" for word in WORDS), *WORDS, "please"]
    policy = LanguagePolicy(
        name, RunSetup(seed=seed, texts=lambda: words), hidden=32, layers=2, heads=2, context=context, vocabulary=320,
        value_head=value_head,
    )  # fmt: skip
    policy.engine = InProcessEngine(models={name: policy.model})
    return policy
