"""What must hold of toolboxes:

1. Results come in the order of the calls; calls run at the same time, async tools in one event loop, others in threads.
2. Every fault of a tool is a result: unknown, arguments, raised, timeout; SystemExit too. KeyboardInterrupt passes.
3. Functions that hang are abandoned, and the pool works on after 200 of them; coroutines that hang are cancelled.
4. Calls beyond the budget are refused and end the episode; so do too many unreadable texts. Totals add up.
5. Results are texts of bounded length; a note says what is left out, and nothing large is copied.
6. A caller that is cancelled while it waits leaves nothing behind; threads without work end.
7. `call` runs in the caller's thread, and refuses async tools; two tools with the same name are refused.
"""

from __future__ import annotations

import asyncio
import threading
import time
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pydantic
import pytest

from palaestra.data import StopReason, ToolCall
from palaestra.errors import ContractError, UnknownName
from palaestra.tools import Tool, Toolbox, ToolError, tool
from palaestra.tools.threads import Late, Threads


def made(call, name="t", **options):
    return Tool(name=name, description="", parameters={"type": "object"}, call=call, **options)


def give(value, **options):
    """The result of a tool that returns or raises a value."""

    def call():
        if isinstance(value, BaseException):
            raise value
        return value

    return Toolbox([made(call)], **options).call(ToolCall(name="t"))


def gathered(box, *calls):
    return asyncio.run(box.gather([ToolCall(name=name, arguments=arguments) for name, arguments in calls]))


@tool
async def slow(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return f"{seconds}"


@tool
def blocking(seconds: float) -> str:
    """Wait without letting others work."""
    time.sleep(seconds)
    return f"{seconds} in {threading.current_thread().name}"


# ---- rules 1 and 2 ----------------------------------------------------------------------------------------
def test_calls_run_at_the_same_time_and_keep_their_order():
    box = Toolbox([slow, blocking])
    began = time.monotonic()
    results = gathered(box, *[(name, {"seconds": s}) for s in (0.3, 0.1, 0.2) for name in ("slow", "blocking")])
    assert time.monotonic() - began < 0.8  # one after the other: 1.2 s
    assert [r.text.split()[0] for r in results] == ["0.3", "0.3", "0.1", "0.1", "0.2", "0.2"]
    assert results[1].text == "0.3 in tool"
    assert all(r.ok and r.fault is None and r.seconds > 0.05 for r in results)
    assert box.seconds == pytest.approx(sum(r.seconds for r in results))


class Silly(BaseException):
    pass


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "fault", "text"),
    [
        (ToolError("no order 17"), "raised", "error: no order 17"),
        (ToolError("gone", fault="died"), "died", "error: gone"),
        (KeyError("x"), "raised", "error: t failed: KeyError: 'x'"),
        (ValueError("one\ntwo"), "raised", "error: t failed: ValueError: one"),
        (ValueError("x" * 10**6), "raised", f"error: t failed: ValueError: {'x' * 188}…"),
        (TimeoutError(), "raised", "error: t failed: TimeoutError"),
        (SystemExit(3), "raised", "error: t failed: SystemExit: 3"),
        (Silly("ha"), "raised", "error: t failed: Silly: ha"),
        (StopIteration(1), "raised", "error: t failed: "),
        (RecursionError("deep"), "raised", "error: t failed: RecursionError: deep"),
        (Mute(), "raised", "error: t failed: Mute"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "raised", "error: t failed: UnicodeDecodeError"),
    ],
)
def test_whatever_is_raised_is_a_result(error, fault, text):
    def call():
        raise error

    async def later():
        raise error

    box = Toolbox([made(call), made(later, "later")])
    results = [box.call(ToolCall(name="t")), *gathered(box, ("t", {}))]
    if not isinstance(error, StopIteration):  # which no coroutine can raise
        results += gathered(box, ("later", {}))
    for result in results:
        assert (result.ok, result.fault) == (False, fault)
        assert result.text.replace("later failed", "t failed").startswith(text)
        assert "Traceback" not in result.text and "toolbox.py" not in result.text


def test_keyboard_interrupts_pass():
    async def later():
        raise KeyboardInterrupt

    def call():
        raise KeyboardInterrupt

    box = Toolbox([made(call), made(later, "later")])
    with pytest.raises(KeyboardInterrupt):
        box.call(ToolCall(name="t"))
    for name in ("t", "later"):
        with pytest.raises(KeyboardInterrupt):
            gathered(box, (name, {}))


