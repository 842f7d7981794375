"""What tests that are coroutines share with their fixtures: an event loop, and what is open in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
Enter = Callable[[AbstractAsyncContextManager[T]], T]


@asynccontextmanager
async def closing(thing: T) -> AsyncIterator[T]:
    """Closes it in the end."""
    try:
        yield thing
    finally:
        await thing.close()  # type: ignore[attr-defined]


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clocks on the wall are Berlin's."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Of the test and its fixtures; it is closed without a task left in it."""
    made = asyncio.new_event_loop()
    yield made
    left = asyncio.all_tasks(made)
    for task in left:
        task.cancel()
    if left:
        made.run_until_complete(asyncio.wait(left))
    made.run_until_complete(made.shutdown_default_executor())
    made.close()


@pytest.fixture
def enter(loop: asyncio.AbstractEventLoop) -> Iterator[Enter[Any]]:
    """Enters asynchronous context managers in the test's loop; they are left with the test."""

    @contextmanager
    def entered(manager: AbstractAsyncContextManager[T]) -> Iterator[T]:
        try:
            yield loop.run_until_complete(manager.__aenter__())
        finally:
            loop.run_until_complete(manager.__aexit__(None, None, None))

    with ExitStack() as stack:
        yield lambda manager: stack.enter_context(entered(manager))
