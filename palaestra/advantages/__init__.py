"""Advantage estimators and filters: credit for what was done. Floor 2.

An estimator reads a table: `gigpo(table, gamma=0.95)`. A filter reads a table and an advantage. `chain` runs
one estimator and then filters.
"""

from palaestra.advantages.center import center
from palaestra.advantages.clip_advantage import clip_advantage
from palaestra.advantages.dr_grpo import dr_grpo
from palaestra.advantages.dr_mas import dr_mas
from palaestra.advantages.gigpo import gigpo
from palaestra.advantages.grpo import grpo
from palaestra.advantages.grpo_process import grpo_process
from palaestra.advantages.oprl import oprl
from palaestra.advantages.pipeline import AgentSignal, Credit, Signal, chain, report
from palaestra.advantages.ppo import ppo
from palaestra.advantages.reinforce import reinforce
from palaestra.advantages.reinforce_plus_plus import reinforce_plus_plus
from palaestra.advantages.reinforce_plus_plus_baseline import reinforce_plus_plus_baseline
from palaestra.advantages.rloo import rloo
from palaestra.advantages.whiten import whiten

__all__ = [
    "AgentSignal",
    "Credit",
    "Signal",
    "center",
    "chain",
    "clip_advantage",
    "dr_grpo",
    "dr_mas",
    "gigpo",
    "grpo",
    "grpo_process",
    "oprl",
    "ppo",
    "reinforce",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "report",
    "rloo",
    "whiten",
]
