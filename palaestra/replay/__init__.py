"""Replay: a buffer of transitions, and a store of solved episodes that are used again in later iterations."""

from palaestra.replay.buffer import ReplayBuffer
from palaestra.replay.copies import again, in_group_of, is_replayed, refuse_unknown_probabilities
from palaestra.replay.packing import pack, unpack
from palaestra.replay.successes import SuccessStore
from palaestra.replay.transitions import Transition, one_step, seen_before, transitions

__all__ = [
    "ReplayBuffer",
    "SuccessStore",
    "Transition",
    "again",
    "in_group_of",
    "is_replayed",
    "one_step",
    "pack",
    "refuse_unknown_probabilities",
    "seen_before",
    "transitions",
    "unpack",
]
