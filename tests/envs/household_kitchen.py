"""A fixed kitchen for the tests of `household`, and functions that act in it."""

from __future__ import annotations

from dataclasses import replace

from palaestra.data import Action
from palaestra.envs.worlds.household.house import Goal, House, Place
from palaestra.envs.worlds.household.plan import shortest
from palaestra.envs.worlds.household.words import vocabulary
from palaestra.envs.worlds.household.world import Episode, Household

PLAYER = "player"


def act(env, *texts):
    """Play these texts one after the other. Returns the last result."""
    for text in texts:
        result = env.step({PLAYER: Action(text=text)})
    return result


def play(env, task, choose=None):
    """Play an episode. Returns all results. `choose` gives actions for observations; without it the expert acts."""
    results = [env.reset(task)]
    while results[-1].observations:
        text = choose(results[-1].observations[PLAYER]) if choose else env.expert(PLAYER).text
        results.append(act(env, text))
    return results


def placed(env, goal, things, start, *, lamp=3):
    """The environment in a fixed house: a kitchen with fridge, microwave, sink, counter and drawer, and a bedroom."""
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
    scene = env.state.scene
    wording = type(scene.wording)(house, vocabulary("plain", 0), replace(env._style, idle=True))
    state = env._first(house)
    scene = replace(scene, house=house, wording=wording)
    env.restore(Episode(scene=scene, state=state, way=tuple(shortest(house, state))))
    return env


def kitchen(goal=("put", "mug", "drawer"), **options):
    """The fixed house with a mug in the fridge, and a book on the counter beside the lamp."""
    return placed(Household(**options), Goal(*goal), (("mug", 1), ("book", 1)), (2, 3))


def state_of(env):
    """The present state of the house."""
    return env.state.state


def done(result):
    """Whether the act changed or told something."""
    return result.info["executable"] == {PLAYER: 1.0}
