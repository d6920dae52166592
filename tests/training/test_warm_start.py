"""Warm start: (1) a batch that is larger than the token budget is read in several passes, and the step stays the same
up to rounding; (2) a batch that fits is read in one pass.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from palaestra.policies.language_trainer import LanguageTrainer
from palaestra.recipe import load
from palaestra.training.setup import build_setup
from palaestra.training.warm_start import warm_start
from tests.training.conftest import ECHO


def cloned(budget: int, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, torch.Tensor], dict[str, float], list[int]]:
    """The weights after a warm start, its metrics, and how many tokens each pass read."""
    passes: list[int] = []
    plain = LanguageTrainer.forward

    def counted(self: Any, samples: Any, which: Any, *rest: Any, **options: Any) -> Any:
        passes.append(sum(int(samples.cost[i]) for i in which))
        return plain(self, samples, which, *rest, **options)

    monkeypatch.setattr(LanguageTrainer, "forward", counted)
    more = ["warm_start.epochs=2", "warm_start.batch_tokens=400", f"training.token_budget={budget}"]
    settings = load([ECHO], more).settings
    setup = build_setup(settings)
    metrics = warm_start(setup, settings, say=lambda *_: None)
    weights = {name: weight.detach().clone() for name, weight in setup.policies["main"].module.named_parameters()}
    monkeypatch.undo()
    return weights, metrics, passes


def test_1_2_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, metrics, whole = cloned(400, monkeypatch)
    others, measured, cut = cloned(100, monkeypatch)
    assert max(whole) > 200 and max(cut) <= 100 and sum(whole) == sum(cut)  # 2
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-3, atol=1e-4)
    assert measured["warm_start/main/loss"] == pytest.approx(metrics["warm_start/main/loss"], rel=1e-4)
