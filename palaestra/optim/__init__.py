"""Optimizers: gradients to new parameters. Floor 2."""

from palaestra.optim.adamw import AdamW

__all__ = ["AdamW"]
