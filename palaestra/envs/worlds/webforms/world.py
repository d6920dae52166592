"""The environment `webforms`: an agent fills in web forms, and uses lists, dialogs and tabs, by clicks and words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.elements import FOCUS, Gesture, describe, read
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.worlds.webforms.play import State, View, advance, held, look, start
from palaestra.envs.worlds.webforms.sites import (
    KINDS,
    MOST_FIELDS,
    OFF,
    Goal,
    Kind,
    Site,
    asked,
    build_goal,
    build_site,
)
from palaestra.envs.worlds.webforms.solve import solve
from palaestra.registry import Discount, Fraction, NonNegative, PositiveInt, register

AGENT = "user"
Fields = tuple[PositiveInt, PositiveInt]
Further = tuple[Annotated[int, pydantic.Field(ge=0, le=90)], Annotated[int, pydantic.Field(ge=0, le=90)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """The state of an episode."""

    site: Site
    goal: Goal
    state: State
    seed: int
    noise: float
    turn: int = 0
    said: str = ""
    stopped: str | None = None  # the answer of the act `stop`; None before it

    def right(self) -> int:
        """The number of the goal's conditions that hold."""
        state, goal = self.state, self.goal
        pairs = sum(state.values[place] == value for place, value in goal.pairs)
        there = goal.screen is not None and state.screen == goal.screen
        answered = goal.answer is not None and self.stopped == goal.answer
        return pairs + there + answered

    @property
    def potential(self) -> float:
        """The share of the goal's conditions that hold."""
        return self.right() / self.goal.conditions if self.goal.conditions else 0.0

    @property
    def success(self) -> bool:
        """Whether the agent stopped with all conditions met and nothing else changed."""
        goal, values = self.goal, self.state.values
        kept = all(values[place] == goal.expected[place] for place in held(self.site))
        return self.stopped is not None and goal.reachable and kept and self.right() == goal.conditions


