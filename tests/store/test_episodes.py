"""What must hold for episodes as text:

(1) every field of any trajectory comes back: arrays in value, shape and type, numbers exactly;
(2) the text is plain JSON with what a person looks for in plain sight;
(3) equal trajectories are equal bytes;
(4) the log of a run keeps and forgets by iteration;
(5) a picture of a prompt names the step whose observation has its image;
(6) marks stand apart from info, and episodes that were written before there were marks come back.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from palaestra.data import (
    Action,
    Failure,
    FinishReason,
    Marks,
    NextPrompt,
    Observation,
    Step,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
)
from palaestra.data.trajectory import Picture
from palaestra.store.episodes import EpisodeLog, from_json, to_json
from palaestra.store.json_text import to_line

int32s = arrays.arrays(np.int32, st.integers(0, 4))
float32s = arrays.arrays(np.float32, st.integers(0, 4), elements=st.floats(width=32))
values = st.one_of(
    st.text(max_size=5), st.integers(), st.floats(), float32s, int32s, st.tuples(st.integers(), st.text())
)
values |= st.sampled_from([np.int64(3), np.float32(0.1), np.zeros((2, 0)), np.array(1.5), np.eye(2, dtype=bool)])
plain = st.dictionaries(
    st.text("ab", min_size=1), st.one_of(st.none(), st.booleans(), st.floats(), st.text()), max_size=2
)

images = arrays.arrays(np.uint8, (2, 1, 3))
places = st.integers(0, 9)
pictures = st.lists(
    st.builds(Picture, image=images, start=places, stop=places, count=places, inputs=st.none()), max_size=2
).map(tuple)
observations = st.builds(
    Observation,
    text=st.none() | st.text(),
    messages=st.none() | st.just([{"role": "user", "content": "hi"}]),
    vector=st.none() | float32s | arrays.arrays(np.float64, (2, 2)),
    image=st.none() | images,
    legal=st.none() | st.lists(st.text(max_size=3) | st.integers(), max_size=2) | st.just((1, 2)),
    state_key=st.none() | st.text(),
)
calls = st.lists(st.builds(ToolCall, name=st.text(), arguments=plain, id=st.text()), min_size=1, max_size=2) | st.just(
    ()
)
actions = st.builds(
    Action,
    text=st.none() | st.text(),
    value=st.none() | values,
    tool_calls=calls,
    tokens=int32s,
    logprobs=st.none() | float32s,
    entropy=st.none() | float32s,
    finish=st.sampled_from(FinishReason),
)
steps = st.builds(
    Step,
    agent=st.text(),
    turn=st.integers(0, 9),
    action=actions,
    observation=observations,
    reward=st.floats(),
    policy=st.text(),
    version=st.integers(0, 3),
    prompt=int32s,
    pictures=pictures,
    segment=st.integers(0, 2),
    marks=st.builds(
        Marks, row_weight=st.none() | st.just(0.0), pair=st.none() | st.floats(0, 9), node=st.none() | st.text()
    ),
    invocation=st.integers(0, 2),
    parent=st.none() | st.integers(0, 2),
    terminated=st.booleans(),
    truncated=st.booleans(),
    info=plain,
)
tasks = st.builds(
    Task,
    env=st.text(),
    seed=st.integers(),
    params=plain,
    key=st.none() | st.text(),
    split=st.sampled_from(["train", "eval"]),
    difficulty=st.none() | st.floats(),
)
trajectories = st.builds(
    Trajectory,
    task=tasks,
    group=st.text(),
    sample=st.integers(0, 5),
    steps=st.lists(steps, max_size=3),
    outcome=st.none() | st.floats(),
    returns=st.dictionaries(st.text(), st.floats(), max_size=2),
    stop=st.sampled_from(StopReason),
    error=st.none() | st.builds(Failure, boundary=st.text(), message=st.text(), kind=st.text()),
    last=st.dictionaries(st.text(), observations, max_size=1),
    next_prompts=st.dictionaries(st.text(), st.builds(NextPrompt, int32s, st.integers(0, 2), pictures), max_size=1),
    info=plain,
)


def same(a: Any, b: Any) -> bool:
    """Equal in type, and in every field, item and bit; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (a != a and b != b)


