"""A kitchen that is known, and ways to act in it, for the tests of `household`. Knows the environment and its house."""

from __future__ import annotations

from dataclasses import replace

from palaestra.data import Action
from palaestra.envs.worlds.household.house import Goal, House, Place
from palaestra.envs.worlds.household.plan import shortest
from palaestra.envs.worlds.household.words import vocabulary
from palaestra.envs.worlds.household.world import Episode, Household

PLAYER = "player"


def act(env, *texts):
    """Act, one text after the other: the last result."""
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
    scene = env.state.scene
    wording = type(scene.wording)(house, vocabulary("plain", 0), view=env._view, idle=True)
    state = env._first(house)
    scene = replace(scene, house=house, wording=wording)
    env.restore(Episode(scene=scene, state=state, way=tuple(shortest(house, state))))
    return env


def kitchen(goal=("put", "mug", "drawer"), **options):
    """A mug in the fridge, a book on the counter, where the lamp stands."""
    return placed(Household(**options), Goal(*goal), (("mug", 1), ("book", 1)), (2, 3))


def state_of(env):
    """What the house is like now."""
    return env.state.state


def done(result):
    """Whether the act did or told something."""
    return result.info["executable"] == {PLAYER: 1.0}
