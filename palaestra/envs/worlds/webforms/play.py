"""The mechanics of sites: what is in view, and what gestures change."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from palaestra.envs.kit.elements import FOCUS, Element, Gesture, hit
from palaestra.envs.worlds.webforms.sites import EVERYWHERE, HELD, OFF, ON, RESULTS, SEARCH, Control, Site

LEFT, TOP, LINE = 8, 8, 24  # pixels: the margins, and the distance of rows
SIZES = {"field": (120, 20), "checkbox": (16, 16), "radio": (16, 16), "tab": (56, 20), "button": (64, 20)}
PER_PAGE = 5  # results on a page


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a site."""

    values: tuple[str, ...]
    screen: str
    scroll: int = 0  # number of rows above the view
    focus: int | None = None  # place of the control in focus
    query: str = ""
    page: int = 0  # of the results, from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The elements in view, and the place of the control that each one shows."""

    elements: tuple[Element, ...]
    places: tuple[int, ...]
    above: int  # number of rows above the view
    below: int  # number of rows below it


def start(site: Site) -> State:
    """The state at the start."""
    return State(values=tuple(control.start for control in site.controls), screen=site.first)


def on_screen(site: Site, state: State) -> list[int]:
    """The places of all controls of the present screen, from top to bottom, in view or not."""
    found = []
    results = 0
    for place, control in enumerate(site.controls):
        if control.screen not in (state.screen, EVERYWHERE) or control.role == "hidden":
            continue
        if control.role == "link" and state.screen == RESULTS:
            if state.query not in control.name:
                continue
            results += 1
            if not PER_PAGE * state.page < results <= PER_PAGE * (state.page + 1):
                continue
        found.append(place)
    return found


def matches(site: Site, query: str) -> int:
    """The number of results of a search."""
    return sum(
        control.role == "link" and control.screen == RESULTS and query in control.name for control in site.controls
    )


def look(site: Site, state: State, *, rows: int, renamed: bool) -> View:
    """The part of the present screen that is in view."""
    whole = on_screen(site, state)
    seen = whole[state.scroll : state.scroll + rows]
    elements = tuple(
        _element(site.controls[place], state.values[place], row, renamed=renamed) for row, place in enumerate(seen)
    )
    return View(
        elements=elements,
        places=tuple(seen),
        above=state.scroll,
        below=max(0, len(whole) - state.scroll - rows),
    )


def _element(control: Control, value: str, row: int, *, renamed: bool) -> Element:
    width, height = SIZES.get(control.role, (100, 20))
    label = control.other if renamed and control.other else control.name
    return Element(
        id=row + 1, role=control.role, text=label, box=(LEFT, TOP + LINE * row, width, height), value=value or None
    )


def target(view: View, gesture: Gesture, state: State) -> int | None:
    """The place of the control that a gesture names; None if there is none."""
    if gesture.point is not None:
        found = hit(view.elements, gesture.point)
        return view.places[found.id - 1] if found is not None else None
    if gesture.id == FOCUS:
        return state.focus
    return view.places[gesture.id - 1] if gesture.id is not None and gesture.id <= len(view.places) else None


def advance(site: Site, state: State, gesture: Gesture, *, rows: int) -> State | None:
    """The state after a gesture; None if the gesture does nothing here."""
    view = look(site, state, rows=rows, renamed=False)
    if gesture.kind == "scroll":
        down = gesture.text == "down"
        far = min(rows - 1, view.below) if down else -min(rows - 1, view.above)
        return dataclasses.replace(state, scroll=state.scroll + far) if far else None
    if gesture.kind == "key":
        return _key(site, state, gesture.text)
    place = target(view, gesture, state)
    if place is None:
        return None
    if gesture.kind == "click":
        return _click(site, state, place)
    if site.controls[place].role != "field":
        return None
    return dataclasses.replace(_set(state, place, gesture.text), focus=place)


def _key(site: Site, state: State, key: str) -> State | None:
    """Backspace empties the field in focus, enter starts a search, and tab goes to the next field."""
    if key == "backspace" and state.focus is not None and state.values[state.focus]:
        return _set(state, state.focus, "")
    if key == "enter" and state.focus is not None and site.controls[state.focus].name == SEARCH:
        return _searched(site, state)
    if key == "tab":
        fields = [place for place in on_screen(site, state) if site.controls[place].role == "field"]
        after = [place for place in fields if state.focus is None or place > state.focus]
        return dataclasses.replace(state, focus=(after or fields)[0]) if fields else None
    return None


def _click(site: Site, state: State, place: int) -> State | None:
    control = site.controls[place]
    match control.role:
        case "field":
            return dataclasses.replace(state, focus=place)
        case "checkbox":
            return _set(state, place, OFF if state.values[place] == ON else ON)
        case "radio":
            return _choose(site, state, place)
    if control.sets is not None:
        held = site.index(control.sets[0])
        assert held is not None
        state = _set(state, held, control.sets[1])
    match control.does:
        case "search":
            return _searched(site, state)
        case "next":
            more = (state.page + 1) * PER_PAGE < matches(site, state.query)
            return _at_top(state, page=state.page + 1) if more else None
        case "back":
            return _at_top(state, page=state.page - 1) if state.page else None
    return _at_top(state, screen=control.leads) if control.leads else None


def _choose(site: Site, state: State, place: int) -> State:
    group = site.controls[place].group
    values = tuple(
        ON if i == place else OFF if control.group == group else value
        for i, (control, value) in enumerate(zip(site.controls, state.values, strict=True))
    )
    return dataclasses.replace(state, values=values)


def _searched(site: Site, state: State) -> State:
    place = site.index(SEARCH)
    assert place is not None
    return _at_top(state, query=state.values[place], page=0)


def _at_top(state: State, *, screen: str | None = None, query: str | None = None, page: int | None = None) -> State:
    return State(
        values=state.values,
        screen=state.screen if screen is None else screen,
        query=state.query if query is None else query,
        page=state.page if page is None else page,
    )


def _set(state: State, place: int, value: str) -> State:
    values = (*state.values[:place], value, *state.values[place + 1 :])
    return dataclasses.replace(state, values=values)


def held(site: Site) -> list[int]:
    """The places of the controls whose values are judged: all that have one, except the search field."""
    return [i for i, control in enumerate(site.controls) if control.role in HELD and control.name != SEARCH]
