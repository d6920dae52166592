"""Rules of the reward for actions on a screen.

1. `gui_action`: the parts by type, their weights, the judge's share; with a wrong type the argument earns nothing.
2. With weight 0 and keep 1 the reward does not change, bit for bit; judge 0 is the rules alone.
3. An episode earns the mean of its actions, so that acting more often does not pay; padding earns 0.
4. Actions that cannot be compared are refused, with their place.
5. In UIForm the expert's actions earn 1.
"""

from __future__ import annotations

import math

import pytest
import torch

from palaestra.data import Action, Observation, Step, StepTable, Task, Trajectory, rows_of
from palaestra.data.iteration import Iteration
from palaestra.envs.probes.uiform import UIForm
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.estimators import grpo
from palaestra.systems.craft_gui.gui_action import edited, f1, gui_action

BOX = [100, 100, 300, 200]
CLICK = {"type": "click", "box": BOX}
INSIDE, OUTSIDE = {"type": "click", "point": [150, 120]}, {"type": "click", "point": [10, 10]}


def episode(steps, sample=0, reward=0.0):
    made = [
        Step(agent="x", turn=turn, action=Action(value=0), observation=Observation(text=""), reward=reward, info=info)
        for turn, info in enumerate(steps)
    ]
    return Trajectory(task=Task(env="screen", seed=0), group="g", sample=sample, steps=made, outcome=0.0)


def judged(trajectories, weight=None, **options):
    table = StepTable.from_trajectories(trajectories)
    if weight is not None:
        table = table.replace(row_weight=torch.tensor(weight))
    seen = Iteration({}, 0, seed=0, temperature=1.0, token_budget=64, rows=rows_of(trajectories))
    return gui_action(table, seen, **options), seen.metrics, table


def worth(gesture, *references, score=None, **options):
    info = {"references": list(references) or [CLICK]} | ({} if gesture is None else {"gesture": gesture})
    found, _, _ = judged([episode([info | ({} if score is None else {"judge": score})])], per="step", **options)
    return round(float(found["reward"][0]), 4)


def test_parts_and_weights():  # rule 1
    assert worth(OUTSIDE) == 0.4  # form and type right
    assert worth({"type": "scroll", "direction": "up"}) == 0.1
    assert worth(INSIDE) == 1.0
    assert worth(None) == 0.0
    assert worth({"type": "finish"}, {"type": "finish"}) == 1.0
    assert worth(OUTSIDE, format=0.0, type=0.5, argument=0.5) == 0.5
    assert worth(INSIDE, {"type": "finish"}, {"type": "click", "box": [0, 0, 20, 20]}, CLICK) == 1.0


def test_arguments_by_type():  # rule 1
    down, up = ({"type": "scroll", "direction": way} for way in ("down", "up"))
    assert [worth(down, down), worth(down, up)] == [1.0, 0.4]
    said, right = {"type": "type", "text": "new york"}, {"type": "type", "text": "New York city"}
    assert worth(said, right) == round(0.4 + 0.6 * 0.8, 4)
    assert worth(said, right, text="edit") == 1.0
    assert worth({"type": "type", "text": "rome"}, right, text="edit") == 0.4
    half = {"type": "click", "point": [200 + 140, 150]}
    assert worth(half, click="distance") == round(0.4 + 0.6 * 0.5, 4)
    assert worth({"type": "click", "point": [200, 150]}, click="distance") == 1.0
    assert worth({"type": "click", "point": [341, 150]}, click="distance") == 0.4
    near = {"type": "click", "point": [200, 185]}
    assert worth(near, click="distance") == round(0.4 + 0.6 * math.exp(-math.log(2) / 4), 4)
    assert [f1("a b", "b c"), f1("", ""), f1("a", "")] == [0.5, 1.0, 0.0]
    assert [edited("kitten", "sitting"), edited("ab", "ac"), edited("abc", "xyz"), edited("", "")] == [1, 1, 0, 1]


