"""What a client asks: the bodies of `/v1/chat/completions` and `/v1/completions`, checked.

`palaestra.gateway.keys` lists the keys that change nothing in a reply, such as `user`. A key that is neither there nor
here is refused. Numbers have their exact type and bounds: a number that no reply can have must not reach the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field

from palaestra.gateway.keys import refuse_unknown
from palaestra.http.rules import Refusal

MOST_CHOICES, MOST_STOPS, MOST_LETTERS = 64, 16, 1024
MOST_INT, MOST_SEED = 2**31 - 1, 2**63 - 1
COLDEST = 1e-5  # a lower temperature above 0 is 0, as in vLLM: float32 cannot hold logits that are divided by it
Text = Annotated[str, Field(min_length=1, max_length=MOST_LETTERS)]
Count = Annotated[int, Field(ge=1, le=MOST_INT)]
Texts = Annotated[list[Text], Field(max_length=MOST_STOPS)]
Choices = Annotated[int, Field(ge=1, le=MOST_CHOICES)]
Temperature = Annotated[float, Field(ge=0, le=100), AfterValidator(lambda value: value if value >= COLDEST else 0.0)]
STRICT = ConfigDict(strict=True, allow_inf_nan=False, protected_namespaces=())


class StreamOptions(BaseModel):
    """`stream_options` of a request.

    Attributes:
        include_usage: end the stream with the numbers of tokens.
        include_obfuscation: ignored. It asks for letters that hide the length of each chunk on the network.
    """

    model_config = STRICT | ConfigDict(extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: Literal[False] = False


class Sampled(BaseModel):
    """The keys that both kinds of requests have, and how replies are drawn.

    Attributes:
        model: the name of a served model; None: the only one.
        top_k: 0 and -1 are off. OpenAI's protocol does not have it; vLLM and others do.
        seed: of the draws; None: a new one for each request.
    """

    model_config = STRICT

    model: str | None = None
    temperature: Temperature = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=MOST_INT), AfterValidator(lambda value: max(0, value))] = 0
    max_tokens: Count | None = None
    stop: Text | Texts = Field(default_factory=list)
    n: Choices = 1
    seed: Annotated[int, Field(ge=-MOST_SEED - 1, le=MOST_SEED)] | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end a reply."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatBody(BaseModel):
    """A request for the next message of a chat."""

    model_config = STRICT

    sampled: Sampled
    messages: Annotated[list[dict[str, Any]], Field(min_length=1), FailFast()]
    tools: Annotated[list[dict[str, Any]], FailFast()] = Field(default_factory=list)
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
    """A request to continue a text, or token ids; a list of them asks for a continuation of each.

    Attributes:
        add_special_tokens: let the tokenizer add its special tokens to a text, such as one for its beginning. OpenAI's
            protocol does not have it; vLLM and others do.
    """

    model_config = STRICT

    sampled: Sampled
    prompt: str | list[Any]  # the backend reads a list, since it knows how long one may be
    add_special_tokens: bool = True
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None


Body = TypeVar("Body", ChatBody, CompletionBody)
Given = Mapping[str, Any]


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
    refuse_unknown(known, (Sampled.model_fields.keys() | kind.model_fields.keys()) - {"sampled"})
    try:
        sampled = Sampled.model_validate(known)
        body = kind.model_validate({**known, "sampled": sampled})
    except pydantic.ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=False)) from None
    return body


def _refusal(faults: Sequence[Given]) -> Refusal:
    """The refusal that names the first fault."""
    first = faults[0]
    place = ".".join(str(part) for part in first["loc"] if not isinstance(part, str) or part.isidentifier())
    said = str(first["msg"])
    return Refusal(f"`{place}`: {said[:1].lower()}{said[1:]}.", param=place.partition(".")[0])


def _checked_tool(tool: Given, where: str) -> dict[str, Any]:
    """A tool with all keys that chat templates read. Raises: Refusal."""
    refuse_unknown(tool, ("type", "function", "cache_control"), where=f"{where}.")
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
