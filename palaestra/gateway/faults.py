"""Faults of a request: what the server answers in place of a reply, in the form of OpenAI's errors."""

from __future__ import annotations

from typing import Any

INVALID = "invalid_request_error"


class Refusal(Exception):
    """A request that gets no reply.

    Args:
        status: of the HTTP answer. message: what is wrong, and what to do.
        code: a word that programs can compare. param: the key of the request that is wrong.
        kind: the class of the error, `type` in the body.
        wait: seconds after which the client may ask again; None: asking again does not help.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        kind: str = INVALID,
        wait: int | None = None,
    ) -> None:
        self.status, self.message, self.code, self.param, self.kind = status, message, code, param, kind
        self.wait = wait
        super().__init__(message)

    @property
    def body(self) -> dict[str, Any]:
        """The body of the answer."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Further headers of the answer."""
        return {} if self.wait is None else {"retry-after": str(self.wait)}


def too_long(prompt: int, wanted: int | None, context: int) -> Refusal:
    """The refusal of a request that does not fit the model's context, with the numbers.

    Args:
        prompt: tokens of the messages. wanted: most tokens of the reply that the request asks for, if it says so.
    """
    asked = "so no reply fits" if wanted is None or prompt >= context else f"and the reply may have {wanted}"
    return Refusal(
        f"The model's context holds {context} tokens. The messages have {prompt}, {asked}. "
        "Shorten the messages, or lower `max_tokens`.",
        code="context_length_exceeded",
        param="messages" if prompt >= context else "max_tokens",
    )


def failed(message: str) -> Refusal:
    """The refusal of a request that was right and could not be answered."""
    return Refusal(message, status=500, kind="server_error")
