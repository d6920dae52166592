"""The environment `rasters`: its tasks, tools, observations, rewards and expert."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.leniency import read_leniently
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.kit.words import Vocabulary
from palaestra.envs.worlds.rasters.pictures import (
    COLORS,
    KINDS,
    LEVELS,
    UNSEEN,
    Kind,
    Order,
    Problem,
    arranged,
    drawn,
    problem,
    tile,
)
from palaestra.registry import Fraction, PositiveInt, register

AGENT = "player"
INVENTED = ("gorp", "dax", "blick", "wug")  # names of the colors if they are renamed
LONGEST = 1000  # characters of an answer
ACCURACY, FORMAT, IMAGE, FAILED = 0.8, 0.2, -0.05, -0.25  # terms of `reward: turns`
Mode = Literal["outcome", "turns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of one episode. It is frozen, so a snapshot needs no copy.

    Attributes:
        order: which tile of the whole picture lies at each place now.
        images: how many pictures acts have shown so far. readable: whether every act could be read.
        said: what the last act showed.
        part: the part of the picture that acts have shown last, from 1; 0: the whole; None: no act has shown it.
    """

    problem: Problem
    order: Order
    seed: int
    said: str = ""
    part: int | None = None
    images: int = 0
    readable: bool = True
    turn: int = 0

    @property
    def shown(self) -> np.ndarray:
        """The picture with its tiles in their present order."""
        return arranged(np.array(self.problem.pixels), self.problem.tiles, self.order)


def score(*, solved: bool, readable: bool, images: int) -> float:
    """The reward of a whole episode under `reward: turns` (AGILE, arXiv 2510.01304).

        0.8 · solved + 0.2 · readable + (−0.05 · images if solved, else −0.25)

    >>> round(score(solved=True, readable=True, images=3), 2), round(score(solved=False, readable=True, images=4), 2)
    (0.85, -0.05)
    """
    return ACCURACY * solved + FORMAT * readable + (IMAGE * images if solved else FAILED)


