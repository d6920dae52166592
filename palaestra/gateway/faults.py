"""Faults of a request: what the server answers in place of a reply, in the form of OpenAI's errors."""

from __future__ import annotations

from palaestra.http.rules import Refusal


def too_long(prompt: int | None, wanted: int | None, context: int) -> Refusal:
    """The refusal of a request that does not fit the model's context, with the numbers.

    Args:
        prompt: tokens of the messages; None: so many that they were not counted. wanted: most tokens of the reply that
            the request asks for, if it says so.
    """
    full = prompt is None or prompt >= context
    asked = "so no reply fits" if wanted is None or full else f"and the reply may have {wanted}"
    return Refusal(
        f"The model's context holds {context} tokens. The messages have {'more' if prompt is None else prompt}, "
        f"{asked}. Shorten the messages, or lower `max_tokens`.",
        code="context_length_exceeded",
        param="messages" if full else "max_tokens",
    )


def failed(message: str) -> Refusal:
    """The refusal of a request that was right and could not be answered."""
    return Refusal(message, status=500, kind="server_error")
