"""Weights: factors per row or token that multiply the loss, without gradient. Floor 2."""

from palaestra.weights.combine import combine
from palaestra.weights.difficulty import Difficulty
from palaestra.weights.duration import duration
from palaestra.weights.fresh import fresh
from palaestra.weights.imitation_schedule import ImitationSchedule
from palaestra.weights.ones import ones
from palaestra.weights.overlong_filter import OverlongFilter
from palaestra.weights.repetition import RepetitionFilter
from palaestra.weights.segment_sample import SegmentSample
from palaestra.weights.truncated_importance import truncated_importance
from palaestra.weights.uncertain_steps import uncertain_steps
from palaestra.weights.unreadable import UnreadableFilter
from palaestra.weights.void_turns import VoidTurnFilter

__all__ = [
    "Difficulty",
    "ImitationSchedule",
    "OverlongFilter",
    "RepetitionFilter",
    "SegmentSample",
    "UnreadableFilter",
    "VoidTurnFilter",
    "combine",
    "duration",
    "fresh",
    "ones",
    "truncated_importance",
    "uncertain_steps",
]
