"""Programs reach the task service from where an event loop runs, too, as in a notebook."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from yarn_accel.errors import JobError
from yarn_accel.tasks.service_link import run_to_end


async def _answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def _failure() -> None:
    raise JobError("it failed")


def test_a_coroutine_runs_to_its_end_with_and_without_a_loop() -> None:
    async def cell() -> int:
        return run_to_end(lambda: _answer(2))

    assert run_to_end(lambda: _answer(1)) == 1
    assert asyncio.run(cell()) == 2


def test_what_it_raises_is_raised_where_it_was_asked_for() -> None:
    async def cell() -> None:
        run_to_end(_failure)

    with pytest.raises(JobError, match="it failed"):
        asyncio.run(cell())


def test_what_interrupts_the_caller_ends_the_coroutine() -> None:
    ended = threading.Event()

    async def endless() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    async def cell() -> None:
        main = threading.main_thread().ident
        assert main is not None
        ringing = threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGUSR1))
        ringing.start()
        run_to_end(endless)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    begun_s = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(cell())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended.is_set()
    assert time.monotonic() - begun_s < 120
