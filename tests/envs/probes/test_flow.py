"""What must hold of `flow`:

1. It keeps the contract of environments, for small and large graphs, noisy searches and verdicts.
2. With a verifier that never errs, the rules answer every question in as many sub-goals as it has hops. With a verifier
   that errs, they sometimes fail.
3. Modules act in turn: planner, executor, verifier, and then planner again or generator.
4. Only results of the executor enter the memory, and all modules see them.
5. The rules recover after wrong sub-goals of a planner.
6. After an act that cannot be read, a sub-goal is used up, nothing is found, or the verdict is `continue`.
7. After `steps` sub-goals the generator answers, whatever the verifier says.
8. Options are checked.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from palaestra.data import Action, StepResult, Task
from palaestra.envs.probes.flow import EXECUTOR, GENERATOR, MODULES, PLANNER, VERIFIER, Flow
from palaestra.errors import ContractError, RecipeError
from palaestra.testing import check_environment


def start(seed: int = 0, **options: Any) -> tuple[Flow, StepResult]:
    env = Flow(**{"verifier_noise": 0.0, **options})
    return env, env.reset(Task(env="flow", seed=seed))


def by_rule(env: Flow, result: StepResult, count: int = 100) -> tuple[StepResult, list[str]]:
    """At most `count` acts of the rules. Returns which modules acted."""
    acted: list[str] = []
    while result.observations and len(acted) < count:
        (module,) = result.observations
        acted.append(module)
        result = env.step({module: env.expert(module)})
    return result, acted


def act(env: Flow, result: StepResult, value: Any) -> StepResult:
    (module,) = result.observations
    return env.step({module: Action(value=value)})


@pytest.mark.parametrize(
    "options",
    [{}, {"entities": 6, "relations": 1, "hops": (1, 1)}, {"steps": 1}, {"noise": 0.3, "verifier_noise": 0.5}],
)
def test_contract(options: dict[str, Any]) -> None:  # rule 1
    check_environment(Flow(**options), make=lambda: Flow(**options))


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_rules_answer(noise: float) -> None:  # rules 2 and 3
    env, won = Flow(verifier_noise=noise), []
    for task in env.tasks("eval", 120, 0):
        result, acted = by_rule(env, env.reset(task))
        won.append(result.info["success"])
        assert acted == [PLANNER, EXECUTOR, VERIFIER] * result.info["steps"] + [GENERATOR]
        assert result.rewards == {PLANNER: float(won[-1])} and result.terminated == set(MODULES)
        assert noise or result.info["steps"] == int(result.info["stratum"])
        assert env.reset(task).info == {"stratum": result.info["stratum"]}
    assert np.mean(won) == 1.0 if noise == 0 else 0.8 < np.mean(won) < 0.97


def test_random_planning_rarely_wins() -> None:  # rule 2
    env, draw, won = Flow(), random.Random(0), []
    for task in env.tasks("train", 200, 0):
        result = env.reset(task)
        while result.observations:
            (module,) = result.observations
            wild = Action(value=draw.randrange(env.action_count))
            result = env.step({module: wild if module == PLANNER else env.expert(module)})
        won.append(result.info["success"])
    assert np.mean(won) < 0.4


def test_memory_grows_by_what_was_found() -> None:  # rule 4
    env, result = start(0, hops=(3, 3))
    assert "memory: empty." in (result.observations[PLANNER].text or "")
    result = act(env, result, 0)
    text = result.observations[EXECUTOR].text or ""
    assert "memory: empty." in text and "sub-goal: " in text
    goal = text.partition("sub-goal: ")[2].rstrip(".")
    result = act(env, result, f"search {goal}")
    assert f"memory: {goal} " in (result.observations[VERIFIER].text or "")
    result = act(env, result, "continue")
    assert f"memory: {goal} " in (result.observations[PLANNER].text or "")
    assert "sub-goal" not in (result.observations[PLANNER].text or "")


@pytest.mark.parametrize("seed", range(6))
def test_the_way_back_is_found(seed: int) -> None:  # rule 5
    env, result = start(seed, hops=(2, 2))
    for action in (3, 7):
        result = act(env, result, action)
        result, _ = by_rule(env, result, 2)
        if GENERATOR in result.observations:
            return  # the wrong entity happened to be the answer
    assert by_rule(env, result)[0].info["success"]


def test_the_unreadable_changes_nothing() -> None:  # rule 6
    env, result = start(0, hops=(2, 2))
    result = act(env, result, "search amber owner")  # the planner has no such action
    assert result.info["invalid"] == {PLANNER: True} and list(result.observations) == [PLANNER]
    result = act(env, result, 1)
    result = act(env, result, "search amber")
    assert result.info["invalid"] == {EXECUTOR: True}
    assert (result.observations[VERIFIER].text or "").startswith("not understood. ")
    assert "memory: empty." in (result.observations[VERIFIER].text or "")
    result = act(env, result, 17)
    assert result.info["invalid"] == {VERIFIER: True} and list(result.observations) == [PLANNER]
    result, _ = by_rule(env, result, 6)
    result = act(env, result, "I do not know")
    assert result.info["invalid"] == {GENERATOR: True} and result.info["success"] is False


def test_sub_goals_are_counted() -> None:  # rule 7
    env, result = start(0, hops=(3, 3), steps=2)
    result, acted = by_rule(env, result)
    assert acted.count(PLANNER) == 2 and result.info["success"] is False
    env, result = start(0, steps=1)
    assert list(act(env, result, "hello").observations) == [GENERATOR]


def test_options_are_checked() -> None:  # rule 8
    for wrong in ({"entities": 5}, {"relations": 5}, {"steps": 0}, {"verifier_noise": 1.5}, {"hops": (0, 1)}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            Flow(**wrong)
    with pytest.raises(RecipeError, match="`hops` is 3 to 1: the first number is larger"):
        Flow(hops=(3, 1))
    with pytest.raises(ContractError, match="before `reset`"):
        Flow().step({PLANNER: Action(value=0)})
