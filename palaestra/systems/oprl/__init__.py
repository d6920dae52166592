"""OPRL, later iStar. When steps should be told apart and nobody labels them: a second model learns step rewards
from which trajectories of a group were better.
"""
