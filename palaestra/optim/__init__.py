"""Optimizers: gradients to new parameters. Floor 2."""

from palaestra.optim.adamw import AdamW
from palaestra.optim.muon import Muon
from palaestra.optim.muon_clip import MuonClip

__all__ = ["AdamW", "Muon", "MuonClip"]
