"""The expert: the next gesture towards a goal, from any state of a site. It also knows what is out of view."""

from __future__ import annotations

from palaestra.envs.kit.elements import Gesture
from palaestra.envs.worlds.webforms.play import PER_PAGE, State, View, held, look, matches, on_screen
from palaestra.envs.worlds.webforms.sites import COOKIE, DIALOG, EVERYWHERE, ON, RESULTS, SEARCH, Goal, Site

STOP = Gesture(kind="stop")


def solve(site: Site, state: State, goal: Goal, *, rows: int) -> Gesture:
    """Correct wrong values, first on the present screen; then go to the goal's screen; then stop with the answer."""
    view = look(site, state, rows=rows, renamed=False)
    wrong = [place for place in held(site) if state.values[place] != goal.expected[place]]
    here = [place for place in wrong if place in on_screen(site, state)]
    for place in [*here, *wrong]:
        control = site.controls[place]
        if control.group and goal.expected[place] != ON:
            continue  # the right button of the group is clicked instead
        if control.name == COOKIE:
            if state.screen == DIALOG:
                button = next(i for i, c in enumerate(site.controls) if c.sets == (COOKIE, goal.expected[place]))
                return _click(site, state, view, button)
            return _lead(site, state, view, DIALOG)
        if control.screen != state.screen:
            return _lead(site, state, view, control.screen)
        return _mend(site, state, view, place, goal.expected[place])
    if goal.screen is not None and state.screen != goal.screen:
        if site.kind == "list":
            return _find(site, state, view, goal.screen)
        return _lead(site, state, view, goal.screen)
    return Gesture(kind="stop", text=goal.answer or "")


def _mend(site: Site, state: State, view: View, place: int, value: str) -> Gesture:
    if place not in view.places:
        return _towards(site, state, view, place)
    number = view.places.index(place) + 1
    if site.controls[place].role != "field":
        return Gesture(kind="click", id=number)
    if value:
        return Gesture(kind="type", id=number, text=value)
    return Gesture(kind="key", text="backspace") if state.focus == place else Gesture(kind="click", id=number)


def _click(site: Site, state: State, view: View, place: int) -> Gesture:
    if place not in view.places:
        return _towards(site, state, view, place)
    return Gesture(kind="click", id=view.places.index(place) + 1)


def _towards(site: Site, state: State, view: View, place: int) -> Gesture:
    row = on_screen(site, state).index(place)
    return Gesture(kind="scroll", text="up" if row < state.scroll else "down")


def _lead(site: Site, state: State, view: View, screen: str) -> Gesture:
    """The first click of the shortest way to a screen; stop if there is no way."""
    first: dict[str, int] = {}
    edge = [state.screen]
    while edge:
        here = edge.pop(0)
        for place, control in enumerate(site.controls):
            if control.leads and control.screen in (here, EVERYWHERE) and control.leads not in (*first, state.screen):
                first[control.leads] = place if here == state.screen else first[here]
                edge.append(control.leads)
    return _click(site, state, view, first[screen]) if screen in first else STOP


def _find(site: Site, state: State, view: View, thing: str) -> Gesture:
    """Search for a thing, turn to its page of results, and open it."""
    if state.screen != RESULTS:
        return _lead(site, state, view, RESULTS)
    shown = on_screen(site, state)
    link = next((i for i in shown if site.controls[i].leads == thing), None)
    if link is not None:
        return _click(site, state, view, link)
    field = site.index(SEARCH)
    assert field is not None
    if state.values[field] != thing:
        return _mend(site, state, view, field, thing)
    name = "go" if state.query != thing else "next" if (state.page + 1) * PER_PAGE < matches(site, thing) else "back"
    return _click(site, state, view, next(i for i in shown if site.controls[i].name == name))
