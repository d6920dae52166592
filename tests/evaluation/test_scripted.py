"""What must hold of scripted play and of the hash over episodes:

1. The same seed gives the same 50 episodes as on the day the panel was committed, in this process as in any other.
2. The hash tells episodes apart: another action, reward, observation, end or order of tasks changes it; the order in
   which episodes arrive does not.
3. A failed episode has no hash; the first message is told.
4. The expert plays the expert's acts, random play legal ones.
5. A committed hash that no longer holds is refused with what to look for.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from palaestra.data import Action, Failure, Observation, Step, StopReason, Task, Trajectory
from palaestra.envs.kit.panels import panels
from palaestra.envs.probes.toolcalc import ToolCalc
from palaestra.errors import InvalidData
from palaestra.evaluation.scripted import episodes_hash, play_scripted, verify_played
from palaestra.rollout.settings import RolloutSettings
from tests.messages import told

ELSEWHERE = {"miniwob", "scienceworld"}  # real browsers and Java: their own tests play them again
SLOW = {"prover", "code", "puzzles", "craft", "travel"}  # each takes seconds
PLAYED = sorted(name for name, entry in panels().items() if entry.played and entry.environment not in ELSEWHERE)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if panels()[name].environment in SLOW else name for name in PLAYED],
)
def test_1_the_same_seed_gives_the_same_episodes(name):
    assert verify_played(name).played


def test_1_there_are_such_panels():
    assert "toolcalc" in PLAYED


def episode(*, text="a", value="x", reward=1.0, stop=StopReason.COMPLETED, group="0"):
    step = Step(agent="p", turn=0, action=Action(value=value), observation=Observation(text=text), reward=reward)
    return Trajectory(task=Task(env="e", seed=0), group=group, sample=0, steps=[step], stop=stop)


def test_2_the_hash_tells_episodes_apart():
    other = [episode(text="b"), episode(value="y"), episode(reward=0.5), episode(stop=StopReason.MAX_TURNS)]
    hashes = {episodes_hash([one]) for one in [episode(), *other]}
    assert len(hashes) == 5


def test_2_arrival_makes_no_difference():
    first, second = episode(group="0"), episode(group="1", text="b")
    assert episodes_hash([first, second]) == episodes_hash([second, first])
    swapped = [replace(first, group="1"), replace(second, group="0")]
    assert episodes_hash([first, second]) != episodes_hash(swapped)


def test_3_a_failed_episode_has_no_hash():
    failed = episode()
    failed.error = Failure(boundary="environment", message="the disk is full", kind="OSError")
    with pytest.raises(InvalidData, match="the disk is full"):
        episodes_hash([failed])


def test_4_who_plays():
    tasks = ToolCalc().tasks("eval", 20, 0)
    expert = play_scripted("toolcalc", {"failure": 0.0}, "expert", tasks)
    random = play_scripted("toolcalc", {}, "random", tasks, settings=RolloutSettings(max_turns=3))
    assert all(one.outcome == 1.0 for one in expert)
    assert all(len(one.steps) <= 3 for one in random) and not any(
        s.info.get("invalid") for t in random for s in t.steps
    )


def test_5_a_changed_world_is_refused(monkeypatch):
    entry = replace(panels()["toolcalc"], played="0" * 16)
    monkeypatch.setitem(panels(), "toolcalc", entry)
    with told(InvalidData, "hash") as caught:
        verify_played("toolcalc")
    assert "global generators" in caught.value.remedy
