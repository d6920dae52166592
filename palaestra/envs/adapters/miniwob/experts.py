"""Experts for pages of MiniWoB++. For each page a rule gives the next gesture.

A rule gets what the page shows and what was done so far. It sees what agents see, and also the ids and classes of
elements in the page's code. It can go on from any state that can still be solved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from palaestra.envs.adapters.miniwob.reading import COLORS, Part, Reading, rgb
from palaestra.envs.kit.elements import Gesture

Done = Sequence[tuple[Gesture, Reading]]
Rule = Callable[[Reading, Done], Gesture]
GIVE_UP = Gesture(kind="stop")


# ---- finding and doing ------------------------------------------------------------------------------------
def _parts(now: Reading, *roles: str) -> list[Part]:
    return [part for part in now.parts if part.element.role in roles]


def _texted(now: Reading, text: str, *roles: str) -> Part | None:
    parts = _parts(now, *roles) if roles else now.parts
    return next((part for part in parts if part.element.text.lower() == text.lower()), None)


def _click(part: Part | None) -> Gesture:
    return Gesture(kind="click", id=part.element.id) if part is not None else GIVE_UP


def _type(part: Part, text: str) -> Gesture:
    return Gesture(kind="type", id=part.element.id, text=text)


def _quoted(now: Reading) -> list[str]:
    return re.findall(r'"([^"]*)"', now.instruction)


def _between(now: Reading, before: str, after: str) -> str:
    found = re.search(f"{before}(.*?){after}", now.instruction)
    return found[1] if found else ""


def _clicked(done: Done) -> list[Part]:
    """The parts that were clicked, in order."""
    found = []
    for gesture, seen in done:
        if gesture.kind == "click":
            found += [p for p in seen.parts if gesture.id == p.element.id or gesture.point == p.grip]
    return found


def _marks(part: Part) -> tuple[str, ...]:
    """What identifies an element even after the page has numbered its elements anew."""
    return part.element.role, part.element.text, part.dom


def _fill(now: Reading, wanted: Sequence[str], button: str = "Submit") -> Gesture:
    """Fill the fields in order, then click the button."""
    for part, text in zip(_parts(now, "field", "area"), wanted, strict=False):
        if (part.element.value or "") != text:
            return _type(part, text)
    return _click(_texted(now, button, "button"))


# ---- rules ------------------------------------------------------------------------------------------------
def _only_button(now: Reading, done: Done) -> Gesture:
    return _click(next(iter(_parts(now, "button")), None))


def _named_button(now: Reading, done: Done) -> Gesture:
    target = (_quoted(now) or [_between(now, "button ", r"\.")])[0]
    return _click(_texted(now, "Close" if target == "x" else target, "button"))


def _sequence(now: Reading, done: Done) -> Gesture:
    first = any(part.element.text == "ONE" for part in _clicked(done))
    return _click(_texted(now, "TWO" if first else "ONE", "button"))


def _quoted_text(now: Reading, done: Done) -> Gesture:
    """Click the element with the quoted text. If it is not in view, open the next tab, section or folder.

    A link goes before plain text with the same words.
    """
    named = [p for p in now.parts if p.element.text == _quoted(now)[0] and "tab" not in p.classes]
    if named:
        return _click(next((p for p in named if "alink" in p.classes), named[0]))
    opened = {_marks(part) for part in _clicked(done)}
    ways = [p for p in now.parts if re.search("tabs-anchor|accordion-header|folder", p.classes)]
    fresh = [p for p in ways if _marks(p) not in opened]
    return _click(next(iter(fresh), None) or next(iter(ways), None))


def _tab(now: Reading, done: Done) -> Gesture:
    return _click(_texted(now, _between(now, "on ", r"\."), "link"))


def _section(now: Reading, done: Done) -> Gesture:
    header = next((part for part in now.parts if "accordion-header" in part.classes), None)
    if header is not None and "header-active" not in header.classes:
        return _click(header)
    return _click(_texted(now, "Submit", "button"))


def _choices(now: Reading, done: Done) -> Gesture:
    wanted = set(re.split(", ?", _between(now, "Select ", " and click Submit")))
    for part in _parts(now, "checkbox", "radio"):
        if (part.element.text in wanted) != (part.element.value == "on"):
            if part.element.role == "checkbox" or part.element.text in wanted:
                return _click(part)
    return _click(_texted(now, "Submit", "button"))


def _color(now: Reading, done: Done) -> Gesture:
    wanted = COLORS.get(_between(now, "the ", " colored"))
    return _click(next((p for p in _parts(now, "box") if (rgb(p.color) or COLORS["white"]) == wanted), None))


def _shades(now: Reading, done: Done) -> Gesture:
    place = ("red", "green", "blue").index(_between(now, "shades of ", " and"))
    clicks = [part.element.id for part in _clicked(done)]
    for part in _parts(now, "box"):
        shade = rgb(part.color)
        wanted = shade is not None and shade[place] == max(shade) and len(set(shade)) > 1
        if wanted != bool(clicks.count(part.element.id) % 2):
            return _click(part)
    return _click(_texted(now, "Submit", "button"))


def _widget(now: Reading, done: Done) -> Gesture:
    role = {"text": "field", "textarea": "area"}.get(_quoted(now)[0], _quoted(now)[0])
    return _click(next(iter(_parts(now, role)), None))


def _list(now: Reading, done: Done) -> Gesture:
    wanted, part = _between(now, "Select ", " from the"), _parts(now, "list")[0]
    return _click(_texted(now, "Submit", "button")) if part.element.value == wanted else _type(part, wanted)


def _enter(now: Reading, done: Done) -> Gesture:
    return _fill(now, _quoted(now)[:1])


def _cased(now: Reading, done: Done) -> Gesture:
    text = _quoted(now)[0]
    return _fill(now, [text.upper() if "upper case" in now.instruction else text.lower()])


def _password(now: Reading, done: Done) -> Gesture:
    return _fill(now, _quoted(now)[:1] * 2)


def _login(now: Reading, done: Done) -> Gesture:
    return _fill(now, _quoted(now)[:2], "Login")


def _date(now: Reading, done: Done) -> Gesture:
    month, day, year = _between(now, "Enter ", " as").split("/")
    part = _parts(now, "field")[0]
    if part.element.value == f"{year}-{month:0>2}-{day:0>2}":
        return _click(_texted(now, "Submit", "button"))
    return _type(part, f"{month:0>2}/{day:0>2}/{year}")


def _time(now: Reading, done: Done) -> Gesture:
    clock, half = _between(now, "Enter ", " as").split()
    hour, minute = (int(number) for number in clock.split(":"))
    part = _parts(now, "field")[0]
    if part.element.value == f"{hour % 12 + 12 * (half == 'PM'):02d}:{minute:02d}":
        return _click(_texted(now, "Submit", "button"))
    return _type(part, f"{hour:02d}:{minute:02d}{half}")


def _focus(now: Reading, done: Done) -> Gesture:
    return _click(_parts(now, "field")[int(_between(now, "into the ", r"(?:st|nd|rd|th)? ") or 1) - 1])


def _focus_only(now: Reading, done: Done) -> Gesture:
    return _click(next(iter(_parts(now, "field")), None))


def _arithmetic(now: Reading, done: Done) -> Gesture:
    first, sign, second = re.findall(r"-?\d+|[-+x/÷×*]", _problem(now))[:3]
    a, b = int(first), int(second)
    return _fill(now, [str({"+": a + b, "-": a - b}.get(sign, a * b))])


def _algebra(now: Reading, done: Done) -> Gesture:
    left, right = _problem(now).split("=")
    a, sign, b = left.split()
    total = int(right)
    if b == "x":
        answer = total - int(a) if sign == "+" else int(a) - total
    else:
        answer = total - int(b) if sign == "+" else total + int(b)
    return _fill(now, [str(answer)])


def _problem(now: Reading) -> str:
    return next(p.element.text for p in now.parts if p.dom == "math-problem")


def _word(now: Reading, done: Done) -> Gesture:
    number = int(_between(now, "the ", "(?:st|nd|rd|th) "))
    text = next(part.element.text for part in now.parts if part.element.role == "text")
    return _fill(now, [text.split()[number - 1].strip(".,?!")])


def _table(now: Reading, done: Done) -> Gesture:
    cells = [part.element.text for part in _parts(now, "cell")]
    table = dict(zip(cells[::2], cells[1::2], strict=False))
    labels = [part.element.text.rstrip(":") for part in _parts(now, "label")]
    return _fill(now, [table.get(label, "") for label in labels or [_between(now, "value of ", " into")]])


def _coordinate(now: Reading, done: Done) -> Gesture:
    wanted = _between(now, "coordinate ", r"\.$")
    return _click(next((part for part in now.parts if part.dom == wanted), None))


def _parity(now: Reading, done: Done) -> Gesture:
    clicks = [part.element for part in _clicked(done)]
    for number in (part for part in now.parts if "display-number" in part.classes):
        odd = int(number.element.text) % 2 == 1
        left, right = (p for p in now.parts if p.element.id in (number.element.id - 1, number.element.id + 1))
        last = next((c.box for c in reversed(clicks) if c.box in (left.element.box, right.element.box)), None)
        wanted = left if odd else right
        if last != wanted.element.box:
            return _click(wanted)
    return _click(_texted(now, "Submit", "button"))


def _ascending(now: Reading, done: Done) -> Gesture:
    """Click the numbers in ascending order. The first click hides them, so their places come from the first page."""
    first = done[0][1] if done else now
    numbers = sorted((p.element for p in first.parts if p.element.text.isdecimal()), key=lambda e: int(e.text))
    if len(done) >= len(numbers):
        return GIVE_UP
    x, y = numbers[len(done)].center
    return _click(
        min(now.parts, key=lambda p: abs(p.element.center[0] - x) + abs(p.element.center[1] - y), default=None)
    )


def _shape(now: Reading, done: Done) -> Gesture:
    figure = now.parts[0].element
    if figure.role == "text":
        name = "Number" if figure.text.isdecimal() else "Letter"
    else:
        name = {"circle": "Circle", "rect": "Rectangle"}.get(figure.role, "Triangle")
    return _click(_texted(now, name, "button"))


def _phone_book(now: Reading, done: Done) -> Gesture:
    name = _between(now, "Find ", " in the")
    kind = _between(now, "their ", r"\.$").split()[0]
    if any(part.element.role == "heading" and part.element.text == name for part in now.parts):
        return _click(next((part for part in now.parts if part.classes.split() == [kind]), None))
    return _click(_texted(now, ">", "link"))


RULES: dict[str, Rule] = {
    "click-test": _only_button,
    "click-test-2": _named_button,
    "click-test-transfer": _named_button,
    "click-button": _named_button,
    "click-button-sequence": _sequence,
    "click-link": _quoted_text,
    "click-option": _choices,
    "click-checkboxes": _choices,
    "click-checkboxes-large": _choices,
    "click-checkboxes-transfer": _choices,
    "click-color": _color,
    "click-dialog": _only_button,
    "click-dialog-2": _named_button,
    "click-tab": _tab,
    "click-tab-2": _quoted_text,
    "click-collapsible-nodelay": _section,
    "click-collapsible-2-nodelay": _quoted_text,
    "click-widget": _widget,
    "click-shades": _shades,
    "choose-list": _list,
    "enter-text": _enter,
    "enter-text-2": _cased,
    "enter-text-dynamic": _enter,
    "enter-password": _password,
    "enter-date": _date,
    "enter-time": _time,
    "focus-text": _focus_only,
    "focus-text-2": _focus,
    "login-user": _login,
    "simple-arithmetic": _arithmetic,
    "simple-algebra": _algebra,
    "find-word": _word,
    "read-table": _table,
    "read-table-2": _table,
    "grid-coordinate": _coordinate,
    "odd-or-even": _parity,
    "ascending-numbers": _ascending,
    "identify-shape": _shape,
    "navigate-tree": _quoted_text,
    "phone-book": _phone_book,
}
