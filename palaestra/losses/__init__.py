"""Losses and regularizers: a token batch to one number per token, and metrics per token. Floor 2."""

from palaestra.losses.behavior_cloning import behavior_cloning
from palaestra.losses.cispo import cispo
from palaestra.losses.dual_branch import dual_branch
from palaestra.losses.entropy import entropy
from palaestra.losses.gspo import gspo
from palaestra.losses.hapo import hapo
from palaestra.losses.kl import kl
from palaestra.losses.ppo_clip import ppo_clip
from palaestra.losses.ppo_clip_cov import ppo_clip_cov
from palaestra.losses.ppo_clip_guarded import ppo_clip_guarded
from palaestra.losses.ppo_clip_kept import ppo_clip_kept
from palaestra.losses.preference import preference
from palaestra.losses.reinforce import reinforce
from palaestra.losses.squared_objective import squared_objective
from palaestra.losses.value import value

__all__ = [
    "behavior_cloning",
    "cispo",
    "dual_branch",
    "entropy",
    "gspo",
    "hapo",
    "kl",
    "ppo_clip",
    "ppo_clip_cov",
    "ppo_clip_guarded",
    "ppo_clip_kept",
    "preference",
    "reinforce",
    "squared_objective",
    "value",
]
