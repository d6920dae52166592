"""The pipeline: (1) one estimator, then filters; (2) everything comes out per token; (3) targets of turns stand on the
first token of each row; (4) the report says whether there is a signal, for whom, and how far agents are apart;
(5) wrong results are refused by name; (6) further columns of an estimator, of rows and of tokens, reach filters and the
loss.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from palaestra.algebra import Credit, total_return
from palaestra.data import StepTable
from palaestra.errors import ContractError, RecipeError
from palaestra.parts.critics import ppo
from palaestra.parts.estimators import dr_mas, grpo, reinforce_plus_plus
from palaestra.parts.filters import center, clip_advantage, whiten
from palaestra.recipe import load
from palaestra.store.metrics import MetricsLog
from palaestra.systems.gigpo import gigpo
from palaestra.training.monitor.metrics import signal_metrics
from palaestra.training.stages import assign_credit
from palaestra.training.start import train
from tests.messages import told
from tests.parts.tables import close, quick, tables


class OwnFilter:
    """A part of somebody else's: no registration, state inside."""

    def __call__(self, table: StepTable, advantage: torch.Tensor) -> torch.Tensor:
        return advantage * 2


def test_filters_follow(golden: Any) -> None:  # rule 1
    table = golden.t1
    credit = assign_credit([functools.partial(gigpo, gamma=0.95), functools.partial(clip_advantage, bound=0.9)], table)
    assert close(credit["advantage"], gigpo(table).clamp(-0.9, 0.9)[table.token_row])
    assert close(assign_credit([grpo, OwnFilter()], table)["advantage"], 2 * grpo(table)[table.token_row])
    assert close(assign_credit([grpo, center, whiten], table)["advantage"], whiten(table, grpo(table)))


def test_two_estimators_are_refused(golden: Any) -> None:  # rule 1
    with told(RecipeError, "`grpo`") as caught:
        assign_credit([grpo, whiten, functools.partial(gigpo, gamma=0.9)], golden.t1)
    assert caught.value.where == "advantage: [grpo, whiten, gigpo]"


@pytest.mark.parametrize("parts", [[], [whiten], [whiten, grpo]], ids=["empty", "filter", "filter first"])
def test_a_filter_cannot_begin(parts: list[Any], golden: Any) -> None:  # rule 1
    with pytest.raises(RecipeError, match="must begin with an estimator"):
        assign_credit(parts, golden.t1)


@quick
@given(tables())
def test_everything_is_per_token(table: StepTable) -> None:  # rule 2
    for parts in ([grpo], [reinforce_plus_plus], [gigpo, whiten]):
        assert assign_credit(parts, table)["advantage"].shape == (table.tokens,)
    rows = assign_credit([gigpo], table)["advantage"]
    assert torch.equal(rows, gigpo(table)[table.token_row])


def test_targets_of_turns(golden: Any) -> None:  # rule 3
    credit = assign_credit([functools.partial(ppo, gamma=0.9)], golden.gae_turns)
    assert close(credit["value_target"], [0.8820, 0.0, 0.0, 1.0])
    assert credit["value_weight"].tolist() == [1.0, 0.0, 0.0, 1.0]


def test_targets_of_tokens(golden: Any) -> None:  # rule 3
    credit = assign_credit([functools.partial(ppo, level="token", gamma=1.0)], golden.gae_tokens)
    assert close(credit["value_target"], [0.9567, 0.9755, 0.9900, 1.0])
    assert credit["value_weight"].tolist() == [1.0] * 4
    assert "value_target" not in assign_credit([grpo], golden.t1)


def test_agents_without_critic_have_no_target() -> None:  # rule 3
    table = StepTable(group=["g"] * 3, trajectory=["a"] * 3, agent=["x", "y", "x"], turn=[0, 1, 2],
                      reward=[0, 0, 1], row_value=[0.5, float("nan"), 0.5], terminated=[False, True, True],
                      token_count=[2, 1, 1])  # fmt: skip
    credit = assign_credit([ppo], table)
    assert credit["value_weight"].tolist() == [1.0, 0.0, 0.0, 1.0]
    assert bool(credit["value_target"].isfinite().all())


def test_report(golden: Any) -> None:  # rule 4
    signal = signal_metrics(assign_credit([grpo], golden.t1))
    assert signal["advantage/nonzero"] == 1.0
    assert signal["advantage/mean"] == pytest.approx(0.8660 * 3 / 11, abs=1e-4)
    # Returns minus the group's row mean: M .5714 − .6364 = −.0649, S .1136; deviation .4810 (population).
    assert signal["agent/M/return/shift"] == pytest.approx(-0.0649 / 0.4810, abs=1e-3)
    assert signal["agent/S/return/shift"] == pytest.approx(0.1136 / 0.4810, abs=1e-3)
    assert signal["agent/S/return/variance_ratio"] == pytest.approx(0.1875 / 0.2314, abs=1e-3)


def test_one_agent_is_not_listed_apart() -> None:  # rule 4
    table = StepTable(group=[0, 0], trajectory=[0, 1], agent=["x", "x"], turn=[0, 0], reward=[0.0, 1.0])
    assert set(signal_metrics(assign_credit([grpo], table))) == {"advantage/nonzero", "advantage/mean", "advantage/std"}


