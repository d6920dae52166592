"""Games with ALFWorld's own rules and texts, which its package has:

(1) the words of `alfred.pddl` and `alfred.twl2` are those of the observations, the commands and the goal;
(2) the expert reaches every kind of goal that ALFWorld has, and without the decisive act it is not reached;
(3) the environment contract holds, games are held out, and a policy is trained in them;
(4) a further episode of a game translates nothing again.

The problems are in the form of `alfworld-generate`: a kitchen of AI2-THOR with its long ids, and the goals of ALFRED.
The package is installed for its two files alone; the adapter never imports it.
"""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path

import pytest

from palaestra.data import Action, StepResult
from palaestra.envs.adapters.textworld.world import AGENT, TextWorld
from palaestra.testing import check_environment
from tests.envs.adapters.test_trained import MODEL, trained
from tests.extras import needs

pytestmark = [
    pytest.mark.long,  # a planner plays every game
    needs("fast_downward", "alfworld"),
    pytest.mark.filterwarnings("ignore:.*not fully supported"),
]

PLACES = {  # receptacle → its place, and whether it can be opened
    "CounterTop|-00.36|+01.15|-01.62": ("loc|-2|-4|1|45", False),
    "Fridge|-00.31|+00.00|-02.64": ("loc|-3|-9|1|30", True),
    "Microwave|-00.24|+01.69|-01.53": ("loc|-3|-5|1|15", True),
    "Sink|-01.79|+00.10|-03.75|SinkBasin": ("loc|-7|-12|2|45", False),
    "Cabinet|-00.24|+02.10|-00.99": ("loc|-3|-3|1|0", True),
    "SideTable|-02.00|+00.70|-00.10": ("loc|-8|-1|3|30", False),
}
THINGS = {  # object → where it lies at first
    "Egg|-00.30|+01.20|-02.60": "Fridge|-00.31|+00.00|-02.64",
    "Egg|-00.20|+02.20|-00.90": "Cabinet|-00.24|+02.10|-00.99",
    "Apple|-00.40|+01.20|-01.60": "CounterTop|-00.36|+01.15|-01.62",
    "Plate|-00.20|+02.20|-00.80": "Cabinet|-00.24|+02.10|-00.99",
    "Plate|-00.40|+01.20|-01.70": "CounterTop|-00.36|+01.15|-01.62",
}
LAMP = "DeskLamp|-02.00|+00.90|-00.10"
START = "loc|0|-6|1|30"

_PUT = (
    "(exists (?r - receptacle) (exists (?o - object) (and {state} (objectType ?o {o}Type) (receptacleType ?r {r}Type) "
    "(inReceptacle ?o ?r))))"
)
_TWO = (
    "(exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 EggType) (receptacleType ?r SideTableType) "
    "(inReceptacle ?o1 ?r) (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 EggType) "
    "(inReceptacle ?o2 ?r))))))"
)
_LIT = (
    "(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot DeskLampType) "
    "(toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r))) "
    "(exists (?o - object ?a - agent) (and (objectType ?o AppleType) (holds ?a ?o)))"
)
GOALS = {  # kind of task → what it says, its goal
    "pick_and_place_simple-Apple-None-SideTable-1": (
        "put a apple in sidetable",
        _PUT.format(state="", o="Apple", r="SideTable"),
    ),
    "pick_heat_then_place_in_recep-Egg-None-CounterTop-1": (
        "heat some egg and put it in countertop",
        _PUT.format(state="(heatable ?o) (isHot ?o)", o="Egg", r="CounterTop"),
    ),
    "pick_cool_then_place_in_recep-Apple-None-Cabinet-1": (
        "cool some apple and put it in cabinet",
        _PUT.format(state="(coolable ?o) (isCool ?o)", o="Apple", r="Cabinet"),
    ),
    "pick_clean_then_place_in_recep-Plate-None-SideTable-1": (
        "clean some plate and put it in sidetable",
        _PUT.format(state="(cleanable ?o) (isClean ?o)", o="Plate", r="SideTable"),
    ),
    "pick_two_obj_and_place-Egg-None-SideTable-1": ("find two egg and put them in sidetable", _TWO),
    "look_at_obj_in_light-Apple-None-DeskLamp-1": ("look at apple under the desklamp", _LIT),
}
DECISIVE = {"heat": "heat egg", "cool": "cool apple", "clean": "clean plate", "look": "use desklamp 1"}


