"""Packed episodes: (1) what was packed by an earlier version is unpacked under the present names."""

from __future__ import annotations

import json

from palaestra.data import Marks
from palaestra.replay.packing import KIND, unpack


def test_1_former_names() -> None:
    step = {KIND: "Marks", "weight": 0.0, "twin": 3.0}
    prompt = {KIND: "Tail", "ids": [1, 2], "segment": 1}
    task = {KIND: "Task", "env": "e", "seed": 0}
    text = json.dumps([step, {KIND: "Trajectory", "task": task, "group": "g", "tail": {"x": prompt}}])
    marks, trajectory = unpack({"text": text, "arrays": {}})
    assert marks == Marks(row_weight=0.0, pair=3.0)
    assert trajectory.next_prompts["x"].segment == 1 and trajectory.next_prompts["x"].ids == [1, 2]
