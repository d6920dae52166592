"""Milestones: (1) hand-derived numbers; (2) a marker counts only with its episode's nonce; (3) values out of range are
refused.
"""

from __future__ import annotations

import pytest
import torch

from palaestra.errors import InvalidData, RecipeError
from palaestra.systems.duration_aware.markers import marker, reached
from palaestra.systems.duration_aware.milestones import milestones
from tests.parts.small_tables import episode


def test_milestones_by_hand() -> None:  # rule 1
    table = episode(3).replace(
        reward=torch.tensor([0.0, 0.0, 0.7]), valid=torch.tensor([0, 0, 1]), milestones=torch.tensor([0, 3, 5])
    )
    found = milestones(table)
    assert found["reward"].tolist() == pytest.approx([-10, -9.7, 0.7])
    assert found["milestone_reward"].tolist() == pytest.approx([0, 0.3, 0], abs=1e-5)


def test_markers_need_their_nonce() -> None:  # rule 2
    names, output = ("loaded", "trained", "wrote"), f"x\n{marker('trained', 'c4')}\n{marker('wrote', 'guess')}\n"
    assert reached(output, "c4", names) == ["trained"]
    assert reached(f"print {marker('wrote', 'c4')}", "c4", names) == []
    assert reached(marker("other", "c4"), "c4", names) == []
    assert reached(marker("wrote", "c.4"), "c.4", names) == ["wrote"] != reached(marker("wrote", "cx4"), "c.4", names)


def test_bad_milestones() -> None:  # rule 3
    table = episode(1, valid=0.0, milestones=1)
    with pytest.raises(RecipeError, match=r"5 milestones earn 0.5, but a valid result may earn only 0"):
        milestones(table, base=0.0)
    with pytest.raises(RecipeError, match="partial credit stays below any valid score"):
        milestones(table, base=-0.5)
    with pytest.raises(InvalidData, match=r"6 milestones of 5(.|\n)*Set `most`"):
        milestones(episode(1, valid=0.0, milestones=6))
    with pytest.raises(InvalidData, match=r"`valid` is 0\.5"):
        milestones(episode(1, valid=0.5, milestones=1))
