"""Uiform: fill in a form of several pages by clicking, typing and scrolling.

Forms and their shortest solutions are in `uiform_forms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pydantic

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.kit.contents import as_json
from palaestra.envs.kit.manuals import turn_limit, write_manual
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import single
from palaestra.envs.kit.state import KeepsState
from palaestra.envs.probes.uiform_forms import ON, WORDS, Form, Gesture, Screen, build, longest_possible
from palaestra.registry import PositiveInt, register

AGENT = "user"
PER_WIDGET = 5 + len(WORDS)  # numbers of a widget in the vector
Count = Annotated[int, pydantic.Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """The state of one episode. `name` is that of the form, `said` the result of the last gesture."""

    form: Form
    screen: Screen
    name: str
    turn: int = 0
    said: str = "you start"


@register("environment", "uiform")
class UIForm(KeepsState[Episode]):
    """Fill in a form: type words into fields, turn switches, scroll between pages, and hand the form in.

    A form has pages of widgets, and some widgets have the wrong value. Changing a field takes a click and a word, and
    changing a switch takes a click. Each scroll moves by one page. `finish` hands the form in, right or wrong. The
    observation names all wrong widgets of all pages, so a policy can play that sees only the latest observation.

    Args:
        shortest, longest: bounds for the number of actions of a shortest solution, which is drawn uniformly for each
            form and is the task's difficulty. Higher: rarer success. Usual: 2 and 12.
        rows: widgets of a page, 2–5. Higher: more to look at. Usual: 4.
        pages: pages of a form, 1–3. Higher: more scrolling. Usual: 3.
        max_turns: turns until the episode is cut off. Usual: twice `longest`.
        forms: 0: a new form for every seed. k > 0: all seeds of all splits share k forms.
        boxes: True: the text tells the box of each widget in view, for clicks at points.

    Actions: `click NAME`, `click X Y` (on a screen of 1000 × 1000), `type WORD`, `scroll up`, `scroll down`,
    `finish`; or an index into `actions`, where a click has the widget's place on the page.
    Reward: 1 for handing in a form whose values are all as wanted, else 0. An impossible action changes nothing but
    takes a turn.
    Info of a step: `process`, 1 if the act belongs to a shortest solution; `executable`, 1 if it was possible;
    `references`, all acts that begin a shortest solution from the situation before the act; and `gesture`, what was
    done. A rule-based reward compares the last two.
    `vector`: for each widget in view field, switch, on, focus, wrong, and the wanted word of a wrong field; then the
    page; then whether a widget is wrong on an earlier page, on a later page, and anywhere.
    """

    agents: tuple[str, ...] = (AGENT,)
    abilities: tuple[str, ...] = ("tasks", "instruction", "content", "difficulty", "expert", "snapshot", "vector")
    provides = frozenset(
        {"state_key", "outcome", "process", "executable", "gesture", "references"}
    )  # columns of a table of its episodes, and what the `info` of its steps tells

    def __init__(
        self,
        *,
        shortest: Annotated[int, pydantic.Field(ge=2)] = 2,
        longest: Annotated[int, pydantic.Field(ge=2)] = 12,
        rows: Annotated[int, pydantic.Field(ge=2, le=5)] = 4,
        pages: Annotated[int, pydantic.Field(ge=1, le=3)] = 3,
        max_turns: PositiveInt = 24,
        forms: Count = 0,
        boxes: bool = False,
    ) -> None:
        Refusals("environment: uiform").when(
            not shortest <= longest <= longest_possible(rows, pages),
            f"no form has {shortest} to {longest} actions on {pages} pages of {rows} widgets.",
            f"Keep 2 ≤ `shortest` ≤ `longest` ≤ {longest_possible(rows, pages)}, or add `rows` or `pages`.",
        )
        self._world = {"shortest": shortest, "longest": longest, "rows": rows, "pages": pages, "forms": forms}
        self._rows, self._pages, self._max_turns, self._boxes = rows, pages, max_turns, boxes
        self.actions = (
            *(f"click {place}" for place in range(rows)),
            *(f"type {word}" for word in WORDS),
            *("scroll up", "scroll down", "finish"),
        )
        self.action_count = len(self.actions)
        self.vector_size = rows * PER_WIDGET + pages + 3

    def instruction(self, agent: str) -> str:
        """The rules and the commands, for an agent that has never seen them."""
        return write_manual(
            "You fill in a form. A message says what to do as names of widgets and their values, and shows one "
            "page of the form. A field takes a click and then a word; a switch changes with every click.",
            {
                "click NAME": "click a switch or a field of this page",
                "type WORD": "write into the field that you clicked",
                "scroll down or scroll up": "see another page",
                "finish": "hand the form in, right or wrong",
            },
            example="click sound",
            ending="Handing in ends the episode. It succeeds if every widget has the wanted "
            f"value.{turn_limit(self._max_turns)}",
        )

    def tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """`n` forms. Splits share no seed."""
        return seeded_tasks("uiform", self._world, split, n, seed)

    def _build(self, seed: int, world: Mapping[str, Any]) -> Form:
        forms = world["forms"]
        number = seed // 2 % forms if forms else seed  # the last bit of a seed tells its split
        return build(world["rows"], world["pages"], world["shortest"], world["longest"], number)

    def content(self, task: Task) -> Any:
        """The form: its widgets with their first and wanted values."""
        return as_json(self._build(task.seed, {**self._world, **task.params}))

    def difficulty(self, task: Task) -> float:
        """The number of actions of a shortest solution."""
        return float(self._build(task.seed, {**self._world, **task.params}).length)

    def reset(self, task: Task) -> StepResult:
        world = {**self._world, **task.params}
        form = self._build(task.seed, world)
        name = task.seed // 2 % world["forms"] if world["forms"] else task.seed
        self.state = Episode(form=form, screen=form.start, name=str(name))
        return single(AGENT, self._observe(self.state))

    def step(self, actions: Mapping[str, Action]) -> StepResult:
        now = self.state
        form, before = now.form, now.screen
        gesture = self._read(now, actions[AGENT].value)
        possible = None if gesture is None else form.next(before, gesture)
        after = possible or before
        self.state = now = replace(now, screen=after, turn=now.turn + 1, said=_said(gesture, possible, form))
        won = after.finished and not form.missing(after)
        cut = not after.finished and now.turn >= self._max_turns
        left, left_now = form.left(before), form.left(after)
        told: dict[str, Any] = {
            "process": float(left_now is not None and left is not None and left_now < left),
            "executable": float(possible is not None),
            "references": [_reference(form, before, one) for one in form.best(before)],
        }
        if gesture is not None:
            told["gesture"] = gesture.plain()
        return single(
            AGENT,
            None if after.finished else self._observe(now),
            reward=float(won),
            over=after.finished,
            cut=cut,
            act=told,
            readable=gesture is not None,
            info={"success": won} if after.finished or cut else None,
        )

    # ---- abilities ----------------------------------------------------------------------------------------
    def expert(self, agent: str) -> Action:
        """An action that begins a shortest solution. If several do, the topmost on the screen."""
        form, screen = self.state.form, self.state.screen
        gesture = form.best(screen)[0]
        return Action(text=_command(form, screen, gesture), value=self._index(form, screen, gesture))

    # ---- reading ------------------------------------------------------------------------------------------
    def _read(self, now: Episode, value: Any) -> Gesture | None:
        """The gesture that a text or an index means, or None if it cannot be read."""
        if isinstance(value, str):
            return _parse(now.form, now.screen, value)
        if not isinstance(value, int | np.integer) or not 0 <= value < self.action_count:
            return None
        if value < self._rows:
            return Gesture(type="click", point=now.form.widgets[now.form.shown(now.screen)[int(value)]].center)
        return _parse(now.form, now.screen, self.actions[int(value)])

    def _index(self, form: Form, screen: Screen, gesture: Gesture) -> int:
        if gesture.type == "click" and gesture.point is not None:
            hit = form.at(screen, *gesture.point)
            assert hit is not None
            return hit % self._rows
        return self.actions.index(_command(form, screen, gesture))

    # ---- observations -------------------------------------------------------------------------------------
    def _observe(self, now: Episode) -> Observation:
        form, screen = now.form, now.screen
        return Observation(
            text=f"{now.said}. {_describe(form, screen, boxes=self._boxes)}",
            vector=_vector(form, screen),
            legal=[_command(form, screen, gesture) for gesture in form.gestures(screen)],
            state_key=f"{now.name}/{screen.page}/{screen.focus}/{' '.join(screen.values)}",
        )


def _parse(form: Form, screen: Screen, said: str) -> Gesture | None:
    match said.lower().split():
        case ["finish"]:
            return Gesture(type="finish")
        case ["scroll", ("up" | "down") as direction]:
            return Gesture(type="scroll", direction=direction)  # type: ignore[arg-type]
        case ["type", word]:
            return Gesture(type="type", text=word) if word in WORDS else None
        case ["click", x, y] if x.isdecimal() and y.isdecimal():
            return Gesture(type="click", point=(int(x), int(y)))
        case ["click", name]:
            seen = (form.widgets[i] for i in form.shown(screen))
            return next((Gesture(type="click", point=one.center) for one in seen if one.name == name), None)
    return None


def _command(form: Form, screen: Screen, gesture: Gesture) -> str:
    """The text of a gesture that is possible here."""
    if gesture.type == "click" and gesture.point is not None:
        hit = form.at(screen, *gesture.point)
        return f"click {form.widgets[hit].name}" if hit is not None else f"click {gesture.point[0]} {gesture.point[1]}"
    return " ".join(word for word in (gesture.type, gesture.text, gesture.direction) if word)


def _reference(form: Form, screen: Screen, gesture: Gesture) -> dict[str, Any]:
    """A right gesture as JSON values. A click has the widget's box, since it is right anywhere in it."""
    plain = gesture.plain()
    if gesture.type == "click" and gesture.point is not None:
        hit = form.at(screen, *gesture.point)
        assert hit is not None
        del plain["point"]
        plain["box"] = [*form.widgets[hit].box]
    return plain


