"""What must hold of the world `travel`:

1. It keeps the contract of environments with every style, format and vocabulary.
2. test_travel_plans tests the first verifier and the planner.
3. The second verifier rejects an act with a price or an offer that was not shown. It judges only plans that the first
    verifier accepts.
4. Rewards by hand: 1 · [1, 1, 0] → 0, 1 · [1, 1, 1] → 1, 0 → 0; "plan" and "share".
5. An act that cannot be done changes nothing, and the agent reads why. An unreadable act is marked. The same query has
    the same answer.
6. The expert solves every task, also after other acts.
7. Every request has a plan. Options do what they say. Random play fails. Splits share nothing.
8. Renamed words change texts and not plans.
9. Noise and stale prices are the same each time.
10. Whole plans are handed in by codes.
11. A snapshot can be restored.
12. Impossible options are refused.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from palaestra.data import Action
from palaestra.envs.worlds.travel.country import Country, quoted, sights, tickets
from palaestra.envs.worlds.travel.episode import code, decoded, offers, prices
from palaestra.envs.worlds.travel.planner import completed
from palaestra.envs.worlds.travel.trip import cost
from palaestra.envs.worlds.travel.words import TOWNS, VOCABULARIES, town_names
from palaestra.envs.worlds.travel.world import AGENT, Travel
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.messages import told

LAND = Country(seed=1, towns=6, tickets=4, hotels=3, sights=3)
SMALL = {"stops": (1, 1), "wishes": (1, 3)}


def say(env, text):
    return env.step({AGENT: Action(text=text)})


def play(env, task):
    result = env.reset(task)
    while result.observations:
        result = env.step({AGENT: env.expert(AGENT)})
    return result


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"vocabulary": "renamed", "noise": 0.2, "stale": 0.5, "format": "tagged"},
        {"style": "whole", "format": "json", **SMALL},
        {"style": "whole", "format": "code", "vocabulary": "renamed", "reward": "share", **SMALL},
        {"back": False, "prices": False, "manual": False, "countries": 2, **SMALL},
    ],
)
def test_1_contract(options):
    check_environment(Travel(**options), make=lambda: Travel(**options), episodes=2)


# ---- the second verifier and rewards ----------------------------------------------------------------------
def booked(env, *, lies=0, wrong=False):
    """The expert's episode, with invented prices, or with the plan handed in before anything is booked."""
    env.reset(env.tasks("train", 1, 0)[0])
    results = []
    while not results or results[-1].observations:
        text = "done" if wrong else env.expert(AGENT).text
        if text.startswith("book") and lies:
            text, lies = f"{text}7", lies - 1
        results.append(say(env, text))
    return results


def test_3_made_up_prices():
    env = Travel(wishes=(1, 1), kinds=("stars",), stops=(1, 1))
    true, false = booked(env), booked(env, lies=1)
    assert all(one.info["consistent"] == {AGENT: 1.0} for one in true)
    assert [one.info["consistent"][AGENT] for one in false].count(0.0) == 1
    assert (true[-1].info["success"], true[-1].rewards[AGENT], true[-1].info["judged"]) == (True, 1.0, len(true))
    last = false[-1]
    assert (last.info["success"], last.rewards[AGENT], last.info["feasible"]) == (False, 0.0, {AGENT: 1.0})
    hasty = booked(env, wrong=True)[-1]
    assert (hasty.rewards[AGENT], hasty.info["judged"], hasty.info["failed"]) == (0.0, 0, ["covered"])


def test_4_rewards():
    plan, share = (Travel(wishes=(1, 1), kinds=("stars",), stops=(1, 1), reward=one) for one in ("plan", "share"))
    assert booked(plan, lies=1)[-1].rewards[AGENT] == 1.0 and not booked(plan, lies=1)[-1].info["success"]
    assert booked(plan, wrong=True)[-1].rewards[AGENT] == 0.0
    assert booked(share)[-1].rewards[AGENT] == 1.0 and booked(share, lies=1)[-1].rewards[AGENT] == 0.0
    assert booked(share, wrong=True)[-1].rewards[AGENT] == pytest.approx(5 / 6)


