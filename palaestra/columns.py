"""Names of columns, from the table to the loss.

For an output `x` of a policy (`logprob`, `entropy`, `value` …), the column `x` is that of the policy in training,
`x_old` that at the start of the update, `x_behavior` that of the engine that sampled, and `x_reference` that of the
reference policy. This module does not import torch, so that parts can be listed and recipes checked quickly.
"""

from __future__ import annotations

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
# Columns of tokens that are no output of a policy.
OF_TOKENS = frozenset({"advantage", "weight", "counts", "value_target", "value_weight", "version_behavior"})
CREDIT = ("advantage", "value_target", "value_weight")  # what estimators give
# Columns of rows that are made of a policy's outputs at the start of the update.
FROM_OUTPUTS = {"row_value": "value", "bootstrap_value": "value", "row_entropy": "entropy"}
SUFFIXES = ("old", "behavior", "reference")
NUMBERS = ("reward", "row_weight", "outcome", "process", *FROM_OUTPUTS, "without", *OF_TOKENS)
# NaN is "not given for this row".
MAY_BE_MISSING = ("outcome", "process", "row_value", "bootstrap_value", "without")
# Former names of columns.
RENAMED = {
    "token_logprob": "logprob_behavior",
    "token_proximal": "logprob_old",
    "token_reference": "logprob_reference",
    "token_entropy": "entropy_old",
    "token_value": "value_old",
    "token_version": "version_behavior",
    "value": "row_value",
    "value_end": "bootstrap_value",
    "entropy": "row_entropy",
}


def output_of(column: str) -> tuple[str, str]:
    """The output that a column holds, and the policy that it is of: `("logprob", "old")` for `logprob_old`.

    The second item is "old", "behavior", "reference", or "policy" for the policy in training. A name without one of
    these suffixes is of the policy in training.
    """
    name = column.removesuffix("?")
    if name in FROM_OUTPUTS:
        return FROM_OUTPUTS[name], "old"
    output, _, of = name.rpartition("_")
    return (output, of) if output and of in SUFFIXES and name not in OF_TOKENS else (name, "policy")


def is_output(column: str) -> bool:
    """Whether a policy gives this column of tokens: `logprob_old`, `value_reference` …"""
    return column not in FROM_OUTPUTS and output_of(column)[1] != "policy"


def is_computed(column: str) -> bool:
    """Whether training computes this column. An environment's number of the same name is then left out."""
    computed = {*FROM_OUTPUTS, *OF_TOKENS, *FROM_OUTPUTS.values(), "act", "logprob", "row_weight"}
    return column in computed or is_output(column)


def may_be_missing(column: str) -> bool:
    """Whether a NaN in this column means "not given for this row or token"."""
    return column in MAY_BE_MISSING or is_output(column)


def ability_of(column: str) -> str | None:
    """The ability of a setup that a column comes from: "critic", "reference", or None."""
    output, of = output_of(column)
    if of == "reference":
        return "reference"
    return "critic" if output in ("value", "value_target", "value_weight") else None
