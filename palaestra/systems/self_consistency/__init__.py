"""TTRL, test-time reinforcement learning (arXiv 2504.16084), trains on questions whose answers are not known. Several
answers to a question are sampled, and the most frequent one is assumed to be right: each answer that equals it is
rewarded. GRPO uses these rewards. If the most frequent answer is wrong, the policy learns it. The authors vote over 64
samples and train on 32 of them; here all answers of a group vote and are trained on, and where several answers are
equally frequent each of them is rewarded. It is for tasks of one act. This file is the reward; the estimator `grpo` is
in `palaestra/parts/estimators.py`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from palaestra.data import StepTable
from palaestra.errors import InvalidData
from palaestra.registry import Columns, register


@register(
    "reward",
    "self_consistency",
    reads=("action_key",),
    reads_if={"stratum": ("stratum?",)},
    writes=("reward",),
    source="arXiv 2504.16084",
)
def self_consistency(
    table: StepTable, *, by: Columns = ("group",), stratum: str | None = None
) -> Float[Tensor, " rows"]:
    """1 for the most frequent answer among peers, 0 for others; equally frequent answers all get 1.

    Args:
        table: columns action_key and those of `by`, each (rows,); stratum, if the option is set.
        by: columns whose equal values mark answers to the same question.
        stratum: only rows with this label are answers; others get 0.

    Returns: float32 (rows,).
    Raises: InvalidData, if no row is an answer.
    """
    answers = table.row_weight > 0
    if stratum is not None:
        named = torch.tensor([label == stratum for label in table.labels("stratum")] + [False])
        answers = answers & named[table["stratum"]]
    if not bool(answers.any()):
        raise InvalidData(
            where="reward: self_consistency",
            what=f"no row is an answer (stratum: {stratum}).",
            remedy="Leave `stratum` out, or name a stratum that the table has.",
        )
    same, peers = table.key(*by, "action_key"), table.key(*by)
    count = torch.zeros(same.size).index_add_(0, same.codes, answers.float())[same.codes] * answers
    most = torch.zeros(peers.size).scatter_reduce_(0, peers.codes, count, "amax")[peers.codes]
    return torch.where(answers & (count == most), 1.0, 0.0).float()
