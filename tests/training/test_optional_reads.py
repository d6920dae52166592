"""Columns that may be absent: (1) `reads=("logprob_old?",)` asks for no pass of the policy; (2) the column is there
where another part asked for it; (3) an estimator that needs a value asks for a pass, one without a critic for none.
"""

from __future__ import annotations

from typing import Any

import pytest

from palaestra.registry.bound import BoundPart, bind
from palaestra.training.passes import PassPlan, Reader, plan_passes, reader

GIVES = ("logprob", "entropy", "value")


def plan(*reads: str, loss: tuple[str, ...] = ("logprob", "logprob_old"), several: bool = False) -> PassPlan:
    table = [Reader(name="advantage: mine", reads=reads)]
    return plan_passes(table, [Reader(name="loss: ours", reads=loss)], gives=GIVES, several_updates=several)


def of_part(name: str, **options: Any) -> PassPlan:
    chosen = reader(bind("advantage", BoundPart(name=name, options=options)))
    return plan_passes([chosen], [], gives=GIVES, several_updates=False)


def test_1_no_pass() -> None:
    assert plan("logprob_old?", "value_old?") == plan()
    assert not plan("logprob_old?", "logprob_reference?").start and not plan("logprob_reference?").reference
    assert plan("value_old").start["value"] == ("advantage: mine",)
    assert not plan(loss=("logprob", "logprob_old?"), several=True).start.get("value")


def test_1_an_old_output_alone_is_the_present_one() -> None:
    once, twice = (plan(loss=("logprob", "value_old"), several=several) for several in (False, True))
    assert not once.start and once.update["value"] == ("loss: ours",), "with one update it is the present value"
    assert twice.start["value"] == ("loss: ours",) and "value" not in twice.update


def test_2_with_another_reader() -> None:
    assert plan("logprob_old?", several=True).start["logprob"] == ("loss: ours", "metrics")


@pytest.mark.parametrize("name", ["grpo", "loop", "gigpo", "dr_mas", "center", "archer"])
def test_3_without_a_critic(name: str) -> None:
    assert of_part(name) == plan(loss=())


@pytest.mark.parametrize(
    ("name", "options"),
    [("ppo", {}), ("ppo", {"level": "token"}), ("egae", {}), ("turn_gae", {}), ("archer", {"token_baseline": True})],
)
def test_3_with_a_critic(name: str, options: dict[str, Any]) -> None:
    assert of_part(name, **options).start["value"] == (f"advantage: {name}",)
