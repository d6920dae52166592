"""A column of episodes that a part reads (1) is refused at the start, if an object of the environment does not list it
although its class does; (2) gets one line, if the environment lists nothing; (3) is fine if another part gives it, and
nothing is asked of an estimator whose result nobody reads; (4) a run says both at its start; (5) is empty if no step of
an iteration has it. (6) If no row counts, no estimator is called.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch

from palaestra.envs.adapters.gymnasium.world import GymnasiumEnvironment
from palaestra.errors import RecipeError
from palaestra.recipe import load
from palaestra.registry.bound import BoundPart, bind
from palaestra.training.stages import (
    Stages,
    assign_credit,
    declared_columns,
    refuse_missing_columns,
)
from palaestra.training.start import train
from tests.messages import told
from tests.parts.small_tables import table

OWN = """
from palaestra.envs.probes.rooms import Rooms

class Mine(Rooms):
    provides = None

def keyed(table): ...
keyed.provides = frozenset({"state_key"})
"""


def stages_with(*advantage: str, loss: str = "ppo_clip", declared: Collection[str] = ()) -> Stages:
    return Stages(
        reward=[],
        selection=[],
        advantage=[bind("advantage", BoundPart(name=name)) for name in advantage],
        weights=[],
        updates={"main": [bind("loss", BoundPart(name=loss))]},
        declared=declared,
    )


def check(source: Any, *advantage: str, environment: str = "gymnasium", declared: Any = (), loss: str = "ppo_clip"):
    given = {*declared, *(getattr(source, "provides", None) or ())}
    stages = stages_with(*advantage, loss=loss, declared=given)
    bound = bind("environment", BoundPart(name=environment))
    return refuse_missing_columns(stages, bound, source, outputs={"logprob", "entropy"})


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path}/own.py"


def test_1_the_object_lists_fewer() -> None:
    cart, lake = (GymnasiumEnvironment(id=f"{name}-v1") for name in ("CartPole", "FrozenLake"))
    assert check(lake, "gigpo") == check(cart, "grpo") == []
    with told(RecipeError, "`state_key`"):
        check(cart, "gigpo")


def test_2_nothing_is_listed(own: str) -> None:
    mine = bind("environment", BoundPart(name=f"{own}:Mine")).part.target()
    assert check(mine, "grpo", environment=f"{own}:Mine") == []
    (line,) = check(mine, "gigpo", environment=f"{own}:Mine")
    assert "`provides`" in line and "`state_key` (gigpo)" in line


def test_3_another_part_gives_it(own: str) -> None:
    cart = GymnasiumEnvironment(id="CartPole-v1")
    recipe = load(["grpo"], ["environment={gymnasium: {id: CartPole-v1}}", f"reward=[{own}:keyed]"])
    assert check(cart, "gigpo", declared=declared_columns(recipe.settings, cart)) == []
    assert check(cart, "gigpo", loss="behavior_cloning") == []


def test_4_a_run_says_it(own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["training.iterations=1", "evaluation.tasks=2", "rollout.tasks=2", "rollout.group=2", "warm_start=null"]
    base = ["setups/rooms-tiny.yaml", "gigpo/method.yaml"]
    recipe = load(base, [*small, f"run={tmp_path}/a", "environment={gymnasium: {id: CartPole-v1}}"])
    with pytest.raises(RecipeError, match="reads the column `state_key`"):
        train(recipe.settings, recipe=recipe.to_json(), quiet=True)
    recipe = load(base, [*small, f"run={tmp_path}/b", f"environment={own}:Mine"])
    train(recipe.settings, recipe=recipe.to_json())
    assert capsys.readouterr().err.count("has no `provides`") == 1


def test_5_no_step_has_it() -> None:
    bare = table(stratum=None, process=None)
    for name, column in (("stratified_grpo", "stratum"), ("hrpo", "process")):
        given = stages_with(name, declared={"stratum", "process"}).with_declared(bare)
        assert {*given.names} - {*bare.names} == {column}
        assert bool(torch.isnan(given[column]).all() if column == "process" else (given[column] == -1).all())
    assert stages_with("stratified_grpo").with_declared(bare).names == bare.names


def test_6_no_row_counts() -> None:
    credit = assign_credit([bind("advantage", BoundPart(name="ppo"))], table(row_weight=[0.0] * 4))
    for column in ("advantage", "value_target", "value_weight"):
        assert credit[column].tolist() == [0.0] * 4
