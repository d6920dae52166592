"""What a run builds: (1) the texts for a tokenizer call no function of the user that judges or answers, of the
environments `dataset` and `trl_class`; (2) the texts are the same as without such functions.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from palaestra.recipe import load
from palaestra.training import setup
from tests.extras import needs

transcripts = getattr(setup.transcripts, "__wrapped__", setup.transcripts)
OWN = '''
from pathlib import Path

def noted(name):
    with Path(__file__).with_name("calls.txt").open("a") as file:
        file.write(name + "\\n")

def correct(completion, answer):
    noted("correct")
    return float(completion == answer)

def reply(messages):
    noted("reply")
    return "more"

def judged(completions, **columns):
    noted("judged")
    return [1.0 for _ in completions]

def solve(world):
    return "done"

class World:
    def reset(self, **columns) -> str:
        return "begin"

    def look(self) -> str:
        """Look around."""
        return "a door"
'''


def texts(tmp_path: Path, environment: dict[str, Any]) -> list[str]:
    settings = load([{"environment": environment, "policies": {"main": {"policy": "language"}}}]).settings
    make = functools.partial(settings.environment.part.target, **settings.environment.options)
    return list(transcripts(settings, make, make()))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    rows = [{"prompt": f"{n} + {n}?", "answer": str(2 * n)} for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_1_and_2_dataset(own: Path) -> None:
    plain = {"path": f"{own}/rows.jsonl"}
    found = texts(own, {"dataset": {**plain, "reward": f"{own}/own.py:correct"}})
    assert not (own / "calls.txt").exists() and "3 + 3?" in found and "6" in found
    assert found == texts(own, {"dataset": plain})
    texts(own, {"dataset": {**plain, "respond": f"{own}/own.py:reply", "max_turns": 3}})
    assert not (own / "calls.txt").exists()


@needs("trl")
def test_1_trl_class(own: Path) -> None:
    options = {"env": f"{own}/own.py:World", "reward": f"{own}/own.py:judged", "expert": f"{own}/own.py:solve"}
    found = texts(own, {"trl_class": options})
    assert "done" in found and not (own / "calls.txt").exists()
