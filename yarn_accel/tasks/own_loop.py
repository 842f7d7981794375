"""Runs a coroutine to its end from anywhere, also where an event loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def run_to_end(make: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
    """Run a coroutine to its end: in this thread, or in another one where a loop runs in this one.

    The caller waits in either case; what interrupts it ends the coroutine.

    Args:
        make: makes it, in the thread that runs it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def noted() -> ResultT:
        begun.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await make()

    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="task service") as pool:
        ending = pool.submit(lambda: asyncio.run(noted()))
        try:
            return ending.result()
        except BaseException:
            for loop, task in begun:
                if task is not None:
                    with contextlib.suppress(RuntimeError):  # it has ended, and its loop with it
                        loop.call_soon_threadsafe(task.cancel)
            raise
