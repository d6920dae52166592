"""Twenty questions: find the object that the other side thinks of, by yes/no questions and one guess.

Knows objects, what is true of them, and texts. What is true is drawn from the option `world`; all that differs
between tasks, the object, comes from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.errors import ContractError, RecipeError
from palaestra.registry import NonNegative, PositiveInt, register

AGENT = "player"
OBJECTS = (
    *("apple", "anchor", "arrow", "barrel", "basket", "bell", "boat", "book", "bottle", "brush", "button"),
    *("candle", "carpet", "clock", "coin", "crown", "drum", "feather", "fork", "hammer", "hat", "ladder"),
    *("lamp", "mirror", "needle", "pillow", "ring", "shell", "spoon", "sword", "wheel", "whistle"),
)
ATTRIBUTES = (
    *("red", "round", "heavy", "soft", "shiny", "hollow", "wooden", "old"),
    *("loud", "sharp", "warm", "cheap", "long", "wet", "sweet", "rare"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is true of each object: bool per object and attribute, no two objects alike."""

    truth: tuple[tuple[bool, ...], ...]

    def candidates(self, answers: Mapping[int, bool]) -> list[int]:
        """The objects of which all these answers are true."""
        return [i for i, own in enumerate(self.truth) if all(own[a] == said for a, said in answers.items())]


