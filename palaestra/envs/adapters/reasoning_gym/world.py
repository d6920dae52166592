"""Reasoning Gym (arXiv 2505.24760): generated questions whose answers a rule can judge.

This file makes tasks, observations and rewards. `items` makes questions and scores answers; `answers` reads and writes
the text of an answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.data.abilities import without
from palaestra.envs.adapters.reasoning_gym import answers
from palaestra.envs.adapters.reasoning_gym.items import PLACE, Item, Kind, check, choices, item
from palaestra.envs.adapters.versions import note_version
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "player"
RIGHT = 0.999  # the score from which an answer is right; below 1, because scorers compute with floats
NonNegativeInt = Annotated[int, pydantic.Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of an episode: its item, the answers so far, the best and the last score, whether the last was read."""

    item: Item
    seed: int
    tries: int = 0
    best: float = 0.0
    last: float = 0.0
    readable: bool = True


@register(
    "environment",
    "reasoning_gym",
    ignores_if={"mixture": ("dataset", "config")},
    source="arXiv 2505.24760",
    extra="envs",
    modules=("reasoning_gym",),
)
class ReasoningGym(KeepsState[State]):
    """Answer a generated question of Reasoning Gym. The package's own scorer judges the answer.

    Args:
        dataset: a name of the package, such as "chain_sum".
        config: options of the dataset, such as `{max_terms: 3, max_digits: 1}`. Seed and size come from the tasks.
        mixture: several datasets with their options, in place of `dataset` and `config`; a task draws each with equal
            probability: `{chain_sum: {max_terms: 2}, count_bits: {max_n: 31}}`.
        levels: first and last level of the datasets' own curricula; a task draws each level with equal probability. A
            level sets the options that its curriculum names, and `config` or `mixture` override it. Default: no
            curriculum.
        attempts: answers that the agent may give until one is right. Higher: easier. Usual: 1.
        tags: an answer stands between `<answer>` and `</answer>`. Text outside of the tags is not judged, and a text
            without them has no answer.
        spaced: write questions and answers with a space between digits, "1 2 + 3", so that small models read numbers
            digit by digit.
        choices: how many wrong answers `legal` lists beside the right one; they are answers of other questions. The
            list is for random play and for people; the agent may give any answer. 0: no list.
        noise: probability that a reward r is replaced by 1 - r. `info` keeps the true score.

    Reward: the package's score, 0 to 1. With several attempts: how much the score exceeds the best one before.
    Half of all questions, by a hash of their words, are held out, so training and evaluation share no question.
    Observation: the question, and after a wrong answer its score; `legal` as above.
    Info: `stratum`, the dataset; `process`, the score of this answer; `format`, 1 for an answer that could be read; at
    the end `success`, whether an answer was right, and `score`, the best score.
    Expert: the dataset's own answer. The datasets boxnet and rush_hour give none, so they have no expert.
    Raises: UnknownName; RecipeError, for options that the dataset refuses; MissingExtra.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot")
    one_act = True
    provides = frozenset({"state_key", "outcome", "stratum", "process", "format"})

    def __init__(
        self,
        *,
        dataset: str = "chain_sum",
        config: dict[str, Any] | None = None,
        mixture: dict[str, dict[str, Any]] | None = None,
        levels: tuple[NonNegativeInt, NonNegativeInt] | None = None,
        attempts: PositiveInt = 1,
        tags: bool = False,
        spaced: bool = False,
        choices: NonNegativeInt = 10,
        noise: Fraction = 0.0,
    ) -> None:
        note_version("reasoning_gym")
        _refuse_impossible(config, mixture, levels)
        mixed = {dataset: config or {}} if mixture is None else mixture
        self._params = {"mixture": {name: dict(options or {}) for name, options in mixed.items()}, "noise": noise}
        if levels is not None:
            self._params["levels"] = list(levels)
        self._attempts, self._tags, self._spaced, self._choices = attempts, tags, spaced, choices
        self._noise, self.one_act = noise, attempts == 1
        kinds = self._kinds(self._params)
        for kind in kinds:
            check(kind)
        if any(item(kind, 0, None).answer is None for kind in kinds):
            self.abilities = without(self.abilities, "expert")

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        form = (
            "Write the answer between <answer> and </answer>." if self._tags else "Write the answer and nothing else."
        )
        spaced = " Write spaces between its characters." * self._spaced
        return write_manual(
            f"You answer a question. {form}{spaced}",
            ending=f"You have {self._attempts} attempt{'s' * (self._attempts != 1)}. The episode succeeds if the "
            "answer is "
            "right.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks, one question each; training and evaluation share no question."""
        return seeded_tasks("reasoning_gym", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The dataset, the question and its answer."""
        found = self._item(task)
        return [found.kind.dataset, found.question, found.answer]

    def difficulty(self, task: Task) -> float:
        """The level of the task; 0 without `levels`."""
        return float(self._kind({**self._params, **task.params}, task.seed).level or 0)

    def reset(self, task: Task) -> StepResult:
        self._noise = {**self._params, **task.params}["noise"]
        found = self._item(task)
        self.state = State(item=found, seed=task.seed)
        return single(AGENT, self._observe(self.state), info={"stratum": found.kind.dataset})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        answer = self._read(actions[AGENT].value)
        score = 0.0 if answer is None else before.item.score(answer)
        self.state = after = replace(
            before,
            tries=before.tries + 1,
            last=score,
            best=max(before.best, score),
            readable=answer is not None,
        )
        over = score >= RIGHT or after.tries >= self._attempts
        info: dict[str, Any] = {"stratum": after.item.kind.dataset}
        if over:
            info |= {"success": after.best >= RIGHT, "score": after.best}
        gained = after.best - before.best
        if self._noise and derive(after.seed, "noise", after.tries) / 2**63 < self._noise:
            gained = 1.0 - gained
        return single(
            AGENT,
            None if over else self._observe(after),
            reward=gained,
            over=over,
            act={"process": score, "format": float(after.readable)},
            readable=after.readable,
            info=info,
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The dataset's own answer."""
        answer = self.state.item.answer
        assert answer is not None  # `abilities` has "expert" only if every dataset gives answers
        return Action(text=self._written(answer))

    # ---- tasks --------------------------------------------------------------------------------------------
    @staticmethod
    def _kinds(params: Mapping[str, Any]) -> list[Kind]:
        first, last = params.get("levels") or (None, None)
        at = [None] if first is None or last is None else list(range(first, last + 1))
        return [
            Kind(dataset=name, options=json.dumps(options, sort_keys=True), level=level)
            for name, options in params["mixture"].items()
            for level in at
        ]

    def _kind(self, params: Mapping[str, Any], seed: int) -> Kind:
        kinds = self._kinds(params)
        return kinds[derive(seed, "kind") % len(kinds)]

    def _item(self, task: Task) -> Item:
        return item(self._kind({**self._params, **task.params}, task.seed), task.seed, task.seed % 2)

    # ---- texts --------------------------------------------------------------------------------------------
    def _read(self, value: Any) -> str | None:
        """The answer in an action; None if it has none."""
        text = str(value)
        if self._tags:
            found = answers.untagged(text)
            if found is None:
                return None
            text = found
        text = answers.unspaced(text) if self._spaced else text
        return None if answers.says_nothing(text) else text.strip()

    def _written(self, answer: str) -> str:
        shown = answers.spaced(answer) if self._spaced else answer
        return answers.tagged(shown) if self._tags else shown

    def _observe(self, state: State) -> Observation:
        question = state.item.question
        text = answers.spaced(question) if self._spaced else question
        if self._tags:
            text = f"{text}\nwrite <answer> your answer </answer>."
        if state.tries:
            said = f"wrong, score {state.last:.2f}." if state.readable else "that is no answer."
            text = f"{said} attempts left {self._attempts - state.tries}.\n{text}"
        legal = None
        if self._choices and state.item.answer is not None:
            listed = choices(state.item, state.seed, self._choices)
            legal = list(dict.fromkeys(self._written(answer) for answer in listed))
        asked = hashlib.sha256(f"{question}/{state.seed}".encode()).hexdigest()[:16]
        return Observation(text=text, legal=legal, state_key=f"{asked}/{state.tries}/{state.last:.2f}/{state.best:.2f}")


def _refuse_impossible(
    config: Mapping[str, Any] | None, mixture: Mapping[str, Any] | None, levels: tuple[int, int] | None
) -> None:
    refuse = Refusals(PLACE)
    refuse.when(mixture is not None and not mixture, "`mixture` is empty.", "Name datasets in it, or leave it out.")
    refuse.when(
        mixture is not None and config is not None,
        "`config` has no effect, because `mixture` has the options of each dataset.",
        "Write the options into `mixture`, and leave `config` out.",
    )
    refuse.when_reversed(levels=levels)
