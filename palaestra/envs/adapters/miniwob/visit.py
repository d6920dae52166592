"""One episode on one page: begun from a seed, played by gestures, and played again whenever its browser was lost.

Knows pages of the package `miniwob`, gestures and browsers. Knows nothing of rewards' meaning, turns or policies.
A page begun from the same seed and played by the same gestures shows the same, so nothing else needs to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from palaestra.envs.adapters.miniwob.browser import Browser, BrowserLost
from palaestra.envs.adapters.miniwob.pool import Pool
from palaestra.envs.adapters.miniwob.reading import Reading, reading
from palaestra.envs.kit.elements import FOCUS, Gesture
from palaestra.errors import EpisodeFailure, missing_extra

SCRIPT = Path(__file__).with_name("page.js")
LIVES = 3  # browsers that one call may use up
BEGIN = "palaestraStart(arguments[0]);"
# What a gesture sets off at once is waited for: handlers, and what they put off by a time-out of zero.
READ = """const done = arguments[arguments.length - 1];
try { %s setTimeout(() => { try { done(palaestraRead()); } catch (e) { done({fault: String(e)}); } }, 0); }
catch (e) { done({fault: String(e)}); }"""
SCROLL = """window.scrollBy(0, arguments[0]);
document.querySelectorAll('#area, #area *').forEach(box => box.scrollBy(0, arguments[0]));"""
# Of a list the entry is chosen, and the answer is true; in a field all is marked, so that keys replace it.
TAKE = """const done = arguments[arguments.length - 1], [text, x, y] = arguments;
const at = typeof x === 'number' ? document.elementFromPoint(x, y) : document.activeElement;
const list = at && at.closest('select');
if (list) {
  const found = Array.from(list.options).find(o => o.textContent.trim().toLowerCase() === text.toLowerCase());
  if (found) {
    list.focus();
    list.selectedIndex = found.index;
    for (const kind of ['input', 'change']) list.dispatchEvent(new Event(kind, {bubbles: true}));
  }
} else if (at && at.select && !/^(date|time)$/.test(at.type)) at.select();
done(!!list);"""
KEYS = {
    "enter": "\ue007",
    "tab": "\ue004",
    "space": " ",
    "backspace": "\ue003",
    "escape": "\ue00c",
    "up": "\ue013",
    "down": "\ue015",
    "left": "\ue012",
    "right": "\ue014",
}
STEP = 100  # pixels of a scroll


@cache
def folder() -> Path:
    """Where the package keeps its pages.

    Raises: MissingExtra.
    """
    try:
        import miniwob
    except ImportError as error:
        raise missing_extra("miniwob", extra="web", needed_for="environment miniwob") from error
    return Path(miniwob.__file__).parent / "html" / "miniwob"


@cache
def pages() -> tuple[str, ...]:
    """The names of all pages."""
    return tuple(sorted(path.stem for path in folder().glob("*.html")))


@dataclass(slots=True, eq=False)
class Visit:
    """A page, its seed, and what was done there."""

    page: str
    seed: int
    pool: Pool
    most: int  # browsers
    done: list[tuple[Gesture, Reading]] = field(default_factory=list)  # gestures, and what each was made on
    last: Reading | None = None
    restarts: int = 0  # browsers lost

    def begin(self) -> Reading:
        """Start the episode."""
        self.last = self._call(lambda browser: self._start(browser))
        return self.last

    def act(self, gesture: Gesture) -> Reading:
        """Do one thing and look at the page."""
        seen = self.last
        assert seen is not None
        self.last = self._call(lambda browser: _perform(browser, gesture, seen))
        self.done.append((gesture, seen))
        return self.last

    def picture(self) -> bytes:
        """The window as PNG."""
        return self._call(lambda browser: browser.picture())  # type: ignore[no-any-return]

    def leave(self) -> None:
        """Give the browser to others."""
        self.pool.release(self)

    # ---- calls --------------------------------------------------------------------------------------------
    def _call(self, act: Callable[[Browser], Any]) -> Any:
        """One call in this visit's browser; in another one, if it was lost, after all that was done before."""
        for _ in range(LIVES):
            with self.pool.held(self, self.most, self.address) as (browser, kept):
                try:
                    if not kept and self.last is not None:
                        self._again(browser)
                    return act(browser)
                except BrowserLost as error:
                    lost = error
                    self.restarts += 1
                    self.pool.discard(browser)
        raise EpisodeFailure(
            boundary="environment",
            where=f"environment miniwob, page {self.page}",
            what=f"{LIVES} browsers were lost one after the other: {lost}.",
            remedy="Try `chromium --headless --version` and the free memory; fewer `browsers` need less of it.",
        )

    @property
    def address(self) -> str:
        """Where the page is."""
        return (folder() / f"{self.page}.html").as_uri()

    def _start(self, browser: Browser) -> Reading:
        if browser.address != self.address:
            browser.open(self.address)
            browser.run(SCRIPT.read_text(encoding="utf-8") + "arguments[arguments.length - 1]();")
        browser.perform([_mouse(_move((0, 0)))])
        return _look(browser, BEGIN, str(self.seed))

    def _again(self, browser: Browser) -> None:
        """Play what was played before, and see that it is the same."""
        now = self._start(browser)
        for gesture, seen in self.done:
            _same(now, seen, self.page)
            now = _perform(browser, gesture, seen)
        assert self.last is not None
        _same(now, self.last, self.page)


