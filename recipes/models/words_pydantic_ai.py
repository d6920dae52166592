"""An agent of pydantic-ai, for any server that speaks OpenAI's protocol. Nothing in it knows that its model learns.

Needs: pip install 'pydantic-ai-slim[openai]'
"""

import ssl

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic_ai import Agent
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

TRUSTED = ssl.create_default_context()  # made once, since this takes longer than a request
AGENT = Agent(instructions="Answer with the words only.")
EXAMPLE = [
    ModelRequest.user_text_prompt("Write these words in reverse order: moon, cat, red, tree."),
    ModelResponse(parts=[TextPart("tree, red, cat, moon")]),
]


async def solve(prompt, base_url, api_key, model):
    """The answer to a task. The client ends with it, since connections belong to one event loop."""
    own = DefaultAsyncHttpxClient(verify=TRUSTED, timeout=300)
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=own) as client:
        served = OpenAIChatModel(model, provider=OpenAIProvider(openai_client=client))
        run = await AGENT.run(prompt, model=served, message_history=EXAMPLE)
    return run.output
