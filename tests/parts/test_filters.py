"""What is left out of training: (1) void turns, (2) repetition and (3) unreadable text mask whole trajectories, and say
how many; (4) steps below the group's quantile of entropy; (5) the groups that differ least; (6) neutral options keep
everything; (7) what is refused.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given

from palaestra.data import FinishReason, StepTable, Trajectory
from palaestra.errors import MissingColumn, RecipeError
from palaestra.systems.dart.uncertain_steps import uncertain_steps
from palaestra.systems.spear.filters import RepetitionFilter, UnreadableFilter, VoidTurnFilter
from palaestra.systems.spear.widest_groups import widest_groups
from tests.parts.tables import quick, shuffled, tables
from tests.replay.episodes import episode, seen


def kept(part: object, episodes: list[Trajectory]) -> list[float]:
    """The weight of each episode's first row."""
    table = StepTable.from_trajectories(episodes)
    weight = part(table, seen(episodes))  # type: ignore[operator]
    assert bool((weight.reshape(-1, 2)[:, 0] == weight.reshape(-1, 2)[:, 1]).all()), "trajectories stay whole"
    return weight[::2].tolist()


def test_void_turns() -> None:  # rule 1
    cut, unread = (episode(0.0, sample=i, texts=["go", "take"]) for i in (2, 3))
    cut.steps[0].action.finish = FinishReason.LENGTH
    unread.steps[1].info["invalid"] = 1.0
    played = [episode(0.0, sample=0, texts=["go", "take"]), episode(0.0, sample=1, texts=["go", " \n"]), cut, unread]
    part = VoidTurnFilter()
    assert kept(part, played) == [1, 0, 0, 0]
    assert part.learn(StepTable.from_trajectories(played), seen(played)) == {"filter/void_turn": 0.75}
    assert kept(VoidTurnFilter(unread=False), played) == [1, 0, 0, 1]
    assert kept(VoidTurnFilter(), [episode(0.0), episode(1.0, sample=1)]) == [1, 1], "networks have no text"


@pytest.mark.parametrize(("length", "weight"), [(28, 1.0), (29, 0.0)])
def test_repetition(length: int, weight: float) -> None:  # rule 2
    one = episode(0.0)
    one.steps[0].action.tokens = np.zeros(length, np.int32)  # a run of 20 begins at length − 19 places
    one.steps[0].action.logprobs = np.zeros(length, np.float32)
    part = RepetitionFilter()
    assert kept(part, [one, episode(0.0, sample=1)]) == [weight, 1.0]
    assert part.learn(StepTable.from_trajectories([one]), seen([one])) == {"filter/repetition": (1 - weight) / 2}


def test_runs_lie_inside_one_response() -> None:  # rule 2
    part = RepetitionFilter(length=2, times=2)
    assert part.most([np.array([1, 2]), np.array([1, 2])]) == 2
    assert part.most([np.array([1]), np.array([1, 2, 1])]) == 1
    assert part.most([]) == 0


def test_unreadable() -> None:  # rule 3
    texts = [["go", "take\tkey"], ["go\ufffd", "take"], ["go\x00", "take key"]]
    played = [episode(0.0, sample=i, texts=text) for i, text in enumerate(texts)]
    part = UnreadableFilter()
    assert kept(part, played) == [1, 0, 0]
    assert part.learn(StepTable.from_trajectories(played), seen(played))["filter/unreadable"] == pytest.approx(2 / 3)
    assert kept(UnreadableFilter(most=0.1), played) == [1, 0, 1]


@quick
@given(tables())
def test_quantiles_are_those_of_numpy(table: StepTable) -> None:  # rule 4
    for quantile in (0.2, 0.5, 0.9):
        weight = uncertain_steps(table, quantile=quantile)
        for group in set(table["group"].tolist()):
            own = table["group"] == group
            bound = np.quantile(table["entropy"][own].double().numpy(), quantile)
            assert weight[own].tolist() == (table["entropy"][own].double().numpy() >= bound - 1e-12).tolist()
    assert bool((uncertain_steps(table, quantile=0.0) == 1).all())  # rule 6


@quick
@given(tables())
def test_order_and_padding_change_nothing(table: StepTable) -> None:  # rules 4 and 5
    order = shuffled(table, 1)
    for part in (lambda t: uncertain_steps(t, quantile=0.4), lambda t: widest_groups(t, share=0.5)):
        first = part(table)
        assert torch.equal(part(table.take(order)), first[order])
        size = len(table)
        twice = table.take(torch.cat([torch.arange(size), torch.arange(size)]))
        weight = (torch.arange(2 * size) < size).float()
        wild = twice.replace(
            weight=weight,
            entropy=torch.where(weight > 0, twice["entropy"], 99.0),
            reward=torch.where(weight > 0, twice["reward"], 99.0),
        )
        assert torch.equal(part(wild)[:size], first)


def test_widest_groups() -> None:  # rule 5
    spread = {"a": (0, 0), "b": (1, 0), "c": (0.5, 0), "d": (0.25, 0)}
    played = [episode(won, group=g, sample=i) for g, pair in spread.items() for i, won in enumerate(pair)]
    table = StepTable.from_trajectories(played)
    names = [table.labels("group")[code] for code in table["group"].tolist()]

    def left(share: float) -> set[str]:
        chosen = widest_groups(table, share=share).tolist()
        return {name for name, keep in zip(names, chosen, strict=True) if keep}

    assert [left(share) for share in (0.75, 0.5, 0.1, 1.0)] == [{"b", "c", "d"}, {"b", "c"}, {"b"}, {*"abcd"}]
    second = table.replace(anchored=torch.tensor([float(name == "a") for name in names]))
    chosen = widest_groups(second, share=0.34)
    assert {name for name, keep in zip(names, chosen.tolist(), strict=True) if keep} == {"a", "b"}


def test_what_is_refused() -> None:  # rule 7
    table = StepTable.from_trajectories([episode(0.0)])
    with pytest.raises(MissingColumn, match="entropy"):
        uncertain_steps(table)
    for quantile in (-0.1, 1.0):
        with pytest.raises(RecipeError, match="quantile"):
            uncertain_steps(table, quantile=quantile)
    with pytest.raises(RecipeError, match="share"):
        widest_groups(table, share=0.0)
    with pytest.raises(RecipeError, match="times"):
        RepetitionFilter(times=1)
    with pytest.raises(RecipeError, match="most"):
        UnreadableFilter(most=1.0)
