"""Demonstrations for roles with tools: a role with a calculator uses it before it answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from palaestra.data import Observation
from palaestra.rollout.programs import record_call

if TYPE_CHECKING:
    from palaestra.rollout.episode import Agent

CALCULATORS = {"python": "code", "calculator": "expression"}  # tool → its argument for the expression
NUMBER = r"-?\d+(?:\.\d+)?"
EXPRESSION = re.compile(rf"\(*\s*{NUMBER}(?:\s*\)*\s*[-+*/]\s*\(*\s*{NUMBER})+(?:\s*\))*")


def expression_in(text: str) -> str | None:
    """The first arithmetic expression in a text. None if there is none.

    >>> expression_in("work out: 12 + 5 - 40 ="), expression_in("( 87 / 3 + -10 )."), expression_in("room 7")
    ('12 + 5 - 40', '( 87 / 3 + -10 )', None)
    """
    match = EXPRESSION.search(text)
    return None if match is None else match[0].strip()


async def worked_out(agent: Agent, observation: Observation) -> Observation:
    """In a demonstration, let an agent that has a calculator compute the expression that it is shown.

    Returns: the observation that it reads next. That is `observation` if it has no such tool or reads no expression.
    """
    tools = agent.tools.toolbox.tools if agent.tools is not None else {}
    expression = expression_in(observation.text or "")
    for name, argument in CALCULATORS.items():
        if name in tools and expression is not None:
            return await record_call(agent, observation, name, **{argument: expression})
    return observation