# ---- acts -------------------------------------------------------------------------------------------------
def test_5_what_cannot_be_done_or_read():
    env = Travel(**SMALL)
    env.reset(env.tasks("train", 1, 0)[0])
    for text in (
        "book train 1 20",
        "undo",
        "visit 1 1 9 5",
        "trains bern bern 2",
        "trains athens bern 99",
        "route bern station moon",
    ):
        kept = env.snapshot()
        result = say(env, text)
        assert result.info["executable"] == {AGENT: 0.0} and "invalid" not in result.info, text
        assert "error:" in result.observations[AGENT].text
        now = env.snapshot()
        assert (now.plan, now.shown, now.untrue) == (kept.plan, kept.shown, 0)
    say(env, "trains athens bern 2")
    assert "there is no train 9" in say(env, "book train 9 20").observations[AGENT].text
    for value in ("", "fly away", "book train", "trains 3", "book train one 4", None, 7, "book ship 1 20"):
        result = env.step({AGENT: Action(text="x", value=value)})
        assert result.info["invalid"] == {AGENT: True} and result.info["tool_error"] == {AGENT: 1.0}


def test_5_lists_and_bookings():
    env = Travel(**SMALL)
    env.reset(env.tasks("train", 1, 0)[0])
    first = say(env, "trains athens bern 2").observations[AGENT].text
    assert say(env, "trains athens bern 2").observations[AGENT].text == first
    state = env.snapshot()
    one = tickets(state.country, "train", 0, 1, 2)[1]
    text = say(env, f"book train 2 {one.price}").observations[AGENT].text
    assert f"train day 2 athens to bern {one.leaves} to {one.arrives} for {one.price}. spent {one.price}." in text
    assert "trains athens" not in text and env.snapshot().untrue == 0
    assert say(env, "undo").observations[AGENT].text.count("plan:") == 0
    say(env, "pois bern")
    opens = sights(state.country, 1)[0]
    assert f"1 {opens.kind} open {opens.opens} to {opens.closes}" in say(env, "hotels bern 1").observations[AGENT].text


def test_5_several_calls_in_one_act():
    env = Travel(**SMALL)
    env.reset(env.tasks("train", 1, 0)[0])
    result = say(env, "pois bern\nundo\nundo\nhotels bern 1")
    assert result.info["tool_call"] == {AGENT: 4.0} and result.info["tool_error"] == {AGENT: 2.0}
    assert result.observations[AGENT].text.count("error: nothing is booked") == 2
    assert say(env, "done\nundo").info["tool_call"] == {AGENT: 1.0}


def test_5_the_end():
    with pytest.raises(ContractError, match="before `reset`"):
        Travel().step({AGENT: Action(text="done")})
    env = Travel(max_turns=2)
    env.reset(env.tasks("train", 1, 0)[0])
    say(env, "undo")
    last = say(env, "undo")
    assert last.truncated == {AGENT} and set(last.last) == {AGENT} and last.info["success"] is False


# ---- expert -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("options", "count"), [({}, 40), ({"style": "whole", "stops": (2, 3)}, 6), (SMALL, 60)])
def test_6_the_expert_solves_every_task(options, count):
    env = Travel(**options)
    for task in env.tasks("eval", count, 1):
        result = play(env, task)
        assert result.info["success"] is True and result.info["failed"] == []


def test_6_after_others_acts():
    env = Travel(max_turns=80, **SMALL)
    draw = np.random.default_rng(0)
    for task in env.tasks("train", 15, 2):
        result = env.reset(task)
        for _ in range(12):
            choices = [text for text in result.observations[AGENT].legal if text != "done"]
            result = say(env, choices[int(draw.integers(len(choices)))])
        while result.observations:
            result = env.step({AGENT: env.expert(AGENT)})
        assert result.info["success"] is True


