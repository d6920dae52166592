"""What must hold of the world `craft`:

1. It keeps the environment's contract, with every way to show and to name things.
2. Each rule of the tech tree holds, by hand: what gives what, with which tool, beside what, and what it uses up.
3. An act that cannot be done changes nothing but the turn, and the text says so; an unreadable act is marked.
4. The expert solves every task within three quarters of the turns, also after useless acts.
5. Depth, kinds, size, density, sight and `most` have their effects; random play rarely succeeds.
6. Renamed and shuffled names change words, not maps or solutions; the manual tells every recipe.
7. Noise makes acts fail, the same ones each time.
8. Rewards: 1 for the goal, or 1 for each new kind of item.
9. `imagine` shows what the act would show, and changes nothing.
10. A snapshot is restored.
11. Impossible options are refused.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from palaestra.data import Action
from palaestra.envs.worlds.craft.maps import approach, tile, way
from palaestra.envs.worlds.craft.planner import next_act, solution
from palaestra.envs.worlds.craft.state import ACTS, State, act
from palaestra.envs.worlds.craft.tree import DEPTH, ITEMS, RECIPES, SOURCES, Goal, draw_goal, goals
from palaestra.envs.worlds.craft.views import SIGNS, picture, vector, window
from palaestra.envs.worlds.craft.world import AGENT, Craft
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.messages import told

KIND = {sign: kind for kind, sign in SIGNS.items()}


def state(rows, *, facing="east", place=(0, 0), goal="iron pickaxe", inside="wood", **holds):
    tiles = tuple(tuple(KIND[sign] for sign in row) for row in rows)
    names = {name.replace(" ", "_"): name for name in ITEMS}
    counts = {names[name]: count for name, count in holds.items()}
    return State(
        tiles=tiles,
        place=place,
        facing=facing,
        goal=Goal(items=(goal,)),
        seed=0,
        inside=inside,
        inventory=tuple(counts.get(item, 0) for item in ITEMS),
    )


def held(found):
    return {item: count for item, count in found.holds.items() if count}


def say(env, text):
    return env.step({AGENT: Action(text=text)})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"text": "window", "sight": 2},
        {"names": "renamed", "noise": 0.2},
        {"names": "shuffled", "manual": True, "kinds": ["open"]},
        {"reward": "items", "depth": [7, 8], "max_turns": 120},
    ],
)
def test_1_contract(options):
    check_environment(Craft(**options), make=lambda: Craft(**options), episodes=3)


# ---- rules ------------------------------------------------------------------------------------------------
def test_2_gathering():
    assert held(act(state([".t"]), "attack")) == {"wood": 1}
    assert held(act(state([".r"]), "attack")) == {}
    assert held(act(state([".r"], wooden_pickaxe=1), "attack")) == {"wooden pickaxe": 1, "stone": 1}
    assert held(act(state([".o"], wooden_pickaxe=1), "attack")) == {"wooden pickaxe": 1}
    assert held(act(state([".o"], stone_pickaxe=1), "attack")) == {"stone pickaxe": 1, "iron": 1}
    assert act(state([".t"]), "attack").ahead == "grass"
    assert held(act(state([".b"]), "attack")) == {"table": 1}


@pytest.mark.parametrize(
    ("item", "before", "after"),
    [
        ("planks", {"wood": 1}, {"planks": 2}),
        ("sticks", {"planks": 1}, {"sticks": 2}),
        ("table", {"planks": 2}, {"table": 1}),
        ("wooden pickaxe", {"sticks": 1, "planks": 1}, {"wooden pickaxe": 1}),
        ("stone pickaxe", {"sticks": 2, "stone": 1}, {"sticks": 1, "stone pickaxe": 1}),
        ("iron pickaxe", {"sticks": 1, "iron": 1}, {"iron pickaxe": 1}),
    ],
)
def test_2_crafting(item, before, after):
    made = act(state([".b"], **{name.replace(" ", "_"): n for name, n in before.items()}), f"craft {item}")
    assert (held(made), made.effect) == (after, "crafted")
    less = {name: n - 1 for name, n in before.items()}
    assert act(state([".b"], **less), f"craft {item}").effect == "nothing"
    if RECIPES[item].table:
        assert act(state([".."], **before), f"craft {item}").effect == "nothing"


def test_2_placing_and_chests():
    placed = act(state([".."], table=1), "place table")
    assert (placed.ahead, held(placed), placed.effect, placed.at_table) == ("table", {}, "placed", True)
    assert act(state([".t"], table=1), "place table").effect == "nothing"
    opened = act(state([".c"], inside="iron"), "use")
    assert (opened.ahead, held(opened), opened.effect) == ("open chest", {"iron": 1}, "opened")
    assert act(opened, "use").effect == "nothing"


def test_2_walking():
    start = state(["..", ".t"])
    east = act(start, "east")
    assert (east.place, east.facing, east.effect) == ((0, 1), "east", "moved")
    south = act(east, "south")  # a tree stands there, so the agent only turns
    assert (south.place, south.facing, south.effect) == ((0, 1), "south", "turned")
    assert act(south, "south").effect == "nothing"
    assert [act(start, f"turn {side}").facing for side in ("left", "right")] == ["north", "south"]
    assert act(start, "north").place == (0, 0)  # the edge of the map


def test_2_ways():
    tiles = state(["..t", ".tt", "..."]).tiles
    assert way(tiles, (0, 0), [(2, 2)]) == ["south", "south", "east", "east"]
    assert way(tiles, (0, 0), [(0, 2)]) is None and tile(tiles, (3, 0)) == "edge"
    assert approach(tiles, (0, 0), "tree")[0] == ["east"] and approach(tiles, (0, 0), "ore") is None


# ---- acts -------------------------------------------------------------------------------------------------
def test_3_what_cannot_be_done_or_read():
    env = Craft()
    task = env.tasks("train", 1, 0)[0]
    seen = env.reset(task).observations[AGENT]
    assert tuple(seen.legal) == ACTS and env.action_count == len(ACTS)
    idle = say(env, "craft iron pickaxe")
    assert idle.observations[AGENT].text == "nothing happens. " + seen.text
    assert idle.info["executable"] == {AGENT: 0.0} and "invalid" not in idle.info
    assert idle.observations[AGENT].state_key == seen.state_key
    for value in ("craft", "fly", "", 99, None, "craft  sword"):
        result = env.step({AGENT: Action(text="x", value=value)})
        assert result.info["invalid"] == {AGENT: True} and result.info["executable"] == {AGENT: 0.0}
    assert env.step({AGENT: Action(value=ACTS.index("turn left"))}).info["executable"] == {AGENT: 1.0}
    assert "invalid" not in say(env, "  Turn   LEFT ").info


def test_3_before_reset():
    with pytest.raises(ContractError, match="before `reset`"):
        Craft().step({AGENT: Action(text="north")})


# ---- expert -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"depth": [7, 8], "max_turns": 120}, {"size": 6, "kinds": ["atomic"]}])
def test_4_the_expert_solves_every_task(options):
    env = Craft(**options)
    for task in env.tasks("eval", 60, 1):
        env.reset(task)
        acts = solution(env.state, 200)
        assert acts and len(acts) <= env._max_turns * 3 // 4
        result = [say(env, text) for text in acts][-1]
        assert result.info["success"] is True and result.terminated == {AGENT}


def test_4_after_wrong_acts():
    env = Craft(max_turns=400)
    draw = np.random.default_rng(0)
    solved = 0
    for task in env.tasks("train", 60, 2):
        env.reset(task)
        wild = [ACTS[int(draw.integers(len(ACTS)))] for _ in range(25)]
        ended = any(not say(env, text).observations for text in wild)
        solved += ended or solution(env.state, 200) is not None
    assert solved >= 59  # trees can be used up


def test_4_walls_of_ones_own_are_taken_down():
    walled = state([".p.", "p..", "..t"], goal="wood")
    acts = solution(walled, 20)
    assert acts is not None and acts.count("attack") == 2 and next_act(walled) == acts[0]


# ---- dials ------------------------------------------------------------------------------------------------
def test_5_goals():
    assert {goal.depth for goal in goals(("long",), 3, 8, 1)} == {3, 4, 5, 6, 7, 8}
    assert {(goal.items, goal.count) for goal in goals(("atomic",), 1, 8, 2)} == {
        (("wood",), 1),
        (("wood",), 2),
        (("planks",), 1),
        (("planks",), 2),
    }
    some = goals(("open",), 4, 4, 1)
    assert [goal.words for goal in some] == ["something to break rock with"] and some[0].met({"iron pickaxe": 1})
    choices = goals(("atomic", "long"), 1, 8, 1)
    depths = [draw_goal(choices, seed).depth for seed in range(800)]
    assert all(60 < depths.count(depth) < 140 for depth in range(1, 9))
    assert set(DEPTH) == set(ITEMS) == set(SOURCES) | set(RECIPES)


def test_5_dials():
    env = Craft(size=7, density=0.5, depth=(3, 3), kinds=("long",), sight=2)
    for task in env.tasks("train", 20, 0):
        seen = env.reset(task).observations[AGENT]
        now = env.state
        assert env.difficulty(task) == now.goal.depth == 3
        assert len(now.tiles) == 7 and sum(kind != "grass" for row in now.tiles for kind in row) == round(0.5 * 49)
        assert seen.image.shape == (5, 5, 3) and len(seen.vector) == env.vector_size


def test_5_random_play_rarely_succeeds():
    env = Craft()
    draw = np.random.default_rng(0)
    won = 0
    for task in env.tasks("eval", 60, 0):
        result = env.reset(task)
        while result.observations:
            result = env.step({AGENT: Action(value=int(draw.integers(len(ACTS))))})
        won += result.info["success"]
    assert won <= 15


def test_5_splits_share_nothing():
    env = Craft()
    train, held_out = env.tasks("train", 200, 3), env.tasks("eval", 200, 3)
    assert not {t.content_hash for t in train} & {t.content_hash for t in held_out}
    assert env.tasks("train", 20, 3) == train[:20]


# ---- views ------------------------------------------------------------------------------------------------
def test_6_words():
    env = Craft(sight=2)
    env.restore(state(["..t", ".w.", "..."], goal="planks", wood=2))
    text = say(env, "south").observations[AGENT].text
    assert text == "goal planks. have 2 wood. facing grass south. tree 1 north 2 east. water 1 east."
    there = say(env, "attack").observations[AGENT].text
    assert there.startswith("nothing happens. goal planks.")


def test_6_window():
    shown = window(state(["..t", ".w.", "..."]), 1)
    assert shown == [["edge"] * 3, ["edge", "grass", "grass"], ["edge", "grass", "water"]]
    pixels = picture(state(["..t", ".w.", "..."]), 1)
    assert pixels.dtype == np.uint8 and tuple(pixels[1, 1]) == (255, 0, 0) and tuple(pixels[0, 0]) == (0, 0, 0)
    assert vector(state(["..."]), 1).dtype == np.float32


def test_6_names():
    plain, renamed, shuffled = Craft(), Craft(names="renamed"), Craft(names="shuffled", manual=True)
    called = set()
    for task in plain.tasks("train", 10, 0):
        texts = [env.reset(task).observations[AGENT].text for env in (plain, renamed, shuffled)]
        states = [env.state for env in (plain, renamed, shuffled)]
        assert states[0] == states[1] == states[2] and len(set(texts)) == 3
        assert "tree" not in texts[1] and "tree" not in texts[2]
        called.add(shuffled._called["wood"])
        for act_text in solution(states[0], 80):
            spelled = [env.expert(AGENT).text for env in (plain, renamed, shuffled)]
            assert spelled[0] == act_text
            results = [say(env, text) for env, text in zip((plain, renamed, shuffled), spelled, strict=True)]
            assert len({result.info["success"] for result in results}) == 1
        assert results[0].info["success"]
    assert len(called) > 3
    assert "gorp make 2 dax" in Craft(names="renamed", manual=True).reset(task).observations[AGENT].text


# ---- noise, rewards, abilities ----------------------------------------------------------------------------
def test_7_noise():
    env = Craft(noise=0.5, max_turns=200)
    task = env.tasks("train", 1, 0)[0]
    runs = []
    for _ in range(2):
        env.reset(task)
        runs.append([say(env, "turn left").observations[AGENT].text for _ in range(60)])
    failed = sum(text.startswith("nothing happens") for text in runs[0])
    assert runs[0] == runs[1] and 15 < failed < 45


def test_8_rewards():
    for reward, expected in (("goal", [0.0, 0.0, 1.0]), ("items", [1.0, 1.0, 1.0])):
        env = Craft(reward=reward)
        env.reset(env.tasks("train", 1, 0)[0])
        env.restore(state([".t"], goal="sticks"))
        results = [say(env, text) for text in ("attack", "craft planks", "craft sticks")]
        assert [result.rewards[AGENT] for result in results] == expected
        assert results[-1].info["success"] and results[-1].info["items"] == {AGENT: 3.0}
        assert [result.info["process"][AGENT] for result in results] == [1.0, 1.0, 1.0]


def test_8_the_end():
    with told(RecipeError, "2 acts"):
        Craft(max_turns=3, depth=(8, 8)).reset(Craft(max_turns=3, depth=(8, 8)).tasks("train", 1, 0)[0])
    env = Craft(max_turns=40)
    env.reset(env.tasks("train", 1, 0)[0])
    results = [say(env, "turn left") for _ in range(40)]
    assert results[-1].truncated == {AGENT} and set(results[-1].last) == {AGENT} and not results[-1].observations
    assert results[-1].info["success"] is False and results[-2].observations


def test_9_imagine():
    env = Craft()
    env.reset(env.tasks("train", 1, 5)[0])
    before = env.snapshot()
    for text in ACTS:
        imagined = env.imagine(text)
        assert env.snapshot() == before
        real = say(env, text)
        if real.observations:
            assert imagined.text == real.observations[AGENT].text
            assert np.array_equal(imagined.image, real.observations[AGENT].image)
        env.restore(before)


def test_10_snapshot():
    env = Craft(names="shuffled", manual=True)
    tasks = env.tasks("train", 2, 0)
    first = env.reset(tasks[0]).observations[AGENT]
    kept = env.snapshot()
    say(env, env.expert(AGENT).text)
    env.reset(tasks[1])
    env.restore(kept)
    assert env._observe(replace(kept)).text == first.text


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"depth": (3, 2)}, "3 to 2"),
        ({"kinds": ("atomic",), "depth": (4, 5)}, "atomic"),
        ({"kinds": ()}, "none"),
        ({"names": "shuffled"}, "shuffled"),
        ({"size": 5, "density": 0.1}, "density 0.1"),
        ({"size": 4}, "size"),
        ({"depth": (1, 9)}, "depth"),
        ({"noise": 1.5}, "noise"),
    ],
)
def test_11_impossible_options(options, fault):
    with told(RecipeError, fault):
        Craft(**options)
