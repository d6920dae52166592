"""Agents of libraries, as their documentation writes them: nothing in them knows what the server is.

    python agent_libraries.py LIBRARY ADDRESS MODEL WAY

`tests/real/agents.py` calls this in the environments of the libraries. The agent has one tool, and the user asks it
twice in one chat. WAY is `whole`, `stream`, or `other`, which takes what the server does not have: another API, or
`tool_choice: required`. The last line of the output is JSON: both answers, or the error and the status of the server.

    python agent_libraries.py play FOLDER

The same as the command of an outside agent: the task names LIBRARY and WAY. FOLDER has the environments. An error of
the server ends it with status 1. What a library says about the words of a small model is an answer, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

STOCK = {"M3": 7, "M4": 9}
QUESTIONS = ["How many bolts M3 are in stock?", "And M4?"]
KEY = "none"
Address = dict[str, str]


def stock(item: str) -> str:
    """Say how many pieces of an item are in stock.

    Args:
        item: the size of the bolt, such as M3.
    """
    return f"{item}: {STOCK.get(item, 0)} pieces"


def openai_agents(base_url: str, model: str, way: str) -> list[str]:
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    kind = OpenAIResponsesModel if way == "other" else OpenAIChatCompletionsModel

    async def play() -> list[str]:
        async with AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
            agent = Agent(name="clerk", model=kind(model=model, openai_client=client), tools=[function_tool(stock)])
            chat: list[Any] = []
            answers = []
            for question in QUESTIONS:
                asked = [*chat, {"role": "user", "content": question}]
                if way == "stream":
                    run: Any = Runner.run_streamed(agent, asked, max_turns=4)
                    async for _ in run.stream_events():
                        pass
                else:
                    run = await Runner.run(agent, asked, max_turns=4)
                chat = run.to_input_list()
                answers.append(str(run.final_output))
        return answers

    return asyncio.run(play())


def openai_agents_by_default(base_url: str, model: str, way: str) -> list[str]:
    """The API is chosen for the whole process, and the model is a name."""
    from agents import (
        Agent,
        Runner,
        function_tool,
        set_default_openai_api,
        set_default_openai_client,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    if way != "other":
        set_default_openai_api("chat_completions")

    async def play() -> list[str]:
        async with AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
            set_default_openai_client(client)
            run = await Runner.run(Agent(name="clerk", model=model, tools=[function_tool(stock)]), QUESTIONS[0])
            again = await Runner.run(run.last_agent, [*run.to_input_list(), {"role": "user", "content": QUESTIONS[1]}])
        return [str(run.final_output), str(again.final_output)]

    return asyncio.run(play())


def langchain(base_url: str, model: str, way: str) -> list[str]:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    served = ChatOpenAI(base_url=base_url, api_key=KEY, model=model, max_retries=0, use_responses_api=way == "other")
    agent = create_agent(served, [stock])
    state: dict[str, Any] = {"messages": []}
    answers = []
    for question in QUESTIONS:
        state = {"messages": [*state["messages"], {"role": "user", "content": question}]}
        if way == "stream":
            for kind, piece in agent.stream(state, stream_mode=["messages", "values"]):
                state = piece if kind == "values" else state
        else:
            state = agent.invoke(state)
        answers.append(str(state["messages"][-1].content))
    return answers


def pydantic_ai(base_url: str, model: str, way: str) -> list[str]:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind: Any = OpenAIResponsesModel if way == "other" else OpenAIChatModel

    async def follow(_: Any, events: Any) -> None:
        async for _ in events:
            pass

    async def play() -> list[str]:
        async with AsyncOpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
            agent = Agent(kind(model, provider=OpenAIProvider(openai_client=client)), tools=[stock])
            handler = follow if way == "stream" else None  # `run_stream` takes a text beside a call as the answer
            past: list[Any] = []
            answers = []
            for question in QUESTIONS:
                done = await agent.run(question, message_history=past, event_stream_handler=handler)
                answers.append(done.output)
                past = done.all_messages()
        return answers

    return asyncio.run(play())


def smolagents_code(base_url: str, model: str, way: str) -> list[str]:
    from smolagents import CodeAgent, OpenAIServerModel, tool

    served = OpenAIServerModel(model_id=model, api_base=base_url, api_key=KEY)
    agent = CodeAgent(tools=[tool(stock)], model=served, max_steps=4, verbosity_level=0, stream_outputs=way == "stream")
    return [str(agent.run(question, reset=place == 0)) for place, question in enumerate(QUESTIONS)]


def smolagents_tools(base_url: str, model: str, way: str) -> list[str]:
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    choice = {} if way == "other" else {"tool_choice": "auto"}
    served = OpenAIServerModel(model_id=model, api_base=base_url, api_key=KEY, **choice)
    agent = ToolCallingAgent(
        tools=[tool(stock)], model=served, max_steps=4, verbosity_level=0, stream_outputs=way == "stream"
    )
    return [str(agent.run(question, reset=place == 0)) for place, question in enumerate(QUESTIONS)]


def litellm(base_url: str, model: str, way: str) -> list[str]:
    import litellm

    litellm.suppress_debug_info = True
    options: dict[str, Any] = {"model": f"openai/{model}", "api_base": base_url, "api_key": KEY, "max_retries": 0}
    if way == "other":
        litellm.responses(input=QUESTIONS[0], **options)
    declared = {
        "name": "stock",
        "description": "Say how many pieces of an item are in stock.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    }
    options["tools"] = [{"type": "function", "function": declared}]
    chat: list[Any] = []
    answers = []
    for question in QUESTIONS:
        chat.append({"role": "user", "content": question})
        for _ in range(4):
            if way == "stream":
                chunks = list(litellm.completion(messages=chat, stream=True, **options))
                reply: Any = litellm.stream_chunk_builder(chunks)
            else:
                reply = litellm.completion(messages=chat, **options)
            message = reply.choices[0].message
            chat.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                result = stock(**json.loads(call.function.arguments))
                chat.append({"role": "tool", "tool_call_id": call.id, "content": result})
        answers.append(message.content)
    return answers


def autogen(base_url: str, model: str, way: str) -> list[str]:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info: Any = {
        "vision": False,
        "function_calling": True,
        "json_output": False,
        "family": "unknown",
        "structured_output": False,
    }

    async def play() -> list[str]:
        client = OpenAIChatCompletionClient(model=model, base_url=base_url, api_key=KEY, model_info=info, max_retries=0)
        agent = AssistantAgent(
            "clerk", client, tools=[stock], max_tool_iterations=3, model_client_stream=way == "stream"
        )
        answers = []
        for question in QUESTIONS:
            async for one in agent.run_stream(task=question):
                last = one
            answers.append(str(last.messages[-1].content))
        await client.close()
        return answers

    return asyncio.run(play())


def agno(base_url: str, model: str, way: str) -> list[str]:
    from agno.agent import Agent
    from agno.db.in_memory import InMemoryDb
    from agno.models.openai import OpenAIResponses
    from agno.models.openai.like import OpenAILike

    kind: Any = OpenAIResponses if way == "other" else OpenAILike
    served = kind(id=model, base_url=base_url, api_key=KEY, max_retries=0)
    agent = Agent(model=served, tools=[stock], db=InMemoryDb(), add_history_to_context=True, telemetry=False)
    answers = []
    for question in QUESTIONS:
        if way == "stream":
            *_, done = agent.run(question, stream=True, yield_run_output=True, session_id="one")
        else:
            done = agent.run(question, session_id="one")
        if done.status != "COMPLETED":
            raise RuntimeError(done.content)
        answers.append(str(done.content))
    return answers


def dspy(base_url: str, model: str, way: str) -> list[str]:
    import dspy

    served = dspy.LM(f"openai/{model}", api_base=base_url, api_key=KEY, cache=False, num_retries=0)
    agent = dspy.ReAct("question -> answer", tools=[stock], max_iters=4)
    with dspy.context(lm=served):
        return [str(agent(question=question).answer) for question in QUESTIONS]


def llama_index(base_url: str, model: str, way: str) -> list[str]:
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.workflow import Context
    from llama_index.llms.openai_like import OpenAILike

    served = OpenAILike(
        model=model,
        api_base=base_url,
        api_key=KEY,
        is_chat_model=way != "other",
        is_function_calling_model=True,
        max_retries=0,
    )

    async def play() -> list[str]:
        agent = FunctionAgent(tools=[stock], llm=served, streaming=way == "stream")
        talk = Context(agent)
        return [str(await agent.run(question, ctx=talk)) for question in QUESTIONS]

    return asyncio.run(play())


def strands(base_url: str, model: str, way: str) -> list[str]:
    from strands import Agent, tool
    from strands.models.openai import OpenAIModel

    served = OpenAIModel(client_args={"base_url": base_url, "api_key": KEY, "max_retries": 0}, model_id=model)
    agent = Agent(model=served, tools=[tool(stock)], callback_handler=None)
    return [str(agent(question)).strip() for question in QUESTIONS]


# The package of each agent → the agent, the ways that it has, and the environment that has the package.
LIBRARIES: dict[str, tuple[str, Callable[[str, str, str], list[str]], tuple[str, ...], str]] = {
    "openai_agents": ("openai-agents", openai_agents, ("whole", "stream", "other"), "openai-3"),
    "openai_agents_by_default": ("openai-agents", openai_agents_by_default, ("whole", "other"), "openai-3"),
    "langchain": ("langchain-openai", langchain, ("whole", "stream", "other"), "openai-3"),
    "pydantic_ai": ("pydantic-ai-slim", pydantic_ai, ("whole", "stream", "other"), "openai-3"),
    "smolagents_code": ("smolagents", smolagents_code, ("whole", "stream"), "openai-3"),
    "smolagents_tools": ("smolagents", smolagents_tools, ("whole", "stream", "other"), "openai-3"),
    "litellm": ("litellm", litellm, ("whole", "stream", "other"), "openai-3"),
    "autogen": ("autogen-ext", autogen, ("whole", "stream"), "openai-3"),
    "agno": ("agno", agno, ("whole", "stream", "other"), "openai-3"),
    "dspy": ("dspy", dspy, ("whole",), "openai-3"),
    "llama_index": ("llama-index-llms-openai-like", llama_index, ("whole", "stream"), "openai-2"),
    "strands": ("strands-agents", strands, ("stream",), "openai-2"),
}


def play(name: str, base_url: str, model: str, way: str) -> int | None:
    """Let an agent play, and print what came of it. Returns the status of the server's error, if there was one."""
    package, agent, *_ = LIBRARIES[name]
    status = None
    try:
        outcome: dict[str, Any] = {"answers": agent(base_url, model, way)}
    except Exception as error:
        causes = [error, *(cause for cause in (error.__cause__, error.__context__) if cause is not None)]
        codes = [getattr(cause, "status_code", None) for cause in causes]
        status = next(filter(None, codes), None)
        outcome = {"error": f"{type(error).__name__}: {error}", "status": status}
    print("\n" + json.dumps({"version": version(package), "openai": version("openai"), **outcome}), flush=True)
    return status


def play_task(folder: str) -> None:
    """Read a task from standard input, and play it in the environment of the library that it names."""
    task = json.loads(sys.stdin.readline())
    name, way = task["prompt"].split()[:2]
    python = os.path.join(folder, LIBRARIES[name][-1], "bin", "python")
    os.execv(python, [python, "-P", __file__, name, task["base_url"], task["model"], way, "strict"])


if __name__ == "__main__":
    if sys.argv[1] == "play":
        play_task(sys.argv[2])
    elif (status := play(*sys.argv[1:5])) is not None and sys.argv[5:]:
        sys.exit(f"{sys.argv[1]}, {sys.argv[4]}: the server's status is {status}")
