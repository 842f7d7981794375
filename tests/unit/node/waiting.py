"""Waiting in tests, with an end."""

import asyncio
import time

PATIENCE_S = 60.0


async def soon(condition):
    """Wait until a function, plain or a coroutine, returns something true, and return that."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < until_s, "it never came"
        await asyncio.sleep(0.005)