def _said(gesture: Gesture | None, after: Screen | None, form: Form) -> str:
    if gesture is None:
        return "not understood"
    if after is None:
        return "nothing happens"
    if gesture.type == "type":
        return f"typed {gesture.text}"
    return {"click": "clicked", "scroll": f"scrolled {gesture.direction}", "finish": "handed in"}[gesture.type]


def _describe(form: Form, screen: Screen, *, boxes: bool) -> str:
    """The text of a screen: `to do city rome, news on. page 1 of 2. field city amber focus, switch news off.`"""
    wrong = ", ".join(f"{form.widgets[i].name} {form.widgets[i].wanted}" for i in form.missing(screen))
    page = form.tree(screen).children[0]
    focus = None if screen.focus is None else form.widgets[screen.focus].name
    shown = [
        f"{node.role} {node.name} {node.value}"
        + (" focus" if node.name == focus else "")
        + (f" {' '.join(map(str, node.box))}" if boxes else "")
        for node in page.children
    ]
    return f"to do {wrong or 'nothing'}. page {page.name}. {', '.join(shown)}."


def _vector(form: Form, screen: Screen) -> np.ndarray:
    missing = {*form.missing(screen)}
    found = np.zeros(form.rows * PER_WIDGET + form.pages + 3, np.float32)
    for place, i in enumerate(form.shown(screen)):
        widget, first = form.widgets[i], place * PER_WIDGET
        is_field, wrong = widget.kind == "field", i in missing
        found[first : first + 5] = is_field, not is_field, screen.values[i] == ON, screen.focus == i, wrong
        if is_field and wrong:
            found[first + 5 + WORDS.index(widget.wanted)] = 1
    found[form.rows * PER_WIDGET + screen.page] = 1
    pages = {i // form.rows for i in missing}
    found[-3:] = any(p < screen.page for p in pages), any(p > screen.page for p in pages), bool(missing)
    return found
