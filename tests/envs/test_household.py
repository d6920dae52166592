"""What must hold of `household`:

1. It keeps the contract of environments, for all views, rewards, experts and vocabularies, with noise.
2. The sighted expert reaches every goal on a shortest way, also after others' acts; random play rarely does.
3. The searching expert reaches it too, and is led by what was seen only.
4. Commands do what they say where they are possible; elsewhere nothing happens.
5. What cannot be read is marked, costs a turn and changes nothing else.
6. Stages are counted as the goal has them; the sparse reward is 1 at the goal, the dense one +1 for each new stage,
   −0.5 for an act that does nothing, +3 at the goal.
7. Every goal is what it says, not reached at the start, and needs its appliance.
8. Dials are as said; splits differ.
9. The views tell of contents what they should, and the texts stay short.
10. Vocabularies are other words for the same episodes; no two things of any have one name.
11. A share `slip` of the acts of hands does nothing, the same ones in the same task.
12. Impossible options are refused.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import replace

import numpy as np
import pytest

from palaestra.data import Action, Task
from palaestra.envs.household.house import GOALS, KINDS, SUITED, WITH_DOORS, Goal, House, Place, State, stage, stages
from palaestra.envs.household.plan import search_then_plan, shortest
from palaestra.envs.household.rules import IDLE, Command, conceivable, possible
from palaestra.envs.household.rules import act as do
from palaestra.envs.household.words import PHRASES, WORDS, vocabulary
from palaestra.envs.household.world import Household
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment

PLAYER = "player"
SMALL = {"rooms": 1, "places": (4, 5), "things": (2, 3)}


def act(env, *texts):
    for text in texts:
        result = env.step({PLAYER: Action(text=text)})
    return result


def play(env, task, choose=None):
    """An episode: all results. `choose` gives the text of an action for an observation; without, the expert acts."""
    results = [env.reset(task)]
    while results[-1].observations:
        text = choose(results[-1].observations[PLAYER]) if choose else env.expert(PLAYER).text
        results.append(act(env, text))
    return results


def placed(env, goal, things, start, *, lamp=3):
    """The environment in a kitchen that is known: fridge, microwave, sink, counter, drawer; a bedroom with a bed."""
    places = (("sink", 0), ("microwave", 0), ("fridge", 0), ("counter", 0), ("drawer", 0), ("bed", 1))
    house = House(
        rooms=("kitchen", "bedroom"),
        places=tuple(Place(kind, 1, room) for kind, room in places),
        things=things,
        start=start,
        lamp=lamp,
        goal=goal,
    )
    env.reset(env.tasks("train", 1, 0)[0])
    scene = env.snapshot()[0]
    wording = type(scene.wording)(house, vocabulary("plain", 0), view=env._view, idle=True)
    state = env._first(house)
    env.restore((replace(scene, house=house, wording=wording), state, shortest(house, state)))
    return env


def kitchen(goal=("put", "mug", "drawer"), **options):
    """A mug in the fridge, a book on the counter, where the lamp stands."""
    return placed(Household(**options), Goal(*goal), (("mug", 1), ("book", 1)), (2, 3))


def state_of(env):
    return env.snapshot()[1]


def done(result):
    return result.info["executable"] == {PLAYER: 1.0}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"view": "here", "rooms": 3, "expert": "searching", "vocabulary": "formal"},
        {"view": "full", "reward": "dense", "idle": False, "vocabulary": "mixed"},
        {**SMALL, "slip": 0.5, "vocabulary": "casual", "max_turns": 9},
    ],
)
def test_contract(options):  # rule 1
    check_environment(Household(**options), make=lambda: Household(**options))


# ---- experts and random play ------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"rooms": 3, "places": (12, 15), "things": (8, 12)}, SMALL])
def test_the_expert_reaches_every_goal(options):  # rule 2
    env = Household(**options, max_turns=16)
    for task in env.tasks("eval", 70, 0):
        results = play(env, task)
        assert results[-1].info["success"] and results[-1].rewards == {PLAYER: 1.0}
        assert len(results) - 1 == task.difficulty
        assert all(result.info["process"] == {PLAYER: 1.0} for result in results[1:])


def distance(house, state):
    """Length of a shortest way, by search in width over all commands."""
    reached, ahead = {_key(state)}, deque([(state, 0)])
    while ahead:
        state, steps = ahead.popleft()
        if stage(house, state) == len(stages(house.goal)):
            return steps
        for command in possible(house, state):
            after = do(house, state, command)
            if command.verb not in (*IDLE, "close") and _key(after) not in reached:
                reached.add(_key(after))
                ahead.append((after, steps + 1))
    raise AssertionError("the goal cannot be reached")


def _key(state):
    return state.room, state.at, state.where, state.open, state.marks, state.looked


@pytest.mark.parametrize("goal", GOALS)
def test_the_way_is_shortest(goal):  # rule 2, also after others' acts
    env, draw = Household(**SMALL | {"things": (2, 2)}, goals=(goal,)), random.Random(0)
    for task in env.tasks("train", 4, 1):
        result, acts = env.reset(task), draw.choice([0, 5, 12])
        for _ in range(acts):
            result = act(env, draw.choice(result.observations[PLAYER].legal)) if result.observations else result
        house, state = env.snapshot()[0].house, state_of(env)
        assert len(shortest(house, state)) == distance(house, state)


def test_the_expert_mends_what_others_did():  # rule 2
    for options in ({}, {"expert": "searching", "view": "here", "rooms": 3}):
        env, draw, mended = Household(**options, max_turns=90), random.Random(1), 0
        for task in env.tasks("train", 30, 5):
            result = env.reset(task)
            for _ in range(25):
                result = act(env, draw.choice(result.observations[PLAYER].legal)) if result.observations else result
            while result.observations:
                result = act(env, env.expert(PLAYER).text)
            mended += result.info["success"]
        assert mended == 30


def test_random_play_rarely_reaches_it():  # rule 2
    draw = random.Random(0)
    env = Household(max_turns=20)
    won = [
        play(env, task, lambda seen: draw.choice(seen.legal))[-1].info["success"] for task in env.tasks("train", 100, 0)
    ]
    assert sum(won) < 20


@pytest.mark.parametrize("view", ["remembered", "here"])
def test_the_searching_expert(view):  # rule 3
    env, sighted = Household(expert="searching", view=view, rooms=3), 0
    for task in env.tasks("eval", 60, 0):
        results = play(env, task)
        assert results[-1].info["success"]
        sighted += len(results) - 1 == task.difficulty
    assert sighted < 30  # mostly it has to search


def test_searching_uses_what_was_seen():  # rule 3: what was not seen may be anywhere and changes nothing
    env = kitchen(expert="searching")
    house, state = env.snapshot()[0].house, state_of(env)
    for place in (1, 2, 4, 5):
        assert search_then_plan(house, replace(state, where=(place, 3))) == Command("go", place=0)
    assert [act(env, env.expert(PLAYER).text) and state_of(env).at for _ in range(2)] == [0, 1]
    assert env.expert(PLAYER).text == "open microwave 1"


# ---- commands ---------------------------------------------------------------------------------------------
def test_commands():  # rule 4
    env = kitchen(max_turns=100)
    assert done(act(env, "go to fridge 1")) and state_of(env).at == 2
    assert done(act(env, "open fridge 1")) and done(act(env, "take mug 1 from fridge 1"))
    assert state_of(env).held == 0
    for how, appliance, marks in (
        ("cool", "fridge", {"cool"}),
        ("heat", "microwave", {"hot"}),
        ("clean", "sink", {"hot", "clean"}),
        ("go", "", {"hot", "clean"}),
        ("cool", "fridge", {"cool", "clean"}),
    ):
        text = f"{how} mug 1 with {appliance} 1" if appliance else "go to bedroom"
        if state_of(env).room:
            act(env, "go to kitchen")
        act(env, f"go to {appliance} 1")
        assert done(act(env, text))
        assert {mark for _, mark in state_of(env).marks} == marks
    assert "you carry mug 1 clean cool." in env._observe(*env.snapshot()[:2]).text
    assert done(act(env, "close fridge 1"))
    assert not done(act(env, "put mug 1 in fridge 1"))
    assert done(act(env, "go to bedroom")) and state_of(env).at == -1
    assert not done(act(env, "go to counter 1"))
    assert done(act(env, "go to bed 1")) and done(act(env, "put mug 1 in bed 1"))
    assert state_of(env).where == (5, 3) and state_of(env).held == -1
    assert act(env, "examine mug 1").observations[PLAYER].text.startswith("mug 1 is clean and cool.")
    assert act(env, "examine bed 1").observations[PLAYER].text.startswith("bed 1 is open.")


@pytest.mark.parametrize(
    "text",
    [
        *("take mug 1 from fridge 1", "open fridge 1", "close fridge 1", "put mug 1 in counter 1", "go to kitchen"),
        *("use lamp", "examine mug 1", "examine fridge 1", "clean mug 1 with sink 1", "heat mug 1 with fridge 1"),
        *("put book 1 in counter 1", "go to bed 1"),
    ],
)
def test_impossible(text):  # rule 4
    env = kitchen(reward="dense")
    before = state_of(env)
    result = act(env, text)
    assert result.observations[PLAYER].text.startswith("nothing happens.")
    assert not done(result) and "invalid" not in result.info and result.rewards == {PLAYER: -0.5}
    assert replace(state_of(env), turn=0, said=before.said, failed=False) == before


def test_hands_hold_one_thing_and_doors_hide():  # rule 4
    env = kitchen(max_turns=100)
    act(env, "go to counter 1", "take book 1 from counter 1", "go to fridge 1")
    assert not done(act(env, "take mug 1 from fridge 1")) and not done(act(env, "put book 1 in fridge 1"))
    act(env, "open fridge 1")
    assert not done(act(env, "take mug 1 from fridge 1"))
    assert not done(act(env, "cool book 1 with fridge 1"))  # not suited
    assert done(act(env, "put book 1 in fridge 1")) and done(act(env, "take mug 1 from fridge 1"))
    assert done(act(env, "cool mug 1 with fridge 1")) and not done(act(env, "cool mug 1 with fridge 1"))


def test_legal_is_what_is_possible():  # rule 4
    env, draw = Household(max_turns=40), random.Random(2)
    for task in env.tasks("train", 5, 0):
        result = env.reset(task)
        for _ in range(12):
            if result.observations:
                scene, state = env.snapshot()[:2]
                can = {one for one in conceivable(scene.house) if not do(scene.house, state, one).failed}
                assert can == set(possible(scene.house, state))
                result = act(env, draw.choice(result.observations[PLAYER].legal))


@pytest.mark.parametrize(
    "text", ["", "??", "go", "go to attic", "take mug 9 from sink 1", "take mug from sink 1", "wait"]
)
def test_unreadable(text):  # rule 5
    env = kitchen()
    before = state_of(env)
    result = act(env, text)
    assert result.info["invalid"] == {PLAYER: True} and not done(result)
    assert result.observations[PLAYER].text.startswith("nothing happens.")
    assert replace(state_of(env), turn=0, said=before.said, failed=False) == before


def test_reading_is_lenient():  # rule 5
    env = kitchen()
    assert done(act(env, "  Go to  FRIDGE 1. "))
    assert env.step({PLAYER: Action(value=3)}).info["invalid"] == {PLAYER: True}
    env = Household(idle=False)
    env.reset(env.tasks("train", 1, 0)[0])
    assert act(env, "look").info["invalid"] == {PLAYER: True}


# ---- stages and rewards -----------------------------------------------------------------------------------
WAYS = {
    ("put", "mug", "drawer"): "go to drawer 1; open drawer 1; put mug 1 in drawer 1*",
    ("put", "mug", "bed"): "go to bedroom; go to bed 1; put mug 1 in bed 1*",
    ("clean", "mug", "bed"): "go to sink 1; clean mug 1 with sink 1+; go to bedroom; go to bed 1; put mug 1 in bed 1*",
    ("heat", "mug", "sink"): "go to microwave 1; heat mug 1 with microwave 1+; go to sink 1; put mug 1 in sink 1*",
    ("cool", "mug", "counter"): "cool mug 1 with fridge 1+; go to counter 1; put mug 1 in counter 1*",
    ("look", "mug", ""): "go to counter 1; use lamp*",
}


@pytest.mark.parametrize("reward", ["sparse", "dense"])
@pytest.mark.parametrize("goal", WAYS)
def test_rewards_by_hand(goal, reward):  # rule 6; "+" marks a new stage, "*" the goal
    env = kitchen(goal, reward=reward)
    total = {"sparse": (0.0, 0.0, 1.0), "dense": (0.0, 1.0, 4.0)}[reward]
    way = f"go to fridge 1; open fridge 1; take mug 1 from fridge 1+; {WAYS[goal]}".split("; ")
    assert env.expert(PLAYER).text == way[0]
    seen = 0
    for text in way:
        due = total[2 if text.endswith("*") else int(text.endswith("+"))]
        result = act(env, text.rstrip("+*"))
        seen += text[-1] in "+*"
        assert result.rewards == {PLAYER: due} and result.info["stage"] == {PLAYER: float(seen)}
    assert result.terminated == {PLAYER} and result.info["success"]
    assert result.info["subgoal"] == {PLAYER: ""}


def test_stages_are_paid_once():  # rule 6
    env = kitchen(("clean", "mug", "bed"), reward="dense", max_turns=50)
    act(env, "go to fridge 1", "open fridge 1")
    rewards = [
        act(env, text).rewards[PLAYER]
        for text in ("take mug 1 from fridge 1", "put mug 1 in fridge 1", "take mug 1 from fridge 1", "take it")
    ]
    assert rewards == [1.0, 0.0, 0.0, -0.5]
    result = act(env, "put mug 1 in fridge 1")
    assert result.info["stage"] == {PLAYER: 0.0} and result.info["subgoal"] == {PLAYER: "take"}
    result = act(env, "take mug 1 from fridge 1")
    assert result.info["subgoal"] == {PLAYER: "clean"}
    result = act(env, "go to sink 1", "clean mug 1 with sink 1")
    assert result.rewards == {PLAYER: 1.0} and result.info["subgoal"] == {PLAYER: "put"}


def test_two_things():  # rule 6
    env = placed(Household(reward="dense"), Goal("two", "mug", "counter"), (("mug", 1), ("mug", 2)), (0, 0))
    results = []
    for number in (1, 2):
        texts = ("go to sink 1", f"take mug {number} from sink 1", "go to counter 1", f"put mug {number} in counter 1")
        results += [act(env, text) for text in texts]
    assert [result.rewards[PLAYER] for result in results] == [0, 1, 0, 1, 0, 1, 0, 4]
    assert [result.info["stage"][PLAYER] for result in results] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert [result.info["success"] for result in results] == [False] * 7 + [True]


def test_the_turn_limit():  # rule 6
    env = kitchen(max_turns=2)
    end = act(env, "look", "look")
    assert not end.observations and end.truncated == {PLAYER} and end.last[PLAYER].text and not end.info["success"]


# ---- houses and dials -------------------------------------------------------------------------------------
def test_goals():  # rule 7
    found = Counter()
    env = Household(rooms=3)
    for task in env.tasks("train", 240, 0):
        env.reset(task)
        house, state = env.snapshot()[0].house, state_of(env)
        goal = house.goal
        found[goal.name] += 1
        assert stage(house, state) == 0
        assert sum(kind == goal.kind for kind, _ in house.things) >= (2 if goal.name == "two" else 1)
        assert goal.kind in SUITED.get(goal.name, KINDS) and len({*house.things}) == len(house.things)
        assert house.places[house.lamp].kind not in WITH_DOORS
        assert {place.kind for place in house.places} >= {"sink", "microwave", "fridge"}
        assert goal.place in {"", *(place.kind for place in house.places)}
    assert set(found) == set(GOALS) and min(found.values()) > 20


def test_dials():  # rule 8
    env = Household(rooms=2, places=(7, 9), things=(3, 5), goals=("heat",))
    sizes = set()
    for task in env.tasks("train", 60, 0):
        env.reset(task)
        house = env.snapshot()[0].house
        assert house.rooms == ("kitchen", "bedroom") and house.goal.name == "heat"
        assert {place.room for place in house.places} == {0, 1}
        sizes.add((len(house.places), len(house.things)))
    assert sizes == {(places, things) for places in (7, 8, 9) for things in (3, 4, 5)}
    seeds = [{task.seed for task in env.tasks(split, 300, 0)} for split in ("train", "eval")]
    assert not seeds[0] & seeds[1]


def test_views():  # rule 9
    env = kitchen(view="full")
    text = env._observe(*env.snapshot()[:2]).text
    assert text == (
        "you start. task: put mug in drawer. you are in kitchen. you carry nothing. kitchen: sink 1 empty, "
        "microwave 1 closed empty, fridge 1 closed mug 1, counter 1 lamp book 1, drawer 1 closed empty. "
        "bedroom: bed 1 empty."
    )
    env = kitchen()
    act(env, "go to counter 1")
    text = act(env, "go to bedroom").observations[PLAYER].text
    assert text == (
        "done. task: put mug in drawer. you are in bedroom. you carry nothing. kitchen: sink 1 ?, "
        "microwave 1 closed ?, fridge 1 closed ?, counter 1 lamp book 1, drawer 1 closed ?. bedroom: bed 1 ?."
    )
    assert "bedroom: ?." in kitchen()._observe(*kitchen().snapshot()[:2]).text
    env = kitchen(view="here")
    assert "counter 1 lamp book 1" in act(env, "go to counter 1").observations[PLAYER].text
    assert act(env, "go to sink 1").observations[PLAYER].text == (
        "done. task: put mug in drawer. you are in kitchen at sink 1. you carry nothing. kitchen: sink 1 empty, "
        "microwave 1 closed ?, fridge 1 closed ?, counter 1 ?, drawer 1 closed ?. doors: bedroom."
    )
    env, draw = Household(rooms=3, places=(15, 15), things=(10, 10)), random.Random(0)
    for task in env.tasks("train", 10, 0):
        results = play(env, task, lambda seen: draw.choice(seen.legal))
        assert all(len(result.observations[PLAYER].text.split()) <= 100 for result in results[:-1])


def test_the_state_key_tells_what_is_known():  # rule 9
    env = kitchen(max_turns=50)
    key = env._observe(*env.snapshot()[:2]).state_key
    assert act(env, "look").observations[PLAYER].state_key == key
    went = act(env, "go to counter 1").observations[PLAYER].state_key
    assert act(env, "go to sink 1", "go to counter 1").observations[PLAYER].state_key != went != key


# ---- variants ---------------------------------------------------------------------------------------------
def test_vocabularies():  # rule 10
    names = [name for row in WORDS.values() for name in row]
    assert len(set(names)) == len(names) and all(len(set(row)) == 3 for row in PHRASES.values())
    plain = Household()
    tasks = plain.tasks("train", 15, 0)
    for name in ("casual", "formal", "mixed"):
        other = Household(vocabulary=name)
        for task in tasks:
            first, second = play(plain, task), play(other, task)
            keys = [[r.observations[PLAYER].state_key for r in results[:-1]] for results in (first, second)]
            assert keys[0] == keys[1] and second[-1].info["success"]
            assert first[0].observations[PLAYER].text != second[0].observations[PLAYER].text
    mixed = Household(vocabulary="mixed")
    words = {
        mixed.reset(task).observations[PLAYER].text.split(":")[1].split()[0] for task in plain.tasks("train", 60, 1)
    }
    assert len(words) > 1 or words == {"put"}
    assert len({vocabulary("mixed", seed).phrases["take"] for seed in range(30)}) == 3


def test_every_command_reads_back():  # rule 10
    for name in ("plain", "casual", "formal", "mixed"):
        env = Household(vocabulary=name, rooms=3)
        for task in env.tasks("train", 8, 3):
            env.reset(task)
            scene = env.snapshot()[0]
            for command in conceivable(scene.house):
                assert scene.wording.read(scene.wording.write(command)) == command


def test_slips():  # rule 11
    slipped = []
    for seed in range(120):
        env = Household(slip=0.3)
        env.reset(Task(env="household", seed=seed))
        env = placed_again(env)
        slipped.append(not done(act(env, "open fridge 1")))
        assert done(act(env, "go to counter 1", "look"))
    assert 0.18 < np.mean(slipped) < 0.42
    env, again = Household(slip=0.3, max_turns=80), Household(slip=0.3, max_turns=80)
    ends = [play(env, task) for task in env.tasks("eval", 40, 0)]
    assert all(results[-1].info["success"] for results in ends)
    assert [len(results) for results in ends] == [len(play(again, task)) for task in env.tasks("eval", 40, 0)]


def placed_again(env):
    """The same episode, standing at the fridge."""
    scene, state, way = env.snapshot()
    fridge = scene.house.appliance("cool")
    env.restore((scene, replace(state, at=fridge), way))
    return env


def test_options_are_checked():  # rule 12
    with pytest.raises(RecipeError, match=r"`places` is 9 to 7(.|\n)*Write `places: \[7, 9\]`"):
        Household(places=(9, 7))
    with pytest.raises(RecipeError, match=r"5 places are too few(.|\n)*Begin `places` with 6"):
        Household(places=(5, 9), rooms=3)
    with pytest.raises(RecipeError, match=r'1 things are too few for the goal "two"'):
        Household(things=(1, 4))
    with pytest.raises(RecipeError, match="`goals` is empty"):
        Household(goals=())
    with pytest.raises(RecipeError, match="with `slip: 1` nothing could ever be done"):
        Household(slip=1.0)
    with pytest.raises(RecipeError, match="rooms"):
        Household(rooms=4)
    with pytest.raises(ContractError, match="before `reset`"):
        act(Household(), "look")
    assert Household(things=(1, 1), goals=("put",))


def test_states_are_values():
    env = kitchen()
    assert isinstance(state_of(env), State) and hash(state_of(env)) == hash(replace(state_of(env)))
