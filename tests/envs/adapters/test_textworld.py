"""What must hold for `textworld`:

(1) it keeps the environment contract, with both backends;
(2) tasks: equal arguments give equal tasks, splits share no game, "train" draws from its pool;
(3) a task is the same game in every process, whatever the hash seed, and in both backends;
(4) the expert wins every game in `quest_length` turns, and also after detours;
(5) an unreadable command changes nothing, is marked, and costs a turn; the interpreter never gets commands such as
`quit`;
(6) winning gives reward 1, with reward "score" in total; taking the wrong object loses;
(7) the turn limit truncates;
(8) equal situations have equal state keys; moves change the key, and passive commands do not;
(9) broken and missing cache files are made anew, and no incomplete file is left behind;
(10) fifty episodes at once do not disturb each other;
(11) a snapshot can be restored more than once;
(12) errors name a missing package, an impossible design, an unusable cache and a game that cannot be played;
(13) a user's own game file, as `tw-make` writes it, is played with both backends;
(14) own games are held out by content;
(15) games of ALFWorld are played, with their short names, their task as the goal and a planner as the expert.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from palaestra.data import Action, Observation, StepResult, Task
from palaestra.envs.adapters.textworld import games as textworld_games
from palaestra.envs.adapters.textworld.play import clean
from palaestra.envs.adapters.textworld.world import AGENT, TextWorld
from palaestra.errors import EpisodeFailure, InvalidData, MissingExtra, RecipeError, RunFolderError
from palaestra.testing import check_environment
from tests.extras import needs
from tests.messages import told

pytestmark = [
    pytest.mark.long,  # its games are made first
    # TextWorld hides this warning of its interpreter, and pytest's own filters would show it again.
    pytest.mark.filterwarnings("ignore:.*not fully supported"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("games"))


@pytest.fixture
def forget():
    """Make games be read from files, not from memory."""
    textworld_games.load.cache_clear()


def say(environment: TextWorld, command: str) -> StepResult:
    return environment.step({AGENT: Action(text=command)})


def seen(result: StepResult) -> Observation:
    return result.observations[AGENT]


def play(environment: TextWorld, task: Task) -> tuple[list[str], StepResult]:
    """Play an episode by the expert. Returns its commands and the last result."""
    result, commands = environment.reset(task), []
    while result.observations:
        commands.append(str(environment.expert(AGENT).text))
        result = say(environment, commands[-1])
    return commands, result


@pytest.mark.parametrize("backend", ["logic", "compiled"])
def test_contract(cache, backend):  # rule 1
    check_environment(TextWorld(cache=cache, backend=backend))


def test_tasks(cache):  # rule 2
    environment = TextWorld(cache=cache, train_games=20)
    assert environment.tasks("eval", 8, 3) == environment.tasks("eval", 8, 3)
    assert environment.tasks("eval", 8, 3) != environment.tasks("eval", 8, 4)
    train = {task.content_hash for seed in range(5) for task in environment.tasks("train", 30, seed)}
    held_out = {task.content_hash for task in environment.tasks("eval", 500, 0)}
    assert len(train) == 20 and len(held_out) == 500 and not train & held_out


FINGERPRINT = """
import sys
from pathlib import Path
from palaestra.envs.adapters.textworld.games import Design, load
from palaestra.envs.adapters.textworld.play import LogicPlayer, command_of
for challenge in ("treasure_hunter", "coin_collector"):
    design = Design(challenge=challenge, mode="easy", rooms=5, quest_length=3, seed=7)
    player = LogicPlayer(load(design, Path(sys.argv[1])))
    while not player.state.completed:
        print(player.feedback, list(player.commands))
        player.step(command_of(player.game, player.state.winning_policy[0]))
