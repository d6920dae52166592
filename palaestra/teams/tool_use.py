"""Demonstrations of roles that have tools: who can calculate does so before it answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from palaestra.data import Observation
from palaestra.rollout.programs import record_call

if TYPE_CHECKING:
    from palaestra.rollout.episode import Agent

CALCULATORS = {"python": "code", "calculator": "expression"}  # tool → the argument that takes an expression
NUMBER = r"-?\d+(?:\.\d+)?"
EXPRESSION = re.compile(rf"\(*\s*{NUMBER}(?:\s*\)*\s*[-+*/]\s*\(*\s*{NUMBER})+(?:\s*\))*")


def expression_in(text: str) -> str | None:
    """The first expression of a text; None if it has none.

    >>> expression_in("work out: 12 + 5 - 40 ="), expression_in("( 87 / 3 + -10 )."), expression_in("room 7")
    ('12 + 5 - 40', '( 87 / 3 + -10 )', None)
    """
    match = EXPRESSION.search(text)
    return None if match is None else match[0].strip()


async def worked_out(agent: Agent, observation: Observation) -> Observation:
    """In a demonstration: an agent who can calculate works out the expression that it is shown.

    Returns: what it reads then; `observation`, where it has no such tool or there is no expression.
    """
    tools = agent.tools.toolbox.tools if agent.tools is not None else {}
    expression = expression_in(observation.text or "")
    for name, argument in CALCULATORS.items():
        if name in tools and expression is not None:
            return await record_call(agent, observation, name, **{argument: expression})
    return observation
