"""What must hold of `miniwob`, in a real Chromium that all tests of this file share:

1. The expert solves forty pages. Ten more pages open, and agents can act on them.
2. It keeps the contract of environments.
3. The same seed gives the same episode, on a page that was played before and in a new browser process.
4. A browser that is killed in mid-episode is replaced, and the episode goes on as if nothing had happened.
5. One browser serves many episodes at a time, from one thread or several, and none of them waits forever.
6. The page's own reward counts, however late it comes. An act on a missing element only uses up a turn.
7. Elements, coordinates and screenshots show the same page. Acts can be written in words or as calls.
8. One line names what is missing: the package, the browser or its driver. Bad options are refused.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from palaestra.data import Action, Task
from palaestra.envs.adapters.miniwob import browser as browser_module
from palaestra.envs.adapters.miniwob import visit as visit_module
from palaestra.envs.adapters.miniwob.browser import CHROMEDRIVER, CHROMIUM
from palaestra.envs.adapters.miniwob.experts import RULES
from palaestra.envs.adapters.miniwob.pool import BROWSERS
from palaestra.envs.adapters.miniwob.reading import color_name
from palaestra.envs.adapters.miniwob.world import MiniWoB
from palaestra.errors import ContractError, EpisodeFailure, MissingExtra, RecipeError
from palaestra.testing import check_environment
from tests.extras import needs, some
from tests.messages import told

pytestmark = needs("miniwob", "selenium", "browser")
USER = "user"
WITHOUT_RULES = (
    "click-checkboxes-soft",
    "click-shape",
    "count-shape",
    "email-inbox-delete",
    "find-greatest",
    "generate-number",
    "guess-number",
    "multi-orderings",
    "social-media",
    "tic-tac-toe",
)


@pytest.fixture(scope="module", autouse=True)
def one_browser():
    yield
    BROWSERS.close()


def world(*names, **options):
    return MiniWoB(**{"tasks": names or tuple(RULES), "browsers": 1, **options})


def begin(env, seed=0):
    return env.reset(Task(env="miniwob", seed=seed))


def act(env, *texts):
    for text in texts:
        result = env.step({USER: Action(text=text)})
    return result


def shown(result):
    return {agent: (seen.text, seen.state_key, seen.legal) for agent, seen in result.observations.items()}


def solve(env, result):
    """The expert's episode from here: what was seen, done and earned."""
    told = [shown(result)]
    while result.observations:
        action = env.expert(USER)
        result = env.step({USER: action})
        told.append((action.text, shown(result), result.rewards, dict(result.info)))
    return told


