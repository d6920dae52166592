"""PPO advantages with a KL penalty whose coefficient adapts, for each role separately."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.algebra import Credit, lambda_return, token_rewards, whitened
from palaestra.data import Batch, Iteration, StepTable
from palaestra.data.protocols import StatefulPart
from palaestra.registry import Fraction, Positive, PositiveInt, register

LARGEST_ERROR = 0.2  # bound of |KL / target − 1|


@register(
    "advantage",
    "ppo_adaptive_kl",
    reads=(
        "value_old", "logprob_reference", "logprob_old?", "logprob_behavior?", "terminated?", "truncated?",
        "bootstrap_value?",
    ),
    writes=("advantage", "value_target", "value_weight"),
    uses=("critic", "reference"),
    source="arXiv 2410.06101, public code; arXiv 1909.08593",
)  # fmt: skip
class PPOAdaptiveKL(StatefulPart):
    """The advantages of `ppo_max`, with a KL coefficient β for each role that keeps the KL near a target.

        r_u = −β · (logprob_u − reference_u)  +  the row's reward, on its last token
        β ← β · (1 + clip(KL / target − 1, −0.2, 0.2) · min(1, n / horizon))          after each iteration

    KL is the mean, over the role's n responses of the iteration, of logprob − reference summed over their tokens.

    Args:
        kl_coefficient: > 0, β at the start. Higher: policies stay nearer to their references. Usual: 0.1–0.4.
        target: > 0, nats per response. Higher: policies may move farther from their references. Usual: 6 for responses
            of about 16 tokens.
        horizon: number of responses. Higher: β changes more slowly. Usual: 10000.
        gamma: in [0, 1], discount per token. Lower: late rewards count less. Usual: 1.
        lam: in [0, 1], per token. Higher: less bias, more variance. Usual: 0.95.
        whiten: standardize advantages over the tokens of the batch; targets do not change.

    Metrics: kl_control/<role>/kl and kl_control/<role>/coefficient (that of the next iteration).

    Raises: MissingColumn, InvalidData, as `ppo_max`.
    Differs from the authors' code: the KL is that of the sampled tokens, theirs is over the whole vocabulary; their
        coefficients start again at each exchange of roles, these do not.
    """

    def __init__(
        self,
        *,
        kl_coefficient: Positive = 0.4,
        target: Positive = 6.0,
        horizon: PositiveInt = 10_000,
        gamma: Fraction = 1.0,
        lam: Fraction = 0.95,
        whiten: bool = True,
    ) -> None:
        self.first, self.target, self.horizon = kl_coefficient, target, horizon
        self.gamma, self.lam, self.whiten = gamma, lam, whiten
        self.coefficients: dict[str, float] = {}

    def __call__(self, table: StepTable) -> Credit:
        coefficients = torch.tensor([self.coefficients.get(str(role), self.first) for role in table.labels("agent")])
        price = coefficients[table["agent"]][table.token_row] * drift(table)
        reward = token_rewards(table, kl=0.0, where="") - price
        estimate = lambda_return(table, gamma=self.gamma, lam=self.lam, level="token", reward=reward)
        return whitened(estimate) if self.whiten else estimate

    def update(self, batch: Batch, iteration: Iteration) -> dict[str, float]:
        """Adapt the coefficients of the roles that have acted."""
        table = batch.table
        metrics: dict[str, float] = {}
        of_row = torch.zeros(len(table)).index_add(0, table.token_row, drift(table))
        for code, label in enumerate(table.labels("agent")):
            own = of_row[(table["agent"] == code) & (table.row_weight > 0)]
            if len(own):
                role, kl = str(label), float(own.mean())
                error = min(max(kl / self.target - 1, -LARGEST_ERROR), LARGEST_ERROR)
                coefficient = self.coefficients.get(role, self.first) * (1 + error * min(1, len(own) / self.horizon))
                self.coefficients[role] = coefficient
                metrics |= {f"kl_control/{role}/kl": kl, f"kl_control/{role}/coefficient": coefficient}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The coefficients by role."""
        return {"coefficients": self.coefficients}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the coefficients."""
        self.coefficients = dict(state["coefficients"])


def drift(table: StepTable) -> Float[Tensor, " tokens"]:
    """logprob − reference of each token; 0 on padding and for agents that have neither."""
    silent = table.replace(reward=torch.zeros(len(table)))
    return -token_rewards(silent, kl=1.0, where="ppo_adaptive_kl: kl_coefficient")
