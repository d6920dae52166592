"""What estimators refuse, and what they say: (1) a group of one; (2) rewards that are no numbers, and per-token
rewards; (3) rows in no group or in two; (4) unreadable options; (5) a missing critic, reference, state key or end;
(6) too few tokens. (7) Switches: what lone members and equal returns give.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.parts.critics import ppo
from palaestra.parts.estimators import (
    dr_mas,
    grpo,
    grpo_process,
    reinforce,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
)
from palaestra.parts.selections import constant_groups
from palaestra.systems.gigpo import gigpo
from palaestra.systems.oprl.advantage import oprl
from tests.messages import told
from tests.parts.tables import NEEDED, close, quick, tables, team_of_three
from tests.registered import targets

COMPARING = [o for o in targets("advantage") if "group" in o.part.uses and not o.part.takes_iteration]


def table(**columns: Any) -> StepTable:
    """Two groups of two trajectories of one row each."""
    base: dict[str, Any] = {
        "group": ["a", "a", "b", "b"],
        "trajectory": [1, 2, 3, 4],
        "agent": ["x"] * 4,
        "turn": [0, 0, 0, 0],
        "reward": [1.0, 0.0, 2.0, 2.0],
        "state_key": ["s", "s", "s", "t"],
        "process": [0.5, 0.0, 0.25, 0.5],
        "good": [1.0, 0.0, 1.0, 0.0],
        "stratum": ["few", "few", "few", "many"],
    }
    return StepTable(**{**base, **columns})


@pytest.mark.parametrize("estimator", COMPARING, ids=lambda e: e.part.name)
def test_group_of_one(estimator: Any) -> None:  # rule 1
    alone = table(group=["a", "b", "c", "d"])
    with pytest.raises(InvalidData, match="has two members") as caught:
        estimator(alone, **NEEDED.get(estimator.part.name, {}))
    assert "rollout.group" in str(caught.value) and "reinforce_plus_plus" in str(caught.value)


def test_some_groups_of_one_are_zero() -> None:  # rule 7
    mixed = table(group=["a", "a", "b", "c"])
    assert grpo(mixed)[2:].tolist() == [0.0, 0.0]
    assert grpo(mixed, singleton="raw")[2:].tolist() == [2.0, 2.0]
    with told(InvalidData, "2 peer sets"):
        grpo(mixed, singleton="error")


def test_lone_states_never_raise() -> None:  # rule 7
    unique = table(state_key=[1, 2, 3, 4])
    assert gigpo(unique, singleton="error").tolist() == [0.5, -0.5, 0.0, 0.0]


def test_a_lone_agent_has_no_peers() -> None:  # rule 7
    assert dr_mas(team_of_three())[1] == 0.0
    with pytest.raises(InvalidData, match="single member"):
        dr_mas(team_of_three(), singleton="error")


def test_equal_returns_are_exactly_zero() -> None:  # rule 7
    rewards = torch.tensor([0.1, 0.2, 0.3] * 4) / 3
    equal = StepTable(group=["g"] * 12, trajectory=[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], agent=["x"] * 12,
                      turn=list(range(12)), reward=rewards)  # fmt: skip
    assert bool((grpo(equal) == 0).all()) and bool((rloo(equal) == 0).all())
    sums = StepTable(group=["g"] * 4, trajectory=[0, 0, 0, 1], agent=["x"] * 4, turn=[0, 1, 2, 0],
                     reward=[0.3, 0.3, 0.3, 0.9])  # fmt: skip
    assert sums["reward"][:3].double().sum() != sums["reward"][3].double()
    assert grpo(sums).tolist() == [0.0] * 4 and not constant_groups(sums, column="return").any()


def test_first_rows_that_are_equal_tell_nothing() -> None:  # rule 7
    judged = StepTable(group=["g"] * 4, trajectory=[0, 0, 1, 1], agent=["x"] * 4, turn=[0, 1, 0, 1], reward=[0.0] * 4,
                       process=[0.1, 0.5, 0.1 + 1e-8, 0.2])  # fmt: skip
    assert judged["process"][0] != judged["process"][2]
    assert oprl(judged, style="grpo", baseline_rows="first").tolist() == [0.0] * 4


def test_reward_is_not_a_number() -> None:  # rule 2
    with pytest.raises(InvalidData, match=r"trajectory 2, turn 0") as caught:
        table(reward=[1.0, float("nan"), 0.0, 0.0])
    assert "1 of 4 values are not finite" in str(caught.value)
    with pytest.raises(InvalidData, match="not finite"):
        table(reward=[1.0, float("inf"), 0.0, 0.0])


@pytest.mark.parametrize("reward", [[None, 1.0, 0.0, 0.0], ["1", "2", "3", "4"], [[0, 1], [1], [0], [2]]])
def test_reward_is_no_column_of_numbers(reward: Any) -> None:  # rule 2
    with pytest.raises(InvalidData, match="column `reward`"):
        table(reward=reward)


def test_per_token_rewards_are_refused() -> None:  # rule 2
    with told(InvalidData, "4 values for"):
        table(reward=[0.0] * 8, token_count=[2, 2, 2, 2])
    with told(InvalidData, "(4, 2), not"):
        table(reward=torch.zeros(4, 2))


def test_a_row_in_no_group() -> None:  # rule 3
    for name in ("group", "agent", "trajectory"):
        with pytest.raises(InvalidData, match=f"column `{name}`"):
            table(**{name: ["a", "a", "b", None]})


def test_a_trajectory_in_two_groups() -> None:  # rule 3
    with pytest.raises(InvalidData, match="have different groups"):
        table(trajectory=[1, 2, 2, 3])


OPTIONS = [
    (gigpo, {"gamma": 0.0}, "gamma"),
    (gigpo, {"gamma": 1.5}, "gamma"),
    (gigpo, {"clock": "second"}, "clock"),
    (ppo, {"lam": 1.2}, "lam"),
    (ppo, {"gamma": -0.1}, "gamma"),
    (grpo, {"scale": "range"}, "scale"),
    (grpo, {"ddof": 2}, "ddof"),
    (reinforce, {"baseline": "running"}, "baseline"),
    (reinforce_plus_plus, {"beta": -1.0}, "beta"),
]


@pytest.mark.parametrize(("part", "options", "key"), OPTIONS, ids=lambda o: getattr(o, "__name__", str(o)))
def test_options_out_of_range(part: Any, options: dict[str, Any], key: str) -> None:  # rule 4
    with pytest.raises(RecipeError, match=f"cannot take `{key}: "):
        part(table(), **options)


def test_unknown_option() -> None:  # rule 4
    with pytest.raises(RecipeError, match="has no option `gama`") as caught:
        gigpo(table(), gama=0.9)
    assert "gamma" in str(caught.value)


def test_unknown_unit_and_key() -> None:  # rule 4
    with pytest.raises(MissingColumn, match="has no column `trajectry`") as caught:
        grpo(table(), unit="trajectry")
    assert caught.value.options[0] == "trajectory"
    with pytest.raises(MissingColumn, match="strata"):
        grpo(table(), by=("group", "strata"))


def test_no_state_keys() -> None:  # rule 5
    with pytest.raises(MissingColumn, match="state_key"):
        gigpo(table(state_key=None))
    with told(MissingColumn, "value in it"):
        gigpo(table(state_key=[None] * 4))


def test_no_critic() -> None:  # rule 5
    for columns in ({}, {"row_value": [float("nan")] * 4}):
        with pytest.raises(MissingColumn, match="no critic has given values") as caught:
            ppo(table(**columns, terminated=[True] * 4))
        assert "grpo, rloo, dr_grpo" in str(caught.value)


def test_values_of_wrong_length() -> None:  # rule 5
    with told(InvalidData, "3 values for"):
        table(row_value=[0.0] * 3)
    with told(InvalidData, "4 values for"):
        table(token_count=[2] * 4, value_old=[0.0] * 4)


def test_an_episode_without_end() -> None:  # rule 5
    values = {"row_value": [0.0] * 4}
    with pytest.raises(MissingColumn, match="neither `terminated` nor `truncated`"):
        ppo(table(**values))
    with pytest.raises(InvalidData, match="row 3, turn 0"):
        ppo(table(**values, terminated=[True, True, True, False]))
    with pytest.raises(MissingColumn, match="bootstrap_value"):
        ppo(table(**values, terminated=[True, True, True, False], truncated=[False, False, False, True]))


def test_a_value_is_missing_inside_an_episode() -> None:  # rule 5
    with pytest.raises(InvalidData, match="not finite inside one"):
        ppo(table(trajectory=[1, 2, 3, 3], turn=[0, 0, 0, 1], row_value=[0, 0, 0, float("nan")], terminated=[True] * 4))


def test_agents_without_a_critic_are_left_out() -> None:
    mixed = table(agent=["x", "y", "x", "y"], row_value=[0.5, float("nan"), 0.5, float("nan")], terminated=[True] * 4)
    estimate = ppo(mixed, whiten=False)
    assert close(estimate.advantage, [0.5, 0.0, 1.5, 0.0])
    assert estimate.target.isnan().tolist() == [False, True, False, True]
    assert close(ppo(mixed).advantage, [-0.7071, 0.0, 0.7071, 0.0])


def test_no_reference() -> None:  # rule 5
    with pytest.raises(MissingColumn, match="logprob_reference") as caught:
        reinforce_plus_plus(table(), beta=0.1)
    assert "reference: start" in str(caught.value)
    half = table(logprob_behavior=[-1.0] * 4, logprob_reference=[-1.0, -1.0, -1.0, float("nan")])
    with pytest.raises(InvalidData, match="not finite"):
        reinforce_plus_plus(half, beta=0.1)


def test_too_few_tokens() -> None:  # rule 6
    one = StepTable(group=["g"], trajectory=["t"], agent=["x"], turn=[0], reward=[1.0])
    with pytest.raises(InvalidData, match="1 units cannot be whitened"):
        reinforce_plus_plus(one)


def test_no_row_of_a_group_has_peers() -> None:  # rule 1
    with pytest.raises(InvalidData, match="no peer set"):
        reinforce(table(group=["a", "b", "c", "d"]), baseline="group")
    assert reinforce(table(group=["a", "b", "c", "d"])).tolist() == [1.0, 0.0, 2.0, 2.0]


@quick
@given(tables())
def test_whitened_tokens(some: StepTable) -> None:
    whitened = reinforce_plus_plus(some)
    if bool((whitened != 0).any()):
        assert close(whitened.mean(), 0.0) and close(whitened.var(), 1.0)


def test_batch_normalization_learns_from_single_trajectories() -> None:
    single = table(group=["a", "b", "c", "d"], reward=[1.0, 0.0, 0.0, 1.0])
    assert close(reinforce_plus_plus(single), [0.8660, -0.8660, -0.8660, 0.8660])
    for estimator in (grpo, rloo, reinforce_plus_plus_baseline, grpo_process):
        with pytest.raises(InvalidData):
            estimator(single)


def test_agents_that_act_together_share_a_return() -> None:
    team = StepTable(group=["g"] * 6, trajectory=["a"] * 4 + ["b"] * 2, agent=["x", "y", "x", "y", "x", "y"],
                     turn=[0, 0, 1, 1, 0, 0], reward=[0, 0, 1, 3, 0, 0], state_key=["s"] * 6)  # fmt: skip
    step = gigpo(team, gamma=0.5, clock="turn") - gigpo(team, gamma=0.5, step_weight=0.0)
    assert close(step, [2 - 2, 2 - 2, 4 - 2, 4 - 2, 0 - 2, 0 - 2])
