"""What must hold of the building blocks of environments:

1. A state can be restored any number of times. Before `reset` there is none, and the error says so.
2. A snapshot of a frozen state is the state itself. Any other state is copied, so that later steps change no snapshot.
3. Results: an agent that has ended or is cut off gets no next observation. One that is cut off has it in `last`. Of
   both, the end counts.
4. The entries of an act belong to its agent. An unreadable act is marked.
5. A choice is read by text or by index. Nothing else is a choice.
6. Bad options are refused with one message that names the option, its values and a remedy. Good options pass.
7. Renamed words are read back as the plain ones. The plain form of a renamed word means nothing. Drawn names are
   all different.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.kit.choices import choice, read_choice, read_index
from palaestra.envs.kit.refusals import Refusals
from palaestra.envs.kit.results import act_info, several, single
from palaestra.envs.kit.state import KeepsState, kept
from palaestra.envs.kit.words import Vocabulary, drawn_names
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment

SEEN = Observation(text="a door")
WAYS = ("go north", "go south")


@dataclass(frozen=True)
class Place:
    """The state of a walk."""

    seed: int
    rooms: tuple[str, ...] = ()


@dataclass
class Diary:
    """The same state, which steps change in place."""

    seed: int
    rooms: list[str] = field(default_factory=list)


class Walk(KeepsState[Any]):
    """Three steps north or south."""

    agents = ("walker",)
    abilities = ("snapshot",)

    def __init__(self, kind: type = Place) -> None:
        self.kind = kind

    def reset(self, task: Task) -> StepResult:
        self.state = self.kind(task.seed)
        return single("walker", self._observe())

    def step(self, actions: dict[str, Action]) -> StepResult:
        way = read_choice(actions["walker"].value, WAYS) or "stay"
        if isinstance(self.state, Diary):
            self.state.rooms.append(way)
        else:
            self.state = replace(self.state, rooms=(*self.state.rooms, way))
        cut = len(self.state.rooms) == 3
        return single("walker", self._observe(), cut=cut, readable=way != "stay", info={"success": False})

    def _observe(self) -> Observation:
        text = f"{self.state.seed}: {' '.join(self.state.rooms)}"
        return Observation(text=text, legal=list(WAYS), state_key=text)


@pytest.mark.parametrize("kind", [Place, Diary])
def test_a_state_is_put_back(kind: type) -> None:  # rules 1 and 2
    check_environment(Walk(kind), make=lambda: Walk(kind))


def test_there_is_no_state_before_a_task() -> None:  # rule 1
    env = Walk()
    for call in (lambda: env.state, lambda: env.step({"walker": Action(text="go north")})):
        with pytest.raises(ContractError, match=r"environment Walk(.|\n)*called before `reset`(.|\n)*Call `reset"):
            call()
    env.reset(Task(env="walk", seed=1))
    env.close()
    with pytest.raises(ContractError, match="before `reset`"):
        env.step({"walker": Action(text="go north")})


def test_what_is_copied() -> None:  # rule 2
    place, diary = Place(seed=1), Diary(seed=1)
    assert kept(place) is place
    copied = kept(diary)
    diary.rooms.append("hall")
    assert copied == Diary(seed=1) and kept([diary]) == [diary] and kept([diary])[0] is not diary


def test_a_single_agents_results() -> None:  # rules 3 and 4
    going, over, cut = single("a", SEEN, reward=2), single("a", SEEN, over=True, cut=True), single("a", SEEN, cut=True)
    assert dict(going.observations) == {"a": SEEN} and not going.last and dict(going.rewards) == {"a": 2.0}
    assert not over.observations and not over.last and over.terminated == {"a"} and not over.truncated
    assert not cut.observations and dict(cut.last) == {"a": SEEN} and cut.truncated == {"a"} and not cut.terminated
    assert not single("a", None, over=True).last
    told = single("a", SEEN, act={"process": 0.5}, readable=False, info={"success": True}).info
    assert told == {"process": {"a": 0.5}, "invalid": {"a": True}, "success": True}
    assert single("a", SEEN, act={"process": 0.5}).info == act_info("a", {"process": 0.5}) == {"process": {"a": 0.5}}


def test_several_agents_results() -> None:  # rule 3
    seen = {name: Observation(text=name) for name in "abc"}
    result = several(seen, rewards={"a": 1.0}, over="a", cut="ab")
    assert set(result.observations) == {"c"} and set(result.last) == {"b"}
    assert result.terminated == {"a"} and result.truncated == {"b"} and dict(result.rewards) == {"a": 1.0}


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("go south", "go south"),
        ("  Go   SOUTH ", "go south"),
        (0, "go north"),
        (np.int64(1), "go south"),
        (2, None),
        (-1, None),
        ("south", None),
        ("", None),
        (None, None),
        (0.0, None),
        (np.zeros(2), None),
    ],
)
def test_choices(value: Any, meant: str | None) -> None:  # rule 5
    assert read_choice(value, WAYS) == meant
    assert read_index(value, WAYS) == (None if meant is None else WAYS.index(meant))


def test_a_choice_is_understood() -> None:  # rule 5
    action = choice("go south", WAYS)
    assert read_index(action.value, WAYS) == read_index(action.text, WAYS) == 1


@pytest.mark.parametrize(
    ("method", "arguments", "options", "message"),
    [
        ("when", (1, "it is 1.", "Set 2."), {}, r"environment: walk\n\n  it is 1.\n\n  Set 2."),
        ("when_reversed", (), {"hops": (1, 2), "size": (4, 3)}, r"`size` is 4 to 3(.|\n)*Write `size: \[3, 4\]`"),
        ("when_empty", (("a", "b"),), {"kinds": ()}, r"`kinds` is empty(.|\n)*Name some of: a, b\."),
        ("when_repeated", (), {"kinds": ("a", "b", "a")}, r"`kinds` names a twice"),
        ("when_certain", ("nothing works",), {"noise": 1.0}, r"with `noise: 1` nothing works(.|\n)*`noise` below 1"),
    ],
)
def test_refusals(method: str, arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:  # rule 6
    with pytest.raises(RecipeError, match=message):
        getattr(Refusals("environment: walk"), method)(*arguments, **options)


def test_good_options_are_not_refused() -> None:  # rule 6
    refuse = Refusals("environment: walk")
    refuse.when(False, "it is 1.", "Set 2.")
    refuse.when_reversed(hops=(2, 2), sites=None)
    refuse.when_empty(("a",), kinds=("a",))
    refuse.when_repeated(kinds=("a", "b"))
    refuse.when_certain("nothing works", noise=0.99)


def test_words() -> None:  # rule 7
    words = Vocabulary({"hotel": "tent", "train": "ferry"})
    assert words.say("hotel2", "oslo", "train") == "tent2 oslo ferry"
    assert [words.hear(word) for word in ("tent2", "oslo", "ferry", "train", "7")] == [
        "hotel2",
        "oslo",
        "train",
        "no_train",
        "7",
    ]
    assert Vocabulary().say("hotel") == Vocabulary().hear("hotel") == "hotel"


def test_drawn_names() -> None:  # rule 7
    drawn = [drawn_names(("tree", "rock"), ("gorp", "dax", "wug"), seed) for seed in range(20)]
    assert all(list(names) == ["tree", "rock"] and len(set(names.values())) == 2 for names in drawn)
    assert len({tuple(names.values()) for names in drawn}) > 3 and drawn[3] == drawn_names(
        ("tree", "rock"), ("gorp", "dax", "wug"), 3
    )