def test_wrong_calls_are_results():
    box = Toolbox([slow, blocking])
    unknown, wrong, missing = gathered(box, ("slwo", {}), ("slow", {"seconds": "x"}), ("slow", {}))
    assert (unknown.fault, unknown.text) == ("unknown", "error: there is no tool `slwo`; there are: slow")
    assert (wrong.fault, wrong.text) == ("arguments", "error: `seconds` must be a number, found 'x'")
    assert (missing.fault, missing.text) == ("arguments", "error: the argument `seconds` is missing: a number")
    assert gathered(Toolbox([]), ("x" * 10**6, {}))[0].text == f"error: there is no tool `{'x' * 64}`; there are: none"


def test_a_function_that_returns_a_coroutine_is_awaited():
    box = Toolbox([made(lambda: asyncio.sleep(0, "so"))])
    assert gathered(box, ("t", {}))[0].text == "so"


def test_a_tool_that_cancels_itself_has_failed():
    async def later():
        raise asyncio.CancelledError

    def call():
        raise asyncio.CancelledError

    results = gathered(Toolbox([made(call), made(later, "later")]), ("t", {}), ("later", {}))
    assert [r.fault for r in results] == ["raised", "raised"]


# ---- rules 3 and 6 ----------------------------------------------------------------------------------------
def test_200_hung_functions_stop_nobody():
    pool, end = Threads(limit=8, idle_s=0.1), threading.Event()
    hang = made(lambda: end.wait(60), "hang", timeout_s=0.05)
    box = Toolbox([hang, made(lambda: "fine", "quick")], threads=pool)
    try:
        results = gathered(box, *[("hang", {}) for _ in range(200)], ("quick", {}))
        assert [r.fault for r in results] == ["timeout"] * 200 + [None]
        assert results[0].text == "error: hang: no answer within 0.05 s"
        assert pool.lost == 200 and pool.alive <= 8
    finally:
        end.set()
    wait_for(lambda: pool.alive == 0 and pool.lost == 0)
    assert (pool.lost, pool.alive, pool.idle, len(pool.waiting)) == (0, 0, 0, 0)


def wait_for(condition, seconds=10):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    assert condition()


def test_too_many_hung_calls_are_told():
    pool, end = Threads(limit=2, most_lost=3), threading.Event()
    box = Toolbox([made(lambda: end.wait(60), timeout_s=0.02)], threads=pool)
    try:
        results = gathered(box, *[("t", {})] * 3)
        assert gathered(box, ("t", {}))[0].text == "error: t: not begun, because 3 earlier calls still hang"
        assert len(results) == 3
    finally:
        end.set()


def test_hung_coroutines_are_cancelled_even_stubborn_ones():
    ended, over = [], []

    async def polite():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("polite")

    async def stubborn():
        while not over:
            try:
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                ended.append("stubborn")

    box = Toolbox([made(polite, "polite", timeout_s=0.05), made(stubborn, "stubborn", timeout_s=0.05)])
    began = time.monotonic()

    async def both():
        results = await box.gather([ToolCall(name="polite"), ToolCall(name="stubborn")])
        over.append(True)
        return results, time.monotonic() - began

    results, seconds = asyncio.run(both())
    assert [r.fault for r in results] == ["timeout", "timeout"]
    assert seconds < 3 and {"polite", "stubborn"} <= set(ended)


def test_cancellation_passes_and_leaves_nothing():
    pool, end, ended = Threads(limit=2, idle_s=0.1), threading.Event(), []

    async def later():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    box = Toolbox([made(lambda: end.wait(60), timeout_s=None), made(later, "later", timeout_s=None)], threads=pool)

    async def cancelled():
        task = asyncio.ensure_future(box.gather([ToolCall(name=name) for name in ("t", "t", "t", "later")]))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert ended == [True] and pool.lost in (2, 3) and not pool.waiting  # the third may have begun
    end.set()
    wait_for(lambda: pool.lost == 0)


def test_threads_do_not_mix_up_what_they_run():
    pool = Threads(limit=4)

    async def many():
        return await asyncio.gather(*[pool.run(lambda n=n: n * n, 5) for n in range(500)])

    assert asyncio.run(many()) == [n * n for n in range(500)]
    assert asyncio.run(many()) == [n * n for n in range(500)]  # in another loop
    with pytest.raises(Late):
        asyncio.run(pool.run(lambda: time.sleep(0.3), 0.01))


# ---- rule 4 -----------------------------------------------------------------------------------------------
def test_budgets_of_calls():
    box = Toolbox([slow], max_calls=2)
    first = gathered(box, ("slow", {"seconds": 0}), ("nope", {}))
    assert [r.fault for r in first] == [None, "unknown"] and box.calls == 2
    assert box.exhausted is None  # the answer may still come
    (over,) = gathered(box, ("slow", {"seconds": 0}))
    assert (over.fault, over.text, box.calls) == ("budget", "error: no calls are left: 2 were made", 2)
    assert box.exhausted is StopReason.MAX_TOOL_CALLS
    assert Toolbox([slow], max_calls=0).call(ToolCall(name="slow")).fault == "budget"


