"""The messages of a chat as a client sends them, and as chat templates read them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from palaestra.chat.messages import Message, MessageFault, MessageReader
from palaestra.http.rules import Refusal

Given = Mapping[str, Any]


def _key(message: Message) -> str:
    """Equal for messages that say the same. Ids of calls do not count, and neither do thoughts.

    The name of a reply's speaker does not count, either, since clients add it to what they send back.
    """
    calls = [[call.name, dict(call.arguments)] for call in message.calls]
    said = [message.role, message.text, calls, message.answers]
    named = [message.name] if message.name and message.role not in ("assistant", "tool") else []
    return json.dumps([*said, *named], sort_keys=True, ensure_ascii=False)


def digests(said: Sequence[Message], start: str = "") -> list[bytes]:
    """For each message, a hash of the chat up to it. `start`: what also tells chats apart, such as their tools."""
    hashed, found = hashlib.blake2b(start.encode(), digest_size=16), []
    for one in said:
        key = _key(one).encode(errors="surrogatepass")
        hashed.update(len(key).to_bytes(8, "big") + key)
        found.append(hashed.digest())
    return found


def read_messages(given: Sequence[Given]) -> list[Message]:
    """The messages of a request. Results of tools that follow each other are in the order of their calls.

    Raises: Refusal, for a message that cannot be read, a call without a result, or a result without a call.
    """
    try:
        return MessageReader(ids="demanded", images=False).read(given)
    except MessageFault as fault:
        place = f"messages.{fault.place}" if fault.place else "messages"
        code = "unsupported" if fault.unsupported else None
        raise Refusal(f"`{place}`: {fault.what}.", param=".".join(place.split(".")[:2]), code=code) from None


def for_template(said: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as contexts read them. Ids of calls follow from their order, since those of clients are random."""
    written: list[dict[str, Any]] = []
    made, numbers = 0, [""]
    for one in said:
        if one.role == "assistant":
            calls = tuple(replace(call, id=f"past{made + place:05d}") for place, call in enumerate(one.calls))
            numbers = [call.id for call in calls] or [""]
            made += len(calls)
            one = replace(one, calls=calls)
        elif one.role == "tool":
            one = replace(one, number=numbers[min(max(one.answers, 0), len(numbers) - 1)])
        written.append(one.as_given())
    return written
