"""Engines: generation with language models."""

from __future__ import annotations

from palaestra.engines.inprocess import InProcessEngine
from palaestra.engines.sampling import draw, log_distribution, uniform
from palaestra.engines.session import Statistics

__all__ = ["InProcessEngine", "Statistics", "draw", "log_distribution", "uniform"]
