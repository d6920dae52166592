"""What must hold of `shop`:

1. It keeps the contract of environments in both styles and vocabularies, with fixed catalogues, and with noise.
2. The expert makes a purchase of score 1 on a shortest way, also after other acts. Random play rarely does.
3. The score of a purchase is f · (attributes + options + bound met) / constraints. f is 1, 0.5 or 0 by the type.
4. Search adds the weights of words: type 4, title 2, details 1. Equal products are in the order of their numbers.
    Without a known word it finds nothing.
5. Commands work on their pages. On other pages, and for what cannot be clicked, nothing happens.
6. An unreadable act is marked, costs a turn and changes nothing else.
7. Each goal can be fulfilled. Each distractor is of the goal's type and misses exactly one constraint.
8. Options for sizes, pages, the cart and constraints work. With fixed catalogues no split has a goal of another split.
9. The renamed vocabulary has other words for the same episodes. It does not understand the plain words.
10. Searches leave out a share `missing` of products, and a share `slip` of choices fails, the same ones in the same
    task. The expert succeeds in spite of both.
11. Impossible options are refused.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from palaestra.data import Action, Task
from palaestra.envs.worlds.shop.catalogue import Catalogue, Goal, Product, _index, build, constraints_of, score
from palaestra.envs.worlds.shop.visit import act as do
from palaestra.envs.worlds.shop.visit import queries, way
from palaestra.envs.worlds.shop.words import DEPARTMENTS, VOCABULARIES
from palaestra.envs.worlds.shop.world import Shop
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment
from tests.messages import told

BUYER = "buyer"
SMALL = {"products": 40, "distractors": 1, "page_size": 4}


def start(seed=4, **options):
    env = Shop(**options)
    env.reset(env.tasks("train", seed + 1, 0)[seed])
    return env


def act(env, *texts):
    for text in texts:
        result = env.step({BUYER: Action(text=text)})
    return result


def play(env, task, choose):
    """An episode: all results. `choose` gives the text of an action for an observation."""
    results = [env.reset(task)]
    while results[-1].observations:
        results.append(act(env, choose(results[-1].observations[BUYER])))
    return results


def expert(env):
    return lambda seen: env.expert(BUYER).text


def anyhow(draw):
    return lambda seen: draw.choice(seen.legal)


def store_of(env):
    return env.state.store


def state_of(env):
    return env.state.visit


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"style": "words", "cart": False, "vocabulary": "renamed"},
        {"catalogues": 3, "page_size": 2, "max_turns": 30},
        {"products": 24, "missing": 0.3, "slip": 0.5},
    ],
)
def test_contract(options):  # rule 1
    check_environment(Shop(**options), make=lambda: Shop(**options))


# ---- expert and random play -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options", [{}, {**SMALL, "style": "words", "cart": False}, {"catalogues": 4, "page_size": 3, "max_turns": 25}]
)
def test_the_expert_buys_right(options):  # rule 2
    env = Shop(**options)
    for task in env.tasks("eval", 70, 0):
        results = play(env, task, expert(env))
        last = results[-1]
        assert last.info["success"] and last.rewards[BUYER] == last.info["score"] == 1
        assert all(result.info["process"] == {BUYER: 1.0} for result in results[1:])
        assert all(len(r.observations[BUYER].text.split()) <= 100 for r in results[:-1])


def test_the_expert_succeeds_after_other_acts():  # rule 2
    env, draw = Shop(**SMALL, max_turns=60), random.Random(1)
    mended = 0
    for task in env.tasks("train", 60, 5):
        result, acts = env.reset(task), draw.randrange(1, 8)
        for _ in range(acts):
            result = act(env, draw.choice(result.observations[BUYER].legal)) if result.observations else result
        if result.observations:
            ahead = len(way(env.state.store, env.state.visit))
            while result.observations:
                result, ahead = act(env, env.expert(BUYER).text), ahead - 1
            assert result.info["success"] and ahead == 0
            mended += 1
    assert mended > 30


def test_the_way_is_shortest():  # rule 2, by breadth-first search over everything that can be clicked or searched
    env = Shop(products=12, distractors=2, page_size=2, cart=True)
    for task in env.tasks("train", 12, 7):
        env.reset(task)
        store, state = env.state.store, env.state.visit
        reached, depth, seen = [state], 0, set()
        while not any(s.bought and score(store.goal, store.catalogue.products[s.item], s.chosen) == 1 for s in reached):
            depth, found = depth + 1, []
            for now in reached:
                legal = [] if now.bought else env._wording.legal(store, now)
                for text in legal:
                    after = do(store, now, env._wording.read(store, now, text))
                    key = (after.page, after.found, after.place, after.item, after.chosen, after.bought)
                    if key not in seen:
                        seen.add(key)
                        found.append(after)
            reached = found
        assert depth == len(way(store, state))


def test_random_play_rarely_buys_right():  # rule 2
    env, draw = Shop(), random.Random(0)
    won = [play(env, task, anyhow(draw))[-1].info["success"] for task in env.tasks("train", 100, 0)]
    assert sum(won) < 20


# ---- what a purchase is worth -----------------------------------------------------------------------------
SHIRT = Product(
    department="clothing",
    type="shirt",
    attributes=("soft", "warm", "slim"),
    options={"size": ("small", "large"), "color": ("red",)},
    price=30,
)
ASKED = Goal(
    department="clothing", type="shirt", attributes=("soft", "lined"), options=(("size", "small"),), most=30
)  # 4 constraints


@pytest.mark.parametrize(
    ("goal", "chosen", "worth"),
    [
        ({}, (), 2 / 4),  # soft, and not above 30
        ({}, (("size", "small"),), 3 / 4),
        ({}, (("color", "red"), ("size", "small")), 3 / 4),  # nobody asked for a color
        ({}, (("size", "large"),), 2 / 4),
        ({"most": 29}, (("size", "small"),), 2 / 4),
        ({"most": None}, (("size", "small"),), 2 / 3),
        ({"attributes": ("soft", "slim")}, (("size", "small"),), 1),
        ({"type": "dress"}, (("size", "small"),), 0.5 * 3 / 4),
        ({"type": "mug", "department": "kitchen"}, (("size", "small"),), 0),
        ({"attributes": ("lined",), "options": (), "most": 20}, (), 0),
    ],
)
def test_score(goal, chosen, worth):  # rule 3
    whole = {name: getattr(ASKED, name) for name in ("department", "type", "attributes", "options", "most")}
    assert score(Goal(**{**whole, **goal}), SHIRT, chosen) == pytest.approx(worth)


def test_the_reward_is_the_score_of_the_order():  # rule 3
    env, draw = Shop(**SMALL), random.Random(3)
    worths = Counter()
    for task in env.tasks("train", 80, 0):
        results = play(env, task, anyhow(draw))
        store, state = env.state.store, env.state.visit
        due = score(store.goal, store.catalogue.products[state.item], state.chosen) if state.bought else 0.0
        assert results[-1].rewards[BUYER] == results[-1].info["score"] == due
        assert results[-1].info["success"] == (due == 1)
        assert all(result.rewards.get(BUYER, 0.0) == 0 for result in results[:-1])
        worths[due] += 1
    assert len(worths) > 3


# ---- search and pages -------------------------------------------------------------------------------------
def test_search_ranks():  # rule 4
    def product(kind, *attributes):
        return Product(department="clothing", type=kind, attributes=attributes, options={}, price=9)

    goods = (
        product("scarf", "warm", "slim", "soft"),  # 0: soft in details
        product("shirt", "warm", "slim", "lined"),  # 1
        product("shirt", "warm", "slim", "soft"),  # 2: in details
        product("shirt", "soft", "slim", "lined"),  # 3: in the title
        product("shirt", "slim", "soft", "lined"),  # 4: likewise
        product("dress", "warm", "slim", "lined"),  # 5
    )
    catalogue = Catalogue(products=goods, goals=(), index=_index(goods))
    assert catalogue.search(["soft", "shirt"]) == (3, 4, 2, 1, 0)  # 6, 6, 5, 4, 1
    assert catalogue.search(["shirt", "soft", "soft"]) == (3, 4, 2, 1, 0)
    assert catalogue.search(["soft"]) == (3, 4, 0, 2)
    assert catalogue.search(["red"]) == catalogue.search([]) == ()


def test_commands():  # rule 5
    env = start(**SMALL, max_turns=100)
    store = store_of(env)
    for text in ("back", "buy", "click[red]", "click[next]", "click[p001]"):
        result = act(env, text)
        assert result.observations[BUYER].text.startswith("nothing happens.")
        assert result.info["executable"] == {BUYER: 0.0} and "invalid" not in result.info
    assert act(env, f"search[{store.goal.type}]").info["executable"] == {BUYER: 1.0}
    pages = []
    while True:
        seen = env._observe(store, state_of(env))
        pages.append([text for text in seen.legal if text.startswith("click[p0")])
        if "click[next]" not in seen.legal:
            break
        act(env, "click[next]")
    assert all(len(page) == 4 for page in pages[:-1]) and len(pages) > 1
    assert sum(map(len, pages)) == len(store.catalogue.search([store.goal.type]))
    assert act(env, "search[mug]", "click[next]").info["executable"] == {BUYER: 0.0}
    act(env, "click[previous]", pages[-2][0])
    number = state_of(env).item
    product = store.catalogue.products[number]
    text = env._observe(store, state_of(env)).text
    assert text.splitlines()[1].startswith(f"item p{number:03d}: {' '.join(product.title)}")
    assert product.attributes[2] in text
    first, second = product.options["color"][:2]
    assert dict(state_of(env).chosen) == {}
    act(env, f"click[{first}]", f"click[{second}]")
    assert dict(state_of(env).chosen) == {"color": second}
    assert "cart" in act(env, "buy").observations[BUYER].text
    act(env, "back", "back")
    assert state_of(env).page == "results" and " seen" in env._observe(store, state_of(env)).text
    act(env, "back")
    assert state_of(env).page == "search"


def test_an_item_forgets_its_choices():  # rule 5
    env = start(**SMALL, max_turns=100)
    goal = store_of(env).goal
    act(env, f"search {goal.type}")
    opened = env._observe(store_of(env), state_of(env)).legal[0]
    act(env, opened)
    color = env.state.store.catalogue.products[state_of(env).item].options["color"][0]
    act(env, f"click {color}", "back")
    assert state_of(env).chosen == ()
    act(env, opened)
    assert state_of(env).chosen == ()


@pytest.mark.parametrize(
    "text", ["", "??", "search", "search[]", "click", "buy now", "back[1]", "wait", "search[a] b", "[buy]", "a " * 20]
)
def test_unreadable(text):  # rule 6
    env = start(**SMALL)
    before = state_of(env)
    result = act(env, text)
    after = state_of(env)
    assert result.info["invalid"] == {BUYER: True} and result.info["executable"] == {BUYER: 0.0}
    assert (after.page, after.turn) == (before.page, before.turn + 1)


def test_reading_is_lenient():  # rule 6
    env = start(**SMALL)
    assert act(env, "  Search [ Soft  Shirt ] ").info["executable"] == {BUYER: 1.0}
    env = start(**SMALL, style="words")
    assert act(env, "search[soft shirt]", "click[1]").info["executable"] == {BUYER: 1.0}
    assert env.step({BUYER: Action(value=3)}).info["invalid"] == {BUYER: True}


# ---- catalogues and dials ---------------------------------------------------------------------------------
@pytest.mark.parametrize(("constraints", "distractors"), [((2, 5), 3), ((1, 1), 2), ((5, 5), 6)])
def test_distractors_miss_one_constraint(constraints, distractors):  # rule 7
    goods = build(4, 140, constraints, distractors, 11)
    for family, goal in enumerate(goods.goals):
        assert goal.constraints == constraints_of(11, family, constraints)
        assert constraints[0] <= goal.constraints <= constraints[1] and goal.attributes
        assert sum(goal.possible(product) for product in goods.products) >= 1
        near = 0
        for product in goods.products:
            offered = [(name, value) for name, value in goal.options if value in product.options.get(name, ())]
            missed = (1 - score(goal, product, offered)) * goal.constraints
            near += product.type == goal.type and round(missed) == 1
        assert near >= distractors
    for product in goods.products:
        shelf = DEPARTMENTS[product.department]
        assert product.type in shelf.types and len({*product.attributes} & {*shelf.attributes}) == 3
        assert all(values and {*values} <= {*shelf.options[name]} for name, values in product.options.items())


def test_options():  # rule 8
    assert len(store_of(start(products=57)).catalogue.products) == 57
    few = store_of(start(departments=1)).catalogue.products
    assert {product.department for product in few} == {"clothing"}
    some = Shop(constraints=(3, 4))
    assert {some.difficulty(task) for task in some.tasks("train", 40, 0)} == {3.0, 4.0}
    for task in Shop().tasks("train", 10, 0):
        env = Shop()
        env.reset(task)
        assert store_of(env).goal.constraints == env.difficulty(task)
    turns = {}
    for cart in (True, False):
        env = Shop(cart=cart)
        turns[cart] = [len(play(env, task, expert(env))) for task in env.tasks("train", 10, 0)]
    assert [n + 1 for n in turns[False]] == turns[True]
    env = start(max_turns=2)
    end = act(env, "back", "back")
    assert not end.observations and end.truncated == {BUYER} and not end.info["success"] and end.info["score"] == 0
    assert end.last[BUYER].text


def test_fixed_catalogues():  # rule 8
    env = Shop(catalogues=2, products=40)
    asked = {}
    for split in ("train", "eval"):
        asked[split] = set()
        for task in env.tasks(split, 60, 0):
            env.reset(task)
            asked[split].add(store_of(env).name)
    assert not asked["train"] & asked["eval"]
    assert len(asked["train"]) == len(asked["eval"]) == 2 * 5
    fresh = Shop()
    texts = {fresh.reset(task).observations[BUYER].text for task in fresh.tasks("train", 40, 0)}
    assert len(texts) > 35


# ---- variants ---------------------------------------------------------------------------------------------
def test_renamed_words():  # rule 9
    said = {word for d in DEPARTMENTS.values() for word in (*d.types, *d.attributes, *d.options)}
    said |= {value for d in DEPARTMENTS.values() for values in d.options.values() for value in values}
    said |= {"search", "click", "back", "buy", "next", "previous"}
    other = VOCABULARIES["renamed"].other
    assert set(other) == said and len(set(other.values())) == len(said)
    plain, renamed = Shop(**SMALL), Shop(**SMALL, vocabulary="renamed")
    for task in plain.tasks("train", 20, 0):
        first, second = play(plain, task, expert(plain)), play(renamed, task, expert(renamed))
        assert len(first) == len(second) and second[-1].info["success"]
        assert [r.observations[BUYER].state_key for r in first[:-1]] == [
            r.observations[BUYER].state_key for r in second[:-1]
        ]
    renamed.reset(task)
    for text in ("search[shirt]", "back"):
        assert act(renamed, text).info["invalid"] == {BUYER: True}
    goal = store_of(renamed).goal
    assert act(renamed, f"find[{goal.type}]").observations[BUYER].text.endswith("nothing found")
    assert act(renamed, "return", f"find[{other[goal.type]}]").info["process"] in ({BUYER: 0.0}, {BUYER: 1.0})
    assert state_of(renamed).found


def test_noise():  # rule 10
    left_out, slipped = [], []
    for seed in range(150):
        env = Shop(products=60, missing=0.3, slip=0.4, max_turns=80)
        env.reset(Task(env="shop", seed=seed))
        store = store_of(env)
        words = queries(store.goal)[-1]
        act(env, f"search[{' '.join(words)}]")
        whole = store.catalogue.search(words)
        left_out += [number not in state_of(env).found for number in whole]
        if state_of(env).found:
            result = act(env, env._observe(store, state_of(env)).legal[0])
            choice = next(text for text in result.observations[BUYER].legal if text.startswith("click"))
            result = act(env, choice)
            slipped.append(result.info["executable"] == {BUYER: 0.0})
            assert slipped[-1] == (state_of(env).chosen == ())
    assert 0.26 < np.mean(left_out) < 0.34 and 0.3 < np.mean(slipped) < 0.5
    env = Shop(products=60, missing=0.3, slip=0.4, max_turns=80)
    tasks = env.tasks("eval", 50, 0)
    ends = [play(env, task, expert(env)) for task in tasks]
    assert all(results[-1].info["success"] for results in ends)
    again = Shop(products=60, missing=0.3, slip=0.4, max_turns=80)
    assert [len(results) for results in ends] == [len(play(again, task, expert(again))) for task in tasks]


def test_options_are_checked():  # rule 11
    with told(RecipeError, "`constraints`"):
        Shop(constraints=(4, 2))
    with told(RecipeError, "7 products"):
        Shop(products=7)
    with told(RecipeError, "`missing: 1`"):
        Shop(missing=1.0)
    with pytest.raises(RecipeError, match="constraints"):
        Shop(constraints=(2, 6))
    with pytest.raises(RecipeError, match="vocabulary"):
        Shop(vocabulary="dutch")
    with pytest.raises(ContractError, match="before `reset`"):
        act(Shop(), "buy")