@register("environment", "webforms", ignores_if={"potential=0.0": ("discount",)})
class WebForms(KeepsState[Playing]):
    """Fill in a web page as the keys and values of an instruction say, then stop.

    The agent reads the instruction, `do: name ada, city rome, news on.`, and then the elements in view, each with its
    value, such as `[2] field 'city' (8,32,120,20) rome`. There are six kinds of sites: "form" (fields and checkboxes),
    "choose" (radio buttons), "login" (fields, then a button), "dialog" (a question covers a form), "tabs" (a form over
    several pages, with tabs or with the buttons next and back), and "list" (search a list, open one thing, and answer
    with a fact about it: `do: find red lamp, answer price.`).

    Args:
        kinds: kinds of sites, mixed evenly.
        fields: fewest and most pairs of an instruction, 1–6. Higher: more acts must be right. Usual: 2 to 4.
        distractors: fewest and most further elements, 0–90. Higher: more to look through and to scroll.
        pages: number of pages of the kind "tabs".
        rows: elements in view at a time. The agent must scroll to see the others.
        sites: [a, b]: all splits use the sites a to b. None: a new site for each task. For an evaluation on sites that
            were never seen, train on [0, 5] and evaluate on [6, 8].
        renamed: whether labels are other words than the keys of the instruction, such as town for city. The label of a
            key is always the same.
        prefill: probability that a wanted value is there from the start. Higher: easier, as a warm start.
        noise: probability that a click misses and does nothing.
        potential: weight w of the shaping: each step earns w · (discount · Φ(s′) − Φ(s)) in addition, where Φ is the
            share of conditions that hold. 0: no shaping.
        discount: discount factor of the shaping. Usual: that of the method.
        observation: "elements" numbers the elements in view. "coordinates" does not: clicks name points.
        boxes: whether "elements" shows the position and the size of each element.
        calls: whether the expert and `legal` write `click(3)` in place of `click 3`. Both are always understood.
        max_turns: turns until the episode is cut off. Usual: 20.

    Acts: `click 3`, `click 20 40`, `type 3 rome` (the number 0 stands for the field in focus), `key tab`, `key enter`,
    `key backspace` (empties the field in focus), `scroll down`, `scroll up`, `stop`, and `stop 42` (with an answer).

    Reward: 1 for stopping with all conditions met and nothing else changed, else 0, plus the shaping.

    A step's `info` has `potential` (Φ after the step), `executable` (0 if the act did nothing) and `stratum` (the kind
    of the site). The params of a task may have `goal`, pairs that replace the drawn ones. A goal with a key that the
    site lacks cannot be reached.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot")
    provides = frozenset({"state_key", "outcome", "potential", "executable", "stratum"})

    def __init__(
        self,
        *,
        kinds: tuple[Kind, ...] = KINDS,
        fields: Fields = (2, 4),
        distractors: Further = (2, 8),
        pages: Annotated[int, pydantic.Field(ge=2, le=5)] = 3,
        rows: Annotated[int, pydantic.Field(ge=4)] = 10,
        sites: tuple[Annotated[int, pydantic.Field(ge=0)], Annotated[int, pydantic.Field(ge=0)]] | None = None,
        renamed: bool = False,
        prefill: Fraction = 0.0,
        noise: Fraction = 0.0,
        potential: NonNegative = 0.0,
        discount: Discount = 1.0,
        observation: Literal["elements", "coordinates"] = "elements",
        boxes: bool = True,
        calls: bool = False,
        max_turns: PositiveInt = 20,
    ) -> None:
        _refuse_impossible(kinds, fields, distractors, sites, noise)
        self._params = {
            "kinds": list(kinds),
            "fields": list(fields),
            "distractors": list(distractors),
            "pages": pages,
            "sites": None if sites is None else list(sites),
            "prefill": prefill,
            "noise": noise,
        }
        self._rows, self._renamed, self._weight, self._discount = rows, renamed, potential, discount
        self._observation, self._boxes, self._calls, self._max_turns = observation, boxes, calls, max_turns

    def instruction(self, agent: str) -> str:
        """The rules of the world and its commands, for an agent that has never seen it."""
        write, pointed = self._spelled, self._observation == "coordinates"
        commands = {
            write("click X Y" if pointed else "click NUMBER"): "click what is there: a field, a box, a button, a tab",
            write("type NUMBER TEXT") if not pointed else write("type 0 TEXT"): "write into a field"
            + ("; click it first" if pointed else ""),
            write("key backspace"): "empty the field that you clicked last",
            f"{write('scroll down')} and {write('scroll up')}": "see more of the page",
            write("stop"): "say that everything is done",
            write("stop ANSWER"): "if the task asks for an answer",
        }
        return write_manual(
            "You fill in a web page. The first line of every message says what the page must hold at the end, as pairs "
            "of a name and a value; `on` and `off` are boxes to tick. The other lines show the elements of the page "
            f"{'with their position and size (left, top, width, height)' if pointed else 'with their numbers'} and "
            "their values. Change nothing else. Some pages have several parts: use their tabs and buttons, and close "
            "questions that cover the page.",
            commands,
            example=write("click 40 42") if pointed else write("type 2 rome"),
            ending="Stopping ends the episode. It succeeds if everything that was asked for is on the page and nothing "
            f"else was changed.{turn_limit(self._max_turns)}",
        )

    def _spelled(self, command: str) -> str:
        """A command in the form that the expert writes: `click 3`, or with `calls` `click(3)`."""
        kind, _, rest = command.partition(" ")
        if not self._calls:
            return command
        arguments = rest.split(" ", 1) if kind in ("type", "click") else [rest]
        return f"{kind}({', '.join(part for part in arguments if part)})"

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` tasks. With `sites`, no task has the content of a task of another split."""
        fixed = self._params["sites"] is not None  # new sites are never the same
        return seeded_tasks("webforms", self._params, split, n, seed, content=self.content if fixed else None)

    def content(self, task: Task) -> Any:
        """The site and the goal of a task."""
        playing = _set_up({**self._params, **task.params}, task.seed)
        return as_json((playing.site, playing.goal))

    def difficulty(self, task: Task) -> float:
        """The number of conditions of the goal."""
        return float(_set_up({**self._params, **task.params}, task.seed).goal.conditions)

    def reset(self, task: Task) -> StepResult:
        self.state = _set_up({**self._params, **task.params}, task.seed)
        return single(AGENT, self._observe(self.state), info={"stratum": self.state.site.kind})

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        before = self.state
        gesture = read(actions[AGENT].value)
        self.state = after = self._act(dataclasses.replace(before, turn=before.turn + 1), gesture)
        over = after.stopped is not None
        cut = not over and after.turn >= self._max_turns
        shaping = self._weight * (self._discount * after.potential - before.potential)
        return single(
            AGENT,
            None if over else self._observe(after),
            reward=after.success + shaping,
            over=over,
            cut=cut,
            act={"potential": after.potential, "executable": float(after.said not in (MISSED, UNREAD))},
            readable=gesture is not None,
            info={"stratum": after.site.kind} | ({"success": after.success} if over or cut else {}),
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """The next gesture: correct what is wrong, also after other acts. The expert knows what is out of view."""
        now = self.state
        gesture = solve(now.site, now.state, now.goal, rows=self._rows)
        if self._observation == "coordinates":
            gesture = _pointed(gesture, now.state, self._view(now))
        return Action(text=gesture.write(calls=self._calls))

    # ---- playing ------------------------------------------------------------------------------------------
    def _act(self, now: Playing, gesture: Gesture | None) -> Playing:
        if gesture is None:
            return dataclasses.replace(now, said=UNREAD)
        if gesture.kind == "stop":
            return dataclasses.replace(now, stopped=gesture.text, said="")
        missed = gesture.kind == "click" and derive(now.seed, "miss", now.turn) / 2**63 < now.noise
        after = None if missed else advance(now.site, now.state, gesture, rows=self._rows)
        return dataclasses.replace(now, state=after or now.state, said="" if after is not None else MISSED)

    def _view(self, now: Playing) -> View:
        return look(now.site, now.state, rows=self._rows, renamed=self._renamed)

    def _observe(self, now: Playing) -> Observation:
        view, elements = self._view(now), self._observation == "elements"
        lines = [
            f"do: {', '.join(f'{key} {value}' for key, value in now.goal.words)}.",
            *([now.said] if now.said else []),
            *(["more above"] if view.above else []),
            describe(view.elements, ids=elements, boxes=self._boxes or not elements),
            *(["more below"] if view.below else []),
        ]
        key = derive(now.seed, now.goal.words, now.state)
        return Observation(text="\n".join(lines), legal=self._sensible(now, view), state_key=f"{now.seed}/{key:x}")

    def _sensible(self, now: Playing, view: View) -> list[str]:
        """The acts that make sense. Typed texts are the instruction's values and the field's expected one."""
        pointed = self._observation == "coordinates"
        values = [value for key, value in now.goal.words if value not in ("on", OFF) and key != "answer"]
        found: list[Gesture] = []
        for element, place in zip(view.elements, view.places, strict=True):
            where: dict[str, Any] = {"point": element.center} if pointed else {"id": element.id}
            found.append(Gesture(kind="click", **where))
            if element.role == "field":
                own = [now.goal.expected[place]] if now.goal.expected[place] else []
                number = FOCUS if pointed else element.id
                found += [Gesture(kind="type", id=number, text=value) for value in [*values, *own]]
            if element.role == "text" and element.value:
                found.append(Gesture(kind="stop", text=element.value))
        found += [Gesture(kind="scroll", text=way) for way, some in (("up", view.above), ("down", view.below)) if some]
        found += [Gesture(kind="key", text="backspace"), Gesture(kind="stop")]
        return list(dict.fromkeys(gesture.write(calls=self._calls) for gesture in found))


UNREAD, MISSED = "not understood", "nothing happens"


def _set_up(world: Mapping[str, Any], seed: int) -> Playing:
    """The state of a task's episode at the start."""
    sites, kinds = world["sites"], world["kinds"]
    number = seed if sites is None else sites[0] + seed // 2 % (sites[1] - sites[0] + 1)
    kind = kinds[(derive(seed, "kind") if sites is None else number) % len(kinds)]
    low, high = world["fields"]
    fields = low + derive(seed, "fields") % (high - low + 1)
    few, many = world["distractors"]
    further = few + derive(number, "distractors") % (many - few + 1)
    site = build_site(kind, high if sites is not None else fields, further, world["pages"], number)
    given = world.get("goal")
    goal = build_goal(site, fields, seed) if given is None else asked(site, tuple(given.items()))
    state = start(site)
    values = list(state.values)
    for place, value in goal.pairs:
        if derive(seed, "prefill", place) / 2**63 < world["prefill"]:
            group = site.controls[place].group
            values = [OFF if group and c.group == group else v for c, v in zip(site.controls, values, strict=True)]
            values[place] = value
    state = dataclasses.replace(state, values=tuple(values))
    return Playing(site=site, goal=goal, state=state, seed=seed, noise=world["noise"])


def _pointed(gesture: Gesture, state: State, view: View) -> Gesture:
    """The gesture without an element's number: a click at a point, or typing into the field in focus."""
    if gesture.id is None:
        return gesture
    place, element = view.places[gesture.id - 1], view.elements[gesture.id - 1]
    if gesture.kind == "type" and state.focus == place:
        return Gesture(kind="type", id=FOCUS, text=gesture.text)
    return Gesture(kind="click", point=element.center)


def _refuse_impossible(
    kinds: tuple[str, ...],
    fields: tuple[int, int],
    distractors: tuple[int, int],
    sites: tuple[int, int] | None,
    noise: float,
) -> None:
    refuse = Refusals("environment: webforms")
    refuse.when_empty(KINDS, kinds=kinds)
    refuse.when(
        fields[1] > MOST_FIELDS, f"`fields` goes up to {fields[1]}.", f"Set its second number to {MOST_FIELDS} or less."
    )
    refuse.when_reversed(fields=fields, distractors=distractors, sites=sites)
    refuse.when_certain("no click would ever work", noise=noise)
