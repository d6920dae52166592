"""Write the instruction of a world: what an agent is told once, before its first observation."""

from __future__ import annotations

from collections.abc import Mapping


def write_manual(
    about: str, commands: Mapping[str, str] | None = None, *, example: str = "", ending: str, hint: str = ""
) -> str:
    """The instruction of a world, for a model that has never seen it.

    Args:
        about: what the world is, and what the agent should reach.
        commands: command as the agent must write it → what it does. Words in capitals stand for what the agent fills
            in. None: the answer is free text, as `about` says.
        example: a command that could be written.
        ending: how an episode ends and what counts as success.
        hint: advice that holds in every episode.

    >>> print(write_manual("Find the key.", {"go ROOM": "walk there", "take": ""}, example="go hall", ending="Hurry."))
    Find the key.
    Commands:
    - go ROOM: walk there
    - take
    Write one command in each turn. Example: go hall
    Hurry.
    """
    lines = [about]
    if commands:
        lines += [
            "Commands:",
            *(f"- {command}: {does}" if does else f"- {command}" for command, does in commands.items()),
        ]
        lines.append("Write one command in each turn." + (f" Example: {example}" if example else ""))
    elif example:
        lines.append(f"Example of an answer: {example}")
    return "\n".join([*lines, *([hint] if hint else []), ending])


def turn_limit(turns: int | None) -> str:
    """The sentence that tells the limit of turns; empty without a limit."""
    return "" if turns is None else f" You have {turns} turn{'s' * (turns != 1)}."