@settings(max_examples=200, deadline=None)
@given(trajectories)
def test_everything_comes_back(trajectory: Trajectory) -> None:  # rule 1
    line = to_line(to_json(trajectory), sort=False)
    strict = json.loads(line, parse_constant=lambda text: pytest.fail(text))
    assert same(from_json(strict), trajectory)


def example() -> Trajectory:
    step = Step(
        agent="solver",
        turn=0,
        observation=Observation(text="A door."),
        action=Action(text="open", tokens=np.array([5, 2], np.int32), logprobs=np.array([-0.1, -2.5], np.float32)),
        reward=1.0,
    )
    return Trajectory(task=Task(env="rooms", seed=3), group="g", steps=[step], outcome=1.0, returns={"solver": 1.0})


def test_pictures_name_their_images() -> None:  # rule 5
    image, other = np.full((2, 1, 3), 7, np.uint8), np.zeros((2, 1, 3), np.uint8)
    episode = example()
    first = episode.steps[0]
    shown = Picture(image=image, start=3, stop=5, count=2)
    seen = dataclasses.replace(first, observation=Observation(image=image), pictures=(shown,))
    again = dataclasses.replace(first, pictures=(shown.moved(4), shown._replace(image=other)))
    episode.steps = [first, seen, again]
    record = to_json(episode)
    assert record["steps"][1]["pictures"] == [{"start": 3, "stop": 5, "count": 2, "step": 1}]
    assert [sorted(one) for one in record["steps"][2]["pictures"]] == [
        ["count", "start", "step", "stop"],
        ["count", "image", "start", "stop"],
    ]
    read = from_json(json.loads(to_line(record, sort=False)))
    assert same(read, episode)


def test_a_person_can_read_it() -> None:  # rule 2
    record = json.loads(to_line(to_json(example()), sort=False))
    assert list(record) == ["task", "group", "sample", "outcome", "returns", "stop", "steps"]
    assert record["steps"][0] == {
        "agent": "solver",
        "turn": 0,
        "observation": {"text": "A door."},
        "action": {"text": "open", "finish": "choice", "tokens": [5, 2], "logprobs": [-0.1, -2.5]},
        "reward": 1.0,
    }


def test_equal_trajectories_are_equal_bytes() -> None:  # rule 3
    assert to_line(to_json(example())) == to_line(to_json(from_json(to_json(example()))))


def test_the_log_keeps_and_forgets(tmp_path: Path) -> None:  # rule 4
    log = EpisodeLog(tmp_path)
    assert log.read() == []
    for step in (0, 10, 20):
        log.append(step, "eval/rooms", [example(), example()])
    log.truncate(10)
    kept = log.read()
    assert [(step, name) for step, name, _ in kept] == [(0, "eval/rooms")] * 2 + [(10, "eval/rooms")] * 2
    assert same(kept[0][2], example())


def test_marks_and_info() -> None:  # rule 6
    step = Step(agent="a", turn=0, action=Action(), observation=Observation(), info={"weight": 70.0})
    step.mark(fresh=1.0, node="g/0:1")
    text = to_json(Trajectory(task=Task(env="e", seed=0), group="g", steps=[step]))
    assert text["steps"][0]["marks"] == {"fresh": 1.0, "node": "g/0:1"}
    assert text["steps"][0]["info"] == {"weight": 70.0}
    (back,) = from_json(text).steps
    assert back.marks == step.marks and back.info == step.info
    del text["steps"][0]["marks"]
    (old,) = from_json(text).steps
    assert old.marks == Marks() and old.info == step.info
