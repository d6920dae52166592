"""The mathematics that estimators and losses share: pure functions on tables and tokens."""

from palaestra.algebra.aggregation import aggregate, coefficients
from palaestra.algebra.divergence import kl_estimate
from palaestra.algebra.draws import row_draws, uniform_per_unit
from palaestra.algebra.peers import Peers, pool, standardize, whiten, whitened
from palaestra.algebra.returns import Credit, lambda_return, reward_to_go, token_rewards, total_return
from palaestra.algebra.segments import (
    reverse_scan,
    segment_count,
    segment_equal,
    segment_mean,
    segment_range,
    segment_rank,
    segment_std,
    segment_sum,
)

__all__ = [
    "Credit",
    "Peers",
    "aggregate",
    "coefficients",
    "kl_estimate",
    "lambda_return",
    "pool",
    "reverse_scan",
    "reward_to_go",
    "row_draws",
    "segment_count",
    "segment_equal",
    "segment_mean",
    "segment_range",
    "segment_rank",
    "segment_std",
    "segment_sum",
    "standardize",
    "token_rewards",
    "total_return",
    "uniform_per_unit",
    "whiten",
    "whitened",
]