def _same(now: Reading, before: Reading, page: str) -> None:
    if now != before:
        raise EpisodeFailure(
            boundary="environment",
            where=f"environment miniwob, page {page}",
            what="its browser was lost, and the page did not repeat itself in another one.",
            remedy="Pages that depend on time cannot be played again; give every episode a browser of its own.",
        )


def _look(browser: Browser, before: str = "", *arguments: Any) -> Reading:
    raw = browser.run(READ % before, *arguments)
    if "fault" in raw:
        raise BrowserLost(f"the page failed: {raw['fault']}")
    return reading(raw)


# ---- gestures as a mouse and a keyboard make them ---------------------------------------------------------
def _perform(browser: Browser, gesture: Gesture, seen: Reading) -> Reading:
    """Do it on the page as it was seen."""
    match gesture.kind:
        case "click":
            browser.perform([_mouse(_move(_place(gesture, seen)), *CLICK)])
        case "type":
            return _type(browser, gesture, seen)
        case "key":
            browser.perform([_keyboard(KEYS[gesture.text])])
        case "scroll":
            return _look(browser, SCROLL, STEP if gesture.text == "down" else -STEP)
    return _look(browser)


def _type(browser: Browser, gesture: Gesture, seen: Reading) -> Reading:
    """Into a field: what it holds is replaced. Into a list: the entry of this text is chosen."""
    point: tuple[int, int] | tuple[()] = ()
    if gesture.id != FOCUS:
        part = next(part for part in seen.parts if part.element.id == gesture.id)
        point = part.grip
        if part.element.role != "list":  # whose own menu would open, outside of the page
            browser.perform([_mouse(_move(part.grip), *CLICK)])
    if not browser.run(TAKE, gesture.text, *point):
        browser.perform([_keyboard(gesture.text)])
    return _look(browser)


CLICK = ({"type": "pointerDown", "duration": 0, "button": 0}, {"type": "pointerUp", "duration": 0, "button": 0})


def _place(gesture: Gesture, seen: Reading) -> tuple[int, int]:
    return gesture.point or next(part.grip for part in seen.parts if part.element.id == gesture.id)


def _move(point: tuple[int, int]) -> dict[str, Any]:
    return {"type": "pointerMove", "duration": 0, "x": point[0], "y": point[1], "origin": "viewport"}


def _mouse(*acts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [*acts]}


def _keyboard(text: Sequence[str]) -> dict[str, Any]:
    strokes = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
    return {"type": "key", "id": "keyboard", "actions": strokes}
