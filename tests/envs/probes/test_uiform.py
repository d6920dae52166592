"""What must hold of `uiform`:

1. It keeps the contract of environments, for small and large forms, for fixed ones, and with boxes in the text.
2. A shortest solution takes the task's `difficulty` actions, drawn between `shortest` and `longest`. No search finds a
   shorter one, and the expert plays a shortest one from any state that is not lost.
3. Random play succeeds in less than 2 % of the forms.
4. Handing a form in is a success iff every value is as wanted. A wrong form ends the episode, too.
5. Clicks by name, by point and by index do the same. A click beside all boxes does nothing.
6. Words go into the field with the focus. A click on a switch and a scroll take the focus away.
7. `process` is 1 exactly for steps of a shortest solution, `references` lists these, and `gesture` is what was done.
8. An impossible act takes a turn, an unreadable one is marked, and after `max_turns` the episode is truncated.
9. The state key is the form, the page, the focus and all values. Text and vector tell the same.
10. The tree has a window, its page, and the widgets in view with their boxes, which do not overlap.
11. Options without a possible form are refused.
"""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest

from palaestra.data import Action, Task
from palaestra.envs.probes.uiform import UIForm
from palaestra.envs.probes.uiform_forms import WORDS, Gesture, build
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.messages import told

USER = "user"
SMALL = {"rows": 2, "pages": 2, "longest": 5}


def start(seed=0, **options):
    env = UIForm(**options)
    return env, env.reset(Task(env="uiform", seed=seed))


def act(env, *texts):
    for text in texts:
        result = env.step({USER: Action(text=text)})
    return result


def screen(env):
    return env.state.screen


def form_with(kind, *, wrong=True):
    """An environment whose first page has a widget of a kind, wrong or right as asked for, and this widget."""
    for seed in range(100):
        env, _ = start(seed)
        form = env.state.form
        for place, widget in enumerate(form.widgets[: form.rows]):
            if widget.kind == kind and (place in form.missing(form.start)) == wrong:
                return env, widget, place
    raise AssertionError("no such form")


@pytest.mark.parametrize(
    "options",
    [{}, {"rows": 2, "pages": 1, "longest": 5}, {"rows": 5, "longest": 33}, {"forms": 4}, {"boxes": True}],
)
def test_contract(options):  # rule 1
    check_environment(UIForm(**options), make=lambda: UIForm(**options))


def test_lengths_are_even():  # rule 2
    env = UIForm()
    found = Counter(env.difficulty(task) for task in env.tasks("train", 1100, 0))
    assert set(found) == set(range(2, 13))
    assert all(60 < count < 140 for count in found.values())
    env = UIForm(shortest=7, longest=7)
    assert {env.difficulty(task) for task in env.tasks("eval", 20, 0)} == {7}


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_shorter(seed):  # rule 2
    form = build(2, 2, 2, 5, seed)
    found, waiting = {form.start: 0}, deque([form.start])
    while waiting:
        here = waiting.popleft()
        if here.finished and not form.missing(here):
            assert found[here] == form.length == form.left(form.start)
            return
        for gesture in form.gestures(here):
            after = form.next(here, gesture)
            assert after is not None
            if after not in found:
                found[after] = found[here] + 1
                waiting.append(after)
    raise AssertionError("no solution")


@pytest.mark.parametrize("seed", range(20))
def test_the_expert_wins_from_where_chance_led(seed):  # rule 2
    env, result = start(seed, max_turns=100)
    draw = random.Random(seed)
    for _ in range(15):
        result = act(env, draw.choice([one for one in result.observations[USER].legal if one != "finish"]))
    left, turns = env.state.form.left(screen(env)), 0
    while result.observations:
        result = env.step({USER: env.expert(USER)})
        assert result.info["process"] == {USER: 1.0}
        turns += 1
    assert turns == left
    assert result.info["success"] and result.rewards == {USER: 1.0}


def test_random_play_rarely_wins():  # rule 3
    env, draw, wins = UIForm(), random.Random(0), 0
    for task in env.tasks("train", 400, 0):
        result = env.reset(task)
        while result.observations:
            result = act(env, draw.choice(result.observations[USER].legal))
        wins += result.info["success"]
    assert 0 < wins < 8


def test_a_wrong_form_can_be_handed_in():  # rule 4
    env, _ = start(0)
    result = act(env, "finish")
    assert result.info["success"] is False
    assert result.terminated == {USER} and not result.observations
    assert result.rewards == {USER: 0.0}
    assert result.info["process"] == {USER: 0.0}


def test_what_was_right_must_stay_right():  # rule 4
    env, widget, _ = form_with("switch", wrong=False)
    form = env.state.form
    result = act(env, f"click {widget.name}")
    assert form.missing(screen(env)) != form.missing(form.start)
    assert f"{widget.name} {widget.wanted}" in result.observations[USER].text
    assert result.info["process"] == {USER: 0.0}


