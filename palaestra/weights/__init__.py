"""Weights: factors per row or token that multiply the loss, without gradient. Floor 2."""

from palaestra.weights.combine import combine
from palaestra.weights.fresh import fresh
from palaestra.weights.ones import ones
from palaestra.weights.segment_sample import SegmentSample
from palaestra.weights.truncated_importance import truncated_importance

__all__ = ["SegmentSample", "combine", "fresh", "ones", "truncated_importance"]