def kill_browser():
    """End the browser as a crash does; its guard stays."""
    (seat,) = BROWSERS.seats
    for entry in (entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
        with suppress(ProcessLookupError, FileNotFoundError):  # other processes end while this one looks
            if os.getpgid(int(entry.name)) == seat.browser.group:
                if b"--type=" not in (entry / "cmdline").read_bytes() and "chrom" in (entry / "comm").read_text():
                    os.kill(int(entry.name), signal.SIGKILL)


# ---- pages ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", some(RULES, fast=12))
def test_rules_solve_their_pages(page):  # rule 1
    env = world(page)
    end = solve(env, begin(env, 1))[-1]
    assert end[2][USER] > 0 and end[3]["success"] and end[3]["stratum"] == page


@pytest.mark.slow
@pytest.mark.parametrize("page", RULES)
def test_rules_solve_many(page):  # rules 1 and 3
    env = world(page)
    first = [solve(env, begin(env, seed)) for seed in range(2, 27)]
    assert all(told[-1][3]["success"] for told in first)
    BROWSERS.close()
    assert [solve(env, begin(env, seed)) for seed in range(2, 7)] == first[:5]


@pytest.mark.parametrize("page", WITHOUT_RULES)
def test_pages_without_rules(page):  # rule 1
    env, draw = world(page), random.Random(0)
    result = begin(env)
    assert result.observations[USER].text.count("\n[") > 2
    for _ in range(2):
        if result.observations:
            result = act(env, draw.choice(result.observations[USER].legal[:-1]))
    assert -1 <= result.rewards.get(USER, 0) <= 1
    begin(env)
    with pytest.raises(EpisodeFailure, match="the page has no expert") as caught:
        env.expert(USER)
    assert caught.value.boundary == "environment"


def test_contract():  # rule 2
    options = {"tasks": ("click-option", "enter-text", "click-tab-2", "focus-text-2")}
    check_environment(world(**options), make=lambda: world(**options), episodes=3)


# ---- sameness ---------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_same_seed_in_a_fresh_browser():  # rule 3
    env = world("login-user", "click-shades", "click-checkboxes-large", "navigate-tree", max_turns=20)
    used = [solve(env, begin(env, seed)) for seed in range(4)]
    assert [solve(env, begin(env, seed)) for seed in range(2)] == used[:2]
    BROWSERS.close()
    assert [solve(env, begin(env, seed)) for seed in range(4)] == used


@pytest.mark.parametrize("after", [0, 2])
def test_a_killed_browser_is_replaced(after):  # rule 4
    env = world("login-user")
    undisturbed = solve(env, begin(env, 5))
    result = begin(env, 5)
    for _ in range(after):
        result = env.step({USER: env.expert(USER)})
    kill_browser()
    told = solve(env, result)
    assert told[-1][3].pop("restarts") == 1
    assert [entry[:3] for entry in told[1:]] == [entry[:3] for entry in undisturbed[after + 1 :]]
    assert told[-1][3] == undisturbed[-1][3]


@pytest.mark.slow
def test_browsers_that_die_again_and_again(monkeypatch):  # rule 4
    env = world("login-user")
    begin(env)

    def lost(self, script, *arguments):
        raise browser_module.BrowserLost("gone")

    monkeypatch.setattr(browser_module.Browser, "run", lost)
    with told(EpisodeFailure, "gone") as caught:
        act(env, "click 1")
    assert caught.value.boundary == "environment"


DRIVER = """#!/bin/sh
[ -s {starts} ] && [ $(wc -c < {starts}) -ge {failures} ] && exec {driver} "$@"
printf x >> {starts}; exit 1
"""


@pytest.mark.parametrize("failures", [1, 100])
def test_a_driver_that_does_not_start(failures, tmp_path, monkeypatch):  # rule 4
    env = world("login-user")
    undisturbed = solve(env, begin(env, 5))
    BROWSERS.close()
    starts, driver = tmp_path / "starts", tmp_path / "chromedriver"
    real = browser_module.binary(browser_module.CHROMEDRIVER, "chromium-driver")
    driver.write_text(DRIVER.format(starts=starts, failures=failures, driver=real))
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    ends, end = [], browser_module.Browser._end
    monkeypatch.setattr(browser_module.Browser, "_end", lambda browser: (ends.append(browser), end(browser)))
    if failures == 1:
        assert solve(env, begin(env, 5))[-1][1:3] == undisturbed[-1][1:3]
        assert len(starts.read_text()) == 1
    else:
        with told(EpisodeFailure, "ChromeDriver did not start"):
            begin(env, 5)
        assert len(starts.read_text()) == visit_module.LIVES
    assert len(ends) == len(set(ends)) == len(starts.read_text()), "no driver was waited for until its time was over"


def test_a_page_that_does_not_repeat_itself(monkeypatch):  # rule 4
    env, other = world("enter-text"), world("enter-text")
    begin(env, 0)
    first = visit_module.Visit._start
    monkeypatch.setattr(
        visit_module.Visit, "_start", lambda self, browser: (setattr(self, "seed", 1), first(self, browser))[1]
    )
    begin(other, 3)
    with told(EpisodeFailure, "a different page"):
        act(env, "click 1")


def test_many_episodes_in_one_browser():  # rule 5
    alone = world("login-user")
    expected = [solve(alone, begin(alone, seed)) for seed in range(3)]
    envs = [world("login-user") for _ in range(3)]
    told = [[shown(begin(env, seed))] for seed, env in enumerate(envs)]
    while len(told[0]) < len(expected[0]):
        for env, entries in zip(envs, told, strict=True):
            action = env.expert(USER)
            result = env.step({USER: action})
            entries.append((action.text, shown(result), result.rewards, dict(result.info)))
    assert told == expected
    assert len(BROWSERS.seats) == 1


def test_threads_share_browsers():  # rule 5
    ends = []

    def play(first):
        env = world("enter-password")
        for seed in (first, first + 1):
            ends.append(solve(env, begin(env, seed))[-1][3]["success"])
        env.close()

    threads = [threading.Thread(target=play, args=(10 * i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert ends == [True] * 6
    assert len(BROWSERS.seats) == 1 and BROWSERS.seats[0].holder is None


def test_snapshots():
    env = world("login-user")
    result = begin(env, 2)
    result = env.step({USER: env.expert(USER)})
    saved, text = env.snapshot(), result.observations[USER].text
    first = solve(env, result)
    other = world("login-user")
    other.restore(saved)
    assert solve(other, result) == first and first[0][USER][0] == text


# ---- what counts ------------------------------------------------------------------------------------------
def test_rewards():  # rule 6
    env = world("click-test-2", max_turns=3)
    wrong = "click 2" if "'ONE'" in begin(env).observations[USER].text.splitlines()[1] else "click 1"
    result = act(env, wrong)
    assert result.rewards == {USER: -1.0} and result.terminated == {USER} and result.info["success"] is False
    begin(env)
    result = act(env, "stop")
    assert result.rewards == {USER: 0.0} and result.terminated == {USER} and result.info["success"] is False
    begin(env)
    for text in ("click 9", "type 1 me", "click 900 1"):
        result = act(env, text)
        assert result.info["executable"] == {USER: 0.0} and "invalid" not in result.info
    assert result.truncated == {USER} and result.info["success"] is False
    assert result.last[USER].text.startswith("nothing happens\nClick button ")


def test_time_costs_nothing():  # rule 6: in the page's own reckoning a second costs a tenth of the reward
    env = world("enter-text")
    begin(env)
    act(env, env.expert(USER).text)
    (seat,) = BROWSERS.seats
    seat.browser.run("core.ept0 -= 9000; arguments[arguments.length - 1]();")
    assert act(env, env.expert(USER).text).rewards == {USER: 1.0}


def test_noise():  # rule 6
    env = world("focus-text", noise=0.5)
    lost = [begin(env, seed) and act(env, "click 1").info["executable"][USER] == 0 for seed in range(16)]
    assert 3 < sum(lost) < 13


def test_what_is_typed_replaces():
    env = world("enter-text")
    begin(env)
    assert act(env, "type 1 me", "type 1 Älter & 'so'").observations[USER].text.splitlines()[1].endswith("Älter & 'so")
    assert act(env, "click 1", "type 0 x").observations[USER].text.splitlines()[1].endswith(" x")
    assert act(env, "key backspace").observations[USER].text.splitlines()[1].endswith(")")
    env = world("choose-list")
    text = begin(env).observations[USER].text
    last = text.splitlines()[1].split("'")[1].split(", ")[-1]
    assert act(env, f"type 1 {last.upper()}").observations[USER].text.splitlines()[1].endswith(f" {last}")
    assert act(env, "type 1 atlantis").observations[USER].text.splitlines()[1].endswith(f" {last}")


def test_lists_that_scroll():
    env = world("social-media-all")
    before = begin(env).observations[USER].text
    down = act(env, "scroll down").observations[USER].text
    assert down != before and act(env, "scroll up").observations[USER].text == before


# ---- looks ------------------------------------------------------------------------------------------------
def test_observations():  # rule 7
    names = ("enter-password", "choose-list", "enter-time")
    plain, points, picture = (world(*names, observation=o) for o in ("elements", "coordinates", "screenshot"))
    for seed in range(3):
        first, second, third = (begin(env, seed).observations[USER] for env in (plain, points, picture))
        assert first.text.replace("[", "").count("(") == second.text.count("(") and "[" not in second.text
        assert third.text == first.text.splitlines()[0] and first.state_key == second.state_key == third.state_key
        assert third.image.shape == (210, 160, 3) and third.image.dtype == np.uint8 and third.image.std() > 20
        for env in (plain, points, picture):
            assert solve(env, begin(env, seed))[-1][3]["success"]
    bare = world(*names, boxes=False, calls=True)
    assert "(" not in begin(bare).observations[USER].text and bare.expert(USER).text.startswith("type(")
    assert solve(bare, begin(bare))[-1][3]["success"]
    assert [color_name(c) for c in ("rgb(250, 5, 5)", "blue", "none")] == ["red", "blue", "none"]


# ---- what is missing --------------------------------------------------------------------------------------
def test_missing_programs(monkeypatch):  # rule 8
    BROWSERS.close()
    env = world("click-test")
    for missing, package in ((CHROMIUM, "chromium"), (CHROMEDRIVER, "chromium-driver")):
        with monkeypatch.context() as patch:
            patch.setattr(
                browser_module.shutil, "which", lambda name, missing=missing: None if name in missing else name
            )
            with pytest.raises(
                MissingExtra, match=f"program `{missing[0]}` was not found(.|\n)*apt-get install {package}$"
            ):
                begin(env)
    assert not BROWSERS.seats and not BROWSERS.starting


@pytest.mark.parametrize("package", ["miniwob", "selenium"])
def test_missing_packages(monkeypatch, package):  # rule 8
    BROWSERS.close()
    env = world("click-test")
    monkeypatch.setitem(__import__("sys").modules, package, None)
    visit_module.folder.cache_clear()
    try:
        with pytest.raises(MissingExtra, match=rf"`{package}` is not installed(.|\n)*pip install 'palaestra\[web\]'"):
            begin(env)
    finally:
        visit_module.folder.cache_clear()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": ()}, "`tasks` is empty"),
        ({"tasks": ("click-tset",)}, "names `click-tset`(.|\n)*Candidates: click-test"),
        ({"noise": 1.0}, "nothing would ever happen"),
        ({"observation": "sound"}, "observation"),
        ({"browsers": 0}, "browsers"),
    ],
)
def test_bad_options(options, message):  # rule 8
    with pytest.raises(RecipeError, match=message):
        MiniWoB(**options)


def test_before_reset():
    with pytest.raises(ContractError, match="before `reset`"):
        act(world("click-test"), "stop")
