"""A harness for verifiers: the chat loop of a seat, in this process. Only `machine.package` imports this module.

verifiers finds a harness by the name of a module that exports it, so the module is also known as `palaestra_chat`.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import httpx2
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

__all__ = ["Chat"]


class Chat(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """A chat loop in this process. It calls the model until an answer has no call of a tool."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        messages += (
            [{"role": "user", "content": prompt}]
            if isinstance(prompt, str)
            else [message_to_wire(message) for message in prompt or ()]
        )
        async with contextlib.AsyncExitStack() as stack:
            servers = {"mcpServers": {name: {"url": url} for name, url in mcp_urls.items()}}
            tools, places, running = await connect_mcp(servers, stack)
            http = await stack.enter_async_context(httpx2.AsyncClient(timeout=None, trust_env=False))
            while True:
                body = {"model": ctx.model, "messages": messages} | ({"tools": tools} if tools else {})
                headers = {"Authorization": f"Bearer {secret}"}
                answered = await http.post(f"{endpoint}/chat/completions", json=body, headers=headers)
                if answered.status_code != 200:
                    return vf.ProgramResult(1, "", answered.text)
                message = answered.json()["choices"][0]["message"]
                messages.append(message)
                if not message.get("tool_calls"):
                    return vf.ProgramResult(0, "", "")
                for call in message["tool_calls"]:
                    name, given = call["function"]["name"], json.loads(call["function"]["arguments"])
                    known = name in places
                    content = await call_mcp(running, places, name, given) if known else f"error: no tool {name!r}"
                    messages.append({"role": "tool", "tool_call_id": call["id"], "name": name, "content": content})
