"""Rewards: a table to a new reward column, one after the other. Floor 2."""

from palaestra.rewards.environment import environment
from palaestra.rewards.invalid_penalty import invalid_penalty
from palaestra.rewards.outcome import outcome

__all__ = ["environment", "invalid_penalty", "outcome"]