"""


@pytest.mark.slow
def test_fresh_processes_make_the_same_games(tmp_path):  # rule 3
    prints, files = set(), set()
    for number in ("1", "2"):
        folder = tmp_path / number
        variables = {**os.environ, "PYTHONHASHSEED": number}
        command = [sys.executable, "-c", FINGERPRINT, str(folder)]
        prints.add(subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout)
        content = [path.name.encode() + path.read_bytes() for path in sorted(folder.glob("*.json"))]
        files.add(hashlib.sha256(b"".join(content)).hexdigest())
    assert len(prints) == 1 and len(files) == 1 and len(content) == 2


def test_backends_play_the_same_game(cache):  # rules 3, 4
    logic, compiled = TextWorld(cache=cache), TextWorld(cache=cache, backend="compiled")
    task = logic.tasks("eval", 1, 1)[0]
    one, other = logic.reset(task), compiled.reset(task)
    while one.observations:
        assert seen(one).legal == seen(other).legal and seen(one).state_key == seen(other).state_key
        command = str(logic.expert(AGENT).text)
        assert command == compiled.expert(AGENT).text
        one, other = say(logic, command), say(compiled, command)
    assert (one.rewards, one.terminated, one.info) == (other.rewards, other.terminated, other.info)
    assert one.info["success"]


def test_expert_wins(cache):  # rule 4
    environment = TextWorld(cache=cache, rooms=5, quest_length=3)
    for task in environment.tasks("eval", 3, 2):
        commands, last = play(environment, task)
        assert last.info == {"score": 1.0, "success": True} and last.rewards == {AGENT: 1.0} and len(commands) == 3
    environment.reset(task)
    for _ in range(3):  # a detour: the first exit that the expert does not take
        away = [c for c in environment._legal() if c.startswith("go") and c != environment.expert(AGENT).text]
        result = say(environment, (away or ["look"])[0])
    while result.observations:
        result = say(environment, str(environment.expert(AGENT).text))
    assert result.info["success"]


@pytest.mark.parametrize("backend", ["logic", "compiled"])
def test_unreadable_commands(cache, backend):  # rule 5
    environment = TextWorld(cache=cache, backend=backend, max_turns=9)
    environment.reset(environment.tasks("eval", 1, 1)[0])
    before = seen(say(environment, "look"))
    for word in ["quit", "restart", "tw-print", "take the moon", "", "日本\nquit", "go moon " * 100]:
        result = say(environment, word)
        assert result.info["invalid"] == {AGENT: True} and result.rewards == {AGENT: 0.0}
        assert seen(result).state_key == before.state_key and seen(result).legal == before.legal
    readable = say(environment, f"  {before.legal[0].upper()}  ")
    assert "invalid" not in readable.info and readable.truncated == {AGENT}


def test_rewards(cache):  # rule 6
    environment = TextWorld(cache=cache, reward="score", passive=False)
    task = environment.tasks("eval", 1, 1)[0]
    _, last = play(environment, task)
    assert last.rewards == {AGENT: 1.0}
    for task in environment.tasks("eval", 6, 5):
        first = seen(environment.reset(task))
        goal = first.text.splitlines()[0].removeprefix("goal: ")
        wrong = [command for command in first.legal if command.startswith("take") and command != goal]
        if wrong:
            last = say(environment, wrong[0])
            assert last.terminated == {AGENT} and last.info["success"] is False and last.rewards == {AGENT: 0.0}
            return
    raise AssertionError("no game of six has the wrong thing in its first room")


def test_turn_limit(cache):  # rule 7
    environment = TextWorld(cache=cache, max_turns=2)
    environment.reset(environment.tasks("eval", 1, 1)[0])
    assert say(environment, "look").observations
    last = say(environment, "look")
    assert last.truncated == {AGENT} and not last.terminated and not last.observations
    assert last.info["success"] is False


def test_state_keys(cache):  # rule 8
    environment = TextWorld(cache=cache)
    first, *others = environment.tasks("eval", 8, 1)
    start = seen(environment.reset(first))
    assert seen(say(environment, "look")).state_key == start.state_key
    way = next(command for command in start.legal if command.startswith("go"))
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}[way.removeprefix("go ")]
    moved = seen(say(environment, way))
    assert moved.state_key != start.state_key
    assert seen(say(environment, f"go {back}")).state_key == start.state_key
    assert len({seen(environment.reset(task)).state_key for task in (first, *others)}) == 8


@pytest.mark.parametrize("damage", ["half", "empty", "gone", "other"])
def test_broken_files_are_made_anew(cache, forget, damage):  # rule 9
    environment = TextWorld(cache=cache, backend="compiled")
    task = environment.tasks("eval", 1, 1)[0]
    whole = seen(environment.reset(task)).text
    for path in Path(cache).iterdir():
        if damage == "gone":
            path.unlink()
        elif damage == "other":
            path.write_bytes(b"{}" + b"\0" * 500 if path.suffix == ".z8" else b"{}")
        else:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 if damage == "half" else 0])
    textworld_games.load.cache_clear()
    assert seen(environment.reset(task)).text == whole
    assert {path.suffix for path in Path(cache).iterdir()} <= {".json", ".z8"}  # no temporary folder is left


def test_fifty_at_once(cache):  # rule 10
    environments = [TextWorld(cache=cache) for _ in range(50)]
    tasks = environments[0].tasks("eval", 2, 1)
    alone = {task.content_hash: play(environments[0], task)[0] for task in tasks}
    live = [(each, each.reset(tasks[number % 2]), []) for number, each in enumerate(environments)]
    while any(result.observations for _, result, _ in live):
        for number, (each, result, commands) in enumerate(live):
            if result.observations:
                commands.append(str(each.expert(AGENT).text))
                live[number] = (each, say(each, commands[-1]), commands)
    for number, (_, result, commands) in enumerate(live):
        assert result.info["success"] and commands == alone[tasks[number % 2].content_hash]


@pytest.mark.parametrize("backend", ["logic", "compiled"])
def test_snapshots(cache, backend):  # rule 11
    environment = TextWorld(cache=cache, backend=backend)
    environment.reset(environment.tasks("eval", 1, 1)[0])
    say(environment, str(environment.expert(AGENT).text))
    state, endings = environment.snapshot(), []
    for time in range(3):
        if time > 0:
            environment.restore(state)
        commands = []
        result = say(environment, "look")
        while result.observations:
            commands.append(environment.expert(AGENT).text)
            result = say(environment, commands[-1])
        endings.append((commands, result.info))
    assert endings[0] == endings[1] == endings[2] and endings[0][1]["success"]


def test_prose_is_cleaned():
    story = "Your task.\n\n-= Attic =-\nDusty   place.\n\n\nYour score has just gone up by one point."
    raw = f"\n  $$$$ \\$$  \n\n{story}\n*** The End ***\nWould you"
    assert clean(raw) == "-= Attic =-\nDusty place."


def test_faults_are_named(tmp_path, monkeypatch):  # rule 12
    impossible = TextWorld(cache=str(tmp_path), rooms=2, quest_length=40)
    with pytest.raises(EpisodeFailure, match="smaller `quest_length`"):
        impossible.reset(impossible.tasks("eval", 1, 0)[0])
    (tmp_path / "file").write_text("")
    unusable = TextWorld(cache=str(tmp_path / "file" / "folder"))
    with pytest.raises(RunFolderError, match="a game cannot be written there"):
        unusable.reset(unusable.tasks("eval", 1, 0)[0])
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(MissingExtra, match=r"palaestra\[envs\]"):
        TextWorld()


def test_the_cache_follows_its_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("PALAESTRA_CACHE", str(tmp_path))
    assert textworld_games.cache_folder(None) == tmp_path / "textworld"
    assert textworld_games.cache_folder("elsewhere") == Path("elsewhere")


# ---- a user's own game files --------------------------------------------------------------------------------
def made(folder: Path, name: str, *, seed: int, compiled: bool = True) -> Path:
    """A game file as `tw-make` writes it, by the function that `tw-make` calls."""
    import textworld

    options = textworld.GameOptions()
    options.seeds, options.nb_rooms, options.nb_objects, options.quest_length = seed, 3, 4, 2
    options.path = str(folder / f"{name}.z8")
    game = textworld.generator.make_game(options)
    if compiled:
        return Path(textworld.generator.compile_game(game, options))
    path = folder / f"{name}.json"
    game.save(str(path))
    return path


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    command = ["tw-make", "custom", "--world-size", "3", "--quest-length", "2", "--nb-objects", "4", "--seed", "3"]
    program = str(Path(sys.executable).with_name("tw-make"))
    subprocess.run([program, *command[1:], "--output", str(folder / "made.z8"), "--silent"], check=True)
    for seed in range(4):
        made(folder, f"other{seed}", seed=seed + 10, compiled=False)
    return folder


@pytest.mark.parametrize("options", [{}, {"backend": "compiled"}, {"backend": "compiled", "file": "other0.json"}])
def test_own_games(own, cache, options):  # rules 1, 4, 13
    given = dict(options)
    name = given.pop("file", "made.z8")
    environment = TextWorld(games=str(own / name), max_turns=8, cache=cache, **given)
    (task,) = environment.tasks("train", 1, 0)
    first = seen(environment.reset(task))
    assert first.text.startswith("goal: ") and task.key == Path(name).stem
    commands, last = play(environment, task)
    assert len(commands) <= 3 and last.info == {"score": 1.0, "success": True} and last.rewards == {AGENT: 1.0}
    manual = environment.instruction(AGENT)
    assert "- take THING from THING" in manual and "- go east" in manual and "{" not in manual


def test_the_contract_holds_for_own_games(own, cache):  # rule 1
    environment = TextWorld(games=(str(own), str(own / "other*.json")), max_turns=6, cache=cache)
    check_environment(environment, make=lambda: TextWorld(games=str(own), max_turns=6, cache=cache), episodes=3)


def test_a_single_game_serves_both_splits(own, caplog):  # rule 14
    TextWorld(games=str(own / "made.z8"), held_out=0.0)
    assert not caplog.messages
    TextWorld(games=str(own / "made.z8"))
    assert caplog.messages == ["environment textworld: 1 game is too few to hold any out: training meets all of them."]


def test_own_games_are_held_out_by_content(own, tmp_path):  # rule 14
    for path in own.glob("other*.json"):
        (tmp_path / f"copy-of-{path.name}").write_bytes(path.read_bytes())
        (tmp_path / path.name).write_bytes(path.read_bytes())
    environment = TextWorld(games=str(tmp_path / "*.json"), held_out=0.25)
    train = {environment.content(task) for task in environment.tasks("train", 20, 0)}
    held_out = {environment.content(task) for task in environment.tasks("eval", 20, 0)}
    assert len(train) == 3 and len(held_out) == 1 and not train & held_out
    apart = TextWorld(games=str(own), eval_games=(str(tmp_path / "copy-of-other1.json"), str(tmp_path / "other2.json")))
    named = {task.key for task in apart.tasks("train", 20, 0)}
    assert named == {"made", "other0", "other3"}  # games of equal content are not trained on, whatever their names are
    assert {task.key for task in apart.tasks("eval", 20, 0)} == {"copy-of-other1", "other2"}
    one = TextWorld(games=(str(own / "made.z8"),))
    assert one.tasks("train", 1, 0)[0].content == one.tasks("eval", 1, 0)[0].content
    (tmp_path / "other0.json").write_bytes((tmp_path / "other1.json").read_bytes())  # a changed file is read again
    (tmp_path / "copy-of-other0.json").unlink()
    again = TextWorld(games=str(tmp_path / "*.json"), held_out=0.25)
    assert len({again.content(task) for split in ("train", "eval") for task in again.tasks(split, 20, 0)}) == 3


def test_own_games_that_cannot_be_played(own, tmp_path):  # rule 12
    (tmp_path / "alone.z8").write_bytes((own / "made.z8").read_bytes())
    (tmp_path / "old.ulx").write_bytes(b"Glul")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "rows.json").write_text("[]")
    (tmp_path / "notes.txt").write_text("")
    for pattern, kind, message in (
        ("gone/*.z8", InvalidData, "finds no game"),
        ("*.txt", InvalidData, "but 1 other files"),
        ("alone.z8", InvalidData, "there is no alone.json beside it"),
        ("old.ulx", RecipeError, "textworld before 1.7"),
        ("bad.json", InvalidData, "it cannot be read"),
        ("rows.json", InvalidData, "it is no game"),
    ):
        with told(kind, message):
            TextWorld(games=str(tmp_path / pattern))
    with told(InvalidData, "also in `eval_games`"):
        TextWorld(games=str(own / "made.z8"), eval_games=str(own / "made.z8"))
    with told(InvalidData, "among `games`"):
        TextWorld(games=str(own / "made.z8")).reset(Task(env="textworld", seed=1, params={"game": "other.z8"}))


# ---- games of ALFWorld ----------------------------------------------------------------------------------------
DOMAIN = """
(define (domain kitchen)
 (:requirements :adl :action-costs :typing)
 (:types agent location receptacle object)
 (:predicates
  (at ?a - agent ?l - location) (stands ?r - receptacle ?l - location)
  (in ?o - object ?r - receptacle) (holds ?a - agent ?o - object) (busy ?a - agent))
 (:functions (total-cost) - number)
 (:action walk :parameters (?a - agent ?from - location ?to - location ?r - receptacle)
  :precondition (and (at ?a ?from) (stands ?r ?to) (not (at ?a ?to)))
  :effect (and (not (at ?a ?from)) (at ?a ?to) (increase (total-cost) 1)))
 (:action take :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
  :precondition (and (at ?a ?l) (stands ?r ?l) (in ?o ?r) (not (busy ?a)))
  :effect (and (not (in ?o ?r)) (holds ?a ?o) (busy ?a) (increase (total-cost) 1)))
 (:action put :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
  :precondition (and (at ?a ?l) (stands ?r ?l) (holds ?a ?o))
  :effect (and (in ?o ?r) (not (holds ?a ?o)) (not (busy ?a)) (increase (total-cost) 1))))
