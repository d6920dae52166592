"""One episode on one page: it starts from a seed and is played by gestures.

The same seed and the same gestures give the same page. So if an episode loses its browser, it plays its gestures again
in another one.
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
LIVES = 3  # a call fails after it has lost this many browsers
BEGIN = "palaestraStart(arguments[0]);"
# The page is read after a time-out of zero, when the handlers of a gesture and their own time-outs of zero are done.
READ = """const done = arguments[arguments.length - 1];
try { %s setTimeout(() => { try { done(palaestraRead()); } catch (e) { done({fault: String(e)}); } }, 0); }
catch (e) { done({fault: String(e)}); }"""
SCROLL = """window.scrollBy(0, arguments[0]);
document.querySelectorAll('#area, #area *').forEach(box => box.scrollBy(0, arguments[0]));"""
# In a list: choose the entry and return true. In a field: select the whole text, so that keys replace it.
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
    """The folder of the package's pages.

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
    """An episode on one page.

    Attributes:
        most: the most browsers that the pool may have.
        done: the gestures so far, each with what the page showed before it.
        last: what the page shows now; None before `begin`.
        restarts: how many browsers the episode has lost.
    """

    page: str
    seed: int
    pool: Pool
    most: int
    done: list[tuple[Gesture, Reading]] = field(default_factory=list)
    last: Reading | None = None
    restarts: int = 0

    def begin(self) -> Reading:
        """Start the episode."""
        self.last = self._call(lambda browser: self._start(browser))
        return self.last

    def act(self, gesture: Gesture) -> Reading:
        """Make a gesture. Returns what the page shows after it."""
        seen = self.last
        assert seen is not None
        self.last = self._call(lambda browser: _perform(browser, gesture, seen))
        self.done.append((gesture, seen))
        return self.last

    def picture(self) -> bytes:
        """A screenshot of the window, as PNG."""
        return self._call(lambda browser: browser.picture())  # type: ignore[no-any-return]

    def leave(self) -> None:
        """Free the browser for other episodes."""
        self.pool.release(self)

    # ---- calls --------------------------------------------------------------------------------------------
    def _call(self, act: Callable[[Browser], Any]) -> Any:
        """Run a call in this visit's browser. If it was lost, take another one and play the page again first.

        Raises: EpisodeFailure, after `LIVES` lost browsers.
        """
        for _ in range(LIVES):
            try:
                with self.pool.held(self, self.most, self.address) as (browser, kept):
                    try:
                        if not kept and self.last is not None:
                            self._again(browser)
                        return act(browser)
                    except BrowserLost:
                        self.pool.discard(browser)
                        raise
            except BrowserLost as error:  # a browser that does not start is lost as well
                lost = error
                self.restarts += 1
        raise EpisodeFailure(
            boundary="environment",
            where=f"environment miniwob, page {self.page}",
            what=f"{LIVES} browsers failed one after the other; the last error: {lost}.",
            remedy="Check that `chromium --headless --version` works and that memory is free; fewer `browsers` need "
            "less memory.",
        )

    @property
    def address(self) -> str:
        """The page's file as a URI."""
        return (folder() / f"{self.page}.html").as_uri()

    def _start(self, browser: Browser) -> Reading:
        if browser.address != self.address:
            browser.open(self.address)
            browser.run(SCRIPT.read_text(encoding="utf-8") + "arguments[arguments.length - 1]();")
        browser.perform([_mouse(_move((0, 0)))])
        return _look(browser, BEGIN, str(self.seed))

    def _again(self, browser: Browser) -> None:
        """Play the gestures so far again. Raises: EpisodeFailure, if the page does not show the same."""
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
            what="its browser was lost, and the same gestures gave a different page in another browser.",
            remedy="Pages that depend on time cannot be played again: set `browsers` to `rollout.in_flight`, so that "
            "every episode keeps its browser.",
        )


def _look(browser: Browser, before: str = "", *arguments: Any) -> Reading:
    raw = browser.run(READ % before, *arguments)
    if "fault" in raw:
        raise BrowserLost(f"the page failed: {raw['fault']}")
    return reading(raw)


# ---- gestures as a mouse and a keyboard make them ---------------------------------------------------------
def _perform(browser: Browser, gesture: Gesture, seen: Reading) -> Reading:
    """Make a gesture on the page that shows `seen`. Returns what the page shows after it."""
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
    """Type a text. In a field it replaces what is there; in a list it chooses the entry of this name."""
    point: tuple[int, int] | tuple[()] = ()
    if gesture.id != FOCUS:
        part = next(part for part in seen.parts if part.element.id == gesture.id)
        point = part.grip
        if part.element.role != "list":  # a click at a list opens a menu that is not part of the page
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