# ---- dials ------------------------------------------------------------------------------------------------
def test_7_dials():
    env = Travel(stops=(2, 2), nights=1, wishes=(3, 3), kinds=("stars", "leave", "trains"), slack=0.0, tickets=3)
    for task in env.tasks("train", 10, 0):
        env.reset(task)
        asked = env.snapshot().request
        assert env.difficulty(task) == 3 and len(asked.legs) == 3 and asked.until is None and asked.budget is None
        assert asked.trains and asked.stars in (2, 3) and asked.leave is not None
        assert [stop.nights for stop in asked.stops] == [1, 1]
    one_way = Travel(back=False, countries=2, **SMALL)
    lands = set()
    for task in one_way.tasks("train", 10, 0):
        one_way.reset(task)
        assert one_way.snapshot().request.until is not None and len(one_way.snapshot().request.legs) == 1
        lands.add(one_way.snapshot().country)
    assert len(lands) == 2


def test_7_budgets():
    for slack in (0.0, 0.5):
        env = Travel(kinds=("budget",), wishes=(1, 1), stops=(1, 1), slack=slack)
        for task in env.tasks("train", 10, 0):
            env.reset(task)
            state = env.snapshot()
            assert cost(state.request, completed(state.country, state.request)) <= state.request.budget


def test_7_random_play_rarely_succeeds():
    env = Travel(back=False, **SMALL)
    draw = np.random.default_rng(0)
    won = 0
    for task in env.tasks("eval", 60, 0):
        result = env.reset(task)
        while result.observations:
            legal = result.observations[AGENT].legal
            result = say(env, legal[int(draw.integers(len(legal)))])
        won += result.info["success"]
    assert won <= 6


def test_7_splits_share_nothing():
    env = Travel()
    train, held_out = env.tasks("train", 100, 3), env.tasks("eval", 100, 3)
    assert not {t.content_hash for t in train} & {t.content_hash for t in held_out}
    assert env.tasks("train", 20, 3) == train[:20]


# ---- words, noise -----------------------------------------------------------------------------------------
def test_8_renamed():
    plain, renamed = Travel(**SMALL), Travel(vocabulary="renamed", **SMALL)
    for words in VOCABULARIES.values():
        assert len({town[0] for town in town_names(words)}) == 12 and len(set(words.other.values())) == len(words.other)
        assert all(words.hear(words.say(one)) == one for one in ("train", "hotel2", "museum", "pois", *TOWNS))
    for task in plain.tasks("train", 5, 0):
        texts = [env.reset(task).observations[AGENT].text for env in (plain, renamed)]
        assert texts[0] != texts[1]
        while True:
            acts = [env.expert(AGENT) for env in (plain, renamed)]
            assert acts[0].text != acts[1].text
            results = [env.step({AGENT: act}) for env, act in zip((plain, renamed), acts, strict=True)]
            assert plain.snapshot() == renamed.snapshot()
            if not results[0].observations:
                break
            assert not {"hotel", "train"} & set(results[1].observations[AGENT].text.replace(":", " ").split())
        assert all(result.info["success"] for result in results)
    renamed.reset(task)
    assert "invalid" in say(renamed, "trains athens bern 2").info
    assert say(renamed, "walk avo station pad").info["executable"] == {AGENT: 0.0}


def test_9_noise():
    env = Travel(noise=0.5, max_turns=50, **SMALL)
    task = env.tasks("train", 1, 0)[0]
    runs = []
    for _ in range(2):
        env.reset(task)
        runs.append([say(env, "pois bern").info["tool_error"][AGENT] for _ in range(40)])
    assert runs[0] == runs[1] and 10 < sum(runs[0]) < 30
    assert play(Travel(noise=0.3, max_turns=60, **SMALL), task).info["success"]


