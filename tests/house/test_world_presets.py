"""Presets for chat models: (1) every built-in environment has `recipes/worlds/NAME-chat.yaml`, or a reason why not; (2)
every such file extends chat.yaml, has its own name, and plays the environment after which it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from palaestra.registry import index
from tests.house.source_text import document, recipes

PRESETS = {path.stem.removesuffix("-chat"): path for path in recipes("worlds") if path.stem.endswith("-chat")}
BUILT_IN = {name for name, place in index()["environment"].items() if place.startswith("palaestra.envs.")}

WITHOUT_PRESET: Mapping[str, str] = {  # may only shrink
    "alignment": "its reward counts one word, to show how a policy exploits a reward",
    "dataset": "the questions are a file of one's own; models/smollm2-words.yaml trains a chat model on one",
    "flow": "four modules with texts for small policies",
    "hopsearch": "a small `searchqa`",
    "lengths": "shows one property of losses, with two words",
    "openenv": "an adapter: what it plays is a file or a server of one's own",
    "phrase": "`rooms` with longer actions, which show the credit of single words",
    "sums": "shows one property of samplers and judges, with digits alone",
    "toolcalc": "a small `tool_tasks`",
    "trl_class": "an adapter: what it plays is a file of one's own",
    "twenty_questions": "its few objects are the same in every split, so nothing is held out",
    "uiform": "a small `webforms`",
    "verifiers": "an adapter: what it plays is a package of one's own",
}


def without(presets: set[str]) -> set[str]:
    """Rule 1: built-in environments that have neither a preset nor a reason."""
    return BUILT_IN - presets - {*WITHOUT_PRESET}


def test_1_every_environment_has_a_preset() -> None:
    assert not without({*PRESETS})
    assert {*WITHOUT_PRESET} <= BUILT_IN - {*PRESETS}, "take them off the list"


def test_1_the_rule_can_fail() -> None:
    assert without({*PRESETS} - {"signals"}) == {"signals"}


@pytest.mark.parametrize("name", PRESETS)
def test_2_a_preset_is_of_its_environment(name: str) -> None:
    path: Path = PRESETS[name]
    preset = document(path)
    assert preset["extends"] == "chat.yaml" and preset["name"] == path.stem
    assert [*preset["environment"]] == [name]
