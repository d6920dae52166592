"""Malformed calls of tools and hostile observations in runs: (1) a run with them ends with status 0, says no traceback,
loses no episode, and learns; nothing that it wrote or prints has a control character; (2) reading calls never raises,
in any format; (3) `play` and the report of a run show such texts without control characters and without markup.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from palaestra.boundary.cleaning import clean_text
from palaestra.tools.calculator import calculator
from palaestra.tools.formats import FORMATS
from tests.attack import hostile
from tests.attack.programs import Program
from tests.attack.promises import Trials, promise
from tests.commands.conftest import TINY

OWN = str(Path(hostile.__file__).resolve())
CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
FORMS = (*FORMATS, "native")
TASKS, GROUP, TURNS = 8, 2, 5
PER_ITERATION = TASKS * GROUP * TURNS * 2  # at least: in each turn an observation, and a call that answers it
LIVE = promise(
    "No text of an agent, a tool or an environment ends a run or loses an episode",
    how="malformed calls and hostile observations, some of 10 MB, through `palaestra train`: status 0, all episodes "
    "over, no traceback",
    subject="texts",
)
READING = promise("Reading a call of a tool never raises", how="fuzzed texts, in each format", subject="texts")
SHOWN = promise(
    "No such text moves the cursor of a terminal or becomes a part of a page",
    how="the output of `train` and `play`, and the report of a run with hostile texts",
    subject="texts",
)


def recipe(log: str, form: str, iterations: int, huge: int) -> dict[str, Any]:
    """A language policy learns beside a policy that writes malformed calls of its tools."""
    written = {"native": True} if form == "native" else {"format": form}
    return {
        "name": "hostile",
        "seed": 1,
        "environment": {f"{OWN}:Hostile": {"turns": TURNS, "huge": huge}},
        "agents": {
            "writer": {
                "policy": "writer",
                "tools": {"use": ["calculator", f"{OWN}:repeat"], "rounds": 2, "max_chars": 500, **written},
            },
            "learner": {"policy": "main", "context": "latest_only"},
        },
        "policies": {
            "main": {"policy": {"language": TINY["language"] | {"context": 2048}}},
            "writer": {"policy": {f"{OWN}:Writer": {"log": log, "huge": huge}}, "trainable": False},
        },
        "rollout": {"tasks": TASKS, "group": GROUP, "max_turns": TURNS, "response_tokens": 3},
        "advantage": {"grpo": {}},
        "optimizer": {"adamw": {"lr": 0.001}},
        "training": {"iterations": iterations, "threads": 1},
        "evaluation": {"tasks": 4},
    }


def live(folder: Path, trials: Trials, form: str, messages: int, huge: int) -> Program:
    """Train until there were so many messages, and look at what is left."""
    iterations = max(1, -(-messages // PER_ITERATION))
    log = folder / "count"
    (folder / "recipe.yaml").write_text(json.dumps(recipe(str(log), form, iterations, huge)))
    program = Program(folder)
    program.end(program.start("train", "recipe.yaml", "run=run", "--trust", f"seed={trials.seed}"))
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == iterations and all(line["rollout/finished"] == TASKS * GROUP for line in lines)
    assert not any(line.get("episodes/failed") for line in lines) and lines[-1]["updates"] > 0
    for name in ("metrics.jsonl", "evaluations.jsonl", "trajectories.jsonl"):
        file = folder / "run" / name
        if file.exists():
            assert not any(CONTROL.search(text) for text in texts(file)), name
    trials.add(len(log.read_bytes()))
    return program


def texts(file: Path) -> list[str]:
    """All texts in a file of JSON lines."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        for part in (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(part)

    for line in file.read_text(encoding="utf-8").split("\n")[:-1]:  # other line ends are text
        walk(json.loads(line))
    return found


@LIVE
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=() if form == "json" else pytest.mark.slow) for form in FORMS]
)
def test_1_live(form: str, tmp_path: Path, trials: Trials, messages: int) -> None:
    share = trials.number(few=1, many=-(-messages // len(FORMS)))
    live(tmp_path, trials, form, share, huge=trials.number(few=0, many=400))


@READING
@pytest.mark.parametrize("form", FORMATS)
def test_2_reading(form: str, trials: Trials) -> None:
    draw, tools = random.Random(trials.seed), {one.name: one for one in (calculator(), hostile.repeat)}
    for _ in range(trials.number(few=100, many=1000)):
        parsed = FORMATS[form].parse(hostile.message(draw), tools)
        assert parsed.calls or parsed.fault or isinstance(parsed.said, str)
        trials.add()


@SHOWN
def test_3_shown(tmp_path: Path, trials: Trials) -> None:
    program = live(tmp_path, Trials(note=lambda name, value: None, many=False, seed=trials.seed), "json", 1, huge=0)
    assert not CONTROL.search(program.said())
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in report and not CONTROL.search(report)
    trials.add()
    program.end(program.start("play", "recipe.yaml", "--trust"))
    assert "say" in program.said() or len(program.said()) > 200
    assert not CONTROL.search(program.said())
    trials.add()


def test_the_texts_are_hostile() -> None:
    draw = random.Random(3)
    made = [hostile.message(draw) for _ in range(300)]
    assert len({*made}) > 250 and sum(clean_text(text) != text for text in made) > 30
    assert sum(bool(FORMATS["json"].parse(text, {}).fault) for text in made) > 30
