"""The scripted judge:

1. Without noise every flag is right; with noise 1 every flag is wrong.
2. It errs at its rate. Another seed reverses other flags; the order of rows does not matter.
3. A step without a quality is refused.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from palaestra.data import StepTable
from palaestra.errors import InvalidData, MissingColumn, RecipeError
from palaestra.systems.adca_grpo.step_judge import step_judge
from tests.parts.small_tables import at


def table(size: int = 4000, **columns: Any) -> StepTable:
    quality = (torch.arange(size) % 3 == 0).float()
    base: dict[str, Any] = {"group": ["g"] * size, "trajectory": [f"t{p // 20}" for p in range(size)]}
    base |= {"agent": ["x"] * size, "turn": [p % 20 for p in range(size)], "reward": [0.0] * size, "process": quality}
    return StepTable(**{**base, **columns})


def flags(some: StepTable, seed: int = 0, **options: Any) -> torch.Tensor:
    return step_judge(some, at(seed=seed), **options)["good"]


def test_truth_and_its_opposite() -> None:  # rule 1
    assert torch.equal(flags(table(), noise=0.0), table()["process"])
    assert torch.equal(flags(table(), noise=1.0), 1 - table()["process"])
    assert flags(table(3, process=[0.2, 0.4, 0.9]), noise=0.0, threshold=0.3).tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("noise", [0.1, 0.5])
def test_rate_of_errors(noise: float) -> None:  # rule 2
    some = table()
    wrong = flags(some, noise=noise) != some["process"]
    assert abs(float(wrong.float().mean()) - noise) < 0.03
    assert not torch.equal(flags(some, noise=noise), flags(some, seed=1, noise=noise))
    order = torch.randperm(len(some), generator=torch.Generator().manual_seed(0))
    assert torch.equal(flags(some.take(order), noise=noise), flags(some, noise=noise)[order])


def test_bad_input() -> None:  # rule 3
    with pytest.raises(InvalidData, match="1 of 4 steps have no quality"):
        flags(table(4, process=[1.0, float("nan"), 0.0, 0.0]))
    with pytest.raises(MissingColumn, match="process"):
        flags(table(4, process=None))
    with pytest.raises(RecipeError, match="noise"):
        flags(table(4), noise=1.5)
