"""Build sites, which are screens with controls, and the goals of tasks on them, each from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from palaestra.data import derive
from palaestra.envs.worlds.webforms.words import (
    ADJECTIVES,
    COOKIES,
    FACTS,
    FIELDS,
    GROUPS,
    OPTIONS,
    SWITCHES,
    TEXTS,
    THINGS,
    VALUES,
)

Kind = Literal["form", "choose", "login", "dialog", "tabs", "list"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Does = Literal["", "search", "next", "back"]
MAIN, HOME, DIALOG, RESULTS, EVERYWHERE = "main", "home", "dialog", "results", ""
FIRST: Mapping[str, str] = {"dialog": DIALOG, "list": RESULTS, "tabs": "page 1"}  # the first screen
HELD = ("field", "checkbox", "radio", "hidden")  # roles that have a value
SEARCH, COOKIE = "search", "cookies"
ON, OFF, UNSET = "on", "off", "unset"
MOST_FIELDS = 6  # most pairs of a goal


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A control or a text on a screen.

    Attributes:
        name: its name in instructions; of a radio button, the group and the option.
        screen: its screen; `EVERYWHERE` for tabs.
        start: its value at the start.
        group: the group of a radio button.
        leads: the screen that a click opens.
        sets: the control that a click sets, and the value.
        does: what a click does in a list: search, or turn to the next or the previous page.
    """

    name: str
    role: str
    screen: str
    other: str = ""  # its label on a renamed site
    start: str = ""
    group: str = ""
    leads: str = ""
    sets: tuple[str, str] | None = None
    does: Does = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The controls of a site, and its first screen."""

    kind: Kind
    controls: tuple[Control, ...]
    first: str = MAIN

    def index(self, name: str) -> int | None:
        """The place of the control with this name and a value; None if there is none."""
        return next((i for i, c in enumerate(self.controls) if c.name == name and c.role in HELD), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The goal of a task on a site.

    Attributes:
        words: pairs of key and value, as in the instruction.
        pairs: the places of the controls that the words name, with the wanted values.
        expected: the values of all controls at the end. Controls that the goal does not name keep their values.
        screen, answer: the screen at the end and the answer; None if any is right.
        reachable: whether the site has all that the words name.
    """

    words: tuple[tuple[str, str], ...]
    pairs: tuple[tuple[int, str], ...]
    expected: tuple[str, ...]
    screen: str | None = None
    answer: str | None = None
    reachable: bool = True

    @property
    def conditions(self) -> int:
        """The number of conditions: the pairs, the screen and the answer."""
        return len(self.pairs) + (self.screen is not None) + (self.answer is not None)


# ---- sites ------------------------------------------------------------------------------------------------
@cache
def build_site(kind: Kind, fields: int, distractors: int, pages: int, seed: int) -> Site:
    """A site with at least `fields` controls to fill in and `distractors` further elements."""
    draw = random.Random(derive(seed, "site", kind))
    controls = list(_BUILDERS[kind](fields, distractors, pages, draw))
    return Site(kind=kind, controls=tuple(controls), first=FIRST.get(kind, MAIN))


