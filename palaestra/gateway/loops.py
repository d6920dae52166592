"""Event loops in threads of their own, and what passes between two of them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

Item = TypeVar("Item")
PATIENCE_S = 5.0  # for a loop to end


class LoopThread:
    """An event loop in a thread, which ends with the process."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.close()

    def stop(self) -> None:
        """Cancel all tasks and end the thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(PATIENCE_S)


async def across(loop: asyncio.AbstractEventLoop, make: Callable[[], AsyncIterator[Item]]) -> AsyncIterator[Item]:
    """The items of an iterator that runs in another event loop. If this one is closed, so is that one.

    Args:
        make: called in the other loop.

    Raises: whatever the iterator raises; ConnectionError, if the other loop has ended.
    """
    here = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[list[Item], BaseException | None, bool]] = asyncio.Queue()

    def tell(items: list[Item], error: BaseException | None = None, over: bool = False) -> None:
        with contextlib.suppress(RuntimeError):  # the loop here has ended
            here.call_soon_threadsafe(arrived.put_nowait, (items, error, over))

    async def run() -> None:
        try:
            async with contextlib.aclosing(make()) as items:  # type: ignore[type-var]
                async for item in items:
                    tell([item])
        except asyncio.CancelledError:
            tell([], ConnectionError("the request was canceled"), True)
            raise
        except Exception as error:
            tell([], error, True)
        else:
            tell([], None, True)

    running = _submit(run, loop)
    try:
        over = False
        while not over:
            items, error, over = await arrived.get()
            for item in items:
                yield item
            if error is not None:
                raise error
    finally:
        running.cancel()


def _submit(run: Callable[[], Awaitable[None]], loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    work = run()
    try:
        return asyncio.run_coroutine_threadsafe(work, loop)  # type: ignore[arg-type, return-value]
    except RuntimeError as error:
        work.close()  # type: ignore[attr-defined]
        raise ConnectionError("the event loop has ended") from error
