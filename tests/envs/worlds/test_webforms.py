"""What must hold of `webforms`:

1. It keeps the contract of environments with any options, and a snapshot restores everything.
2. The expert solves every task, also after other acts, with and without numbers, on renamed and on huge sites.
3. The reward is 1 for a stop with all conditions met and nothing else changed, as in a form played by hand.
4. Shaping adds discount · Φ(s′) − Φ(s), where Φ is the share of conditions that hold, as computed by hand.
5. Every gesture does what it says. An impossible or unreadable one changes nothing but the turn.
6. Kinds: dialogs cover the form, a login needs its button, tabs and buttons change the page, searches find, and answers
    are compared.
7. Options: fields, elements in view, prefilled values, noise. Renamed sites differ in labels only.
8. Fixed sites repeat over tasks. A given goal that the site lacks can be played and not reached.
9. Splits share no task. Difficulty is the number of conditions. Bad options are refused with a remedy.
10. Random acts seldom succeed.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from palaestra.data import Action, Task
from palaestra.envs.kit.elements import FOCUS, Element, Gesture, hit, read
from palaestra.envs.worlds.webforms.sites import KINDS
from palaestra.envs.worlds.webforms.world import WebForms
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.messages import told

USER = "user"
HUGE = {"distractors": (80, 90), "fields": (6, 6), "max_turns": 60}


def act(env, *texts):
    for text in texts:
        result = env.step({USER: Action(text=text)})
    return result


def begin(kind, seed=0, **options):
    """An environment at the start of a task of one kind, and its goal as a dict."""
    env = WebForms(**{"kinds": (kind,), **options})
    result = env.reset(Task(env="webforms", seed=seed))
    return env, dict(env.snapshot().goal.words), result.observations[USER].text


def finish(env, result):
    while result.observations:
        result = env.step({USER: env.expert(USER)})
    return result


def number(env, label):
    """The number of the element in view with this label."""
    lines = env._observe(env.snapshot()).text.splitlines()
    return next(line.split("]")[0].strip("[") for line in lines if f"'{label}'" in line)


@pytest.mark.parametrize(
    "options",
    [
        {},
        HUGE,
        {"observation": "coordinates", "renamed": True},
        {"calls": True, "boxes": False, "noise": 0.3, "potential": 1.0},
        {"sites": (0, 5), "prefill": 0.5},
        {"fields": (1, 1), "distractors": (0, 0), "pages": 2, "rows": 4},
    ],
)
def test_contract_and_expert(options):  # rules 1 and 2
    check_environment(WebForms(**options), make=lambda: WebForms(**options))
    env = WebForms(**{**options, "noise": 0.0, "max_turns": 80})
    draw = random.Random(0)
    for task in env.tasks("train", 40, 1):
        assert finish(env, env.reset(task)).info["success"], task
        result = env.reset(task)
        for _ in range(6):
            legal = [text for text in result.observations[USER].legal if not text.startswith("stop")]
            result = act(env, draw.choice(legal))
        assert finish(env, result).info["success"], task


def test_every_task_is_solved_in_time():  # rule 2
    env = WebForms()
    kinds = Counter()
    for task in env.tasks("eval", 200, 0):
        end = finish(env, env.reset(task))
        kinds[end.info["stratum"]] += end.info["success"]
    assert sum(kinds.values()) == 200 and set(kinds) == set(KINDS) and min(kinds.values()) > 20


def test_the_reward():  # rule 3
    env, goal, text = begin("form", fields=(2, 2), distractors=(4, 4))
    assert text.startswith("do: " + ", ".join(f"{key} {value}" for key, value in goal.items()) + ".\n[1] ")
    start = env.snapshot()
    assert act(env, "stop").rewards == {USER: 0.0}
    env.restore(start)
    result = None
    for key, value in goal.items():
        move = f"click {number(env, key)}" if value == "on" else f"type {number(env, key)} {value}"
        assert act(env, move).rewards == {USER: 0.0}
    done = env.snapshot()
    result = act(env, "stop")
    assert result.rewards == {USER: 1.0} and result.info["success"] and result.terminated == {USER}
    env.restore(done)
    control = next(c for c in done.site.controls if c.role == "checkbox" and c.name not in goal)
    result = act(env, f"click {number(env, control.name)}", "stop")
    assert result.rewards == {USER: 0.0} and result.info["potential"] == {USER: 1.0}, "something else was changed"


def test_shaping():  # rule 4: Φ = 0, 1/3, 1/3, 2/3, 1 with discount 0.99 gives 0.33, −0.0033, 0.3267, 0.3233
    env, _, _ = begin("choose", fields=(3, 3), distractors=(0, 0), potential=1.0, discount=0.99)
    first = env.expert(USER).text
    rewards = [act(env, text or env.expert(USER).text).rewards[USER] for text in (first, "scroll up", "", "")]
    assert rewards == pytest.approx([0.33, -0.01 / 3, 0.99 * 2 / 3 - 1 / 3, 0.99 - 2 / 3])
    assert act(env, "stop").rewards[USER] == pytest.approx(1 + 0.99 - 1)
    env, _, _ = begin("choose", fields=(3, 3), distractors=(0, 0), potential=0.5)
    assert act(env, first).rewards[USER] == pytest.approx(0.5 / 3)


def test_gestures():  # rule 5
    env, _, text = begin("form", seed=4, fields=(2, 2), distractors=(12, 12), rows=5)
    assert text.endswith("more below")
    start = env.snapshot()
    for text in ("click 6", "click 0", "click 900 900", "type 99 rome", "scroll up", "key enter", "key backspace"):
        result = act(env, text)
        assert result.info["executable"] == {USER: 0.0} and "invalid" not in result.info
        assert "nothing happens" in result.observations[USER].text
    for text in (
        "",
        "click",
        "click x",
        "type 1",
        "type",
        "key f1",
        "scroll left",
        "click 1 2 3",
        "CLICK -1",
        "click ²",
    ):
        assert act(env, text).info["invalid"] == {USER: True}
        env.restore(start)
    assert env.snapshot().state == start.state
    assert "more above" in act(env, "scroll down").observations[USER].text
    assert act(env, "scroll up").observations[USER].text.endswith("more below")
    env, _, _ = begin("login", fields=(2, 2), distractors=(0, 0))
    assert "[1] field 'user' (8,8,120,20) zoe" in act(env, "Type(1, 'zoe')").observations[USER].text
    assert "(8,8,120,20)\n" in act(env, "key backspace").observations[USER].text
    assert " anna b\n" in act(env, "type 0 anna b").observations[USER].text
    assert " max\n" in act(env, "key tab", "type(0,max)").observations[USER].text
    assert env.snapshot().state.values[:2] == ("anna b", "max")
    assert " k\n" in act(env, "click 20 20", "type 0 k").observations[USER].text


def test_words_and_calls():  # rule 5
    for gesture in (
        Gesture(kind="click", id=3),
        Gesture(kind="click", point=(10, 20)),
        Gesture(kind="type", id=FOCUS, text="new york, usa"),
        Gesture(kind="key", text="enter"),
        Gesture(kind="scroll", text="down"),
        Gesture(kind="stop"),
        Gesture(kind="stop", text="42"),
    ):
        assert read(gesture.write()) == read(gesture.write(calls=True)) == gesture
    assert read(None) is None and read(3) is None and read("fly 3") is None
    under, over = (Element(id=i, role="box", text="", box=(0, 0, 10 * i, 10)) for i in (2, 1))
    assert hit([under, over], (5, 5)) is over and hit([under, over], (10, 5)) is under and hit([over], (10, 5)) is None
    assert over.line() == "[1] box '' (0,0,10,10)" and over.line(ids=False, boxes=False) == "box ''"


def test_dialogs_cover():  # rule 6
    env, goal, text = begin("dialog", fields=(3, 3))
    assert text.count("\n") == 3 and "field" not in text
    other = "refuse" if goal["cookies"] == "accept" else "accept"
    assert "'settings'" in act(env, f"click {number(env, other)}").observations[USER].text
    assert not finish(env, env.step({USER: Action(text="stop")})).info["success"]
    env, goal, _ = begin("dialog", fields=(3, 3))
    result = act(env, f"click {number(env, other)}")
    assert finish(env, result).info["success"], "settings ask again"


def test_logging_in():  # rule 6
    env, goal, _ = begin("login", fields=(2, 2), distractors=(0, 0))
    act(env, f"type 1 {goal['user']}", f"type 2 {goal['password']}")
    filled = env.snapshot()
    assert filled.potential == pytest.approx(2 / 3)
    assert not act(env, "stop").info["success"]
    env.restore(filled)
    assert "'log out'" in act(env, "click 3").observations[USER].text
    assert act(env, "stop").info["success"]


def test_pages():  # rule 6
    ways = set()
    for seed in range(12):
        env, _, text = begin("tabs", seed=seed, pages=3, distractors=(6, 6), max_turns=60)
        way = "page 2" if "tab 'page 2'" in text else "next"
        ways.add(way)
        assert env.snapshot().state.screen == "page 1"
        act(env, f"click {number(env, way)}")
        assert env.snapshot().state.screen == "page 2"
        act(env, f"click {number(env, 'page 1' if way != 'next' else 'back')}")
        assert env.snapshot().state.screen == "page 1"
    assert ways == {"page 2", "next"}


def test_lists():  # rule 6
    env, goal, text = begin("list", distractors=(30, 30))
    thing, fact = goal["find"], goal["answer"]
    assert text.count("link") == 5
    before = act(env, f"click {number(env, 'next')}").observations[USER].text
    assert before.count("link") == 5 and before != text
    assert act(env, f"click {number(env, 'back')}").observations[USER].text == text
    found = act(env, f"type {number(env, 'search')} {thing}", "key enter").observations[USER].text
    assert found.count("link") == 1
    opened = act(env, f"click {number(env, thing)}").observations[USER].text
    answer = next(line.split()[-1] for line in opened.splitlines() if f"'{fact}'" in line)
    there = env.snapshot()
    assert there.potential == 0.5
    for text, right in ((f"stop {answer}", True), (f"stop({answer})", True), ("stop 0", False), ("stop", False)):
        env.restore(there)
        assert act(env, text).info["success"] is right


def test_options():  # rule 7
    few, many = WebForms(distractors=(0, 0), fields=(1, 1)), WebForms(distractors=(90, 90))
    for env, least, most in ((few, 2, 12), (many, 90, 110)):
        for task in env.tasks("train", 40, 0):
            shown = env.reset(task).observations[USER].text
            site = env.snapshot().site
            assert least <= sum(site.kind != "list" or c.screen == "results" for c in site.controls) <= most
            assert shown.count("\n[") <= 10
    for task in WebForms(prefill=1.0, kinds=("form", "choose")).tasks("train", 20, 0):
        env = WebForms(prefill=1.0, kinds=("form", "choose"))
        env.reset(task)
        assert act(env, "stop").info["success"]
    env = WebForms(prefill=0.5, kinds=("form",), fields=(4, 4))
    starts = [env.reset(task) and env.snapshot().potential for task in env.tasks("train", 200, 0)]
    assert 0.45 < sum(starts) / 200 < 0.55


def test_noise():  # rule 7
    env, missed = WebForms(noise=0.3, kinds=("choose",)), []
    for task in env.tasks("train", 500, 0):
        env.reset(task)
        missed.append(act(env, "click 1").info["executable"][USER] == 0)
    assert 0.24 < sum(missed) / 500 < 0.36
    env.reset(task)
    assert act(env, "click 1").info["executable"][USER] == 1 - missed[-1], "the same click misses again"


def test_renamed_sites():  # rule 7
    plain, other = WebForms(max_turns=40), WebForms(max_turns=40, renamed=True)
    differ = 0
    for task in plain.tasks("train", 60, 2):
        first, second = plain.reset(task), other.reset(task)
        differ += first.observations[USER].text != second.observations[USER].text
        while first.observations:
            assert first.observations[USER].text.splitlines()[0] == second.observations[USER].text.splitlines()[0]
            action = plain.expert(USER)
            assert action.text == other.expert(USER).text
            first, second = plain.step({USER: action}), other.step({USER: action})
        assert first.info["success"] and second.info["success"]
    assert differ > 50


def test_sites_repeat():  # rule 8
    env = WebForms(sites=(0, 5))
    sites = Counter()
    for split in ("train", "eval"):
        for task in env.tasks(split, 60, 0):
            env.reset(task)
            sites[env.snapshot().site.kind, env.snapshot().site.controls] += 1
    assert len(sites) == 6 and {kind for kind, _ in sites} == set(KINDS)
    new = WebForms(sites=(6, 8))
    for task in new.tasks("eval", 30, 0):
        new.reset(task)
        assert (new.snapshot().site.kind, new.snapshot().site.controls) not in sites


def test_goals_may_be_given():  # rule 8
    env = WebForms(kinds=("form",), fields=(2, 2))
    env.reset(Task(env="webforms", seed=0))
    key = next(c.name for c in env.snapshot().site.controls if c.role == "field")
    task = Task(env="webforms", seed=0, params={"goal": {key: "blue", "nose": "red"}})
    assert env.reset(task).observations[USER].text.startswith(f"do: {key} blue, nose red.")
    end = finish(env, env.reset(task))
    assert end.info["potential"] == {USER: 1.0} and not end.info["success"]
    end = finish(env, env.reset(Task(env="webforms", seed=0, params={"goal": {key: "blue"}})))
    assert end.info["success"]
    lists = WebForms(kinds=("list",))
    assert not finish(lists, lists.reset(Task(env="webforms", seed=0, params={"goal": {"find": "nose"}}))).info[
        "success"
    ]


def test_splits_and_difficulty():  # rule 9
    env = WebForms(fields=(1, 6))
    train, held_out = env.tasks("train", 300, 0), env.tasks("eval", 300, 0)
    assert not {t.content_hash for t in train} & {t.content_hash for t in held_out}
    difficulties = {env.difficulty(task) for task in train}
    assert difficulties <= set(map(float, range(1, 8))) and len(difficulties) > 5
    for task in train[:40]:
        env.reset(task)
        assert env.snapshot().goal.conditions == env.difficulty(task)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"kinds": ()}, "`kinds` is empty"),
        ({"fields": (4, 2)}, "`fields: [2, 4]`"),
        ({"fields": (2, 9)}, "goes up to 9"),
        ({"distractors": (9, 1)}, "`distractors`"),
        ({"sites": (3, 1)}, "`sites`"),
        ({"noise": 1.0}, "`noise: 1`"),
    ],
)
def test_bad_options(options, word):  # rule 9
    with told(RecipeError, word):
        WebForms(**options)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"kinds": ("shop",)}, "kinds"),
        ({"prefill": 1.5}, "prefill"),
        ({"discount": 0.0}, "discount"),
        ({"rows": 2}, "rows"),
    ],
)
def test_values_of_options(options, word):  # rule 9
    with pytest.raises(RecipeError, match=word):
        WebForms(**options)


def test_before_reset():
    with pytest.raises(ContractError, match="before `reset`"):
        act(WebForms(), "stop")


def test_random_acts_seldom_succeed():  # rule 10
    env, draw, won = WebForms(), random.Random(0), 0
    for task in env.tasks("train", 100, 0):
        result = env.reset(task)
        while result.observations:
            result = act(env, draw.choice(result.observations[USER].legal))
        won += result.info["success"]
    assert won <= 5
