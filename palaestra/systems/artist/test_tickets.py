"""Rules of `tickets`:

1. It keeps the contract of environments.
2. The expert makes only the wanted calls.
3. Calls that cannot be made or read return errors and change nothing.
4. Another way to the wanted ticket leaves the right state but not the right calls.
5. The numbers in `info` give the reward for function calls.
"""

from __future__ import annotations

import pytest

from palaestra.data import Action, Observation, Step, StepTable, Task, Trajectory
from palaestra.errors import ContractError, RecipeError
from palaestra.systems.artist.function_calls import function_calls
from palaestra.systems.artist.tickets import Tickets, build
from palaestra.testing import check_environment

CLERK = "clerk"


def act(env, *texts):
    for text in texts:
        result = env.step({CLERK: Action(text=text)})
    return result


def at(seed, **options):
    env = Tickets(**options)
    env.reset(Task(env="tickets", seed=seed))
    return env, env.snapshot().request


@pytest.mark.parametrize("options", [{}, {"changes": [2, 2]}])
def test_contract(options):  # rule 1
    check_environment(Tickets(**options), make=lambda: Tickets(**options))


def test_options_are_checked():
    with pytest.raises(RecipeError, match="changes"):
        Tickets(changes=(0, 2))
    with pytest.raises(ContractError, match="before `reset`"):
        act(Tickets(), "done")


def test_the_expert_makes_the_wanted_calls():  # rule 2
    env = Tickets()
    tasks = env.tasks("train", 60, 0)
    assert {env.difficulty(task) for task in tasks} == {1.0, 2.0, 3.0}
    for task in tasks:
        result, made = env.reset(task), []
        request = env.snapshot().request
        while result.observations:
            made.append(env.expert(CLERK).text)
            result = act(env, made[-1])
        assert tuple(made) == (*request.calls, "done")
        assert result.info["success"] and result.info["format"] == {CLERK: 1.0}
        assert result.info["calls_matched"] == result.info["calls_total"]


def test_errors():  # rule 3
    seed = next(seed for seed in range(100) if build(1, seed).before[:2] == ("monday", None))
    env, _ = at(seed, changes=(1, 1))
    before = env.snapshot()
    for text, said in (
        ("book day friday", "error: day is booked."),
        ("cancel seat", "error: seat is free."),
        ("book seat", "error: cannot read that."),
    ):
        result = act(env, text)
        assert result.observations[CLERK].text.startswith(said)
        assert result.info["tool_error"] == {CLERK: 1.0}
        assert env.snapshot().booking == before.booking and env.snapshot().made == ()
        assert bool(result.info.get("invalid")) == ("read" in said)
    end = act(env, "done")
    assert not end.info["success"] and end.info["format"] == {CLERK: 0.0}


def test_a_way_round_and_its_reward():  # rules 4 and 5
    seed = next(seed for seed in range(100) if build(1, seed).calls == ("book seat aisle",))
    env, request = at(seed, changes=(1, 1))
    for way, calls in ((("book seat aisle",), 1.0), (("book seat window", "cancel seat"), 0.0)):
        env.reset(Task(env="tickets", seed=seed))
        steps = []
        for turn, text in enumerate((*way, "done")):
            told = {name: v[CLERK] for name, v in act(env, text).info.items() if isinstance(v, dict)}
            seen = Observation(text="")
            steps.append(Step(agent=CLERK, turn=turn, action=Action(text=text), observation=seen, info=told))
        played = Trajectory(task=Task(env="tickets", seed=seed), group="g", steps=steps, outcome=calls)
        found = function_calls(StepTable.from_trajectories([played]))
        fields = 3 if calls else 2
        assert float(found["reward"][-1]) == pytest.approx(0.5 * fields / 3 + 0.5 * calls)
    assert request.wanted[1] == "aisle"