"""
PROBLEM = """
(define (problem apple) (:domain kitchen)
 (:objects agent1 - agent door - location left - location right - location
  apple_bar__minus_01 - object apple_bar__plus_02 - object shelf_bar_1 - receptacle fridge_bar_1 - receptacle)
 (:init (= (total-cost) 0) (at agent1 door) (stands shelf_bar_1 left) (stands fridge_bar_1 right)
  (in apple_bar__minus_01 shelf_bar_1) (in apple_bar__plus_02 shelf_bar_1))
 (:goal (exists (?o - object) (in ?o fridge_bar_1))))
"""
GRAMMAR = '''
grammar :: """
{
  "intro": [{"rhs": "-= Kitchen =-\\n#see#\\nYour task is to: GOAL."}],
  "see": [{"rhs": "You see [{r.name | stands(r:receptacle, l:location)}]."}],
  "list_empty": [{"rhs": "nothing"}],
  "list_separator": [{"rhs": ", "}],
  "list_last_separator": [{"rhs": ", and "}],
  "walk.feedback": [{"rhs": "You are at the {r.name}."}],
  "take.feedback": [{"rhs": "You take the {o.name}."}],
  "put.feedback": [{"rhs": "You put the {o.name} into the {r.name}."}]
}
""";
action walk { template :: "go to {r}"; feedback :: "#walk.feedback#"; }
action take { template :: "take {o} from {r}"; feedback :: "#take.feedback#"; }
action put { template :: "put {o} into {r}"; feedback :: "#put.feedback#"; }
'''


@pytest.fixture(scope="module")
def alfworld(tmp_path_factory) -> Path:
    """Games in the layout of ALFWorld."""
    folder = tmp_path_factory.mktemp("json_2.1.1")
    goals = {"train": "put an apple into the fridge", "valid_seen": "cool an apple"}
    for split, goal in goals.items():
        for kind, solvable in (("pick_and_place_simple-Apple", True), ("pick_heat-Apple", False)):
            place = folder / split / kind / "trial_T1"
            place.mkdir(parents=True)
            (place / "traj_data.json").write_text("{}")
            game = {"pddl_domain": DOMAIN, "pddl_problem": PROBLEM, "grammar": GRAMMAR.replace("GOAL", goal)}
            (place / "game.tw-pddl").write_text(json.dumps(game | {"solvable": solvable, "walkthrough": []}))
    return folder


@needs("fast_downward")
def test_games_of_alfworld(alfworld):  # rules 1, 4, 5, 15
    options = {"games": str(alfworld / "train"), "eval_games": str(alfworld / "valid_seen"), "max_turns": 6}
    environment = TextWorld(**options)
    (task,) = environment.tasks("train", 1, 0)
    first = seen(environment.reset(task))
    told_first = first.text.splitlines()
    assert told_first[:2] == ["goal: put an apple into the fridge.", "-= Kitchen =-"]
    assert told_first[2] in ("You see shelf 1, and fridge 1.", "You see fridge 1, and shelf 1.")
    assert first.legal == ["go to fridge 1", "go to shelf 1"]
    assert environment.instruction(AGENT).splitlines()[1:5] == [
        "Commands:",
        "- go to THING",
        "- take THING from THING",
        "- put THING into THING",
    ]
    wrong = say(environment, "eat apple 1")
    assert wrong.info["invalid"] == {AGENT: True} and "Nothing happens." in seen(wrong).text
    assert seen(wrong).state_key == first.state_key
    say(environment, "go to shelf 1")
    saved = environment.snapshot()
    plans = ["take apple 1 from shelf 1", "take apple 2 from shelf 1"]
    plans.remove(environment.expert(AGENT).text)
    say(environment, plans[0])  # not what the plan says, and as good
    assert environment.expert(AGENT).text == "go to fridge 1"
    environment.restore(saved)
    assert seen(say(environment, "take apple 1 from shelf 1")).legal == ["go to fridge 1", "put apple 1 into shelf 1"]
    commands, last = play(environment, environment.tasks("eval", 1, 0)[0])
    assert last.info == {"score": 1.0, "success": True} and len(commands) == 4
    check_environment(environment, make=lambda: TextWorld(**options), episodes=2)


def test_alfworld_without_its_planner(alfworld, monkeypatch):  # rule 12
    monkeypatch.setitem(sys.modules, "fast_downward", None)
    environment = TextWorld(games=str(alfworld / "train"))
    with told(MissingExtra, "fast-downward-textworld"):
        environment.reset(environment.tasks("train", 1, 0)[0])
