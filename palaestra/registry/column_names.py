"""Names of the columns of the table and of the token batch.

A policy gives outputs such as `logprob`, `entropy` and `value`. For an output `x`, the column `x` comes from the policy
in training, `x_old` from the policy at the start of the update, `x_behavior` from the engine that sampled, and
`x_reference` from the reference policy. This module does not import torch, so listing parts and checking recipes is
quick.
"""

from __future__ import annotations

import math

REQUIRED = ("group", "trajectory", "agent", "turn", "reward")
KEYS = (
    *("group", "trajectory", "agent", "state_key", "next_key", "action_key"),
    *("policy", "segment", "invocation", "parent", "team", "stratum", "game", "node", "task", "state_text", "reads"),
)
# Labels that an environment gives in the `info` of a step or of a whole trajectory.
# `reads` holds the turns of the acts whose messages were shown to the agent before this act.
LABELS = ("team", "stratum", "game", "node", "reads")
FLAGS = ("terminated", "truncated")
COUNTS = ("turn", "token_count", "version")
# Columns that every table of played episodes has.
FROM_EPISODES = frozenset(
    {*REQUIRED, "action_key", "token_count", "row_weight", "policy", "version", "segment", "invocation", "parent"}
    | {"task", "terminated", "truncated", "seconds", "logprob_behavior"}
)
# Columns of tokens that are not outputs of a policy.
OF_TOKENS = frozenset({"advantage", "weight", "counts", "value_target", "value_weight", "version_behavior"})
CREDIT = ("advantage", "value_target", "value_weight")  # the columns that estimators give
# Columns of rows → the output at the start of the update that they are computed from.
FROM_OUTPUTS = {"row_value": "value", "bootstrap_value": "value", "row_entropy": "entropy"}
SUFFIXES = ("old", "behavior", "reference")
NUMBERS = ("reward", "row_weight", "outcome", "process", *FROM_OUTPUTS, "without", *OF_TOKENS)
# In these columns NaN means "not given for this row".
MAY_BE_MISSING = ("outcome", "process", "row_value", "bootstrap_value", "without")


def output_of(column: str) -> tuple[str, str]:
    """The output that a column holds, and the policy that gives it: `("logprob", "old")` for `logprob_old`.

    The second item is "old", "behavior", "reference", or "policy". "policy" is the policy in training, which gives the
    columns without a suffix.
    """
    name = column.removesuffix("?")
    if name in FROM_OUTPUTS:
        return FROM_OUTPUTS[name], "old"
    output, _, of = name.rpartition("_")
    return (output, of) if output and of in SUFFIXES and name not in OF_TOKENS else (name, "policy")


def is_output(column: str) -> bool:
    """Whether this column of tokens is an output of a policy other than the one in training, such as `logprob_old`."""
    return column not in FROM_OUTPUTS and output_of(column)[1] != "policy"


def is_computed(column: str) -> bool:
    """Whether training computes this column. A number of this name from an environment is then ignored."""
    computed = {*FROM_OUTPUTS, *OF_TOKENS, *FROM_OUTPUTS.values(), "act", "logprob", "row_weight"}
    return column in computed or is_output(column)


def may_be_missing(column: str) -> bool:
    """Whether NaN in this column means "not given for this row or token"."""
    return column in MAY_BE_MISSING or is_output(column)


def default_of(column: str) -> float:
    """The value of a row that has no number in this column, if other rows have one."""
    return math.nan if may_be_missing(column) else 0.0


def ability_of(column: str) -> str | None:
    """The ability that a setup needs for this column: "critic", "reference", or None."""
    output, of = output_of(column)
    if of == "reference":
        return "reference"
    return "critic" if output in ("value", "value_target", "value_weight") else None
