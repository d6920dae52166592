"""What must not stand together is refused, and the message says where, why and what to do: (1) every clash
that a part declares; (2) each choice by itself is fine, and so is the right order; (3) every part, option and setting
that is named exists.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from palaestra.errors import RecipeError
from palaestra.recipe import load
from palaestra.registry import SLOTS, STAGES, lookup
from palaestra.registry.clashes import PartPattern, SettingPattern
from palaestra.registry.options import Aggregation
from palaestra.registry.source_search import known_parts

BASE: dict[str, Any] = {
    "environment": "toolcalc",
    "policies": {"main": {"policy": "network"}},
    "rollout": {"runner": "vector"},
}
SUM = {"aggregate": {"how": "sequence-sum"}}
FINE: list[dict[str, Any]] = [
    {"advantage": "hapo"},
    {"advantage": {"hapo": {"average": "trajectory"}}, "aggregate": {"how": "sequence-mean"}},
    {"loss": "squared_objective", **SUM},
    {"loss": {"ppo_clip": {"ratio": "turn", "high_foreign": 0.5}}},
    {"loss": {"ppo_clip": {"ratio": "trajectory"}}},
    {"advantage": ["grpo", "whiten"]},
    {"advantage": "canon"},
    {"selection": ["constant_groups", "resample_on_correct"]},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"advantage": "hapo", "aggregate": {"how": "sequence-mean"}},
        """`hapo` does not go with `aggregate.how: sequence-mean`.
  Its advantages sum to 0 over a group's tokens; an average over a trajectory's own tokens would change that.

  Set aggregate.how=token-mean, or advantage.hapo.average=trajectory.""",
    ),
    (
        {"loss": "squared_objective"},
        """`squared_objective` does not go with `aggregate.how: token-mean`.
  It squares one number per trajectory, and this average would weigh trajectories by their lengths.

  Set aggregate.how=sequence-sum""",
    ),
    (
        {"loss": {"ppo_clip": {"ratio": "trajectory", "high_foreign": 0.5}}},
        "so its bound cannot differ between them",
    ),
    (
        {"advantage": ["canon", "whiten"]},
        """`canon` does not go with `whiten`.
  Dividing by a deviation removes the difference between the two halves of a group.""",
    ),
    (
        {"advantage": ["canon", {"grpo": {"scale": "std"}}]},
        """`canon` does not go with `grpo`.
  Dividing by a deviation removes""",
    ),
    (
        {"selection": ["resample_on_correct", "constant_groups"]},
        """`resample_on_correct` does not go with `constant_groups` after it.
  Both choose trajectories of a group, and after resampling a group is more uniform than it was.

  Drop groups first, then resample: write `resample_on_correct` once, and last.""",
    ),
    (
        {"selection": ["resample_on_correct", "resample_on_correct"]},
        "`resample_on_correct` does not go with `resample_on_correct` after it.",
    ),
]


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own registry, in place of the tiny one of this room."""
    slots = known_parts()
    monkeypatch.setattr(lookup, "index", lambda: {slot: slots.get(slot, {}) for slot in SLOTS})
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("layer", "words"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_refused(layer: dict[str, Any], words: str) -> None:  # rule 1
    with pytest.raises(RecipeError) as caught:
        load([BASE, layer])
    assert words in str(caught.value)


def test_the_place_is_the_later_choice(tmp_path: Path) -> None:  # rule 1
    file = tmp_path / "a.yaml"
    file.write_text("advantage: hapo\naggregate:\n  how: sequence-mean\n")
    with pytest.raises(RecipeError, match=r"^a.yaml:3  how: sequence-mean"):
        load([BASE, "a.yaml"])
    file.write_text("loss: squared_objective\n")
    with pytest.raises(RecipeError, match=r"^a.yaml:1  loss: squared_objective"):
        load([BASE, "a.yaml"])


@pytest.mark.parametrize("layer", FINE, ids=[str(n) for n in range(len(FINE))])
def test_fine(layer: dict[str, Any]) -> None:  # rule 2
    load([BASE, layer])


def test_they_name_what_exists() -> None:  # rule 3
    parts = [lookup.part(slot, name) for slot in STAGES | {"loss"} for name in known_parts()[slot]]
    found = [clash for part in parts for clash in part.clashes]
    assert len(found) >= len(REFUSED) - 1
    for choice in (clash.other for clash in found):
        if isinstance(choice, SettingPattern):
            assert choice.key == "aggregate.how" and set(choice.values) <= set(get_args(Aggregation))
        elif isinstance(choice, PartPattern):
            for name in choice.names or ("grpo",):
                assert set(choice.options) <= set(lookup.part(choice.slot, name).options.model_fields)
