"""Outside agents: functions that run in threads, and commands that run in processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from palaestra.errors import EpisodeFailure, RecipeError, nearest
from palaestra.process.orphans import Guard
from palaestra.registry import part
from palaestra.tools.threads import Late, Threads

WHERE = "program: outside_agent"
THREADS = Threads(limit=1024)
SHOWN = 400  # characters of what a command wrote to standard error
GRACE_S = 3.0  # between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What an agent gets for an episode: the arguments of a function, by name.

    Attributes:
        prompt: the task as a text. messages: as messages of a chat, with the environment's instruction.
        tools: that the environment declares, in OpenAI's form.
        base_url, api_key, model: for an OpenAI client.
        act: acts in the environment, and returns what it shows next, or None when it is over.
        seed: for random choices of the agent.
    """

    prompt: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    base_url: str
    api_key: str
    model: str
    act: Callable[[str], str | None]
    seed: int

    def by_name(self) -> dict[str, Any]:
        """The arguments by name."""
        return {name: getattr(self, name) for name in NAMES}


NAMES = tuple(Given.__dataclass_fields__)


@functools.cache
def function_of(name: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """The function that a recipe names, and which arguments it takes.

    Raises: RecipeError, for a function that takes something else; UnknownName.
    """
    target = part("program", name, where=f"{WHERE}.agent").target
    where = f"{WHERE}.agent: {name}"
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError) as error:
        raise RecipeError(where=where, what=f"it cannot be called: {error}.", remedy="Name a function.") from None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return target, NAMES
    named = [p for p in parameters if p.kind is not p.VAR_POSITIONAL]
    for parameter in named:
        wrong = parameter.kind is parameter.POSITIONAL_ONLY or parameter.name not in NAMES
        if wrong and parameter.default is parameter.empty:
            raise RecipeError(
                where=where,
                what=f"the function takes `{parameter.name}`, which an episode does not have.",
                options=nearest(parameter.name, NAMES),
                remedy=f"Its parameters may be: {', '.join(NAMES)}. Give any other a default.",
            )
    return target, tuple(p.name for p in named if p.name in NAMES and p.kind is not p.POSITIONAL_ONLY)


async def run_function(name: str, given: Given, seconds: float) -> Any:
    """What the agent's function returns. It runs in a thread of its own, also if it is `async`.

    Raises: EpisodeFailure, if it takes too long; whatever it raises.
    """
    function, takes = function_of(name)
    arguments = {key: value for key, value in given.by_name().items() if key in takes}

    def call() -> Any:
        answer = function(**arguments)
        return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer

    try:
        return await THREADS.run(call, seconds)
    except Late:
        raise _late(name, seconds) from None
    except (SystemExit, KeyboardInterrupt) as error:  # of the agent; they would end the whole run
        raise _failure(name, f"it raised {type(error).__name__}: {error}.") from error


async def _awaited(answer: Any) -> Any:
    return await answer


async def run_command(command: Sequence[str], given: Given, seconds: float) -> str:
    """What the agent's process writes to its standard output, without white space at the ends.

    It reads the task as one line of JSON from its standard input, and the addresses in the environment variables of
    OpenAI's clients. It ends with the episode or with this process, and so do the processes that it has started. A
    process that has left the command's process group goes on.

    Raises: EpisodeFailure, if it cannot be started, takes too long, or ends with a status other than 0.
    """
    told = {key: value for key, value in given.by_name().items() if key not in ("act", "api_key")}
    variables = {"OPENAI_BASE_URL": given.base_url, "OPENAI_API_KEY": given.api_key, "OPENAI_MODEL": given.model}
    name = " ".join(command)
    pipe = asyncio.subprocess.PIPE
    with contextlib.ExitStack() as kept:
        try:
            guard = kept.enter_context(Guard(grace_s=GRACE_S))
            process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ | variables, start_new_session=True
            )
        except OSError as error:
            raise _failure(name, f"it cannot be started: {error.strerror or error}.") from error
        guard.watch(process.pid)
        try:
            async with asyncio.timeout(seconds):
                said, wrong = await process.communicate(json.dumps(told).encode() + b"\n")
        except TimeoutError:
            raise _late(name, seconds) from None
        finally:
            await _end(process)
    if process.returncode:
        last = wrong.decode(errors="replace").strip()[-SHOWN:]
        raise _failure(name, f"it ended with status {process.returncode}.{_quoted(last)}")
    return said.decode(errors="replace").strip()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process and those that it has started. Docker's client passes on SIGTERM, and cannot pass on SIGKILL."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await process.wait()
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _quoted(last: str) -> str:
    return f" The end of its standard error:\n{last}" if last else ""


def _late(name: str, seconds: float) -> EpisodeFailure:
    return _failure(name, f"it has not ended within {seconds:g} s.", "Raise `program.outside_agent.seconds`.")


def _failure(
    name: str, what: str, remedy: str = "Correct the agent. A failed episode counts as failed."
) -> EpisodeFailure:
    return EpisodeFailure(boundary="part", where=f"agent {name}", what=what, remedy=remedy)


def answer_of(returned: Any, name: str) -> str:
    """The agent's answer. Raises: EpisodeFailure, if it is no text."""
    if not isinstance(returned, str):
        raise _failure(name, f"it returned {type(returned).__name__}, and its answer must be a text.")
    return returned


def check_options(options: Mapping[str, Any]) -> None:
    """Raises: RecipeError, if the options name no agent, or two; as `function_of`."""
    agent, command = options.get("agent"), options.get("command")
    if (agent is None) == (not command):
        raise RecipeError(
            where=WHERE,
            what="it needs an agent: either `agent` or `command`.",
            remedy="Write `program: {outside_agent: {agent: my_agent.py:solve}}`, or "
            "`program: {outside_agent: {command: [python, my_agent.py]}}`.",
        )
    if agent is not None:
        function_of(agent)