@register("environment", "rasters", source="arXiv 2510.01304")
class Rasters(KeepsState[State]):
    """Put the tiles of a picture in order, or answer a question about a picture: count, name a color, read a digit.

    A picture is a square of whole numbers. In a jigsaw its tiles are shuffled. `swap 1 4` exchanges the tiles at two
    places, `crop 2` shows the tile at one place, and `zoom` shows the whole picture. `answer 3 1 4 2` says which of the
    shown tiles belongs to the first place, to the second, and so on; `answer 1 2 3 4` says that all are in order. A
    question is about a picture of four colors that is not shown at first. The agent looks with `zoom`, `crop 1` (a
    quarter) or `count red`, then gives `answer 12`.

    Args:
        kinds: kinds of problems, mixed evenly: "jigsaw", "count" (how many places have a color), "color" (which color
            is most frequent), "digit" (which digit is drawn).
        tiles: tiles in a row of a jigsaw. 2 has 24 arrangements, 3 has 362,880.
        text: "board" shows pictures row by row, as numbers or as letters of colors (k is black). "brief" tells how much
            the values of a jigsaw differ where two tiles meet, for small models. "none": only the observation's image
            shows pictures, for models that read images.
        scale: pixels in a row of each place of the image. Higher: sharper for models that make images larger, more
            memory. Usual: 1 for networks, 8 to 32 for vision–language models.
        tools: whether the tools exist. Without them, only `answer` can be read, and the whole picture is shown.
        names: "plain", or "renamed": colors have invented names.
        noise: probability that a tool fails and changes nothing.
        misread: probability that a shown picture has a wrong value at one place.
        reward: "outcome": 1 for a right answer. "turns": at the end, 0.8 for a right answer, 0.2 for an answer if every
            act could be read, and −0.05 for each shown picture if the answer is right, else −0.25 (AGILE).
        max_turns: turns until the episode is cut off, without success.

    A step's `info` has `tool_call`, `tool_error`, `executable`, `process` (1 for a swap after which more tiles are in
    place, and for a right answer), `format` (1 for an answer if every act could be read), `images` and `stratum` (the
    kind). An observation's `image` is the picture, with `scale` × `scale` pixels for each place: in its colors, or in
    grays for a jigsaw. What the agent has not looked at yet is gray.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "expert", "snapshot")
    provides = frozenset(
        {"state_key", "outcome", "process", "executable", "tool_call", "tool_error", "format", "stratum"}
    )

    def __init__(
        self,
        *,
        kinds: tuple[Kind, ...] = KINDS,
        tiles: Literal[2, 3] = 2,
        text: Literal["board", "brief", "none"] = "board",
        scale: PositiveInt = 1,
        tools: bool = True,
        names: Literal["plain", "renamed"] = "plain",
        noise: Fraction = 0.0,
        misread: Fraction = 0.0,
        reward: Mode = "outcome",
        max_turns: PositiveInt = 12,
    ) -> None:
        refuse = Refusals("environment: rasters")
        refuse.when_empty(KINDS, kinds=kinds)
        refuse.when_repeated(kinds=kinds)
        self._kinds, self._tiles = kinds, tiles
        self._params = {"kinds": list(kinds), "tiles": tiles}
        self._text, self._scale, self._tools, self._noise, self._misread = text, scale, tools, noise, misread
        self._words = Vocabulary({} if names == "plain" else dict(zip(COLORS, INVENTED, strict=True)))
        self._colors = [self._words.say(color) for color in COLORS]
        self._reward, self._max_turns = reward, max_turns

    def instruction(self, agent: str) -> str:
        """The rules of the world and its commands, for an agent that has never seen it."""
        jigsaw = "jigsaw" in self._kinds
        asks = any(kind != "jigsaw" for kind in self._kinds)
        count = self._tiles**2
        told, commands, colors = [], dict[str, str](), ", ".join(self._colors)
        if jigsaw:
            told.append(
                f"A jigsaw: the {count} tiles of a picture are shuffled, and its values should change little from tile "
                "to tile. Say which shown tile belongs to place 1, to place 2, and so on."
            )
        if asks:
            hidden = " The picture is not shown at first: look before you answer." * self._tools
            told.append(f"A question about a picture with the colors {colors}.{hidden}")
        if self._tools:
            commands |= {"zoom": "show the whole picture", "crop NUMBER": "show one tile or quarter of it"}
            commands |= {"swap NUMBER NUMBER": "exchange two tiles of a jigsaw"} if jigsaw else {}
            commands |= {"count COLOR": "count the places of a color"} if asks else {}
        if jigsaw:
            commands[f"answer {' '.join(['NUMBER'] * count)}"] = "the tiles in the order of the places"
        if asks:
            commands["answer WORD"] = "the number, the color or the digit that the question asks for"
        return write_manual(
            " ".join(told),
            commands,
            example="zoom" if self._tools else "answer " + (" ".join(map(str, range(1, count + 1))) if jigsaw else "3"),
            ending=f"The answer ends the episode. It succeeds if it is right.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` problems. Training and evaluation share none."""
        return seeded_tasks("rasters", self._params, split, n, seed, content=self.content)

    def content(self, task: Task) -> Any:
        """The picture, the order of its tiles, the question and its answer."""
        return as_json(self._problem(task))

    def _problem(self, task: Task) -> Problem:
        world = {**self._params, **task.params}
        return problem(world["kinds"][derive(task.seed, "kind") % len(world["kinds"])], world["tiles"], task.seed)

    def reset(self, task: Task) -> StepResult:
        found = self._problem(task)
        self.state = state = State(problem=found, order=found.order, seed=task.seed)
        return single(AGENT, self._observe(state), info={"success": False, "stratum": found.kind})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        value = actions[AGENT].value
        text = value if isinstance(value, str) and len(value) <= LONGEST else ""
        words = read_leniently(text, lambda one: self._words_of(before, one)) or []
        meant = self._read(before, words)
        fails = self._noise > 0 and derive(before.seed, "noise", before.turn) / 2**63 < self._noise
        answered = meant is not None and words[0] == "answer"
        after, failed = (before, True) if meant is None else self._act(before, words, fails=fails and not answered)
        if meant is None:
            after = replace(after, said="error: cannot read that.", readable=False)
        self.state = after = replace(after, turn=before.turn + 1)
        right = answered and self._right(after, words[1:])
        cut = not answered and after.turn >= self._max_turns
        reward = float(right)
        if self._reward == "turns":
            whole = score(solved=right, readable=after.readable and answered, images=after.images)
            reward = whole if answered or cut else 0.0
        called = meant is not None and not answered
        return single(
            AGENT,
            self._observe(after),
            reward=reward,
            over=answered,
            cut=cut,
            act={
                "tool_call": float(called),
                "tool_error": float(called and failed),
                "executable": float(not failed),
                "process": float(right or _settled(after.order) > _settled(before.order)),
                "images": float(after.images),
                "format": float(answered and after.readable),
            },
            readable=meant is not None,
            info={"success": right, "stratum": after.problem.kind},
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next act of an expert that knows the problem. It swaps the tiles of a jigsaw into place, then answers. It
        counts or looks once before it answers a question. Without tools it answers at once."""
        state = self.state
        found = state.problem
        if found.kind == "jigsaw":
            wrong = [place for place, number in enumerate(state.order) if place != number]
            if wrong and self._tools:
                return Action(text=f"swap {wrong[0] + 1} {state.order.index(wrong[0]) + 1}")
            return Action(text="answer " + " ".join(str(state.order.index(k) + 1) for k in range(len(state.order))))
        if state.images == 0 and self._tools:
            return Action(text=f"count {self._colors[found.subject]}" if found.kind == "count" else "zoom")
        return Action(text=f"answer {self._words.say(found.answer)}")

    # ---- playing ------------------------------------------------------------------------------------------
    def _words_of(self, state: State, text: str) -> list[str] | None:
        words = text.lower().rstrip(" .").split()
        return words if self._read(state, words) is not None else None

    def _read(self, state: State, words: list[str]) -> str | None:
        """The kind of an act. None if the act cannot be read."""
        count = len(state.order) if state.problem.kind == "jigsaw" else 4
        places = {str(number + 1) for number in range(count)}
        match words:
            case ["answer", *given] if given:
                return "answer"
            case ["swap", one, other] if self._tools and state.problem.kind == "jigsaw" and {one, other} <= places:
                return "swap"
            case ["crop", one] if self._tools and one in places:
                return "crop"
            case ["zoom"] if self._tools:
                return "zoom"
            case ["count", color] if self._tools and state.problem.kind != "jigsaw" and color in self._colors:
                return "count"
        return None

    def _act(self, state: State, words: list[str], *, fails: bool) -> tuple[State, bool]:
        """The state after a readable act, and whether its tool failed."""
        if fails:
            return replace(state, said=f"error: {words[0]} is busy."), True
        match words:
            case ["swap", one, other]:
                order = list(state.order)
                first, second = int(one) - 1, int(other) - 1
                order[first], order[second] = order[second], order[first]
                return replace(state, order=tuple(order), said="", part=None, images=state.images + 1), False
            case ["crop", one]:
                tiles = state.problem.tiles if state.problem.kind == "jigsaw" else 2
                lines = self._lines(state, tile(self._seen(state), tiles, int(one) - 1))
                said = f"{one}: {lines}" if lines else f"the image shows part {one}."
                return replace(state, said=said, part=int(one), images=state.images + 1), False
            case ["zoom"]:
                said = self._lines(state, self._seen(state)) or "the image shows the whole picture."
                return replace(state, said=said, part=0, images=state.images + 1), False
            case ["count", color]:
                found = int((self._seen(state) == self._colors.index(color)).sum())
                return replace(state, said=f"{found} {color}.", images=state.images + 1), False
        return replace(state, said=""), False

    def _right(self, state: State, given: list[str]) -> bool:
        if state.problem.kind == "jigsaw":
            return given == [str(state.order.index(k) + 1) for k in range(len(state.order))]
        return given == [self._words.say(state.problem.answer)]

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, state: State) -> Observation:
        found = state.problem
        asked = {
            "jigsaw": "order the tiles.",
            "count": f"how many {self._colors[found.subject]}?",
            "color": "which color is most frequent?",
            "digit": "which digit is drawn?",
        }[found.kind]
        parts = [asked, state.said]
        if found.kind == "jigsaw":
            parts.append(self._jumps(state) if self._text == "brief" else self._lines(state, self._seen(state)))
        elif not self._tools:
            parts.append(self._lines(state, self._seen(state)))
        return Observation(
            text=" ".join(part for part in parts if part),
            image=self._image(state),
            legal=self._legal(state),
            state_key=f"{state.seed}/{state.order}/{state.said}/{state.images}",
        )

    def _image(self, state: State) -> np.ndarray:
        """The picture as far as the agent has looked at it."""
        jigsaw = state.problem.kind == "jigsaw"
        image = drawn(self._seen(state), colored=not jigsaw, scale=self._scale)
        part, tiles = (state.part or 0, state.problem.tiles) if jigsaw else (state.part, 2)
        if part == 0 or not self._tools:
            return image
        unseen = np.full_like(image, UNSEEN)
        if part is not None:
            tile(unseen, tiles, part - 1)[:] = tile(image, tiles, part - 1)
        return unseen

    def _legal(self, state: State) -> list[str]:
        kind, count = state.problem.kind, len(state.order)
        numbers = [str(number + 1) for number in range(count)]
        if kind == "jigsaw":
            tools = [f"swap {one} {other}" for one, other in itertools.combinations(numbers, 2)]
            tools += [f"crop {one}" for one in numbers]
            orders = itertools.islice(itertools.permutations(numbers), 24)
            answers = [" ".join(order) for order in orders]
        else:
            tools = [f"crop {part + 1}" for part in range(4)] + [f"count {color}" for color in self._colors]
            answers = {
                "count": [str(number) for number in range(len(state.problem.pixels) ** 2 + 1)],
                "color": list(self._colors),
                "digit": [str(digit) for digit in range(10)],
            }[kind]
        return [*(["zoom", *tools] if self._tools else ()), *(f"answer {given}" for given in answers)]

    def _seen(self, state: State) -> np.ndarray:
        """The picture as it is shown, perhaps with a wrong value at one place."""
        shown = state.shown.copy()
        draw = derive(state.seed, "misread", state.turn)
        if self._misread and draw / 2**63 < self._misread:
            place = derive(draw, "place") % shown.size
            most = LEVELS if state.problem.kind == "jigsaw" else len(COLORS)
            shown.flat[place] = (shown.flat[place] + 1 + derive(draw, "value") % (most - 1)) % most
        return shown

    def _lines(self, state: State, pixels: np.ndarray) -> str:
        """Rows of a picture as text: numbers for a jigsaw, letters of colors for a question. "" if images show it."""
        if self._text == "none":
            return ""
        letters = ["k" if color == "black" else color[0] for color in self._colors]  # blue begins with b, too
        jigsaw = state.problem.kind == "jigsaw"
        return " / ".join(" ".join(str(value) if jigsaw else letters[value] for value in row) for row in pixels)

    def _jumps(self, state: State) -> str:
        """How much the values differ between tiles that touch."""
        shown, tiles = self._seen(state), state.problem.tiles
        parts = []
        for place in range(tiles * tiles):
            row, column = divmod(place, tiles)
            here = tile(shown, tiles, place)
            if column + 1 < tiles:
                gap = np.abs(here[:, -1] - tile(shown, tiles, place + 1)[:, 0]).sum()
                parts.append(f"{place + 1} to {place + 2} jumps {gap}.")
            if row + 1 < tiles:
                gap = np.abs(here[-1] - tile(shown, tiles, place + tiles)[0]).sum()
                parts.append(f"{place + 1} to {place + 1 + tiles} jumps {gap}.")
        return " ".join(parts)


def _settled(order: Order) -> int:
    """How many tiles are in place."""
    return sum(place == number for place, number in enumerate(order))
