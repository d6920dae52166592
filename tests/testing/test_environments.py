"""What must hold of check_environment:

1. A sound environment passes: with one agent and with two, with texts and with vectors only, sync and async,
   and without the optional abilities.
2. For every rule of the contract there is an environment that breaks just this rule. It is refused with a
   ContractError that names the place and the fault, and gives a remedy.
3. An exception of an environment becomes a ContractError that names the call.
4. An environment that does not tell which actions exist is refused, unless `act` is given.
5. The environment is closed at the end.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from palaestra.data import Action, Observation, StepResult, Task, derive
from palaestra.envs.kit.panels import seeded_tasks
from palaestra.errors import ContractError
from palaestra.testing import check_environment
from tests.messages import told

ONE, TWO = ("a",), ("a", "b")
COUNTER = itertools.count()


def toy(agents=ONE, *, turns=4, **changes):
    """A sound environment: every agent says yes or no, and after some turns it ends. `changes` replace members."""
    env = SimpleNamespace(agents=agents, turn=0, seed=0, closed=False)

    def look():
        text = f"{env.seed % 7}: turn {env.turn}"
        return {a: Observation(text=text, legal=["yes", "no"], state_key=f"{env.seed}/{env.turn}") for a in agents}

    def reset(task):
        env.turn, env.seed = 0, task.seed
        return StepResult(observations=env.look())

    def step(actions):
        assert set(actions) == set(agents)
        env.turn += 1
        over = frozenset(agents) if env.turn == turns else frozenset()
        invalid = {a: True for a, action in actions.items() if action.value not in ("yes", "no")}
        return StepResult(
            observations={} if over else env.look(),
            rewards={a: float(str(action.value) == "yes") for a, action in actions.items()},
            terminated=over,
            info={"invalid": invalid} if invalid else {},
        )

    env.look, env.reset, env.step = look, reset, step
    env.close = lambda: setattr(env, "closed", True)
    env.tasks = lambda split, n, seed: [Task(env="toy", seed=derive(seed, split, i), split=split) for i in range(n)]
    env.expert = lambda agent: Action(text="yes")
    env.snapshot = lambda: (env.turn, env.seed)

    def restore(state):
        env.turn, env.seed = state

    env.restore = restore
    for name, change in changes.items():
        setattr(env, name, change(env) if callable(change) else change)
    return env


def after(method, edit):
    """A change that edits each result of a method."""

    def change(env):
        plain = getattr(env, method)

        def edited(*arguments):
            result = plain(*arguments)
            return edit(env, result) or result

        return edited

    return change


def vectors_only(env):
    return lambda: {a: Observation(vector=np.full(3, env.turn, np.float32)) for a in env.agents}


def takes_any(env):
    plain = env.step
    return lambda actions: plain({a: Action(text="yes") for a in actions})


def box(end):
    return lambda env: (np.float32([-end]), np.float32([end]))


# ---- rule 1 -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("agents", [ONE, TWO])
def test_a_sound_environment_passes(agents):
    check_environment(toy(agents), make=lambda: toy(agents))


def test_vectors_and_indices_pass():
    env = toy(look=vectors_only, step=takes_any, action_count=3, vector_size=3)
    del env.expert
    check_environment(env)


def test_vectors_as_actions_pass():
    env = toy(look=vectors_only, step=takes_any, action_box=box(2.0))
    del env.expert
    check_environment(env)


def test_without_optional_abilities_it_passes():
    env = toy()
    for ability in ("tasks", "expert", "snapshot", "restore"):
        delattr(env, ability)
    check_environment(env)


def test_an_async_environment_passes():
    def later(method):
        def change(env):
            plain = getattr(env, method)

            async def call(*arguments):
                return plain(*arguments)

            return call

        return change

    check_environment(toy(reset=later("reset"), step=later("step"), close=later("close")))


# ---- rule 2: one fault each -------------------------------------------------------------------------------
def set_observation(**fields):
    def edit(env, found):
        return {agent: Observation(**{"text": "x", "legal": ["yes", "no"], **fields}) for agent in found}

    return after("look", edit)


def edit_step(**fields):
    def edit(env, result):
        for name, value in fields.items():
            setattr(result, name, value)

    return after("step", edit)


def edit_reset(**fields):
    def edit(env, result):
        return StepResult(**{"observations": result.observations, **fields})

    return {"reset": after("reset", edit)}


def show(look):
    """A change: `look(env)` gives the observation of the only agent."""
    return {"look": after("look", lambda env, _: {"a": look(env)})}


def forgetful(env):
    return lambda state: None


def tasks(**fields):
    def change(env):
        plain = env.tasks
        return lambda split, n, seed: [
            Task(**{"env": "toy", "seed": t.seed, "split": split, **fields}) for t in plain(split, n, seed)
        ]

    return {"tasks": change}


def ends(how):
    """A change: at the end of an episode, `how(env, result)` edits the result."""
    return {"step": after("step", lambda env, result: how(env, result) if not result.observations else None)}


def again(env, result):
    return StepResult(observations=env.look(), terminated=result.terminated)


FAULTS = {
    "no step": ({"step": None}, "no method `step`"),
    "several acts": ({"one_act": True}, "goes on after its first act"),
    "agents is a list": ({"agents": ["a"]}, "tuple of distinct names"),
    "agents twice": ({"agents": ("a", "a")}, "tuple of distinct names"),
    "reset returns a pair": ({"reset": after("reset", lambda env, r: (r, {}))}, "must return a StepResult"),
    "nobody acts first": (edit_reset(observations={}), "no agent is asked to act"),
    "over at once": (edit_reset(truncated=frozenset("a")), "ends before any agent acted"),
    "a stranger acts": (edit_reset(observations={"x": Observation(text="x")}), "not agents"),
    "empty observation": ({"look": set_observation(text=None)}, "the observation is empty"),
    "text is a number": ({"look": set_observation(text=3)}, "`text` must be a text"),
    "key is a tuple": ({"look": set_observation(state_key=(1, 2))}, "`state_key` must be a text"),
    "vector is float64": ({"look": set_observation(vector=np.zeros(3))}, "finite float32"),
    "vector is NaN": ({"look": set_observation(vector=np.full(3, np.nan, np.float32))}, "finite float32"),
    "vector_size differs": (
        {"look": set_observation(vector=np.zeros(3, np.float32)), "vector_size": 4, "action_count": None},
        "`vector` has 3 numbers",
    ),
    "image is float": ({"look": set_observation(image=np.zeros((2, 2, 3)))}, "an image is a uint8 array"),
    "reward is NaN": ({"step": edit_step(rewards={"a": float("nan")})}, "reward of a is nan"),
    "reward is a text": ({"step": edit_step(rewards={"a": "1"})}, "reward of a is '1'"),
    "reward of a stranger": ({"step": edit_step(rewards={"x": 1.0})}, "not an agent"),
    "terminated is a set": ({"step": edit_step(terminated={"a"})}, "must be a frozenset"),
    "a stranger truncated": ({"step": edit_step(truncated=frozenset("x"))}, "must be a frozenset of agents"),
    "both ends": (ends(lambda env, r: setattr(r, "truncated", frozenset("a"))), "terminated and truncated"),
    "last of a terminated agent": (
        ends(lambda env, r: setattr(r, "last", {"a": Observation(text="x")})),
        "`last` names",
    ),
    "over without an end": (ends(lambda env, r: setattr(r, "terminated", frozenset())), "neither terminated nor"),
    "acts after the end": (ends(again), "asked to act although"),
    "info holds an array": ({"step": edit_step(info={"x": np.zeros(2)})}, "must have JSON values"),
    "info holds NaN": ({"step": edit_step(info={"x": float("nan")})}, "must have JSON values"),
    "success is a number": ({"step": edit_step(info={"success": 1.0})}, "must be a bool"),
    "invalid is a bool": ({"step": edit_step(info={"invalid": True})}, "must name agents"),
    "texts differ": (show(lambda env: Observation(text=f"{next(COUNTER)}", legal=["yes"])), "`text` of a differs"),
    "rewards differ": (
        {"step": after("step", lambda env, r: setattr(r, "rewards", {"a": next(COUNTER)}))},
        "`rewards` differs",
    ),
    "key misses the turn": (
        show(lambda env: Observation(text="x", state_key="same", legal=["yes", "no"][: 1 + env.turn % 2])),
        "had other legal actions before",
    ),
    "too few tasks": ({"tasks": after("tasks", lambda env, found: found[1:])}, "list of 5 Tasks"),
    "tasks at random": (
        {
            "tasks": lambda env: (
                lambda split, n, seed: [Task(env="toy", seed=next(COUNTER), split=split) for _ in range(n)]
            )
        },
        "two equal calls gave different",
    ),
    "splits overlap": (tasks(seed=3), "in both splits, train and eval"),
    "split label": (tasks(split="train"), "a task says `split='train'`"),
    "params no JSON": (tasks(params={"x": {1, 2}}), "must have JSON values"),
    "expert says a text": ({"expert": lambda env: lambda agent: "yes"}, "must return an Action"),
    "expert does what is not legal": ({"expert": lambda env: lambda agent: Action(text="perhaps")}, "is not legal"),
    "restore forgets": ({"restore": forgetful}, "restoring a snapshot"),
    "unreadable passes": ({"step": takes_any}, "is not marked"),
    "a box without bounds": ({"action_box": box(np.inf)}, "it must be two finite float32 vectors"),
    "a box of unreadable vectors": ({"action_box": box(1.0)}, "the vector [-1.] was marked as unreadable"),
    "too many indices": ({"action_count": 2, "vector_size": None}, "index 0 was marked as unreadable"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_environment_is_refused(name):
    changes, fault = FAULTS[name]
    with pytest.raises(ContractError) as caught:
        check_environment(toy(**changes))
    assert fault in caught.value.what
    assert caught.value.where.startswith("SimpleNamespace")
    assert caught.value.remedy


def test_instances_that_differ_are_refused():
    number = next(COUNTER)
    with pytest.raises(ContractError, match="a fresh instance"):
        check_environment(toy(), make=lambda: toy(look=set_observation(text=f"other {number}")))


def test_a_snapshot_that_can_be_restored_once_only_is_refused():
    def restore(env):
        plain, used = env.restore, []

        def once(state):
            if not used:
                plain(state)
            used.append(1)

        return once

    with pytest.raises(ContractError, match="second time"):
        check_environment(toy(restore=restore))


# ---- rules 3 to 5 -----------------------------------------------------------------------------------------
def failing(env):
    def fail(*arguments):
        raise KeyError("b")

    return fail


@pytest.mark.parametrize("method", ["reset", "step", "close", "tasks", "expert", "snapshot", "restore"])
def test_what_is_raised_is_named(method):
    with pytest.raises(ContractError, match=f"`{method}` raised KeyError") as caught:
        check_environment(toy(**{method: failing}))
    assert isinstance(caught.value.__cause__, KeyError)


def test_actions_are_given_to_those_who_were_asked_only():
    def turns(env):
        return lambda: {env.agents[env.turn % 2]: Observation(text=f"turn {env.turn}", legal=["yes", "no"])}

    with pytest.raises(ContractError, match="AssertionError") as caught:  # the toy wants both agents' actions
        check_environment(toy(TWO, look=turns))
    assert "one action for each agent of the last `observations`" in caught.value.remedy


def test_actions_must_be_known():
    env = toy(look=vectors_only, step=takes_any)
    del env.expert
    with told(ContractError, "actions exist"):
        check_environment(env)
    check_environment(env, act=lambda seen, draw: Action(text=draw.choice(["yes", "no"])))


def test_it_is_closed():
    env = toy()
    check_environment(env)
    assert env.closed


# ---- contents ---------------------------------------------------------------------------------------------
def test_splits_are_compared_by_content():
    assert check_environment(toy()).shared is None and "is unknown" in str(check_environment(toy()))
    apart = check_environment(toy(content=lambda env: lambda task: task.seed))
    assert (apart.shared, str(apart)) == (0, "0 of 32 tasks of the split eval are also among 128 training tasks")
    assert check_environment(toy(content=lambda env: lambda task: "the only one")).shared == 32


def test_few_contents_are_compared_as_far_as_they_go():
    def drawn(split, n, seed):
        return seeded_tasks("toy", {}, split, n, seed, content=lambda task: task.seed // 2 % 24)

    found = check_environment(
        toy(tasks=lambda env: drawn, content=lambda env: lambda task: task.seed // 2 % 24), episodes=2
    )
    assert found.shared == 0 and found.evaluated in (2, 4, 8)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (lambda env: lambda task: {1, 2}, "must have JSON values"),
        (lambda env: lambda task: next(COUNTER), "two equal calls gave different contents"),
        (lambda env: lambda task: env.reset(task) and task.seed, "asking for the content of a task"),
    ],
)
def test_wrong_contents_are_refused(content, fault):
    with pytest.raises(ContractError) as caught:
        check_environment(toy(content=content))
    assert fault in caught.value.what
