"""The selection `widest_groups`: (1) the groups whose returns differ least are dropped."""

from __future__ import annotations

import torch

from palaestra.data import StepTable
from palaestra.systems.spear.widest_groups import widest_groups
from tests.replay.episodes import episode


def test_widest_groups() -> None:  # rule 1
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
