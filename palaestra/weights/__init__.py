"""Weights: factors per row or token that multiply the loss, without gradient. Floor 2."""

from palaestra.weights.combine import combine
from palaestra.weights.ones import ones
from palaestra.weights.truncated_importance import truncated_importance

__all__ = ["combine", "ones", "truncated_importance"]