def test_the_judge():  # rule 1
    answer = {"type": "answer", "text": "blue"}
    assert worth(answer, {"type": "answer"}, score=0.5) == 0.7
    assert worth(answer, {"type": "finish"}, score=0.5) == 0.1
    assert worth(OUTSIDE, score=0.8) == 0.4, "share 0: rules alone"
    found, _, _ = judged([episode([{"references": [CLICK], "gesture": OUTSIDE, "mine": 0.8}])], per="step",
                         judge=0.25, score="mine")  # fmt: skip
    assert round(float(found["reward"][0]), 4) == round(0.75 * 0.4 + 0.25 * 0.8, 4)


def test_neutral_settings():  # rule 2
    steps = [{"references": [CLICK], "gesture": one} for one in (INSIDE, OUTSIDE, INSIDE)]
    episodes = [episode(steps, sample, reward=reward) for sample, reward in enumerate((0.3, 0.1, 0.7))]
    table = StepTable.from_trajectories(episodes)
    seen = Iteration({}, 0, seed=0, temperature=1.0, token_budget=64, rows=rows_of(episodes))
    neutral = gui_action(table, seen, weight=0.0, keep=1.0)["reward"]
    assert not torch.equal(gui_action(table, seen, keep=1.0)["reward"], table["reward"])
    assert torch.equal(neutral, table["reward"])
    assert torch.equal(grpo(table.replace(reward=neutral)), grpo(table))
    rules = gui_action(table, seen, per="step")["reward"]
    assert torch.equal(rules, gui_action(table, seen, per="step", judge=0.0, score="nobody")["reward"])


def test_an_episode_is_worth_its_mean():  # rule 3
    short = episode([{"references": [CLICK], "gesture": INSIDE}] * 2, 0)
    long = episode([{"references": [CLICK], "gesture": INSIDE}] * 3 + [{"references": [CLICK]}], 1)
    found, metrics, _ = judged([short, long])
    assert found["reward"].tolist() == pytest.approx([0.5, 0.5, 0.25, 0.25, 0.25, 0.0])
    assert found["gui_action"].tolist() == pytest.approx([1, 1, 1, 1, 1, 0])
    assert metrics == {"gui/format": pytest.approx(5 / 6), "gui/type": pytest.approx(5 / 6),
                       "gui/argument": pytest.approx(5 / 6)}  # fmt: skip
    found, _, _ = judged([short, long], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0], keep=1.0)
    assert found["reward"].tolist() == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.0, 0.0])
    other, _, _ = judged([long, short])
    assert torch.equal(other["gui_action"], judged([short, long])[0]["gui_action"])


def test_bad_actions_are_refused():  # rule 4
    with pytest.raises(RecipeError, match=r"format 0.1, type 0.3 and argument 0.5 sum to 0.9"):
        worth(INSIDE, format=0.1, type=0.3, argument=0.5)
    with pytest.raises(InvalidData, match="`drag` is not a known type of action") as caught:
        worth({"type": "drag"})
    assert "click" in caught.value.options and "trajectory g/0, turn 0" in caught.value.where
    with pytest.raises(InvalidData, match="`drag` is not a known type"):
        worth(INSIDE, {"type": "drag"})
    with pytest.raises(InvalidData, match=r"the box \[300, 100, 100, 200\] ends before it begins"):
        worth(INSIDE, {"type": "click", "box": [300, 100, 100, 200]})
    with pytest.raises(InvalidData, match="no reference"):
        judged([episode([{"gesture": INSIDE}])])
    with pytest.raises(InvalidData, match=r"the judge's score `judge` is 1\.5"):
        judged([episode([{"gesture": INSIDE, "references": [CLICK], "judge": 1.5}])], judge=0.5)
    with pytest.raises(MissingColumn, match="judge"):
        judged([episode([{"gesture": INSIDE, "references": [CLICK]}])], judge=0.5)


def test_experts_of_forms_are_right():  # rule 5
    env = UIForm()
    for task in env.tasks("train", 10, 0):
        result, infos = env.reset(task), []
        while result.observations:
            result = env.step({"user": env.expert("user")})
            infos.append({name: result.info[name]["user"] for name in ("gesture", "references")})
        found, _, _ = judged([episode(infos)])
        assert float(found["reward"].sum()) == pytest.approx(1.0)
