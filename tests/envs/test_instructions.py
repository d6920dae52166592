"""Every world tells an agent its rules and commands: what the expert writes is explained, and the example is read."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any

import pytest

from palaestra.data import Action
from palaestra.registry import names, part
from tests.registered import target

WORLDS: dict[str, dict[str, Any]] = {
    "clinic": {},
    "clinic-renamed": {"names": "renamed", "diseases": 6, "symptoms": 12},
    "code": {},
    "craft": {},
    "craft-renamed": {"names": "renamed"},
    "desk": {"explain": True, "rules": "whole"},
    "desk-renamed": {"renamed": True, "explain": True},
    "household": {},
    "household-formal": {"vocabulary": "formal", "idle": False},
    "household-formal-idle": {"vocabulary": "formal"},
    "household-mixed": {"vocabulary": "mixed"},
    "memory_dialogue": {},
    "memory_dialogue-calls": {"style": "calls"},
    "memory_dialogue-two": {"roles": "two"},
    "prover": {},
    "prover-renamed": {"symbols": "renamed"},
    "puzzles": {},
    "puzzles-mines": {"games": ["mines"], "text": "brief"},
    "rasters": {},
    "rasters-jigsaw": {"kinds": ["jigsaw"], "tiles": 3},
    "rasters-blind": {"tools": False, "kinds": ["digit"]},
    "searchqa": {},
    "searchqa-tags": {"style": "tags"},
    "searchqa-reader": {"reader": True},
    "searchqa-calls": {"style": "calls"},
    "shop": {},
    "shop-words": {"style": "words", "cart": False},
    "shop-renamed": {"vocabulary": "renamed"},
    "tool_tasks": {},
    "tool_tasks-json": {"format": "json"},
    "travel": {},
    "travel-whole": {"style": "whole"},
    "webforms": {},
    "rooms": {},
    "phrase": {},
    "toolcalc": {},
    "toolcalc-tags": {"tags": True, "confirm": True},
    "toolcalc-calls": {"calls": True},
    "hopsearch": {},
    "uiform": {},
    "relay": {},
    "flow": {},
    "signals": {},
    "codefix": {},
    "twenty_questions": {},
    "lengths": {},
    "sums": {},
    "alignment": {},
    "babyai": {},
    "webforms-calls": {"calls": True},
    "webforms-points": {"observation": "coordinates"},
    "counting": {},
    "counting-chunks": {"chunk": 4},
    "errands": {},
    "inquiry": {},
    "navdist": {},
    "secrets": {"benign": 0.0},  # attacks only, so that the attackers act, too
    "secrets-complete": {"topology": "complete", "benign": 0.0},
    "slowarm": {},
    "slowarm-crash": {"durations": [1, 2, 3], "scores": [0.1, 1, 0.2], "crash": 0.5, "rounds": 3},
    "teambuilding": {},
    "tickets": {},
}

# Environments that are not in WORLDS.
RULES_OF_OTHERS = {  # adapters: rules and acts belong to another package, so no example fits all; tests/envs/adapters
    "games",
    "gymnasium",
    "miniwob",
    "openspiel",
    "pettingzoo",
    "reasoning_gym",
    "scienceworld",
    "textarena",
    "textworld",
}
WITHOUT_INSTRUCTION = {
    "dataset": "its rows have the question and, where they want one, a system message",
    "echo": "a fake of palaestra.testing",
    "openenv": "an adapter: the instruction is an option",
    "trl_class": "an adapter: the prompts of its rows and the texts of its tools say everything",
    "verifiers": "an adapter: the first observation has the system prompt of the taskset",
}


def made(name: str) -> Any:
    return part("environment", name.partition("-")[0], where="test").target(**WORLDS[name])


def wait(result: Any) -> Any:
    return asyncio.run(result) if inspect.isawaitable(result) else result


def read_of(world: Any, task: Any, agent: str, text: str) -> bool:
    """Whether the agent's first act can be read."""
    started = wait(world.reset(task))
    turns = 0
    while agent not in started.observations and turns < 60:
        started, turns = wait(world.step({one: world.expert(one) for one in started.observations})), turns + 1
    others = {one: world.expert(one) for one in started.observations if one != agent}
    result = wait(world.step({**others, agent: Action(text=text)}))
    return not result.info.get("invalid", {}).get(agent, False)


def test_every_environment_has_an_instruction() -> None:
    known = set(names("environment"))
    assert known - RULES_OF_OTHERS - {*WITHOUT_INSTRUCTION} == {name.partition("-")[0] for name in WORLDS}
    assert known >= RULES_OF_OTHERS | {*WITHOUT_INSTRUCTION}, "take them off the lists"
    able = {name for name in known if "instruction" in target("environment", name).abilities}
    assert able == known - {*WITHOUT_INSTRUCTION}


