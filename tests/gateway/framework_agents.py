"""Agents of two libraries, as their documentation writes them."""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool


def pydantic_agent(prompt: str, base_url: str, api_key: str, model: str) -> str:
    """An agent of pydantic-ai with a tool."""
    agent = Agent(
        OpenAIChatModel(model, provider=OpenAIProvider(base_url=base_url, api_key=api_key)),
        instructions="Answer with a number.",
    )

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return agent.run_sync(prompt).output


def smol_code_agent(prompt: str, base_url: str, api_key: str, model: str) -> str:
    """An agent of smolagents that writes code."""
    served = OpenAIServerModel(model_id=model, api_base=base_url, api_key=api_key)
    return str(CodeAgent(tools=[], model=served, max_steps=3, verbosity_level=0).run(prompt))


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


def smol_tool_agent(prompt: str, base_url: str, api_key: str, model: str) -> str:
    """An agent of smolagents that calls tools. `tool_choice` is an option of its model."""
    served = OpenAIServerModel(model_id=model, api_base=base_url, api_key=api_key, tool_choice="auto")
    return str(ToolCallingAgent(tools=[add], model=served, max_steps=3, verbosity_level=0).run(prompt))