@quick
@given(tables(), st.booleans())
def test_shift_predicts_the_size(table: StepTable, own_returns: bool) -> None:  # rule 4
    of = ("trajectory", "agent") if own_returns else ("trajectory",)
    baseline = functools.partial(dr_mas, by=("group",), scale="none", returns=of)
    signal = signal_metrics(assign_credit([baseline], table))
    advantage = baseline(table).double()
    whole = float(advantage.square().mean() - advantage.mean() ** 2)
    if whole > 1e-6 and len(table.labels("agent")) > 1:
        for code, name in enumerate(table.labels("agent")):
            own = advantage[table["agent"] == code]
            of_return = f"agent/{name}/return/" + ("own_" if own_returns else "")
            expected = signal[f"{of_return}variance_ratio"] + signal[f"{of_return}shift"] ** 2
            assert float((own - advantage.mean()).square().mean()) / whole == pytest.approx(
                expected, rel=1e-3, abs=1e-6
            )


def test_no_signal() -> None:  # rule 4
    table = StepTable(group=["g"] * 3, trajectory=[0, 1, 2], agent=["x"] * 3, turn=[0] * 3, reward=[0.1] * 3)
    for parts in ([grpo], [gigpo_by_turn], [reinforce_plus_plus], [grpo, whiten]):
        assert signal_metrics(assign_credit(parts, table))["advantage/nonzero"] == 0.0
    padded = table.replace(reward=torch.tensor([0.0, 1.0, 0.5]), row_weight=torch.zeros(3))
    assert signal_metrics(assign_credit([lambda given: torch.zeros(3)], padded))["advantage/nonzero"] == 0.0


def gigpo_by_turn(table: StepTable) -> torch.Tensor:
    """GiGPO where the turn is the state."""
    return gigpo(table.replace(state_key=table["turn"]))


def test_wrong_shape_is_refused(golden: Any) -> None:  # rule 5
    with told(ContractError, "(3,) for 11"):
        assign_credit([lambda table: torch.zeros(3)], golden.t1)
    with told(ContractError, "11 rows"):
        assign_credit([lambda table: [0.0] * 11], golden.t1)


def test_not_finite_is_refused(golden: Any) -> None:  # rule 5
    with told(ContractError, "11 of 11"):
        assign_credit([lambda table: total_return(table) / 0 - torch.inf], golden.t1)


# ---- further columns --------------------------------------------------------------------------------------
COLUMNS = """
import torch

from palaestra.algebra import Credit
from palaestra.registry import register


@register("advantage", "noted", reads=(), writes=("advantage", "place", "depth"))
def noted(table):
    place = torch.arange(len(table)).float() + 1
    depth = torch.stack([10 * place[table.token_row], 20 * place[table.token_row]], 1)
    return Credit(torch.ones(len(table)), columns={"place": place, "depth": depth})


@register("advantage", "halved", reads=("place", "depth"), writes=("advantage",))
def halved(table, advantage):
    assert table["depth"].shape == (table.tokens, 2)
    return advantage * table["place"] / 2


@register("loss", "noticed", reads=("advantage", "logprob", "weight", "place", "depth"))
def noticed(batch):
    fits = (batch["depth"][:, 0] == 10 * batch["place"]) & (batch["advantage"] == batch["place"] / 2)
    return -batch["advantage"] * batch["logprob"], {"fits": fits.float(), "place": batch["place"]}
"""
TINY: dict[str, Any] = {
    "environment": {"echo": {"turns": 2}},
    "policies": {"main": {"policy": {"language": {"hidden": 16, "layers": 1, "heads": 2, "context": 64}}}},
    "rollout": {"tasks": 2, "group": 2, "response_tokens": 3},
    "advantage": ["columns.py:noted", "columns.py:halved"],
    "loss": "columns.py:noticed",
    "training": {"iterations": 1, "minibatches": 2, "token_budget": 32, "threads": 1},
    "evaluation": {"tasks": 2},
}


def noted(table: StepTable, **columns: torch.Tensor) -> Credit:
    """No advantage, and these columns."""
    return Credit(torch.zeros(len(table)), columns=columns)


def test_columns_reach_a_filter(golden: Any) -> None:  # rule 6
    t1 = golden.t1
    rows, tokens = torch.arange(11).float(), torch.arange(21).float()
    seen = []

    def looks(table: StepTable, advantage: torch.Tensor) -> torch.Tensor:
        seen.append((table["place"], table["depth"]))
        return advantage + table["place"]

    table = assign_credit([lambda t: noted(t, place=rows, depth=tokens), looks], t1)
    assert torch.equal(seen[0][0], rows) and torch.equal(seen[0][1], tokens)
    assert torch.equal(table["advantage"], rows[t1.token_row])
    assert torch.equal(table["place"], rows) and torch.equal(table["depth"], tokens)
    assert "place" not in t1


def test_columns_reach_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # rule 6
    (tmp_path / "columns.py").write_text(COLUMNS)
    monkeypatch.chdir(tmp_path)
    recipe = load([TINY], [f"run={tmp_path / 'run'}"])
    train(recipe.settings, recipe=recipe.to_json(), quiet=True)
    (line,) = MetricsLog(tmp_path / "run").metrics.read()
    assert line["fits"] == pytest.approx(1.0, abs=1e-5) and line["place"] > 1.0


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"place": torch.zeros(3)}, "(3,)"),
        ({"place": torch.full((11,), torch.nan)}, "finite"),
        ({"reward": torch.zeros(11)}, "`reward`"),
        ({"value_target": torch.zeros(21)}, "`value_target`"),
        ({"logprob_old": torch.zeros(21)}, "`logprob_old`"),
    ],
)
def test_wrong_columns_are_refused(columns: dict[str, torch.Tensor], word: str, golden: Any) -> None:  # rule 6
    with told(ContractError, word):
        assign_credit([lambda table: noted(table, **columns)], golden.t1)
