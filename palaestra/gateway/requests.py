"""What a client asks: the bodies of `/v1/chat/completions` and `/v1/completions`, checked.

Keys that change nothing in a reply, such as `user` or `metadata`, are ignored. Keys that would change it, and that the
server cannot follow, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import pydantic
from pydantic import BaseModel, Field

from palaestra.serving.rules import Refusal

MOST_CHOICES, MOST_STOPS = 64, 16
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Choices = Annotated[int, Field(ge=1, le=MOST_CHOICES)]


class StreamOptions(BaseModel):
    """`stream_options` of a request."""

    include_usage: bool = False


class Sampled(BaseModel):
    """The keys that both kinds of requests have, and how replies are drawn.

    Attributes:
        model: the name of a served model; None: the only one.
        top_k: 0 is off. OpenAI's protocol does not have it; vLLM and others do.
        seed: of the draws; None: a new one for each request.
    """

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    max_tokens: Count | None = None
    stop: Text | list[Text] = Field(default_factory=list)
    n: Choices = 1
    seed: int | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end a reply."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatBody(BaseModel):
    """A request for the next message of a chat."""

    sampled: Sampled
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(default_factory=dict)

    @property
    def most(self) -> int | None:
        """The most tokens of the reply; None: the request does not say."""
        return self.sampled.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(BaseModel):
    """A request to continue a text, or token ids; a list of them asks for a continuation of each."""

    sampled: Sampled
    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool = False


Body = TypeVar("Body", ChatBody, CompletionBody)
Given = Mapping[str, Any]
# Keys that would change the reply and are not supported: key → whether its value asks for something.
UNSUPPORTED: Mapping[str, Callable[[Any], bool]] = {
    "frequency_penalty": bool,
    "presence_penalty": bool,
    "logit_bias": bool,
    "response_format": lambda value: not isinstance(value, dict) or value.get("type") != "text",
    "top_logprobs": bool,
    "functions": bool,
    "function_call": lambda value: value != "none",
    "modalities": lambda value: value != ["text"],
    "audio": bool,
    "suffix": bool,
    "best_of": lambda value: value != 1,
    "echo": bool,
}
HINTS = {
    "response_format": "Ask for the format in the messages.",
    "functions": "Use `tools`.",
    "function_call": "Use `tools` and `tool_choice`.",
    "top_logprobs": "`logprobs` gives the log-probabilities of the tokens that were drawn.",
    "best_of": "Use `n`.",
}


def chat_body(given: Any) -> ChatBody:
    """The checked body of a request for a chat. Raises: Refusal."""
    body = _checked(ChatBody, given)
    if body.tool_choice not in ("none", "auto"):
        raise Refusal(
            f"`tool_choice` may be none or auto, and the request has {body.tool_choice!r}: the server does not force "
            "calls. Use auto, and ask for the call in the messages.",
            param="tool_choice",
            code="unsupported_value",
        )
    body.tools = [_checked_tool(tool, f"tools.{place}") for place, tool in enumerate(body.tools)]
    return body


def completion_body(given: Any) -> CompletionBody:
    """The checked body of a request for a completion. Raises: Refusal."""
    body = _checked(CompletionBody, given)
    if not body.prompt:
        raise Refusal("`prompt` is empty.", param="prompt")
    return body


def _checked(kind: type[Body], given: Any) -> Body:
    if not isinstance(given, dict):
        raise Refusal(f"the body must be a JSON object, and it is a {type(given).__name__}.")
    known = {key: value for key, value in given.items() if value is not None}
    for key in known:
        if key in UNSUPPORTED and UNSUPPORTED[key](known[key]):
            hint = HINTS.get(key, "Leave it out.")
            raise Refusal(f"`{key}` is not supported. {hint}", param=key, code="unsupported_parameter")
    try:
        sampled = Sampled.model_validate(known)
        body = kind.model_validate({**known, "sampled": sampled})
    except pydantic.ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=False)) from None
    if len(sampled.stops) > MOST_STOPS:
        raise Refusal(f"`stop` has {len(sampled.stops)} texts, and at most {MOST_STOPS} are allowed.", param="stop")
    return body


def _refusal(faults: Sequence[Given]) -> Refusal:
    """The refusal that names the first fault."""
    first = faults[0]
    place = ".".join(str(part) for part in first["loc"] if not isinstance(part, str) or part.isidentifier())
    said = str(first["msg"])
    return Refusal(f"`{place}`: {said[:1].lower()}{said[1:]}.", param=place.partition(".")[0])


def _checked_tool(tool: Given, where: str) -> dict[str, Any]:
    """A tool with all keys that chat templates read. Raises: Refusal."""
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise Refusal(f"`{where}` is no function: it needs `type` and `function`.", param=where)
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise Refusal(f"`{where}.function.name` is missing.", param=where)
    parameters = function.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise Refusal(f"`{where}.function.parameters` must be a JSON schema.", param=where)
    whole = {"type": "object", "properties": {}, **parameters}
    return {"type": "function", "function": {"description": "", **function, "parameters": whole}}
