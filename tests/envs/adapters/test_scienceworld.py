"""ScienceWorld: (1) the contract holds; (2) the package's path wins, and the score grows to 1; (3) splits are the
package's own; (4) an episode depends only on its task and commands, even if others play in the same Java process;
(5) unreadable commands, a focus on the wrong object and the limit of turns have their effects; (6) worlds and the Java
process are used again, and they end with Python; (7) bad options and a missing Java are refused; (8) how far the expert
has come changes neither the state key nor the list of legal commands.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from palaestra.data import Action
from palaestra.data.abilities import has
from palaestra.envs.adapters.scienceworld import server as scienceworld_server
from palaestra.envs.adapters.scienceworld.world import AGENT, ScienceWorld
from palaestra.errors import MissingExtra, RecipeError, UnknownName
from palaestra.testing import check_environment
from tests.extras import needs

pytestmark = needs("scienceworld", "java")

SHORT = {"kinds": ("lifespan-longest-lived",), "max_turns": 4}


def act(env: ScienceWorld, *commands: str) -> list[str]:
    seen = []
    for command in commands:
        result = env.step({AGENT: Action(text=command)})
        seen += [one.text for one in (*result.observations.values(), *result.last.values())]
    return seen


def test_the_contract_holds() -> None:  # rule 1
    check_environment(ScienceWorld(**SHORT), make=lambda: ScienceWorld(**SHORT), episodes=1)


def test_the_path_of_the_package_wins() -> None:  # rule 2
    env = ScienceWorld(kinds=("lifespan-longest-lived",), reward="score")
    task = env.tasks("eval", 1, 0)[0]
    result = env.reset(task)
    assert result.observations[AGENT].text.startswith(
        "goal: your task is to find the animal with the longest life span"
    )
    total = 0.0
    while result.observations:
        action = env.expert(AGENT)
        legal = result.observations[AGENT].legal
        assert action.text in legal and len(legal) <= 101 + len(set(env._path))
        result = env.step({AGENT: action})
        total += result.rewards[AGENT]
    assert result.info == {"score": 1.0, "success": True} and result.terminated == {AGENT}
    assert total == pytest.approx(1.0)


def test_splits_are_those_of_the_package() -> None:  # rule 3
    env = ScienceWorld(**SHORT, expert=False)
    numbers = scienceworld_server.variations("lifespan-longest-lived")
    assert not set(numbers["train"]) & set(numbers["dev"]) and not set(numbers["dev"]) & set(numbers["test"])
    for split, part in (("train", "train"), ("eval", "dev"), ("test", "test")):
        drawn = env.tasks(split, 100, 0)
        assert {task.params["variation"] for task in drawn} == set(numbers[part])
        assert [task.content_hash for task in drawn[:5]] == [task.content_hash for task in env.tasks(split, 5, 0)]
    assert not has(env, "expert")


@pytest.mark.slow
def test_episodes_depend_on_nothing_else() -> None:  # rule 4
    first, other = (ScienceWorld(kinds=("find-plant",), expert=False) for _ in range(2))
    task, foreign = first.tasks("train", 2, 3)
    commands = ("go to outside", "wait1", "go to kitchen", "open cupboard", "pick up thermometer", "inventory")
    first.reset(task)
    alone = act(first, *commands)
    other.reset(foreign)
    first.reset(task)
    together = []
    for command in commands:
        act(other, "look around", "wait1")
        together += act(first, command)
    assert together == alone and len(set(alone)) > 3
    saved = first.snapshot()
    after = act(first, "go to hallway")
    first.restore(saved)
    assert act(first, "go to hallway") == after


def test_commands_that_lead_nowhere() -> None:  # rule 5
    env = ScienceWorld(kinds=("lifespan-longest-lived",), max_turns=3, expert=False, legal=0)
    task = env.tasks("train", 1, 0)[0]
    seen = env.reset(task).observations[AGENT]
    assert seen.legal is None and seen.state_key is None
    for command in ("??", "", "dance with the dog"):
        result = env.step({AGENT: Action(text=command)})
        assert result.info["invalid"] == {AGENT: True} and result.rewards == {AGENT: 0.0}
    assert result.truncated == {AGENT} == set(result.last) and result.info["success"] is False
    env.reset(task)
    result = env.step({AGENT: Action(text="Focus on  the agent\nand more")})
    result = result if result.terminated else env.step({AGENT: Action(text="focus on agent")})
    assert result.terminated == {AGENT} and result.info == {"score": 0.0, "success": False}


def test_one_process_serves_all() -> None:  # rule 6
    before = scienceworld_server.server()
    one = ScienceWorld(**SHORT, expert=False)
    task = one.tasks("train", 1, 0)[0]
    one.reset(task)
    world = one._world
    one.close()
    two = ScienceWorld(**SHORT, expert=False)
    two.reset(task)
    assert two._world is world and scienceworld_server.server() is before


def test_no_process_is_left_behind(tmp_path: Path) -> None:  # rule 6
    code = (
        "import os, sys\nfrom palaestra.envs.adapters.scienceworld.server import server\n"
        "print(server().process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9) if sys.argv[1] == 'killed' else None\n"
    )
    for how in ("ended", "killed"):
        done = subprocess.run([sys.executable, "-c", code, how], capture_output=True, text=True, timeout=120)
        pid = int(done.stdout)
        for _ in range(100):
            if not alive(pid):
                break
            time.sleep(0.1)
        assert not alive(pid), f"Java still runs after Python has {how}"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")


def test_bad_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:  # rule 7
    with pytest.raises(UnknownName) as unknown:
        ScienceWorld(kinds=("find-plants",))
    assert unknown.value.what == "ScienceWorld has no kind of task called `find-plants`."
    assert "find-plant" in unknown.value.options
    for options, message in (
        ({"kinds": ()}, "`kinds` is empty"),
        ({"legal": -1}, "`legal` is -1"),
        ({"simplifications": ("fly",)}, "cannot take `simplifications.0: 'fly'`"),
    ):
        with pytest.raises(RecipeError) as bad:
            ScienceWorld(**options)
        assert message in bad.value.what
    assert len(ScienceWorld(kinds=("all",))._kinds) == 30
    monkeypatch.setattr(scienceworld_server, "_servers", {})
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingExtra) as missing:
        ScienceWorld()
    assert missing.value.what == "it needs Java, and no `java` was found."


def test_the_expert_is_not_in_what_is_observed() -> None:  # rule 8
    told, alone = (ScienceWorld(kinds=("lifespan-longest-lived",), expert=expert, legal=20) for expert in (True, False))
    task = told.tasks("eval", 1, 0)[0]
    seen = [env.reset(task).observations[AGENT] for env in (told, alone)]
    keys = {seen[0].state_key}
    path = {"look around", *(command.lower() for command in told._path)}
    for command in ["look around", *told._path[:3], "wait1"]:
        assert seen[0].state_key == seen[1].state_key and seen[0].text == seen[1].text
        assert path < set(seen[0].legal) == path | set(seen[1].legal) and len(seen[1].legal) == 20
        seen = [env.step({AGENT: Action(text=command)}).observations[AGENT] for env in (told, alone)]
        keys.add(seen[0].state_key)
    assert len(keys) > 1
    # The door is already open: the expert's path goes on, and the situation stays the same.
    before = told.reset(task).observations[AGENT]
    assert told.expert(AGENT).text == "open door to hallway"
    after = told.step({AGENT: told.expert(AGENT)}).observations[AGENT]
    assert after.text.startswith(before.text.splitlines()[0]) and "the door is already open" in after.text
    assert told.expert(AGENT).text == "go to hallway"
    assert (before.state_key, before.legal) == (after.state_key, after.legal)


@pytest.mark.slow
def test_the_expert_solves_all_kinds() -> None:  # rule 2
    env = ScienceWorld(kinds=("all",), max_turns=500, legal=0)
    won = []
    for kind in env._kinds:
        result = env.reset(next(task for task in env.tasks("eval", 1000, 0) if task.params["kind"] == kind))
        while result.observations:
            result = env.step({AGENT: env.expert(AGENT)})
        won.append(result.info["success"])
    assert sum(won) >= 0.9 * len(won)