@pytest.mark.parametrize("name", WORLDS)
def test_the_instruction_explains_what_the_expert_writes(name: str) -> None:
    world = made(name)
    for task in world.tasks("train", 4, 0):
        result, turns = wait(world.reset(task)), 0
        while result.observations and turns < 60:
            acts = {agent: world.expert(agent) for agent in result.observations}
            for agent, act in acts.items():
                seen = result.observations[agent]
                told = f"{world.instruction(agent)}\n{seen.instruction or ''}\n{seen.tools or ''}".lower()
                said = (act.text or "").lower().removeprefix('{"name": "')  # a call begins with the tool
                verb = re.match(r"[a-z_]+|<think>|<tool>|[0-9]", said)
                assert verb is not None and (verb[0] in told or verb[0].isdigit()), (act.text, told)
            result, turns = wait(world.step(acts)), turns + 1
    wait(world.close())


@pytest.mark.parametrize("name", WORLDS)
def test_the_example_of_the_instruction_is_read(name: str) -> None:
    world = made(name)
    (task,) = world.tasks("train", 1, 0)
    for agent in world.agents:
        told = world.instruction(agent)
        assert told == " ".join(told.split(" ")).strip() and len(told) > 60
        found = re.search(r"Example(?: of an answer)?: (.+)", told)
        if found is not None:
            assert read_of(world, task, agent, found[1]), found[1]
    wait(world.close())


def test_options_change_the_instruction() -> None:
    assert "again places the order" in made("shop").instruction("buyer")
    assert "again places the order" not in made("shop-words").instruction("buyer")
    assert "click[PRODUCT]" in made("shop").instruction("buyer")
    assert "find[blouse" not in made("shop").instruction("buyer")
    assert "press[PRODUCT]" in made("shop-renamed").instruction("buyer")
    assert "- survey" in made("household-formal-idle").instruction("player")
    assert "- survey" not in made("household-formal").instruction("player")
    assert "proceed to PLACE" in made("household-formal").instruction("player")
    assert "crash" in made("slowarm-crash").instruction("player")
    assert "crash" not in made("slowarm").instruction("player")
    assert "the last answer counts" in made("secrets").instruction("defender_0")
    assert "answer of most of you" in made("secrets-complete").instruction("defender_0")
    assert "Example of an answer: a 1 b a" in made("counting-chunks").instruction("writer")
    roles = made("memory_dialogue-two")
    keeper, answerer = (roles.instruction(agent) for agent in roles.agents)
    assert "add TEXT" in keeper and "answer WORDS" not in keeper
    assert "add TEXT" not in answerer and "answer WORDS" in answerer


EXACT = {
    "searchqa-tags",
    "searchqa-calls",
    "tool_tasks-json",
    "sums",
    "alignment",
    "phrase",
    "codefix",
    "hopsearch",
    "toolcalc",
    "toolcalc-tags",
    "toolcalc-calls",
    "uiform",
    "flow",
    "signals",
    "counting",
    "counting-chunks",
    "inquiry",
    "secrets",
    "secrets-complete",
}
AROUND = ("{}.", "- {}", "1. {}", "Action: {}", '"{}"', "**{}**", "`{}`", "  {}  ", '- Action: "{}."')
TITLED = {"craft", "desk", "household", "memory_dialogue", "prover", "puzzles", "rasters", "searchqa", "shop", "clinic"}


@pytest.mark.parametrize("name", [name for name in WORLDS if name not in EXACT])
def test_what_means_nothing_around_a_command_is_left_out(name: str) -> None:
    world = made(name)
    (task,) = world.tasks("train", 1, 0)
    result = wait(world.reset(task))
    agent = next(iter(result.observations))
    text = world.expert(agent).text
    around = [*AROUND, *(["{}"] if name in TITLED else [])]
    for place, form in enumerate(around):
        said = form.format(text)
        if place >= len(AROUND):
            said = said.capitalize()
        if text.startswith("plan "):  # JSON keeps its own quotes
            continue
        assert read_of(world, task, agent, said), said
        assert after(world, task, agent, said) == after(world, task, agent, text), said
    wait(world.close())


def after(world: Any, task: Any, agent: str, text: str) -> tuple[Any, Any]:
    """What the agent sees and is paid after its first act."""
    wait(world.reset(task))
    result = wait(world.step({agent: Action(text=text)}))
    seen = result.observations.get(agent) or result.last.get(agent)
    return seen and seen.text, result.rewards


@pytest.mark.parametrize(
    "text", ["go to the moon", "", "-", "Action:", '""', "I think that I should look around first"]
)
def test_other_texts_stay_unreadable(text: str) -> None:
    world = made("household")
    (task,) = world.tasks("train", 1, 0)
    assert not read_of(world, task, "player", text)
