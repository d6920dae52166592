"""What must hold of evaluation panels:

1. Every committed panel is made again with both of its hashes, has its size, and shares no task with training.
2. A panel is refused if its tasks have changed, or if only their first observations have. The error has both hashes.
3. An empty panel is refused, and so is one with fewer tasks than are asked for.
4. An unknown panel is refused with the nearest names.
5. `panel_for` finds the panel of an environment by the options that make its tasks, whatever the other options are.
6. `evaluation_tasks` gives the first n tasks of a panel, or of the environment's split "eval".
7. Seeds of training are even, and all others are odd.
8. Tasks that are drawn by content: splits share no content, lists of evaluations repeat none, a longer list begins with
   the shorter one, and the error of a split with too few contents says how many it has.
9. A panel stores the share of its tasks whose content is in training. Measuring it again gives the same share.
10. The error for a panel that was replaced names the new one.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from palaestra.data import Observation, StepResult
from palaestra.data.task import content_digest
from palaestra.envs.kit.panels import (
    Panel,
    evaluation_tasks,
    measure,
    panel,
    panel_for,
    panels,
    part_of,
    seeded_tasks,
    shared,
    verified,
    with_overlap,
)
from palaestra.envs.probes.rooms import Rooms
from palaestra.errors import InvalidData, UnknownName
from palaestra.registry import part
from tests.messages import told

SIZES = {
    "babyai-GoToObj": 512,
    "babyai-GoToLocalS6N2": 512,
    "babyai-GoToLocalS6N4": 512,
    "babyai-GoToLocal": 512,
    "rooms": 256,
    "codefix": 256,
    "counting": 256,
    "phrase": 256,
    "openspiel-tic_tac_toe-random": 256,
    "openspiel-kuhn_poker-random": 2048,
    "textarena-TicTacToe-random": 256,
    "textarena-Nim-expert": 256,
    "textarena-FrozenLake": 256,
    "textarena-Mastermind": 256,
    "reasoning_gym-chain_sum": 256,
    "reasoning_gym-levels": 256,
    "reasoning_gym-rotate_matrix": 256,
    "secrets-pool": 256,
    "navdist": 256,
    "hopsearch": 256,
    "twenty_questions": 256,
    "relay": 256,
    "signals": 256,
    "teambuilding": 256,
    "flow": 256,
    "toolcalc": 256,
    "uiform": 256,
    "tool_tasks": 256,
    "desk": 256,
    "webforms": 256,
    "craft": 256,
    "prover-2": 256,
    "puzzles-2": 256,
    "rasters-3": 256,
    "clinic-2": 256,
    "searchqa": 256,
    "memory_dialogue": 256,
    "shop": 256,
    "travel": 256,
    "household": 256,
    "code-2": 256,
    "pettingzoo-spread": 256,
    "pettingzoo-tictactoe": 256,
}
SLOW = {"prover-2", "code-2", "puzzles-2"}


def toy(word="text"):
    return SimpleNamespace(
        tasks=lambda split, n, seed: seeded_tasks("toy", {}, split, n, seed),
        reset=lambda task: StepResult(observations={"a": Observation(text=f"{word} {task.seed}")}),
    )


ENTRY = measure(Panel(environment="toy", options={}, n=4), toy())


def test_all_panels_are_known():
    assert set(panels()) == set(SIZES)


@pytest.mark.parametrize(
    "name", [name if name not in SLOW else pytest.param(name, marks=pytest.mark.slow) for name in SIZES]
)
def test_committed_panels(name):  # rule 1
    tasks, entry = panel(name)
    assert len(tasks) == SIZES[name] == entry.n
    hashes = {task.content_hash for task in tasks}
    assert len(hashes) == len(tasks)
    env = part("environment", entry.environment).target(**entry.options)
    assert not hashes & {task.content_hash for task in env.tasks("train", 500, 20_000)}


def test_an_unchanged_panel_passes():
    assert len(verified("toy", ENTRY, toy())) == 4


def test_other_tasks_are_refused():  # rule 2
    with told(InvalidData, "its tasks") as caught:
        verified("toy", replace(ENTRY, seed=1), toy())
    assert ENTRY.hash in caught.value.what


def test_other_observations_are_refused():  # rule 2
    with told(InvalidData, "first observations") as caught:
        verified("toy", ENTRY, toy("other"))
    assert ENTRY.first in caught.value.what


def test_empty_panels_are_refused():  # rule 3
    with pytest.raises(InvalidData, match="the panel is empty: 0 tasks"):
        verified("toy", replace(ENTRY, n=0), toy())
    with pytest.raises(InvalidData, match="none came"):
        evaluation_tasks(SimpleNamespace(tasks=lambda split, n, seed: []), 8)
    with pytest.raises(InvalidData, match="the panel is empty"):
        evaluation_tasks(toy(), 0)


@pytest.mark.parametrize("n", [0, 257])
def test_panels_do_not_grow(n):  # rule 3
    with pytest.raises(InvalidData, match="between 1 and 256"):
        evaluation_tasks(Rooms(), n, name="rooms")


def test_unknown_panels_are_refused():  # rule 4
    with pytest.raises(UnknownName) as caught:
        panel("room")
    assert "rooms" in caught.value.options


@pytest.mark.parametrize(
    ("environment", "options", "name"),
    [
        ("rooms", {}, "rooms"),
        ("rooms", {"show_actions": True}, "rooms"),
        ("rooms", {"rooms": 9}, None),
        ("rooms", {"mazes": 8}, None),
        ("babyai", {}, "babyai-GoToLocal"),
        ("babyai", {"level": "GoToLocalS6N4", "max_turns": 12}, "babyai-GoToLocalS6N4"),
        ("babyai", {"level": "GoToObj", "max_turns": 16}, "babyai-GoToObj"),
        ("babyai", {"level": "GoToDoor"}, None),
        ("phrase", {"words_min": 3}, "phrase"),
        ("hopsearch", {"max_turns": 12}, "hopsearch"),
        ("hopsearch", {"hops": [2, 2]}, None),
    ],
)
def test_panels_are_found_by_options(environment, options, name):  # rule 5
    assert panel_for(environment, options) == name


def test_tasks_of_an_evaluation():  # rule 6
    env = Rooms()
    whole, _ = panel("rooms")
    assert evaluation_tasks(env, 40, name="rooms") == whole[:40]
    assert evaluation_tasks(env, 40) == evaluation_tasks(env, 100)[:40]
    assert {task.split for task in evaluation_tasks(env, 40)} == {"eval"}


def drawn(split, n, seed=0, *, different=40):
    return seeded_tasks("toy", {}, split, n, seed, content=lambda task: task.seed // 2 % different)


def test_contents_tell_the_split():  # rule 8
    lists = {split: drawn(split, 200 if split == "train" else 5) for split in ("train", "eval", "test", "play")}
    hashes = {split: {task.content_hash for task in tasks} for split, tasks in lists.items()}
    assert not hashes["train"] & hashes["eval"] and not (hashes["train"] | hashes["eval"]) & hashes["test"]
    assert len(hashes["eval"]) == len(hashes["test"]) == len(hashes["play"]) == 5
    assert len(hashes["train"]) == len({task.content for task in lists["train"]}) < 40
    for split, tasks in lists.items():
        assert {task.split for task in tasks} == {split} and drawn(split, len(tasks) - 2) == tasks[:-2]
        assert {part_of(task.content) for task in tasks} == {split if split in ("train", "eval") else "other"}
        assert {task.seed % 2 for task in tasks} == {int(split != "train")}
    whole = {content_digest("toy", number) for number in range(40)}
    assert hashes["train"] == {digest for digest in whole if part_of(digest) == "train"}


def test_equal_contents_are_equal_tasks():  # rule 8
    tasks = drawn("train", 200)
    one, other, *_ = (task for task in tasks if task.content == tasks[0].content)
    assert one.seed != other.seed and one.content_hash == other.content_hash


def test_too_few_contents_are_refused():  # rule 8
    count = len({d for n in range(40) if part_of(d := content_digest("toy", n)) == "eval"})
    assert len(drawn("eval", count)) == count
    with pytest.raises(InvalidData, match=f"only {count} different problems were found") as caught:
        drawn("eval", count + 1)
    assert caught.value.where == "environment toy, split eval" and f"at most {count} tasks" in caught.value.remedy
    with pytest.raises(InvalidData, match="only 0 different problems"):
        drawn("eval" if part_of(content_digest("toy", 0)) == "train" else "train", 1, different=1)


@pytest.mark.parametrize("name", ["twenty_questions", "teambuilding", "toolcalc", "uiform", "rasters-3"])
def test_overlaps_are_stored(name):  # rule 9
    entry = panels()[name]
    env = part("environment", entry.environment).target(**entry.options)
    tasks = env.tasks(entry.split, entry.n, entry.seed)
    assert with_overlap(replace(entry, overlap=None), env, tasks).overlap == entry.overlap
    assert entry.overlap is not None and (entry.overlap > 0) == (
        name in ("twenty_questions", "teambuilding", "toolcalc")
    )


def test_overlaps_of_unknown_contents_are_unknown():  # rule 9
    assert with_overlap(ENTRY, toy(), toy().tasks("eval", 4, 0)).overlap is None
    assert shared(toy(), [], []) == 0 and shared(toy(), toy().tasks("eval", 1, 0), []) is None


def test_replaced_panels_name_the_new_one():  # rule 10
    with pytest.raises(UnknownName, match="`code` is replaced by `code-2`") as caught:
        panel("code")
    assert list(caught.value.options) == ["code-2"]
    with pytest.raises(UnknownName, match="`rasters-2` is replaced by `rasters-3`: its images"):
        panel("rasters-2")


def test_seeds_tell_the_split():  # rule 7
    for split in ("train", "eval", "test"):
        odd = {task.seed % 2 for task in seeded_tasks("toy", {}, split, 200, 0)}
        assert odd == {0 if split == "train" else 1}
    other = {task.seed for task in seeded_tasks("toy", {}, "train", 200, 1)}
    assert not other & {task.seed for task in seeded_tasks("toy", {}, "train", 200, 0)}
