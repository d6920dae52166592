"""What a run builds: (1) the texts for a tokenizer call no function of the user that judges or answers, of the
environments `dataset` and `trl_class`; (2) the texts are the same as without such functions; (3) a trained policy
samples from the distribution whose log-probabilities training computes, and `top_k`, `top_p` and temperature 0 are
refused before the run, with the place where they are written; (4) they are fine where nothing is learned from: in
evaluations, for frozen roles, and for policies that are not trained or whose log-probabilities training does not
compute; (5) another temperature is fine.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from palaestra.errors import RecipeError
from palaestra.recipe import load
from palaestra.store.metrics import MetricsLog
from palaestra.training import setup
from palaestra.training.setup import build_setup, refuse_other_probabilities
from palaestra.training.start import train
from tests.extras import needs
from tests.messages import told

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


LANGUAGE = {"language": {"hidden": 32, "layers": 1, "heads": 2, "context": 64, "vocabulary": 300}}
HOT: dict[str, Any] = {
    "name": "hot",
    "environment": {"echo": {"turns": 1}},
    "policies": {"main": {"policy": LANGUAGE}},
    "agents": {"*": {"policy": "main", "context": "latest_only"}},
    "rollout": {"tasks": 4, "group": 4, "response_tokens": 3, "temperature": 1.4},
    "advantage": "grpo",
    "regularizers": [{"entropy": {"coefficient": 0.01}}],
    "training": {"iterations": 2},
    "evaluation": {"tasks": 2},
}


def start(folder: Path, *overrides: str, layer: Any = None) -> Path:
    made = load([HOT, layer or {}], [f"run={folder}", *overrides])
    train(made.settings, recipe=made.to_json(), quiet=True)
    return folder


@pytest.mark.parametrize("policy", ["language", "network", "adapter"])
@pytest.mark.parametrize(
    "override", ["rollout.top_k=20", "rollout.top_p=0.9", "rollout.temperature=0", "agents.*.top_k=5"]
)
def test_3_other_probabilities(tmp_path: Path, policy: str, override: str) -> None:
    layers: dict[str, Any] = {
        "language": {},
        "network": {"policies": {"main": {"policy": {"network": {"hidden": [8]}}}}},
        "adapter": {
            "policies": {
                "base": {"policy": LANGUAGE, "trainable": False},
                "main": {"policy": {"adapter": {"of": "base", "rank": 2}}},
            }
        },
    }
    with told(RecipeError, override.partition("=")[0]) as caught:
        start(tmp_path / "run", override, layer=layers[policy])
    assert caught.value.where.startswith("command line") and not (tmp_path / "run").exists()


def test_4_nothing_is_learned_from() -> None:
    cut = {"rollout": {"top_k": 20, "top_p": 0.9, "temperature": 0}}
    untrained = {"policies": {"main": {"policy": LANGUAGE, "trainable": False}}}
    for layers in ([HOT, untrained], [HOT, {"agents": {"*": {"frozen": True}}}], ["sac"]):
        made = load([*layers, cut])
        refuse_other_probabilities(made.settings, made.to_json())
    build_setup(load([HOT, cut]).settings).runner.close()  # as evaluations do


def test_5_temperature(tmp_path: Path) -> None:
    lines = MetricsLog(start(tmp_path / "run")).metrics.read()
    assert [line["updates"] > 0 and line["mismatch/kl"] < 1e-6 for line in lines] == [True, True]
