"""Replay: what happened is kept and learned from again."""

from palaestra.replay.buffer import ReplayBuffer
from palaestra.replay.transitions import Transition, one_step, seen_before, transitions

__all__ = ["ReplayBuffer", "Transition", "one_step", "seen_before", "transitions"]
