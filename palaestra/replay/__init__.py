"""Replay: episodes that were solved are kept, and enter later iterations again."""

from palaestra.replay.copies import again, in_group_of, is_replayed, refuse_unknown_probabilities
from palaestra.replay.packing import pack, unpack
from palaestra.replay.successes import SuccessStore

__all__ = [
    "SuccessStore",
    "again",
    "in_group_of",
    "is_replayed",
    "pack",
    "refuse_unknown_probabilities",
    "unpack",
]