def test_9_stale_prices():
    query = ("hotels", 1, 2)
    told = [quoted(replace(LAND, seed=seed), query, (50, 60), 0.5) for seed in range(200)]
    assert 60 < sum(one != (50, 60) for one in told) < 140 and quoted(LAND, query, (50, 60), 0.0) == (50, 60)
    env = Travel(stale=1.0, kinds=("stars",), wishes=(0, 0), stops=(1, 1))
    env.reset(env.tasks("train", 1, 0)[0])
    say(env, "trains athens bern 1")
    state = env.snapshot()
    shown = prices(state, ("trains", 0, 1, 1))
    true = tuple(one.price for one in offers(state.country, ("trains", 0, 1, 1)))
    assert shown != true and shown == prices(state, ("trains", 0, 1, 1))
    # The act may state the stale price, since it was shown. The plan has the true price.
    result = say(env, f"book train 1 {shown[0]}")
    assert result.info["consistent"] == {AGENT: 1.0} and f"spent {true[0]}." in result.observations[AGENT].text


# ---- whole plans ------------------------------------------------------------------------------------------
def test_10_codes():
    letters = tuple(town[0] for town in TOWNS)
    codes = {letter: number for number, letter in enumerate(letters[: LAND.towns])}
    for query in (("trains", 0, 1, 2), ("flights", 5, 2, 11), ("hotels", 3, 4), ("pois", 2)):
        for one in offers(LAND, query):
            assert decoded(LAND, code(one, letters), codes) == one
    assert code(tickets(LAND, "train", 1, 0, 2)[0], letters) == "tba2-1"
    for text in (
        "",
        "t",
        "tab2",
        "tab2-9",
        "tab2-0",
        "tab0-1",
        "taa2-1",
        "tax2-1",
        "ha-1",
        "sa2-1",
        "xa-1",
        7,
        "tab-1",
    ):
        assert decoded(LAND, text, codes) is None, text


def test_10_whole_plans():
    env = Travel(style="whole", format="json", kinds=("stars",), wishes=(1, 1), stops=(1, 1))
    task = env.tasks("train", 1, 0)[0]
    assert play(env, task).info["success"] is True
    env.reset(task)
    for text in ('{"items": [{"id": "q-1", "price": 4}]}', '{"items": [{"id": "tab2-1"}]}', '{"items": 3}'):
        result = say(env, f'{{"name": "plan", "arguments": {text}}}')
        assert result.observations and result.info["executable"] == {AGENT: 0.0}, text
    blind = say(env, '{"name": "plan", "arguments": {"items": [{"id": "tab2-1", "price": 4}]}}')
    assert blind.info["consistent"] == {AGENT: 0.0} and blind.terminated == {AGENT} and not blind.info["success"]


def test_11_snapshot():
    env = Travel(**SMALL)
    tasks = env.tasks("train", 2, 0)
    env.reset(tasks[0])
    kept = env.snapshot()
    first = say(env, "pois bern").observations[AGENT].text
    env.reset(tasks[1])
    env.restore(kept)
    assert say(env, "pois bern").observations[AGENT].text == first


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"stops": (2, 1)}, "`stops`"),
        ({"wishes": (3, 2)}, "`wishes: [2, 3]`"),
        ({"kinds": ("stars",), "wishes": (1, 2)}, "goes up to 2"),
        ({"kinds": ("stars", "stars"), "wishes": (1, 1)}, "stars"),
        ({"noise": 1.0}, "`noise: 1`"),
    ],
)
def test_12_impossible_options(options, word):
    with told(RecipeError, word):
        Travel(**options)


@pytest.mark.parametrize(("options", "word"), [({"towns": 3}, "`towns`"), ({"kinds": ("luck",)}, "`kinds")])
def test_12_values_of_options(options, word):
    with pytest.raises(RecipeError, match=word):
        Travel(**options)
