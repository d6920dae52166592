"""REINFORCE++: token rewards with a KL penalty, reward to go, and one normalization over the whole batch.

Knows rewards, response tokens and their log-probabilities. Knows no groups and no critic.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable, reward_to_go, token_rewards, whiten
from palaestra.registry import Columns, Discount, NonNegative, register


@register("advantage", "reinforce_plus_plus", source="arXiv 2501.03262")
def reinforce_plus_plus(
    table: StepTable,
    *,
    beta: NonNegative = 0.0,
    gamma: Discount = 1.0,
    chain: Columns = ("trajectory",),
) -> Float[Tensor, " tokens"]:
    """Whiten the reward to go of all response tokens; learns even with one trajectory a task.

        r_u = −beta · (logprob_u − reference_u)  +  the row's reward, on its last token
        D_u = r_u + gamma · D_{u+1}              A = (D − mean of D) / deviation of D, over the batch

    Args:
        table: columns trajectory, turn, reward (rows,), token_count; with beta > 0 token_reference and
            token_proximal (else token_logprob), each (tokens,).
        beta: ≥ 0. Higher: the policy stays nearer to the reference. Usual: 0–0.01.
        gamma: in (0, 1], per token. Higher: late rewards reach early tokens. Usual: 1.
        chain: rows that agree in these columns follow each other in time.

    Returns: float32 (tokens,).
    Raises: InvalidData, for fewer than 2 tokens or a missing log-probability; MissingColumn, if beta > 0
        and there is no reference.
    Differs from the authors' code: nothing; of the public versions this is the one that carries the return
        from step to step, over the observations between them.
    """
    counts = table.weight[table.token_row] > 0
    rewards = token_rewards(table, kl=beta, where="reinforce_plus_plus: beta")
    returns = reward_to_go(table, gamma=gamma, by=chain, level="token", reward=rewards)
    return whiten(returns, weight=counts)
