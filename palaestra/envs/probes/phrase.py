"""Phrase: the environment `rooms` with actions of several words. Useful and useless actions begin with the same words.

The house, its rules and its texts are those of `rooms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import pydantic

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.kit.manuals import write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.probes.rooms import ACTIONS, AGENT, WAIT, Rooms, read
from palaestra.registry import PositiveInt, register

# A phrase is the first words of a beginning and the last word of an action of `rooms`. A decoy has the same beginning
# as a useful action.
BEGINNINGS = {
    "go": ("walk", "slowly", "along", "the", "path"),
    "take": ("pick", "up", "the", "small", "shiny"),
    "open": ("turn", "around", "the", "rusty", "old"),
}
DECOYS = ("take lamp", "open tap")
WORDS = (2, 6)  # fewest and most words of a phrase
Words = Annotated[int, pydantic.Field(ge=WORDS[0], le=WORDS[1])]


def spell(words_min: int, words_max: int) -> dict[str, str]:
    """Each phrase with its action of `rooms`, in the order of `rooms`. Decoys come last; their action is `wait`.

    Lengths go up from `words_min` to `words_max` and begin again. A decoy is as long as the action that it resembles.
    """
    span = words_max - words_min + 1
    lengths = {action: words_min + place % span for place, action in enumerate(ACTIONS)}
    phrases = {_phrase(action, length): action for action, length in lengths.items()}
    for decoy in DECOYS:
        model = next(action for action in ACTIONS if action.split()[0] == decoy.split()[0])
        phrases[_phrase(decoy, lengths[model])] = WAIT
    return phrases


def _phrase(action: str, length: int) -> str:
    verb, end = action.split()
    return " ".join((*BEGINNINGS[verb][: length - 1], end))


@register("environment", "phrase")
class Phrase:
    """`rooms` with actions of several words, to see which words of a good action get the credit.

    All moves begin with the same words, as far as their lengths allow: "walk slowly …". "pick up … lamp" and "turn
    around … tap" begin like the actions for the key and the door, but do nothing. An incomplete phrase and a mixture of
    two cannot be read.

    Args:
        words_min: fewest words of an action. Higher: longer responses. Usual: 3.
        words_max: most words of an action, 2–6. Higher: credit must reach further back. Usual: 6.
        rooms, max_turns, mazes, show_actions: as in `rooms`.

    Raises: RecipeError, if `words_min` exceeds `words_max`.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot", "vector")
    provides = Rooms.provides

    def __init__(
        self,
        *,
        words_min: Words = 3,
        words_max: Words = 6,
        rooms: Annotated[int, pydantic.Field(ge=3, le=25)] = 12,
        max_turns: PositiveInt = 15,
        mazes: Annotated[int, pydantic.Field(ge=0)] = 0,
        show_actions: bool = False,
    ) -> None:
        Refusals("environment: phrase").when(
            words_min > words_max,
            f"`words_min: {words_min}` is more than `words_max: {words_max}`.",
            "Set `words_min` to at most `words_max`.",
        )
        self._rooms = Rooms(rooms=rooms, max_turns=max_turns, mazes=mazes)
        self._params = {"rooms": rooms, "max_turns": max_turns, "mazes": mazes}
        self._phrases = spell(words_min, words_max)
        self._show_actions = show_actions
        self.actions = tuple(self._phrases)
        self.action_count = len(self.actions)
        self.vector_size = self._rooms.vector_size

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        acts = dict.fromkeys(self.actions, "")
        return write_manual(
            "You are in a house of rooms. Every message names the room, its exits, the room of the key and the "
            "goal. Pick "
            "the key up, open the locked door beside the goal, and go to the goal.",
            acts,
            example=self.actions[0],
            ending="The episode succeeds when you reach the goal.",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` mazes. Splits share no seed."""
        return seeded_tasks("phrase", self._params, split, n, seed)

    def content(self, task: Task) -> Any:
        """The content of the maze."""
        return self._rooms.content(task)

    def difficulty(self, task: Task) -> float:
        """The number of turns of a shortest solution."""
        return self._rooms.difficulty(task)

    def reset(self, task: Task) -> StepResult:
        return self._spelled(self._rooms.reset(task))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        phrase = read(actions[AGENT].value, self.actions)
        meant = None if phrase is None else self._phrases.get(phrase)
        return self._spelled(self._rooms.step({AGENT: Action(text=meant or "")}))

    def close(self) -> None:
        self._rooms.close()

    def expert(self, agent: str) -> Action:
        """The phrase of the first action of a shortest solution."""
        meant = self._rooms.expert(agent).text
        return Action(text=next(phrase for phrase, action in self._phrases.items() if action == meant))

    def snapshot(self) -> Any:
        return self._rooms.snapshot()

    def restore(self, state: Any) -> None:
        self._rooms.restore(state)

    # ---- observations -------------------------------------------------------------------------------------
    def _spelled(self, result: StepResult) -> StepResult:
        observations = {agent: self._spell(seen) for agent, seen in result.observations.items()}
        last = {agent: self._spell(seen) for agent, seen in result.last.items()}
        return replace(result, observations=observations, last=last)

    def _spell(self, seen: Observation) -> Observation:
        possible = {*(seen.legal or ()), WAIT}
        legal = [phrase for phrase, action in self._phrases.items() if action in possible]
        text = f"{seen.text} actions: {', '.join(legal)}." if self._show_actions else seen.text
        return replace(seen, text=text, legal=legal)
