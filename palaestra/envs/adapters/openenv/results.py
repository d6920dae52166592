"""The tools of an MCP environment of OpenEnv as tools of ours, and what they answer as a message."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from palaestra.envs.adapters.openenv.links import Shown
from palaestra.envs.kit.images import Message, with_images
from palaestra.errors import ContractError, EpisodeFailure
from palaestra.registry import part
from palaestra.tools import Tool
from palaestra.tools.tool import refuse_clash, usable_name

TOLD = ("fields", "reward", "done")  # what a user's reward function may ask for


def tools_of(listed: Iterable[Mapping[str, Any]], where: str) -> list[Tool]:
    """Tools whose `call` returns the name that the environment knows them by. The adapter makes the call itself.

    Raises: ContractError, without any tool, or if agents would call two of them by the same name.
    """
    made: list[Tool] = []
    names: dict[str, str] = {}
    for one in listed:
        schema = {"type": "object", **(one.get("input_schema") or {})}
        known = str(one["name"])
        names[known] = name = usable_name(known)
        made.append(Tool(name=name, description=one.get("description") or "", parameters=schema, call=_naming(known)))
    refuse_clash(names, where=where, remedy="Rename one of them in the environment's FastMCP server.")
    if not made:
        remedy = "Register tools with its FastMCP server, or give it an action of its own."
        raise ContractError(where=where, what="the environment lists no tools.", remedy=remedy)
    return made


def _naming(name: str) -> Callable[..., str]:
    def call(**_: Any) -> str:
        return name

    return call


def answer_of(fields: Mapping[str, Any], *, where: str) -> Message:
    """The answer of a tool as a message: its error, its texts and images, or else its result as JSON."""
    if fields.get("error"):
        return {"content": f"error: {fields['error'].get('message', 'the tool failed')}"}
    result = fields.get("result")
    content = result.get("content") if isinstance(result, Mapping) else None
    if not isinstance(content, list):
        return {"content": _written(result)}
    parts = [_part(one) for one in content]
    (message,) = with_images([{"role": "user", "content": parts}], where=where) if parts else ({"content": "done"},)
    if isinstance(result, Mapping) and result.get("is_error"):
        message["content"] = f"error: {message['content']}"
    return message


def _part(one: Mapping[str, Any]) -> dict[str, Any]:
    """A part of MCP as a part of a message. What is neither text nor image is written as JSON."""
    if one.get("type") == "text":
        return {"type": "text", "text": one["text"]}
    if one.get("type") == "image":
        return {"type": "image", "image": f"data:{one.get('mimeType', '')};base64,{one['data']}"}
    return {"type": "text", "text": json.dumps(dict(one))}


def _written(value: Any) -> str:
    return "done" if value is None else value if isinstance(value, str) else json.dumps(value)


def rewarding(name: str | None, where: str) -> Callable[[Shown], Awaitable[float]]:
    """The function that gives the reward of a step: the environment's own, or a user's.

    Raises: UnknownName; ContractError, for a function that asks for something else than `fields`, `reward` and `done`.
    """
    if name is None:

        async def own(shown: Shown) -> float:
            return shown.reward

        return own
    function = part("environment", name, where=where).target
    asked = [one for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD]
    strange = [one.name for one in asked if one.name not in TOLD and one.default is one.empty]
    if strange:
        raise ContractError(
            where=where,
            what=f"it asks for `{strange[0]}`.",
            options=TOLD,
            remedy="Write `def reward(fields, reward, done)`, with those of the three that it needs.",
        )
    given = TOLD if len(asked) < len(inspect.signature(function).parameters) else tuple(one.name for one in asked)

    async def measured(shown: Shown) -> float:
        told = {"fields": shown.fields, "reward": shown.reward, "done": shown.done}
        value = function(**{one: told[one] for one in given if one in told})
        value = await value if inspect.isawaitable(value) else value
        try:
            return float(value)
        except (TypeError, ValueError):
            what = f"it returned {value!r}, which is no number."
            remedy = "Return a number for each step."
            raise EpisodeFailure(boundary="environment", where=where, what=what, remedy=remedy) from None

    return measured