def test_three_ways_to_click():  # rule 5
    env, widget, place = form_with("switch")
    before, after = env.snapshot(), []
    x, y = widget.center
    for value in (f"click {widget.name}", f"Click  {x} {y}", place):
        env.restore(before)
        result = env.step({USER: Action(value=value)})
        after.append((screen(env), result.info["gesture"], result.info["process"]))
    assert after[0] == after[1] == after[2]
    assert after[0][0].values[place] == widget.wanted
    assert after[0][1] == {USER: {"type": "click", "point": [x, y]}}
    env.restore(before)
    result = act(env, "click 1 1")
    assert result.info["executable"] == {USER: 0.0}
    assert "invalid" not in result.info
    assert screen(env) == before.screen


def test_words_go_to_the_focus():  # rule 6
    env, widget, place = form_with("field")
    form = env.state.form
    assert act(env, "type amber").info["executable"] == {USER: 0.0}
    for word in WORDS:
        act(env, f"click {widget.name}", f"type {word}")
        assert screen(env).values[place] == word
    act(env, f"type {widget.wanted}")
    assert screen(env).focus == place
    act(env, "scroll down", "scroll up")
    assert screen(env).focus is None
    switch = next(one for one in form.widgets[: form.rows] if one.kind == "switch")
    act(env, f"click {widget.name}", f"click {switch.name}")
    assert screen(env).focus is None


@pytest.mark.parametrize("seed", range(10))
def test_steps_of_shortest_solutions(seed):  # rule 7
    env, result = start(seed, **SMALL)
    form, draw = env.state.form, random.Random(seed)
    while result.observations:
        before = screen(env)
        text = draw.choice([*result.observations[USER].legal, "scroll up", "type amber"])
        result = act(env, text)
        left, now = form.left(before), form.left(screen(env))
        good = now is not None and now < left
        assert result.info["process"] == {USER: float(good)}
        done, right = result.info["gesture"][USER], result.info["references"][USER]
        assert any(_fits(done, one) for one in right) == good


def _fits(done, right):
    if done["type"] != right["type"] or done.get("direction") != right.get("direction"):
        return False
    if "box" not in right:
        return done.get("text") == right.get("text")
    (x, y), (left, top, wide, low) = done["point"], right["box"]
    return left <= x <= wide and top <= y <= low


def test_turns_are_spent():  # rule 8
    env, _ = start(0, max_turns=4)
    for word in ("fly", "click nothing", "type nonsense"):
        result = act(env, word)
        assert result.info["invalid"] == {USER: True}
        assert "gesture" not in result.info
    result = act(env, "scroll up")  # readable, but impossible on the first page
    assert "invalid" not in result.info
    assert result.truncated == {USER} and result.info["success"] is False and not result.observations
    assert result.last[USER].text.startswith("nothing happens. to do ")


def test_keys_texts_and_vectors_agree():  # rule 9
    by_key, by_text = {}, {}
    for seed in range(20):
        env, result = start(seed)
        draw = random.Random(seed)
        while result.observations:
            seen = result.observations[USER]
            situation = seen.text.partition(". ")[2]
            by_key.setdefault(seen.state_key, set()).add(situation)
            by_text.setdefault(situation, set()).add(seen.vector.tobytes())
            assert len(situation.split()) < 80
            result = act(env, draw.choice(seen.legal))
    assert all(len(found) == 1 for found in (*by_key.values(), *by_text.values()))


def test_fixed_forms_recur_in_every_split():  # rule 9
    env = UIForm(forms=4)
    shown = {
        split: {env.reset(task).observations[USER].text for task in env.tasks(split, 40, 0)}
        for split in ("train", "eval")
    }
    assert shown["train"] == shown["eval"] and len(shown["train"]) == 4


def test_the_tree():  # rule 10
    for seed in range(50):
        form = build(5, 3, 2, 12, seed)
        window = form.tree(form.start)
        (page,) = window.children
        assert (window.role, page.role, page.name, len(page.children)) == ("window", "page", "1 of 3", 5)
        bottom = 100
        for node in page.children:
            left, top, right, low = node.box
            assert 0 <= left < right <= 1000 and bottom < top < low <= 1000
            bottom = low
        names = [widget.name for widget in form.widgets]
        assert len(set(names)) == len(names)
    env, result = start(0, boxes=True)
    node = env.state.form.tree(screen(env)).children[0].children[0]
    assert f"{node.name} {node.value} {' '.join(map(str, node.box))}" in result.observations[USER].text


def test_a_finished_form_leads_nowhere():
    form = build(4, 3, 2, 12, 0)
    lost = form.next(form.start, Gesture(type="finish"))
    assert form.left(lost) is None and form.best(lost) == []


def test_what_is_impossible_is_refused():  # rule 11
    with told(RecipeError, "`longest` ≤ 9"):
        UIForm(pages=1)
    with told(RecipeError, "5 to 4 actions"):
        UIForm(shortest=5, longest=4)
    with pytest.raises(RecipeError, match="rows"):
        UIForm(rows=1)
    with pytest.raises(ContractError, match="before `reset`"):
        act(UIForm(), "finish")
