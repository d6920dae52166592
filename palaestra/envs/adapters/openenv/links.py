"""Links to OpenEnv environments: an object in this process, or a server that has one environment per connection.

An environment of the Model Context Protocol (MCP) has tools in place of an action type of its own. It lists them, and
each call is a step.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import urllib.error
import urllib.request
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, get_args
from urllib.parse import urlparse

import pydantic

from palaestra.envs.adapters.versions import TESTED, installed, note_version
from palaestra.errors import (
    ContractError,
    EpisodeFailure,
    InvalidData,
    MissingExtra,
    RecipeError,
    missing_extra,
    nearest,
)
from palaestra.registry import part

NAME = "openenv"

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OWN = ("metadata",)  # fields of every action that agents do not fill
CALL = ("tool_name", "arguments")  # fields of an action that calls a tool
LIST = {"type": "list_tools"}


class Refused(Exception):
    """The environment cannot read an action. The text tells the agent why."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the environment answered: the observation's fields, the reward, and whether the episode is over.

    Attributes:
        metadata: of the observation, if it has fields beside it.
    """

    fields: dict[str, Any]
    reward: float
    done: bool
    metadata: dict[str, Any]


class Link(Protocol):
    """A running environment.

    Attributes:
        schema: the JSON schema of its actions.
        calls_tools: an action is a call of a tool that the environment lists.
    """

    schema: dict[str, Any]
    calls_tools: bool

    async def reset(self, seed: int, options: Mapping[str, Any]) -> Shown: ...
    async def step(self, fields: Mapping[str, Any]) -> Shown: ...
    async def tools(self) -> list[dict[str, Any]]: ...
    def close(self) -> None: ...


def call_of(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an action that calls a tool."""
    return {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}


class Inside:
    """An environment in this process. Its class inherits from OpenEnv's Environment.

    Args:
        options: of `reset`.

    Raises: ContractError, if the class is another one or does not tell the type of its actions; RecipeError, for an
        option that `reset` does not take; UnknownName.
    """

    def __init__(self, env: str, options: Mapping[str, Any], where: str) -> None:
        package()
        from openenv.core.env_server.interfaces import Environment

        self._make = part("environment", env, where=where).target
        self._object: Any = self._make()
        self._closed = False
        if not isinstance(self._object, Environment):
            remedy = "Name a class that inherits from openenv.core.env_server.interfaces.Environment."
            raise ContractError(
                where=where,
                what=f"it makes a {type(self._object).__name__}, which is no OpenEnv environment.",
                remedy=remedy,
            )
        self._action = _action_class(type(self._object), where)
        self.schema = _without_own(self._action.model_json_schema())
        self.calls_tools = _calls_tools(self.schema)
        self._async = {
            name: getattr(type(self._object), f"{name}_async") is not getattr(Environment, f"{name}_async")
            for name in ("reset", "step")
        }
        taken = inspect.signature(self._resetting).parameters
        any_name = any(one.kind is one.VAR_KEYWORD for one in taken.values())
        self._takes_seed = any_name or "seed" in taken
        for name in options:
            if not any_name and name not in taken:
                known = nearest(name, taken) or list(taken)
                what, remedy = f"its `reset` does not take the option `{name}`.", "Correct `options`."
                raise RecipeError(where=where, what=what, options=known, remedy=remedy)

    async def reset(self, seed: int, options: Mapping[str, Any]) -> Shown:
        if self._closed:
            self._object, self._closed = self._make(), False
        return await self._answer(self._resetting, **({"seed": seed} if self._takes_seed else {}) | dict(options))

    async def step(self, fields: Mapping[str, Any]) -> Shown:
        try:
            action = self._action.model_validate(dict(fields))
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(piece) for piece in first["loc"])
            raise Refused(f"`{place}`: {first['msg'].lower()}" if place else first["msg"].lower()) from None
        return await self._answer(self._stepping, action)

    async def tools(self) -> list[dict[str, Any]]:
        from openenv.core.env_server.mcp_types import ListToolsAction

        with warnings.catch_warnings():  # of names in the package `mcp`, which OpenEnv reads by their former ones
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", message=".*is deprecated")
            shown = await self._answer(self._stepping, ListToolsAction())
        return list(shown.fields["tools"])

    def close(self) -> None:
        if not self._closed:
            self._object.close()
        self._closed = True

    @property
    def _resetting(self) -> Any:
        return getattr(self._object, "reset_async" if self._async["reset"] else "reset")

    @property
    def _stepping(self) -> Any:
        return getattr(self._object, "step_async" if self._async["step"] else "step")

    async def _answer(self, method: Any, *arguments: Any, **named: Any) -> Shown:
        found = method(*arguments, **named)
        found = await found if inspect.isawaitable(found) else found
        fields = found.model_dump(mode="json", exclude={"done", "reward"})
        return _shown(fields, found.reward, found.done)


