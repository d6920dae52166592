"""The environment `errands`:

1. It keeps the contract of environments, for small and large towns, with and without a judge that errs.
2. The experts finish every list with one decision per errand; random play hardly ever does.
3. An errand is done only when its place is reached as a subgoal while it is the next; other subgoals cost a decision.
4. `format`, `executed` and `judged` are on the planner's step; the walker's step says whether it arrived.
5. A text that is no subgoal costs a decision, and one that is no move costs a turn; only what cannot be read is marked.
6. The episode ends when all errands are done or the decisions are used up.
7. A judge that errs says the opposite at its rate, and says the same after a restore.
8. Options that allow no walk are refused.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from palaestra.data import Action, StepResult, Task
from palaestra.errors import ContractError, RecipeError
from palaestra.systems.hi_agent.errands import PLACES, PLANNER, WALKER, Errands
from palaestra.testing import check_environment


def start(seed: int = 0, **options: Any) -> tuple[Errands, StepResult]:
    env = Errands(**options)
    return env, env.reset(Task(env="errands", seed=seed))


def listed(result: StepResult) -> list[str]:
    text = result.observations[PLANNER].text or ""
    return text.removeprefix("errands: ").partition(".")[0].split()


def walk(env: Errands, result: StepResult) -> StepResult:
    """The expert walks until the attempt is over."""
    while WALKER in result.observations:
        result = env.step({WALKER: env.expert(WALKER)})
    return result


def go(env: Errands, place: str) -> StepResult:
    return walk(env, env.step({PLANNER: Action(text=f"go {place}")}))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"errands": 1, "places": 2, "size": 3, "reach": 4, "spare": 0},
        {"places": 8, "size": 8, "reach": 14, "judge_noise": 0.5},
    ],
)
def test_contract(options: dict[str, Any]) -> None:  # rule 1
    check_environment(Errands(**options), make=lambda: Errands(**options))


def test_experts_and_chance() -> None:  # rule 2
    env, draw, wins = Errands(spare=0), random.Random(0), 0
    for task in env.tasks("train", 60, 0):
        result, decisions = env.reset(task), 0
        while result.observations:
            (agent,) = result.observations
            decisions += agent == PLANNER
            result = env.step({agent: env.expert(agent)})
        assert result.info["success"] and result.rewards == {PLANNER: 1.0} and decisions == 4
        result = env.reset(task)
        while result.observations:
            (agent,) = result.observations
            result = env.step({agent: Action(value=draw.choice(list(result.observations[agent].legal or ())))})
        wins += bool(result.info["success"])
    assert wins < 5


def test_order() -> None:  # rule 3
    env, result = start(3)
    errands = listed(result)
    other = next(place for place in PLACES[:6] if place != errands[0])
    result = go(env, other)
    assert (result.info["done"], result.info["executed"][PLANNER], result.info["judged"][PLANNER]) == (0, 1, 0)
    assert "done: 0. decisions left: 4." in (result.observations[PLANNER].text or "")
    result = go(env, errands[0])
    assert (result.info["done"], result.info["judged"][PLANNER]) == (1, 1)


def test_worth() -> None:  # rule 4
    env, result = start(1)
    result = env.step({PLANNER: Action(text=f"go {listed(result)[0]}")})
    assert result.info["format"] == {PLANNER: 1.0} and result.info["executed"] == {PLANNER: 0.0}
    while WALKER in result.observations:  # walks into a corner and stays there
        assert "judged" not in result.info
        result = env.step({WALKER: Action(text="north" if env.snapshot().here[1] else "west")})
    assert result.info["executed"] in ({PLANNER: 0.0, WALKER: 0.0}, {PLANNER: 1.0, WALKER: 1.0})
    assert result.info["judged"] == {PLANNER: result.info["executed"][WALKER]}


def test_what_does_not_fit() -> None:  # rule 5
    env, _ = start(0)
    result = env.step({PLANNER: Action(text="north")})
    assert result.info["format"] == {PLANNER: 0.0} and "invalid" not in result.info
    result = env.step({PLANNER: Action(text="dance")})
    assert result.info["format"] == {PLANNER: 0.0} and result.info["invalid"] == {PLANNER: True}
    assert "decisions left: 3." in (result.observations[PLANNER].text or "")
    result = env.step({PLANNER: env.expert(PLANNER)})
    here = env.snapshot().here
    result = env.step({WALKER: Action(text="go bank")})
    assert env.snapshot().here == here and env.snapshot().walked == 1 and "invalid" not in result.info


def test_ends() -> None:  # rule 6
    env, result = start(0, spare=1)
    for _ in range(5):
        assert result.observations
        result = env.step({PLANNER: Action(text="dance")})
    assert not result.observations and result.terminated == {PLANNER, WALKER} and result.info["success"] is False


def test_the_judge_errs() -> None:  # rule 7
    env, wrong = Errands(judge_noise=0.3), 0
    for seed in range(200):
        result = env.reset(Task(env="errands", seed=seed))
        state = env.snapshot()
        judged = go(env, listed(result)[0]).info["judged"][PLANNER]
        env.restore(state)
        assert go(env, listed(result)[0]).info["judged"][PLANNER] == judged
        wrong += judged == 0
    assert 40 < wrong < 80


def test_options() -> None:  # rule 8
    with pytest.raises(RecipeError, match="less than the longest way of a town of 5 × 5: 8"):
        Errands(size=5)
    for bad in ({"places": 9}, {"errands": 0}, {"judge_noise": 2}, {"spare": -1}):
        with pytest.raises(RecipeError, match=next(iter(bad))):
            Errands(**bad)
    with pytest.raises(ContractError, match="before `reset`"):
        Errands().step({PLANNER: Action(text="go bank")})
