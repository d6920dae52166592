"""PPO-max: token-level temporal differences of a reward with a price on leaving the reference.

Knows rewards, response tokens, their log-probabilities and values. Knows nothing of reward models.
"""

from __future__ import annotations

from palaestra.data import Estimate, StepTable, lambda_return, token_rewards, whitened
from palaestra.registry import Columns, Fraction, NonNegative, Positive, register


@register("advantage", "ppo_max", uses=("critic", "reference"), source="arXiv 2307.04964")
def ppo_max(
    table: StepTable,
    *,
    kl_coefficient: NonNegative = 0.02,
    gamma: Fraction = 1.0,
    lam: Fraction = 0.95,
    whiten: bool = True,
    clip: Positive | None = None,
    chain: Columns = ("trajectory", "agent"),
) -> Estimate:
    """Token-level generalized advantage estimation with a KL penalty inside the reward.

        r_u = −kl_coefficient · (logprob_u − reference_u)  +  the row's reward, on its last token
        δ_u = r_u + gamma · V_{u+1} − V_u        A_u = δ_u + gamma · lam · A_{u+1}        target_u = A_u + V_u

    Args:
        table: columns trajectory, agent, turn, reward, terminated, truncated, token_count; token_value,
            token_reference and token_proximal (else token_logprob), each (tokens,); value_end (rows,) where a
            trajectory is truncated.
        kl_coefficient: ≥ 0. Higher: the policy stays nearer to the reference. 0 is token-level PPO. Usual: 0.01–0.02.
        gamma: in [0, 1], per token. Lower: late rewards fade. Usual: 1.
        lam: in [0, 1], per token. Higher: less bias, more variance. Usual: 0.95.
        whiten: standardize advantages over the tokens of the batch; targets stay as they are.
        clip: > 0, the largest size of an advantage, after whitening; None leaves it. Usual: none, or 0.5.
        chain: rows that agree in these columns follow each other in time; each agent has its own values.

    Returns: Estimate of float32 (tokens,); target NaN on tokens of agents without a critic.
    Raises: MissingColumn, without values, end flags or, if kl_coefficient > 0, a reference; InvalidData, for values or
        log-probabilities that are not finite, or a trajectory whose last row is neither terminated nor truncated.
    Differs from the authors' code: rewards are scaled by a part of their own, `running_scale`.
    """
    reward = token_rewards(table, kl=kl_coefficient, where="ppo_max: kl_coefficient")
    estimate = lambda_return(table, gamma=gamma, lam=lam, level="token", reward=reward, by=chain)
    estimate = whitened(estimate) if whiten else estimate
    if clip is None:
        return estimate
    return Estimate(estimate.advantage.clamp(-clip, clip), estimate.target)
