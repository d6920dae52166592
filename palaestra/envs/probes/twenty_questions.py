"""Twenty questions: find a hidden object by yes/no questions and one guess.

The option `world` decides the attributes of all objects. A task's seed decides only which object is hidden.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.kit.choices import read_index
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
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
    """The attributes of all objects: one bool for each object and attribute. No two objects have the same."""

    truth: tuple[tuple[bool, ...], ...]

    def candidates(self, answers: Mapping[int, bool]) -> list[int]:
        """The objects that fit all answers."""
        return [i for i, own in enumerate(self.truth) if all(own[a] == said for a, said in answers.items())]


@lru_cache(maxsize=64)
def build(objects: int, attributes: int, world: int) -> World:
    """Random attributes for each object, all different."""
    codes = random.Random(world).sample(range(2**attributes), objects)
    return World(truth=tuple(tuple(bool(code >> place & 1) for place in range(attributes)) for code in codes))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one game.

    Attributes:
        rules: options of the game. object: the hidden one.
        answers: the answer for each attribute that was asked for, in order. left: questions left.
        said: the reply to the last action.
    """

    world: World
    rules: Mapping[str, Any]
    object: int
    left: int
    answers: Mapping[int, bool] = field(default_factory=dict)
    said: str = "guess what it is"


@register("environment", "twenty_questions")
class TwentyQuestions(KeepsState[State]):
    """Find one of several objects by yes/no questions about their attributes, then name it.

    The actions are `ask red` for each attribute and `guess apple` for each object. A guess ends the episode. When no
    question is left, any other action ends it, too, so no episode takes more than `questions` + 1 turns. Objects have
    the same attributes in all tasks of a `world`. A policy learns these, and which questions halve the candidates.

    Args:
        objects: number of objects, 2–32. Higher: more to remember, more questions needed. Usual: 32.
        attributes: number of attributes; 32 objects need 5–16. Higher: more questions that are not needed. Usual: 10.
        questions: most questions of an episode, at least log2(objects) to be sure of the object. Higher: easier.
            Usual: 10.
        world: seed of the objects' attributes.
        question_cost: subtracted from the reward for every question. Higher: shorter games. Usual: 0.

    Reward: 1 for the right guess, else 0, minus `question_cost` for each question. An action that cannot be read counts
    as a question. An action is given as text or as an index into `actions`. `vector` has two bits for each attribute
    (asked and true, asked and false) and the share of questions left.

    Raises: RecipeError, if there are more objects than different sets of attributes.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot", "vector")
    provides = frozenset({"state_key", "outcome"})  # columns of a table of its episodes

    def __init__(
        self,
        *,
        objects: Annotated[int, pydantic.Field(ge=2, le=len(OBJECTS))] = 32,
        attributes: Annotated[int, pydantic.Field(ge=1, le=len(ATTRIBUTES))] = 10,
        questions: PositiveInt = 10,
        world: int = 0,
        question_cost: NonNegative = 0.0,
    ) -> None:
        Refusals("environment: twenty_questions").when(
            2**attributes < objects,
            f"{attributes} attributes cannot tell {objects} objects apart.",
            f"Set `attributes` to {(objects - 1).bit_length()} or more, or `objects` to {2**attributes}.",
        )
        self._params = {"objects": objects, "attributes": attributes, "questions": questions, "world": world}
        self._cost = question_cost
        self.actions = (*(f"ask {a}" for a in ATTRIBUTES[:attributes]), *(f"guess {o}" for o in OBJECTS[:objects]))
        self.action_count = len(self.actions)
        self.vector_size = 2 * attributes + 1

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        return write_manual(
            "One of several objects was chosen. Find out which one by questions about its attributes, which are "
            "the same in every game.",
            {
                "ask ATTRIBUTE": "the answer is yes or no",
                "guess OBJECT": "name the object",
            },
            example="ask red",
            ending="A guess ends the episode. It succeeds if it is right. You may ask as often as the message says.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` games. Splits share no seed, but they share the objects."""
        return seeded_tasks("twenty_questions", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The attributes of all objects, and which object is hidden."""
        rules = {**self._params, **task.params}
        return as_json((build(rules["objects"], rules["attributes"], rules["world"]), _object_of(rules, task.seed)))

    def reset(self, task: Task) -> StepResult:
        rules = {**self._params, **task.params}
        self.state = State(
            world=build(rules["objects"], rules["attributes"], rules["world"]),
            rules=rules,
            object=_object_of(rules, task.seed),
            left=rules["questions"],
        )
        return single(AGENT, self._observe(self.state))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        action = read_index(actions[AGENT].value, self.actions)
        asks = action is not None and action < before.rules["attributes"]
        right = action == before.rules["attributes"] + before.object
        over = before.left == 0 or not (asks or action is None)
        if not over:
            answers = dict(before.answers)
            if action is not None:
                answers[action] = before.world.truth[before.object][action]
            self.state = replace(before, answers=answers, left=before.left - 1, said=_reply(action, answers))
        return single(
            AGENT,
            None if over else self._observe(self.state),
            reward=float(right) - self._cost * (not over),
            over=over,
            readable=action is not None,
            info={"success": right} if over else None,
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """Binary search: the question that halves the candidates best, or a guess when one candidate is left."""
        state = self.state
        attributes, left = state.rules["attributes"], state.world.candidates(state.answers)
        index = attributes + left[0]
        if len(left) > 1 and state.left:
            index = min(
                (a for a in range(attributes) if a not in state.answers),
                key=lambda a: abs(2 * sum(state.world.truth[i][a] for i in left) - len(left)),
            )
        return Action(text=self.actions[index], value=index)

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State) -> Observation:
        rules, answers, left = state.rules, state.answers, state.left
        known = " ".join(f"{ATTRIBUTES[a]} {'yes' if answers[a] else 'no'}" for a in sorted(answers))
        open_questions = [a for a in range(rules["attributes"]) if a not in answers] if left else []
        marks = "".join(f"{ATTRIBUTES[a]}{'+' if answers[a] else '-'}" for a in sorted(answers))
        vector = np.zeros(self.vector_size, np.float32)
        for attribute, true in answers.items():
            vector[2 * attribute + (not true)] = 1
        vector[-1] = left / rules["questions"]
        return Observation(
            text=f"{state.said}. known: {known or 'nothing'}. {left} left.",
            vector=vector,
            legal=[self.actions[a] for a in open_questions] + list(self.actions[rules["attributes"] :]),
            state_key=f"{rules['world']}/{marks}/{left}",
        )


def _object_of(rules: Mapping[str, Any], seed: int) -> int:
    return seed // 2 % int(rules["objects"])  # the last bit of a seed tells its split


def _reply(question: int | None, answers: Mapping[int, bool]) -> str:
    return "not understood" if question is None else "yes" if answers[question] else "no"
