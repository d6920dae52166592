"""The drawing of one iteration, made from the table of functions in docs/iteration.md when the site is built.

The page's table has the functions and their files. This module has the place of each function in the drawing, and what
goes from one to the next.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

PAGE = Path(__file__).parents[1] / "iteration.md"
DRAWING = PAGE.with_suffix(".svg")
CODE = re.compile(r"`([^`]+)`")
ROW = re.compile(r"^\| ([\d–]+) \| `([\w.]+)` \(`([\w/.]+)`\) \| (.+) \| (.+) \|$", re.MULTILINE)

WIDTH, GAP, HEIGHT, PITCH, MARGIN = 226, 92, 48, 98, 20
THREE = (MARGIN, MARGIN + WIDTH + GAP, MARGIN + 2 * (WIDTH + GAP))  # left edges of three boxes in a row
PAPER = THREE[2] + WIDTH + MARGIN
SMALL = 204
FOUR = tuple(MARGIN + place * (PAPER - 2 * MARGIN - SMALL) / 3 for place in range(4))  # … of four
PHASES = (("play", 6, "#dce9f7"), ("table", 10, "#dff0dc"), ("update", 12, "#fbe8d3"))  # name, last step, color
HEAD = """<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">
<path d="M0,0 L9,4 L0,8 z" fill="#444"/></marker></defs>"""

PLACES = {  # function → left edge, row, width
    "uniform": (THREE[0], 0, WIDTH),
    "Collector.plays": (THREE[1], 0, WIDTH),
    "EpisodeRunner.collect": (THREE[2], 0, WIDTH),
    "LanguageSession.act": (THREE[0], 1, WIDTH),
    "Agent.act": (THREE[1], 1, WIDTH),
    "play": (THREE[2], 1, WIDTH),
    "InProcessEngine.generate": (THREE[0], 2, WIDTH),
    "Turn.file": (THREE[1], 2, WIDTH),
    "Episode.step": (THREE[2], 2, WIDTH),
    "Collector.collect": (THREE[0], 3, WIDTH),
    "finished": (THREE[1], 3, WIDTH),
    "Guard.finished": (THREE[0], 4, WIDTH),
    "StepTable.from_trajectories": (THREE[1], 4, WIDTH),
    "prepare": (THREE[2], 4, WIDTH),
    "weigh": (THREE[0], 5, WIDTH),
    "assign_credit": (THREE[1], 5, WIDTH),
    "fill_columns": (THREE[2], 5, WIDTH),
    "PolicyGradient.update": (THREE[0], 6, WIDTH),
    "grpo": (THREE[1], 6, WIDTH),
    "Updater.update": (MARGIN, 7, PAPER - 2 * MARGIN),
    "LanguageTrainer.collate": (FOUR[0], 8, SMALL),
    "LanguageTrainer.forward": (FOUR[1], 8, SMALL),
    "ppo_clip": (FOUR[2], 8, SMALL),
    "AdamW.step": (FOUR[3], 8, SMALL),
    "InProcessEngine.publish": (THREE[1], 9, WIDTH),
    "LanguageSampler.weights_changed": (THREE[2] - 30, 9, WIDTH + 30),
}
ARROWS = (  # from, to, what goes; of two that go to and fro the call comes first, then its answer
    ("uniform", "Collector.plays", "Task"),
    ("Collector.plays", "EpisodeRunner.collect", "Play"),
    ("EpisodeRunner.collect", "play", "Play"),
    ("play", "Agent.act", "Observation"),
    ("Agent.act", "play", "Action"),
    ("Agent.act", "LanguageSession.act", "Observation"),
    ("LanguageSession.act", "Agent.act", "Response"),
    ("LanguageSession.act", "InProcessEngine.generate", "Request"),
    ("InProcessEngine.generate", "LanguageSession.act", "Response"),
    ("Agent.act", "Turn.file", "Response"),
    ("Turn.file", "Agent.act", "Step"),
    ("play", "Episode.step", "Action"),
    ("Episode.step", "play", "StepResult"),
    ("Turn.file", "finished", "Step"),
    ("finished", "Collector.collect", "Trajectory"),
    ("Collector.collect", "Guard.finished", "Batch"),
    ("Guard.finished", "StepTable.from_trajectories", "Trajectory"),
    ("StepTable.from_trajectories", "prepare", "StepTable"),
    ("prepare", "fill_columns", "StepTable"),
    ("fill_columns", "assign_credit", "StepTable"),
    ("assign_credit", "grpo", "StepTable"),
    ("grpo", "assign_credit", "advantages"),
    ("assign_credit", "weigh", "StepTable"),
    ("weigh", "PolicyGradient.update", "Batch"),
    ("PolicyGradient.update", "Updater.update", "Batch, Iteration"),
    ("Updater.update", "LanguageTrainer.collate", "Step"),
    ("LanguageTrainer.collate", "Updater.update", "Samples"),
    ("Updater.update", "LanguageTrainer.forward", "Samples"),
    ("LanguageTrainer.forward", "Updater.update", "PolicyOutputs"),
    ("Updater.update", "ppo_clip", "TokenBatch"),
    ("ppo_clip", "Updater.update", "losses"),
    ("Updater.update", "AdamW.step", "gradients"),
    ("AdamW.step", "LanguageSampler.weights_changed", "weights"),
    ("LanguageSampler.weights_changed", "InProcessEngine.publish", "weights"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A row of the page's table: a function that the task comes through."""

    step: str
    function: str
    file: str
    takes: str
    gives: str


