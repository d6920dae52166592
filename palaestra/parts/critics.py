"""Advantage estimators that use a critic: PPO with generalized advantage estimation, PPO-max, and a warm-up."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from palaestra.algebra import Credit, lambda_return, token_rewards, whitened
from palaestra.data import StepTable
from palaestra.data.iteration import Iteration
from palaestra.data.protocols import StatefulPart
from palaestra.registry import Columns, Fraction, NonNegative, Positive, PositiveInt, register


@register(
    "advantage",
    "ppo",
    ignores_if={"level=row": ("gamma_in",)},
    reads=("terminated?", "truncated?", "bootstrap_value?"),
    reads_if={"level=row": ("row_value",), "level=token": ("value_old",)},
    writes=("advantage", "value_target", "value_weight"),
    uses=("critic",),
    source="arXiv 1707.06347, arXiv 1506.02438",
)
def ppo(
    table: StepTable,
    *,
    level: Literal["row", "token"] = "row",
    gamma: Fraction = 0.99,
    lam: Fraction = 0.95,
    gamma_in: Fraction | None = None,
    whiten: bool = True,
    chain: Columns = ("trajectory", "agent"),
) -> Credit:
    """Generalized advantage estimation: sum the critic's temporal differences with weight (gamma · lam)^distance.

        δ_u = r_u + gamma · V_{u+1} − V_u       A_u = δ_u + gamma · lam · A_{u+1}       target_u = A_u + V_u

    After a terminated row V_{u+1} is 0; after a truncated row it is the value of the next observation.

    Args:
        table: columns trajectory, agent, turn, reward, terminated, truncated; row_value (rows,) at level
            "row", value_old (tokens,) at level "token"; bootstrap_value (rows,) where a trajectory is truncated.
        level: the unit of time. "row": one value and one advantage per step. "token": one per response token.
        gamma: in [0, 1]. Higher: late rewards reach early units. Usual: rows 0.9–0.99, tokens 1.
        lam: in [0, 1]. Higher: less bias, more variance; 1 is reward to go − V. Usual: 0.95.
        gamma_in: discount between the tokens of one row, at level "token"; None: gamma.
        whiten: standardize the advantages over the units of the batch; the targets do not change.
        chain: rows that agree in these columns follow each other in time; each agent has its own values. With
            sub-agents, ("trajectory", "agent", "invocation") separates their calls.

    Returns: Credit of float32 (rows,) or (tokens,); the target is NaN on rows of agents without a critic.
    Raises: MissingColumn, without a critic or end flags; InvalidData, for values that are not finite, or a
        trajectory whose last row is neither terminated nor truncated.
    """
    estimate = lambda_return(table, gamma=gamma, lam=lam, level=level, gamma_in=gamma_in, by=chain)
    return whitened(estimate) if whiten else estimate


@register(
    "advantage",
    "ppo_max",
    reads=("value_old", "terminated?", "truncated?", "bootstrap_value?"),
    reads_if={"kl_coefficient": ("logprob_reference", "logprob_old?", "logprob_behavior?")},
    writes=("advantage", "value_target", "value_weight"),
    uses=("critic", "reference"),
    source="arXiv 2307.04964",
)
def ppo_max(
    table: StepTable,
    *,
    kl_coefficient: NonNegative = 0.02,
    gamma: Fraction = 1.0,
    lam: Fraction = 0.95,
    whiten: bool = True,
    clip: Positive | None = None,
    chain: Columns = ("trajectory", "agent"),
) -> Credit:
    """Generalized advantage estimation over tokens, with a KL penalty in the reward.

        r_u = −kl_coefficient · (logprob_u − reference_u)  +  the row's reward, on its last token
        δ_u = r_u + gamma · V_{u+1} − V_u        A_u = δ_u + gamma · lam · A_{u+1}        target_u = A_u + V_u

    Args:
        table: columns trajectory, agent, turn, reward, terminated, truncated, token_count; value_old,
            logprob_reference and logprob_old (else logprob_behavior), each (tokens,); bootstrap_value (rows,) where a
            trajectory is truncated.
        kl_coefficient: ≥ 0. Higher: the policy stays closer to the reference. 0: PPO over tokens. Usual: 0.01–0.02.
        gamma: in [0, 1], per token. Lower: late rewards count less. Usual: 1.
        lam: in [0, 1], per token. Higher: less bias, more variance. Usual: 0.95.
        whiten: standardize the advantages over the tokens of the batch; the targets do not change.
        clip: > 0, the largest absolute advantage, after whitening; None: no limit. Usual: None, or 0.5.
        chain: rows that agree in these columns follow each other in time; each agent has its own values.

    Returns: Credit of float32 (tokens,); the target is NaN on tokens of agents without a critic.
    Raises: MissingColumn, without values, end flags or, if kl_coefficient > 0, a reference; InvalidData, for values or
        log-probabilities that are not finite, or a trajectory whose last row is neither terminated nor truncated.
    Differs from the authors' code: rewards are not scaled here; the part `running_scale` does it.
    """
    reward = token_rewards(table, kl=kl_coefficient, where="ppo_max: kl_coefficient")
    estimate = lambda_return(table, gamma=gamma, lam=lam, level="token", reward=reward, by=chain)
    estimate = whitened(estimate) if whiten else estimate
    if clip is None:
        return estimate
    return estimate._replace(advantage=estimate.advantage.clamp(-clip, clip))


@register(
    "advantage",
    "critic_warmup",
    reads=(),
    writes=("advantage",),
    uses=("critic",),
    source="arXiv 2508.04280; arXiv 2510.12693, public code",
)
class CriticWarmup(StatefulPart):
    """Set all advantages to 0 in the first iterations, so that only the critic learns.

    If policy and critic share a body, the value loss still changes this body. `critic_gradient: false` of the language
    policy prevents that.

    Args:
        iterations: > 0, number of iterations with advantages of 0. Higher: the values are better when the policy
            begins to learn. Usual: 3.
    """

    def __init__(self, *, iterations: PositiveInt = 3) -> None:
        self.iterations = iterations
        self.ready = False

    def __call__(self, table: StepTable, advantage: Tensor, iteration: Iteration) -> Tensor:
        self.ready = iteration.number >= self.iterations
        return advantage if self.ready else torch.zeros_like(advantage)
