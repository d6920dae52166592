"""Samplers: which tasks an iteration plays. Floor 2."""

from palaestra.curriculum.uniform import uniform

__all__ = ["uniform"]