def stops(page: str) -> list[Stop]:
    """The rows of the page's table, in its order."""
    return [
        Stop(step=step, function=function, file=file, takes=takes, gives=gives)
        for step, function, file, takes, gives in ROW.findall(page)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle of the drawing, in its units."""

    left: float
    top: float
    width: float

    @property
    def middle(self) -> tuple[float, float]:
        """The middle of the rectangle."""
        return self.left + self.width / 2, self.top + HEIGHT / 2


def drawing(page: str) -> str:
    """The page's table as SVG."""
    found = stops(page)
    boxes = {name: Box(left=left, top=MARGIN + 28 + row * PITCH, width=w) for name, (left, row, w) in PLACES.items()}
    height = max(box.top for box in boxes.values()) + HEIGHT + MARGIN
    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PAPER} {height}" font-family="sans-serif">',
        HEAD,
        f'<rect width="{PAPER}" height="{height}" fill="#ffffff"/>',
        *_legend(),
        *(_box(boxes[stop.function], stop) for stop in found),
        *(_arrow(boxes, start, end, what) for start, end, what in ARROWS),
        "</svg>",
    ]
    return "\n".join(pieces) + "\n"


def _legend() -> list[str]:
    pieces, left = [], float(MARGIN)
    for name, _, color in PHASES:
        pieces.append(f'<rect x="{left:g}" y="14" width="16" height="16" fill="{color}" stroke="#666"/>')
        pieces.append(f'<text x="{left + 22:g}" y="27" font-size="15">{name}</text>')
        left += 50 + 8 * len(name)
    return pieces


def _box(box: Box, stop: Stop) -> str:
    color = next(color for _, last, color in PHASES if int(stop.step.rpartition("–")[2]) <= last)
    x, file = box.middle[0], stop.file.removeprefix("palaestra/")
    return (
        f'<rect x="{box.left:g}" y="{box.top:g}" width="{box.width:g}" height="{HEIGHT}" rx="5" fill="{color}" '
        'stroke="#666"/>'
        f'<text x="{x:g}" y="{box.top + 20:g}" font-size="15" text-anchor="middle">'
        f"{escape(stop.function)}</text>"
        f'<text x="{x:g}" y="{box.top + 38:g}" font-size="13" text-anchor="middle" fill="#555">'
        f"{stop.step} · {escape(file)}</text>"
    )


def _arrow(boxes: Mapping[str, Box], start: str, end: str, what: str) -> str:
    """A straight line between neighbors, with its label; two that go to and fro lie side by side."""
    one, other = boxes[start], boxes[end]
    pair = [(a, b) for a, b, _ in ARROWS if {a, b} == {start, end}]
    first, aside = pair[0] == (start, end), 9 if len(pair) > 1 else 0
    if one.top == other.top:
        y = one.middle[1] - (aside if first else -aside)
        x1, x2 = (one.left + one.width, other.left) if one.left < other.left else (one.left, other.left + other.width)
        label = f'x="{(x1 + x2) / 2:g}" y="{y + (-6 if first else 16):g}" text-anchor="middle"'
        return _line(x1, y, x2, y, label, what)
    x = min(one, other, key=lambda box: box.width).middle[0] - (aside if first else -aside)
    y1, y2 = (one.top + HEIGHT, other.top) if one.top < other.top else (one.top, other.top + HEIGHT)
    on_left = first and len(pair) > 1
    anchor, gap = ("end", -7) if on_left else ("start", 7)
    label = f'x="{x + gap:g}" y="{(y1 + y2) / 2 + 4:g}" text-anchor="{anchor}"'
    return _line(x, y1, x, y2, label, what)


def _line(x1: float, y1: float, x2: float, y2: float, label: str, what: str) -> str:
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#444" marker-end="url(#head)"/>'
        f'<text {label} font-size="14">{what}</text>'
    )
