"""A time limit for an await, and the end of a task, neither of which ever loses a cancellation.

`asyncio.wait_for` before Python 3.12 drops a cancellation that comes in the moment in which what it waits
for is done: a loop around it goes on, and who waits for the end of that loop waits for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_CANCEL_AGAIN_S = 0.5


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when it takes longer, or when the caller is cancelled.

    Raises:
        asyncio.TimeoutError: it took longer.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    except asyncio.CancelledError:
        await cancelled(task)
        raise
    if task.cancelled():
        raise asyncio.TimeoutError
    return task.result()


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until all are done; how they ended is not reported."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # looked at, so that nobody complains
