"""The tools of one episode, with budgets and time-outs. Every call gives a result, whatever the tool does."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from palaestra.boundary.cleaning import Counts
from palaestra.data import Action, StopReason, ToolCall
from palaestra.errors import FAULTS, ContractError, MissingExtra, ends_run, nearest
from palaestra.tools.calls import Parsed
from palaestra.tools.formats import format_of
from palaestra.tools.rendering import first_line, render
from palaestra.tools.threads import POOL, Late, Threads
from palaestra.tools.tool import Fault, Tool, ToolError, WrongArguments

GRACE_S = 0.5  # seconds for an async tool to end after it was cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of one call.

    Attributes:
        name: name of the tool that was called.
        text: what the agent reads. If the call failed, it begins with "error:".
        ok: whether the tool answered.
        fault: why the call failed: "unknown" (there is no such tool), "arguments" (they do not fit), "raised" (the tool
            raised an error), "timeout", "budget" (no call is left) or "died" (the service behind the tool has ended).
        seconds: duration of the call. cost: cost of the call; 0 if nothing was run.
        truncated: whether the text was cut.
        replaced: how many characters of the text were replaced because no file can hold them.
    """

    name: str
    text: str
    ok: bool = True
    fault: Fault | None = None
    seconds: float = 0.0
    cost: float = 0.0
    truncated: bool = False
    replaced: Counts = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Running totals of a toolbox. The class is frozen, so an object is its own snapshot."""

    calls: int = 0
    refused: int = 0
    faults: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    failed: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


class Toolbox:
    """The tools of one episode.

    Args:
        tools: tools with different names.
        format: how calls are written, a key of palaestra.tools.formats.FORMATS.
        max_calls: most calls of an episode. A further call is not run and gives the fault "budget". None: no limit.
        max_faults: number of unreadable texts at which the episode should end. None: no limit.
        max_chars: most characters of a result. A text that was cut says so. Higher: longer prompts.
        threads: pool of threads for functions that are not async. Default: one pool for the whole process.

    Raises: ContractError, for two tools with the same name; UnknownName, for an unknown format.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        format: str = "json",
        max_calls: int | None = None,
        max_faults: int | None = None,
        max_chars: int = 4000,
        threads: Threads = POOL,
    ) -> None:
        self.tools: dict[str, Tool] = {}
        for one in tools:
            if one.name in self.tools:
                remedy = "Give one of them another name: tool(function, name=…)."
                raise ContractError(where=f"toolbox, tool {one.name}", what="two tools have this name.", remedy=remedy)
            self.tools[one.name] = one
        self.format = format_of(format)
        self.max_calls, self.max_faults, self.max_chars = max_calls, max_faults, max_chars
        self.totals = Totals()
        self._threads = threads

    # ---- texts --------------------------------------------------------------------------------------------
    def explain(self) -> str:
        """What the agent is told about its tools and how to call them."""
        return self.format.explain(list(self.tools.values()))

    def read(self, text: str) -> Parsed:
        """The calls in a text that an agent wrote. A text that cannot be read counts as a fault."""
        parsed = self.format.parse(text, self.tools)
        if parsed.fault is not None:
            self.unread()
        return parsed

    def write(self, call: ToolCall) -> str:
        """The call as an expert writes it."""
        return self.format.write(call, self.tools)

    def spelled(self, action: Action) -> Any:
        """What an agent wrote. Its `tool_calls`, if there are any, are written in the toolbox's format."""
        return "\n".join(map(self.write, action.tool_calls)) if action.tool_calls else action.value

    @cached_property
    def declarations(self) -> tuple[dict[str, Any], ...]:
        """The tools as an environment declares them in `Observation.tools`."""
        return tuple(one.declaration() for one in self.tools.values())

    def unread(self) -> None:
        """Count a text as unreadable. Worlds call this where a text without any call is a fault too."""
        self._count(faults=self.faults + 1)

    # ---- totals -------------------------------------------------------------------------------------------
    @property
    def calls(self) -> int:
        """Number of calls so far. Failed calls count; calls beyond the budget do not."""
        return self.totals.calls

    @property
    def faults(self) -> int:
        """Number of unreadable texts so far."""
        return self.totals.faults

    @property
    def cost(self) -> float:
        """Cost of all calls so far."""
        return self.totals.cost

    @property
    def seconds(self) -> float:
        """Seconds of all calls so far. Calls that run at the same time are added up."""
        return self.totals.seconds

    @property
    def failed(self) -> dict[str, int]:
        """Number of failed calls, by fault."""
        return dict(self.totals.failed)

    @property
    def exhausted(self) -> StopReason | None:
        """Why the episode should end: a call went beyond the budget, or too many texts were unreadable. Else None."""
        if self.totals.refused:
            return StopReason.MAX_TOOL_CALLS
        if self.max_faults is not None and self.faults >= self.max_faults:
            return StopReason.PARSE_ERROR
        return None

    def snapshot(self) -> Totals:
        """The totals, for `restore`. The world saves the state that its tools have."""
        return self.totals

    def restore(self, totals: Totals) -> None:
        """Go on counting from these totals."""
        self.totals = totals

    # ---- calls --------------------------------------------------------------------------------------------
    def call(self, call: ToolCall) -> ToolResult:
        """Run a tool in the caller's thread, without a time-out. For quick functions.

        Raises: ContractError, for an async tool.
        """
        if not self._admit():
            return self._note(self._over(call))
        began = time.monotonic()
        ready = self._ready(call)
        if isinstance(ready, ToolResult):
            return self._note(ready)
        one, arguments = ready
        try:
            value = one.call(**arguments)
        except (KeyboardInterrupt, asyncio.CancelledError, MissingExtra):
            raise
        except BaseException as error:
            return self._note(_failed(one, error, time.monotonic() - began))
        if inspect.isawaitable(value):
            getattr(value, "close", lambda: None)()
            remedy = "Await `toolbox.gather([call])` instead of `toolbox.call(call)`."
            raise ContractError(where=f"tool {one.name}", what="`call` cannot run an async tool.", remedy=remedy)
        return self._note(self._answered(one, value, time.monotonic() - began))

    async def gather(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run tools at the same time, each with its own time-out. The results are in the order of the calls."""
        tasks = [asyncio.ensure_future(self._run(call)) if self._admit() else self._over(call) for call in calls]
        running = [task for task in tasks if not isinstance(task, ToolResult)]
        try:
            await asyncio.gather(*running)
        except BaseException:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            raise
        return [self._note(task if isinstance(task, ToolResult) else task.result()) for task in tasks]

    def _admit(self) -> bool:
        """Take one call from the budget. Returns False if none is left."""
        if self.max_calls is not None and self.calls >= self.max_calls:
            self._count(refused=self.totals.refused + 1)
            return False
        self._count(calls=self.calls + 1)
        return True

    async def _run(self, call: ToolCall) -> ToolResult:
        began = time.monotonic()
        ready = self._ready(call)
        if isinstance(ready, ToolResult):
            return ready
        one, arguments = ready
        try:
            value = await self._value(one, arguments)
        except (KeyboardInterrupt, asyncio.CancelledError, MissingExtra):
            raise
        except BaseException as error:
            return _failed(one, error, time.monotonic() - began)
        return self._answered(one, value, time.monotonic() - began)

    async def _value(self, one: Tool, arguments: dict[str, Any]) -> Any:
        if _is_async(one.call):
            return await _in_time(one.call(**arguments), one.timeout_s)
        value = await self._threads.run(lambda: one.call(**arguments), one.timeout_s)
        return await _in_time(value, one.timeout_s) if inspect.isawaitable(value) else value

    def _ready(self, call: ToolCall) -> tuple[Tool, dict[str, Any]] | ToolResult:
        """The tool and its checked arguments, or a result that says what is wrong with the call."""
        one = self.tools.get(call.name)
        if one is None:
            like = nearest(call.name[:64], self.tools) or tuple(self.tools)
            text = f"error: there is no tool `{call.name[:64]}`; there are: {', '.join(like) or 'none'}"
            return ToolResult(name=call.name, text=text, ok=False, fault="unknown")
        try:
            return one, one.arguments(call.arguments)
        except WrongArguments as error:
            return ToolResult(name=one.name, text=f"error: {error}", ok=False, fault="arguments")
        except FAULTS as error:
            text = f"error: the arguments of {one.name} cannot be checked: {first_line(error)}"
            return ToolResult(name=one.name, text=text, ok=False, fault="arguments")

    def _answered(self, one: Tool, value: Any, seconds: float) -> ToolResult:
        counts: Counts = Counter()
        try:
            shown = render(value, self.max_chars, counts)
        except BaseException as error:  # the value may have code of its own
            if ends_run(error):
                raise
            return _failed(one, error, seconds)
        return ToolResult(
            name=one.name,
            text=shown.text,
            seconds=seconds,
            cost=one.cost,
            truncated=shown.truncated,
            replaced=counts,
        )

    def _over(self, call: ToolCall) -> ToolResult:
        text = f"error: no calls are left: {self.max_calls} were made"
        return ToolResult(name=call.name, text=text, ok=False, fault="budget")

    def _note(self, result: ToolResult) -> ToolResult:
        failed = Counter(self.totals.failed)
        failed.update([result.fault] if result.fault else [])
        self._count(cost=self.cost + result.cost, seconds=self.seconds + result.seconds, failed=dict(failed))
        return result

    def _count(self, **changed: Any) -> None:
        t = self.totals
        now = {"calls": t.calls, "refused": t.refused, "faults": t.faults, "cost": t.cost, "seconds": t.seconds}
        self.totals = Totals(**(now | {"failed": t.failed} | changed))


def _failed(one: Tool, error: BaseException, seconds: float) -> ToolResult:
    """The result of a call whose tool raised an error."""
    fault: Fault = "raised"
    counts: Counts = Counter()
    text = f"{one.name} failed: {first_line(error, counts=counts)}"
    if isinstance(error, ToolError):
        fault, text = error.fault, render(error.text, 1000, counts).text
    elif isinstance(error, Late):
        fault, text = "timeout", f"{one.name}: {error}"
    return ToolResult(
        name=one.name,
        text=f"error: {text}",
        ok=False,
        fault=fault,
        seconds=seconds,
        cost=one.cost,
        replaced=counts,
    )


# ---- async tools ------------------------------------------------------------------------------------------
def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


async def _in_time(waited: Any, timeout_s: float | None) -> Any:
    """Await a coroutine with a time-out. If it does not stop after it was cancelled, it is abandoned."""
    task = asyncio.ensure_future(_boxed(waited))
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE_S)
        raise Late(f"no answer within {timeout_s:g} s")
    value, error = task.result()
    if error is not None:
        raise error
    return value


async def _boxed(waited: Any) -> tuple[Any, BaseException | None]:
    """Await and return value and error as a pair, because a SystemExit that is raised in a task ends the event loop."""
    try:
        return await waited, None
    except GeneratorExit:
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return None, RuntimeError("it was cancelled")
    except BaseException as error:
        return None, error