def escaped(name: str) -> str:
    """An id of AI2-THOR as ALFWorld writes it in PDDL."""
    for sign, word in (("|", "_bar_"), ("-", "_minus_"), ("+", "_plus_"), (".", "_dot_")):
        name = name.replace(sign, word)
    return name


def kind(name: str) -> str:
    """`SinkBasin` of `Sink|…|SinkBasin`, `Egg` of `Egg|…`."""
    return "SinkBasin" if name.endswith("SinkBasin") else name.partition("|")[0]


def problem(goal: str) -> str:
    things = THINGS | {LAMP: "SideTable|-02.00|+00.70|-00.10"}
    receptacles, objects = {kind(name) for name in PLACES}, {kind(name) for name in things}
    lines = ["(define (problem plan_trial)", "(:domain alfred)", "(:objects", "agent1 - agent"]
    lines += [f"{escaped(place)} - location" for place in (START, *(place for place, _ in PLACES.values()))]
    lines += [f"{one}Type - rtype" for one in sorted(receptacles)] + [f"{one}Type - otype" for one in sorted(objects)]
    lines += [f"{escaped(one)} - receptacle" for one in PLACES] + [f"{escaped(one)} - object" for one in things]
    lines += [")", "(:init", "(= (total-cost) 0)", f"(atLocation agent1 {escaped(START)})"]
    lines += [f"(canContain {one}Type {other}Type)" for one in sorted(receptacles) for other in sorted(objects)]
    for name, (place, opens) in PLACES.items():
        lines.append(f"(receptacleType {escaped(name)} {kind(name)}Type)")
        lines.append(f"(receptacleAtLocation {escaped(name)} {escaped(place)})")
        lines += [f"(openable {escaped(name)})"] if opens else []
    for name, where in things.items():
        own = escaped(name)
        lines.append(f"(objectType {own} {kind(name)}Type)")
        lines.append(f"(inReceptacle {own} {escaped(where)})")
        lines.append(f"(objectAtLocation {own} {escaped(PLACES[where][0])})")
        abilities = ("toggleable",) if name == LAMP else ("pickupable", "cleanable")
        abilities += ("heatable", "coolable") if kind(name) in ("Egg", "Apple") else ()
        lines += [f"({ability} {own})" for ability in abilities]
    return "\n".join([*lines, ")", f"(:goal (and {goal}))", ")"])


@pytest.fixture(scope="module")
def games(tmp_path_factory) -> Path:
    """One game of each kind for training, and the same kinds with another first place of the agent for evaluation."""
    folder = tmp_path_factory.mktemp("of-alfworld")
    data = Path(str(distribution("alfworld").locate_file("alfworld/data")))
    domain, grammar = ((data / name).read_text(encoding="utf-8") for name in ("alfred.pddl", "alfred.twl2"))
    for split, start in (("train", START), ("valid_seen", "loc|-1|-7|1|30")):
        for name, (said, goal) in GOALS.items():
            place = folder / split / name / "trial_T20190907"
            place.mkdir(parents=True)
            (place / "traj_data.json").write_text("{}")
            game = {
                "pddl_domain": domain,
                "pddl_problem": problem(goal).replace(escaped(START), escaped(start)),
                "grammar": grammar.replace("UNKNOWN GOAL.", f"{said}."),
                "solvable": True,
                "walkthrough": [],
            }
            (place / "game.tw-pddl").write_text(json.dumps(game))
    return folder