class Connected:
    """The environment of an OpenEnv server. The connection is its session.

    Args:
        timeout_s: seconds to wait for an answer.

    Raises: InvalidData, if there is no such server.
    """

    def __init__(self, url: str, timeout_s: float, where: str) -> None:
        package()
        from openenv.core import GenericEnvClient

        self._where, self._url, self._timeout = where, url.rstrip("/"), timeout_s
        self.schema = _without_own(self._get("/schema")["action"])
        self.calls_tools = _calls_tools(self.schema)
        self._client: Any = GenericEnvClient(base_url=self._url, message_timeout_s=timeout_s).sync()
        self._failed = False

    async def reset(self, seed: int, options: Mapping[str, Any]) -> Shown:
        if self._failed:
            with contextlib.suppress(Exception):  # after a failure, the next episode has a new connection
                await asyncio.to_thread(self._client.disconnect)
            self._failed = False
        return await self._answer(self._client.reset, seed=seed, **options)

    async def step(self, fields: Mapping[str, Any]) -> Shown:
        return await self._answer(self._client.step, dict(fields))

    async def tools(self) -> list[dict[str, Any]]:
        return list((await self._answer(self._client.step, dict(LIST))).fields["tools"])

    def close(self) -> None:
        self._client.close()

    async def _answer(self, method: Any, *arguments: Any, **named: Any) -> Shown:
        try:
            found = await asyncio.to_thread(method, *arguments, **named)
        except RuntimeError as error:  # the client raises it for any error message of the server
            if "VALIDATION_ERROR" in str(error):
                raise Refused("the fields do not fit the action") from None
            raise self._failure(error) from error
        except Exception as error:  # errors of the connection are of many types
            raise self._failure(error) from error
        return _shown(dict(found.observation), found.reward, found.done)

    def _failure(self, error: Exception) -> EpisodeFailure:
        self._failed = True
        return EpisodeFailure(
            boundary="environment",
            where=f"{self._where}, {self._url}",
            what=f"the server failed: {type(error).__name__}: {error}.",
            remedy="See the log of the server. It must allow as many sessions at once as there are episodes at once.",
        )

    def _get(self, path: str) -> Any:
        proxies = [urllib.request.ProxyHandler({})] if urlparse(self._url).hostname in LOOPBACK else []
        try:
            with urllib.request.build_opener(*proxies).open(self._url + path, timeout=self._timeout) as answer:
                return json.load(answer)
        except (OSError, ValueError, urllib.error.URLError) as error:
            remedy = "Start the server first. `url` is its address, such as http://127.0.0.1:8000."
            raise InvalidData(
                where=self._where, what=f"{self._url} does not answer: {error}.", remedy=remedy
            ) from error


def connect(env: str | None, url: str | None, options: Mapping[str, Any], *, timeout_s: float, where: str) -> Link:
    """A link to the class `env` or to the server at `url`. Raises: RecipeError, unless exactly one is given."""
    if env is not None and url is None:
        return Inside(env, options, where)
    if url is not None and env is None:
        return Connected(url, timeout_s, where)
    what = "both `env` and `url` are set." if env else "neither `env` nor `url` is set."
    raise RecipeError(where=where, what=what, remedy="Set `env` for a class in this process, or `url` for a server.")


def package() -> Any:
    """The package `openenv.core`. Raises: MissingExtra, if it is not installed, or only its predecessor is."""
    if installed(TESTED[NAME].package) is None:
        if installed("openenv-core") is not None:
            raise MissingExtra(
                where="environment openenv",
                what=f"the package `openenv-core` {installed('openenv-core')} is installed, which `openenv` replaced.",
                remedy="Replace it: pip uninstall openenv-core, then pip install 'palaestra[openenv]'",
            )
        raise missing_extra("openenv", extra="openenv", needed_for="environment openenv")
    import openenv.core

    note_version(NAME)
    return openenv.core


def _shown(fields: dict[str, Any], reward: Any, done: Any) -> Shown:
    """What was answered. Metadata is shown if there is nothing else, as after the reset of an MCP environment."""
    metadata = dict(fields.pop("metadata", None) or {})
    return Shown(fields or metadata, float(reward or 0.0), bool(done), metadata if fields else {})


def _calls_tools(schema: Mapping[str, Any]) -> bool:
    return all(name in schema["properties"] for name in CALL)


def _action_class(cls: type, where: str) -> type[pydantic.BaseModel]:
    """The class of actions, from `Environment[Action, …]` or else from the signature of `step`, or a call of a tool."""
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction
    from openenv.core.env_server.types import Action

    stated = [kind for one in cls.__mro__ for made in getattr(one, "__orig_bases__", ()) for kind in get_args(made)]
    parameters = list(inspect.signature(cls.step, eval_str=True).parameters.values())  # type: ignore[attr-defined]
    for kind in (*stated, parameters[1].annotation if len(parameters) > 1 else None):
        if isinstance(kind, type) and issubclass(kind, Action) and kind is not Action:
            return kind
    if issubclass(cls, MCPEnvironment):
        return CallToolAction
    remedy = (
        "Write `class Mine(Environment[MyAction, MyObservation, State])`, or annotate `step(self, action: MyAction)`."
    )
    raise ContractError(where=where, what="it does not tell the type of its actions.", remedy=remedy)


def _without_own(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without the fields that agents do not fill."""
    properties = {name: field for name, field in schema.get("properties", {}).items() if name not in OWN}
    required = [name for name in schema.get("required", ()) if name not in OWN]
    return {**schema, "properties": properties, "required": required}
