"""Selection: which rows stay in the update. Floor 2."""

from palaestra.selection.constant_groups import constant_groups
from palaestra.selection.everything import everything
from palaestra.selection.replay_success import ReplaySuccess
from palaestra.selection.resample_on_correct import ResampleOnCorrect
from palaestra.selection.widest_groups import widest_groups

__all__ = [
    "ReplaySuccess",
    "ResampleOnCorrect",
    "constant_groups",
    "everything",
    "widest_groups",
]