def options(games: Path) -> dict[str, object]:
    return {"games": str(games / "train"), "eval_games": str(games / "valid_seen"), "max_turns": 30}


def say(environment: TextWorld, command: str) -> StepResult:
    return environment.step({AGENT: Action(text=command)})


def test_1_the_words_are_those_of_alfworld(games):
    environment = TextWorld(**options(games))
    tasks = {str(environment.content(task)): task for task in environment.tasks("train", len(GOALS), 0)}
    assert len(tasks) == len(GOALS)
    (task,) = (task for task in tasks.values() if "heat" in environment.reset(task).observations[AGENT].text)
    first = environment.reset(task).observations[AGENT]
    lines = first.text.splitlines()
    assert lines[0] == "goal: heat some egg and put it in countertop."
    assert lines[1] == "-= Welcome to TextWorld, ALFRED! =-"
    assert lines[2].startswith("You are in the middle of a room. Looking quickly around you, you see a ")
    for thing in ("cabinet 1", "countertop 1", "fridge 1", "microwave 1", "sidetable 1", "sinkbasin 1"):
        assert thing in lines[2] and f"go to {thing}" in first.legal
    assert "egg" not in lines[2]
    arrived = say(environment, "go to cabinet 1").observations[AGENT]
    assert "You arrive at cabinet 1. The cabinet 1 is closed." in arrived.text
    opened = say(environment, "open cabinet 1").observations[AGENT]
    assert "The cabinet 1 is open. In it, you see a " in opened.text
    assert {"take egg 2 from cabinet 1", "take plate 2 from cabinet 1"} < {*opened.legal}
    say(environment, "take egg 2 from cabinet 1")
    assert "You are carrying: a egg 2." in say(environment, "inventory").observations[AGENT].text
    wrong = say(environment, "eat egg 2")
    assert "Nothing happens." in wrong.observations[AGENT].text and wrong.info["invalid"] == {AGENT: True}


@pytest.mark.parametrize("name", GOALS)
def test_2_the_expert_reaches_each_kind_of_goal(games, name):
    environment = TextWorld(games=str(games / "train" / name), max_turns=30)
    (task,) = environment.tasks("train", 1, 0)
    result, commands = environment.reset(task), []
    assert result.observations[AGENT].text.startswith(f"goal: {GOALS[name][0]}.")
    while result.observations:
        commands.append(str(environment.expert(AGENT).text))
        result = say(environment, commands[-1])
    assert result.info == {"score": 1.0, "success": True} and result.rewards == {AGENT: 1.0}
    decisive = next((act for word, act in DECISIVE.items() if word in name), None)
    if decisive is None:
        return
    assert any(command.startswith(decisive) for command in commands)
    result = environment.reset(task)
    for command in commands:
        if not command.startswith(decisive):
            result = say(environment, command)
    assert result.observations and "success" not in result.info  # everything but that act


def test_4_a_game_is_translated_once(games):
    import fast_downward

    environment = TextWorld(games=str(games / "train" / next(iter(GOALS))), max_turns=30)
    (task,) = environment.tasks("train", 1, 0)
    environment.reset(task)
    before = fast_downward.pddl2sas.cache_info()
    environment.reset(task)
    after = fast_downward.pddl2sas.cache_info()
    assert after.misses == before.misses and after.hits > before.hits


@pytest.mark.smoke
def test_3_contract(games):
    check_environment(TextWorld(**options(games)), make=lambda: TextWorld(**options(games)), episodes=1)


@pytest.mark.smoke
def test_3_a_policy_is_trained(games, tmp_path):
    model = MODEL | {"context": 2048, "vocabulary": 260}
    run = trained(tmp_path, {"textworld": options(games) | {"max_turns": 3}}, model, warm_start=None)
    assert {one.task.params["game"] for one in run.trajectories()} <= {str(path) for path in games.rglob("*.tw-pddl")}