def _form(fields: int, distractors: int, pages: int, draw: random.Random) -> list[Control]:
    plain = draw.sample(list(FIELDS), k=min(len(FIELDS), max(1, fields + distractors // 2)))
    switches = draw.sample(list(SWITCHES), k=min(len(SWITCHES), max(1, fields // 2 + distractors // 4)))
    found = [*map(_field, plain), *map(_switch, switches)]
    return _mixed(found, distractors - (len(found) - fields), draw)


def _choose(fields: int, distractors: int, pages: int, draw: random.Random) -> list[Control]:
    found: list[Control] = []
    groups = draw.sample(list(GROUPS), k=min(len(GROUPS), fields + distractors // 6))
    for group in groups:
        chosen = draw.choice(OPTIONS[group])
        found += [
            Control(
                name=f"{group} {option}",
                other=f"{GROUPS[group]} {option}",
                role="radio",
                screen=MAIN,
                start=ON if option == chosen else OFF,
                group=group,
            )
            for option in OPTIONS[group]
        ]
    return found + _texts(max(0, distractors - 2 * len(groups)), MAIN, draw)


def _login(fields: int, distractors: int, pages: int, draw: random.Random) -> list[Control]:
    further = draw.sample([key for key in FIELDS if key not in ("user", "password")], k=max(0, fields - 2))
    found = [_field(key) for key in ("user", "password", *further)]
    found.append(Control(name="log in", other="enter", role="button", screen=MAIN, leads=HOME))
    out = Control(name="log out", other="leave", role="button", screen=HOME, leads=MAIN)
    return [*found, *_texts(distractors, MAIN, draw), Control(name="hello", role="text", screen=HOME), out]


def _dialog(fields: int, distractors: int, pages: int, draw: random.Random) -> list[Control]:
    choices = [
        Control(name=choice, role="button", screen=DIALOG, leads=MAIN, sets=(COOKIE, choice))
        for choice in draw.sample(COOKIES, k=2)
    ]
    question = Control(name="cookies ?", role="text", screen=DIALOG)
    hidden = Control(name=COOKIE, role="hidden", screen=DIALOG, start=UNSET)
    again = Control(name="settings", other="options", role="link", screen=MAIN, leads=DIALOG)
    return [question, *choices, hidden, *_form(max(1, fields - 1), distractors, pages, draw), again]


def _tabs(fields: int, distractors: int, pages: int, draw: random.Random) -> list[Control]:
    """A form over several pages, with tabs or with the buttons next and back."""
    names = [f"page {number + 1}" for number in range(pages)]
    form = _form(fields, distractors, pages, draw)
    placed = [_moved(control, names[place % pages]) for place, control in enumerate(form)]
    if draw.random() < 0.5:
        return [Control(name=name, role="tab", screen=EVERYWHERE, leads=name) for name in names] + placed
    for here, there in zip(names, names[1:], strict=False):
        placed.append(Control(name="next", other="forward", role="button", screen=here, leads=there))
        placed.append(Control(name="back", other="return", role="button", screen=there, leads=here))
    return placed


def _list(fields: int, distractors: int, pages: int, draw: random.Random) -> list[Control]:
    """A list of things: a search, pages of results, and a screen with facts for each thing."""
    things = [f"{adjective} {thing}" for adjective in ADJECTIVES for thing in THINGS]
    chosen = draw.sample(things, k=min(len(things), max(3, distractors)))
    found = [
        Control(name=SEARCH, other="find", role="field", screen=RESULTS),
        Control(name="go", other="look", role="button", screen=RESULTS, does="search"),
        Control(name="next", other="forward", role="button", screen=RESULTS, does="next"),
        Control(name="back", other="return", role="button", screen=RESULTS, does="back"),
    ]
    for thing in chosen:
        found.append(Control(name=thing, role="link", screen=RESULTS, leads=thing))
        facts = draw.sample(list(FACTS), k=3)
        found += [
            Control(name=fact, other=FACTS[fact], role="text", screen=thing, start=str(draw.randrange(10, 100)))
            for fact in facts
        ]
        found.append(Control(name="list", other="results", role="link", screen=thing, leads=RESULTS))
    return found


Builder = Callable[[int, int, int, random.Random], list[Control]]
_BUILDERS: Mapping[str, Builder] = {
    "form": _form,
    "choose": _choose,
    "login": _login,
    "dialog": _dialog,
    "tabs": _tabs,
    "list": _list,
}


def _field(key: str) -> Control:
    return Control(name=key, other=FIELDS[key], role="field", screen=MAIN)


def _switch(key: str) -> Control:
    return Control(name=key, other=SWITCHES[key], role="checkbox", screen=MAIN, start=OFF)


def _moved(control: Control, screen: str) -> Control:
    return Control(name=control.name, other=control.other, role=control.role, screen=screen, start=control.start)


def _texts(count: int, screen: str, draw: random.Random) -> list[Control]:
    return [Control(name=draw.choice(TEXTS), role="text", screen=screen) for _ in range(max(0, count))]


def _mixed(controls: Sequence[Control], texts: int, draw: random.Random) -> list[Control]:
    found = [*controls, *_texts(texts, MAIN, draw)]
    draw.shuffle(found)
    return found


# ---- goals ------------------------------------------------------------------------------------------------
def build_goal(site: Site, fields: int, seed: int) -> Goal:
    """A goal drawn by the seed: `fields` values other than those at the start; in a list, one fact."""
    draw = random.Random(derive(seed, "goal"))
    if site.kind == "list":
        things = [control for control in site.controls if control.role == "link" and control.leads == control.name]
        thing = draw.choice(things).name
        fact = draw.choice([control for control in site.controls if control.screen == thing and control.role == "text"])
        return asked(site, (("find", thing), ("answer", fact.name)))
    if site.kind == "choose":
        words = []
        groups = sorted({control.group for control in site.controls if control.group})
        for group in draw.sample(groups, k=min(fields, len(groups))):
            options = [c for c in site.controls if c.group == group and c.start == OFF]
            words.append((group, draw.choice(options).name.partition(" ")[2]))
        return asked(site, tuple(words))
    keys = [control.name for control in site.controls if control.role in ("field", "checkbox")]
    count = min(len(keys), max(1, fields - 1) if site.kind == "dialog" else fields)
    if site.kind == "login":
        chosen = keys[: max(2, count)]
    else:
        chosen = sorted(draw.sample(keys, k=count), key=keys.index)
    words = [(key, draw.choice(VALUES[key]) if key in VALUES else ON) for key in chosen]
    if site.kind == "dialog":
        words.insert(0, (COOKIE, draw.choice(COOKIES)))
    return asked(site, tuple(words))


def asked(site: Site, words: Sequence[tuple[str, str]]) -> Goal:
    """The goal that pairs of key and value mean on a site. A key that the site lacks makes it unreachable."""
    expected, pairs, reachable = [control.start for control in site.controls], [], True
    told = dict(words)
    thing, fact = told.pop("find", None), told.pop("answer", None)
    for key, value in told.items():
        radio = site.index(f"{key} {value}")
        place = radio if radio is not None else site.index(key)
        if place is None or place == site.index(SEARCH):
            reachable = False
            continue
        if radio is not None:
            for i, control in enumerate(site.controls):
                expected[i] = OFF if control.group == key else expected[i]
        pairs.append((place, ON if radio is not None else value))
        expected[place] = pairs[-1][1]
    answer = next((c.start for c in site.controls if c.screen == thing and c.name == fact), None)
    return Goal(
        words=tuple(words),
        pairs=tuple(pairs),
        expected=tuple(expected),
        screen=thing if thing else HOME if site.kind == "login" else None,
        answer=answer,
        reachable=reachable and (fact is None) == (answer is None) and (thing is None or fact is not None),
    )