def test_budgets_of_faults():
    box = Toolbox([slow], format="tagged", max_faults=2)
    assert box.read("<slow>{").fault and box.faults == 1 and box.exhausted is None
    assert not box.read("hm").fault and box.faults == 1
    box.unread()
    assert box.exhausted is StopReason.PARSE_ERROR
    assert Toolbox([slow], max_faults=None).exhausted is None


def test_totals_and_snapshots():
    def fail():
        raise ValueError

    box = Toolbox([made(fail, "fail", cost=2.0), made(lambda: 1, "fine", cost=0.5)])
    saved = box.snapshot()
    for _ in range(2):
        box.restore(saved)
        gathered(box, ("fail", {}), ("fine", {}), ("none", {}))
        assert (box.calls, box.cost, box.failed) == (3, 2.5, {"raised": 1, "unknown": 1})
    assert saved.calls == 0 and saved.failed == {}


# ---- rule 5 -----------------------------------------------------------------------------------------------
@dataclass
class Point:
    x: int
    y: float


class Model(pydantic.BaseModel):
    name: str


class Shy:
    def __str__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("so", "so"),
        ("", ""),
        (None, "done"),
        (3, "3"),
        (True, "true"),
        ([1, "é", None], '[1, "é", null]'),
        ({"a": (1, 2)}, '{"a": [1, 2]}'),
        ({(1, 2): 3}, "{'(1, 2)': 3}"),
        (Point(1, 2.5), '{"x": 1, "y": 2.5}'),
        ([Model(name="a")], '[{"name": "a"}]'),
        ({3, 1, 2}, "[1, 2, 3]"),
        (np.arange(3), "[0, 1, 2]"),
        (np.float64(0.5), "0.5"),
        ({"a": b"\xff"}, '{"a": "�"}'),
        (float("nan"), "NaN"),
        (b"plain", "plain"),
        (b"\xff\xfe caf\xc3\xa9", "�� café"),
        ("a\ud800b", "a\ufffdb"),
        ([Shy()], '["Shy"]'),
    ],
)
def test_results_are_texts(value, text):
    assert give(value).text == text


def test_circles_and_depths_are_shown_somehow():
    circle: list = []
    circle.append(circle)
    deep: list = []
    for _ in range(10_000):
        deep = [deep]
    assert give(circle).ok and len(give(deep).text) < 500
    assert give(10**10_000).ok


def test_long_results_are_cut_visibly():
    result = give("x" * 50_000_000, max_chars=4000)
    assert result.text == "x" * 4000 + "… 49,996,000 more characters" and result.truncated
    assert give("x" * 11, max_chars=10).text == "x" * 10 + "… 1 more characters"
    assert give("x" * 10, max_chars=10).text == "x" * 10
    assert not give("x" * 10, max_chars=10).truncated
    assert give(list(range(10**6)), max_chars=10).text == "[0, 1, 2, … and more"
    assert give(b"x" * 100, max_chars=10).text == "x" * 10 + "… 90 more bytes"
    assert give("é".encode() * 100, max_chars=10).text == "é" * 10 + "… 180 more bytes"
    assert len(give(b"\xff" * 10**6, max_chars=10).text) < 60


@pytest.mark.parametrize(
    "value", ["x" * 50_000_000, b"\xff" * 50_000_000, ["x" * 50_000_000]], ids=["str", "bytes", "list"]
)
def test_large_results_are_not_copied(value):
    box = Toolbox([made(lambda: value)])
    tracemalloc.start()
    try:
        result = gathered(box, ("t", {}))[0]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.truncated and len(result.text) < 4100
    assert peak < (120_000_000 if isinstance(value, list) else 2_000_000)  # JSON itself writes a text out


# ---- rule 7 -----------------------------------------------------------------------------------------------
def test_async_tools_are_gathered():
    with pytest.raises(ContractError, match=r"tool slow(.|\n)*cannot run an async tool(.|\n)*toolbox.gather"):
        Toolbox([slow]).call(ToolCall(name="slow", arguments={"seconds": 0}))


def test_names_and_formats_are_refused():
    with pytest.raises(ContractError, match=r"toolbox, tool slow(.|\n)*two tools have this name"):
        Toolbox([slow, slow])
    with pytest.raises(UnknownName, match="no format is called `yaml`"):
        Toolbox([slow], format="yaml")
    box = Toolbox([slow], format="code")
    assert "slow(seconds=0.5)" in box.explain()
    assert box.write(ToolCall(name="slow", arguments={"seconds": 1})) == "slow(seconds=1)"
