"""Advantage estimators and filters: credit for what was done. Floor 2.

An estimator reads a table: `gigpo(table, gamma=0.95)`. A filter reads a table and an advantage. `chain` runs
one estimator and then filters.
"""

from palaestra.advantages.adca_grpo import adca_grpo
from palaestra.advantages.adv_evo import public_baseline
from palaestra.advantages.archer import Archer
from palaestra.advantages.bnpo import bnpo
from palaestra.advantages.canon import Canon
from palaestra.advantages.center import center
from palaestra.advantages.clip_advantage import clip_advantage
from palaestra.advantages.critic_warmup import CriticWarmup
from palaestra.advantages.dcpo import dcpo
from palaestra.advantages.descendants import descendants
from palaestra.advantages.dr_grpo import dr_grpo
from palaestra.advantages.dr_mas import dr_mas
from palaestra.advantages.egae import egae
from palaestra.advantages.empg import empg
from palaestra.advantages.entropy_aware import entropy_aware
from palaestra.advantages.filtered import filtered
from palaestra.advantages.flow_grpo import flow_grpo
from palaestra.advantages.foresight import foresight
from palaestra.advantages.gigpo import gigpo
from palaestra.advantages.grpo import grpo
from palaestra.advantages.grpo_process import grpo_process
from palaestra.advantages.hapo import hapo
from palaestra.advantages.hrpo import hrpo
from palaestra.advantages.loop import loop
from palaestra.advantages.m_grpo import m_grpo
from palaestra.advantages.mars import mars
from palaestra.advantages.ntpo import ntpo
from palaestra.advantages.oprl import oprl
from palaestra.advantages.pipeline import AgentSignal, Credit, Signal, chain, report
from palaestra.advantages.poad import poad
from palaestra.advantages.ppo import ppo
from palaestra.advantages.ppo_max import ppo_max
from palaestra.advantages.ppr import ppr
from palaestra.advantages.rae import RoleAdvantage
from palaestra.advantages.reinforce import reinforce
from palaestra.advantages.reinforce_plus_plus import reinforce_plus_plus
from palaestra.advantages.reinforce_plus_plus_baseline import reinforce_plus_plus_baseline
from palaestra.advantages.rloo import rloo
from palaestra.advantages.salt import salt
from palaestra.advantages.self_imitation import SelfImitation
from palaestra.advantages.shared_prefix import shared_prefix
from palaestra.advantages.srgpo import srgpo
from palaestra.advantages.stratified_grpo import stratified_grpo
from palaestra.advantages.turn_gae import turn_gae
from palaestra.advantages.vl_dac import vl_dac
from palaestra.advantages.whiten import whiten

__all__ = [
    "AgentSignal",
    "Archer",
    "Canon",
    "Credit",
    "CriticWarmup",
    "RoleAdvantage",
    "SelfImitation",
    "Signal",
    "adca_grpo",
    "bnpo",
    "center",
    "chain",
    "clip_advantage",
    "dcpo",
    "descendants",
    "dr_grpo",
    "dr_mas",
    "egae",
    "empg",
    "entropy_aware",
    "filtered",
    "flow_grpo",
    "foresight",
    "gigpo",
    "grpo",
    "grpo_process",
    "hapo",
    "hrpo",
    "loop",
    "m_grpo",
    "mars",
    "ntpo",
    "oprl",
    "poad",
    "ppo",
    "ppo_max",
    "ppr",
    "public_baseline",
    "reinforce",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "report",
    "rloo",
    "salt",
    "shared_prefix",
    "srgpo",
    "stratified_grpo",
    "turn_gae",
    "vl_dac",
    "whiten",
]
