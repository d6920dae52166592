"""Palaestra: train, run and evaluate agents by multi-turn reinforcement learning."""

__version__ = "0.1.0"