@lru_cache(maxsize=64)
def build(objects: int, attributes: int, world: int) -> World:
    """Distinct random attributes for each object."""
    codes = random.Random(world).sample(range(2**attributes), objects)
    return World(truth=tuple(tuple(bool(code >> place & 1) for place in range(attributes)) for code in codes))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the agent knows (attribute → answer, in the order of asking) and the questions it has left."""

    answers: Mapping[int, bool]
    left: int


@register("environment", "twenty_questions")
class TwentyQuestions:
    """Find one of 32 objects by yes/no questions about their attributes, then name it.

    The actions are `ask red` for each attribute and `guess apple` for each object. A guess ends the episode. So
    does anything but a guess when no question is left, so that an episode always ends by the rules, after at most
    `questions` + 1 turns. Objects have the same attributes in every task of a `world`: a policy learns them, and
    which questions cut the candidates into halves.

    Args:
        objects: to tell apart, 2–32. Higher: more to know by heart, more questions needed. Usual: 32.
        attributes: that can be asked for, 5–16 for 32 objects. Higher: more questions that are not needed. Usual: 10.
        questions: most questions of an episode. Higher: easier; log2(objects) is the least that can do. Usual: 10.
        world: seed of what is true of which object.
        question_cost: taken off the reward for every question. Higher: shorter games. Usual: 0.

    Reward: 1 for the right guess, 0 for a wrong or missing one, less `question_cost` for each question. An action
    that cannot be read costs a question. `actions` lists all actions; an index into it is taken as well as its
    text. `vector` is two bits per attribute (asked and true, asked and false) and the share of questions left.

    Raises: RecipeError, if there are more objects than different sets of attributes.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome"})  # columns that tables made of it have

    def __init__(
        self,
        *,
        objects: Annotated[int, pydantic.Field(ge=2, le=len(OBJECTS))] = 32,
        attributes: Annotated[int, pydantic.Field(ge=1, le=len(ATTRIBUTES))] = 10,
        questions: PositiveInt = 10,
        world: int = 0,
        question_cost: NonNegative = 0.0,
    ) -> None:
        if 2**attributes < objects:
            raise RecipeError(
                where="environment: twenty_questions",
                what=f"{attributes} attributes cannot tell {objects} objects apart.",
                remedy=f"Set `attributes` to {(objects - 1).bit_length()} or more, or `objects` to {2**attributes}.",
            )
        self._params = {"objects": objects, "attributes": attributes, "questions": questions, "world": world}
        self._rules, self._cost = self._params, question_cost
        self.actions = (*(f"ask {a}" for a in ATTRIBUTES[:attributes]), *(f"guess {o}" for o in OBJECTS[:objects]))
        self.action_count = len(self.actions)
        self.vector_size = 2 * attributes + 1
        self._world: World | None = None
        self._object, self._state, self._said = 0, State(answers={}, left=questions), ""

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` games; splits never share a seed, but there are only so many objects."""
        return seeded_tasks("twenty_questions", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The objects with their attributes, and which of them is meant."""
        rules = {**self._params, **task.params}
        return as_json((build(rules["objects"], rules["attributes"], rules["world"]), _object_of(rules, task.seed)))

    def reset(self, task: Task) -> StepResult:
        self._rules = {**self._params, **task.params}
        self._world = build(self._rules["objects"], self._rules["attributes"], self._rules["world"])
        self._object = _object_of(self._rules, task.seed)
        self._state = State(answers={}, left=self._rules["questions"])
        self._said = "guess what it is"
        return StepResult(observations={AGENT: self._observe()})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        world, before = self._playing(), self._state
        action = read(actions[AGENT].value, self.actions)
        asks = action is not None and action < self._rules["attributes"]
        right = action == self._rules["attributes"] + self._object
        over = before.left == 0 or not (asks or action is None)
        answers = dict(before.answers)
        if not over:
            if asks:
                answers[action] = world.truth[self._object][action]
            self._said = _reply(action, answers)
            self._state = State(answers=answers, left=before.left - 1)
        info: dict[str, Any] = {"success": right} if over else {}
        if action is None:
            info["invalid"] = {AGENT: True}
        return StepResult(
            observations={} if over else {AGENT: self._observe()},
            rewards={AGENT: float(right) - self._cost * (not over)},
            terminated=frozenset({AGENT} if over else ()),
            info=info,
        )

    def close(self) -> None:
        self._world = None

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """Binary search: the question that cuts the candidates most evenly, and a guess when one is left."""
        world, state = self._playing(), self._state
        left = world.candidates(state.answers)
        index = self._rules["attributes"] + left[0]
        if len(left) > 1 and state.left:
            index = min(
                (a for a in range(self._rules["attributes"]) if a not in state.answers),
                key=lambda a: abs(2 * sum(world.truth[i][a] for i in left) - len(left)),
            )
        return Action(text=self.actions[index], value=index)

    def snapshot(self) -> Any:
        return self._world, self._rules, self._object, self._state, self._said

    def restore(self, state: Any) -> None:
        self._world, self._rules, self._object, self._state, self._said = state

    # ---- observations -------------------------------------------------------------------------------------
    def _playing(self) -> World:
        if self._world is None:
            raise ContractError(where="environment twenty_questions", what="`step` was called before `reset`.")
        return self._world

    def _observe(self) -> Observation:
        answers, left = self._state.answers, self._state.left
        known = " ".join(f"{ATTRIBUTES[a]} {'yes' if answers[a] else 'no'}" for a in sorted(answers))
        open_questions = [a for a in range(self._rules["attributes"]) if a not in answers] if left else []
        marks = "".join(f"{ATTRIBUTES[a]}{'+' if answers[a] else '-'}" for a in sorted(answers))
        vector = np.zeros(self.vector_size, np.float32)
        for attribute, true in answers.items():
            vector[2 * attribute + (not true)] = 1
        vector[-1] = left / self._rules["questions"]
        return Observation(
            text=f"{self._said}. known: {known or 'nothing'}. {left} left.",
            vector=vector,
            legal=[self.actions[a] for a in open_questions] + list(self.actions[self._rules["attributes"] :]),
            state_key=f"{self._rules['world']}/{marks}/{left}",
        )


def _object_of(rules: Mapping[str, Any], seed: int) -> int:
    return seed // 2 % int(rules["objects"])  # the last bit of a seed tells its split


def read(value: Any, actions: tuple[str, ...]) -> int | None:
    """The index of the action meant by a text or an index; None if it cannot be read."""
    if isinstance(value, str):
        text = " ".join(value.lower().split())
        return actions.index(text) if text in actions else None
    if isinstance(value, int | np.integer) and 0 <= value < len(actions):
        return int(value)
    return None


def _reply(question: int | None, answers: Mapping[int, bool]) -> str:
    return "not understood" if question is None else "yes" if answers[question] else "no"
