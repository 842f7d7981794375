"""One thread and one epoll: everything that waits for a descriptor or for a time happens here, one thing at a
time.

Other threads hand over what they have done with `EventLoop.call_soon`; nothing else of a server is touched by
two threads.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from typing import TypeVar

logger = logging.getLogger(__name__)

READ = select.EPOLLIN | select.EPOLLRDHUP
WRITE = select.EPOLLOUT
_MAX_EVENTS = 128
Answer = TypeVar("Answer")


class Timer:
    """One call at one time; `cancel` makes it never happen."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None] | None) -> None:
        self.callback = callback

    def cancel(self) -> None:
        """Let it never happen."""
        self.callback = None


class EventLoop:
    """Calls whoever watches a descriptor, whose time has come, or who was handed over by another thread.

    Attributes:
        at_close: called by `close`, each once: they free what nobody else knows of.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._calls: collections.deque[Callable[[], None]] = collections.deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._is_woken = False
        self._is_stopped = False
        self._thread = 0
        self.is_closed = False
        self.at_close: set[Callable[[], None]] = set()

    # Descriptors

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Call `handler` with the ready events of a descriptor, as long as it is ready."""
        self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def change(self, fd: int, events: int) -> None:
        """Watch a descriptor for other events."""
        self._epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Watch a descriptor no longer; to be called before it is closed."""
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    # Times

    def call_at(self, at_s: float, callback: Callable[[], None]) -> Timer:
        """Call at that time (monotonic seconds) or soon after."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (at_s, next(self._numbers), timer))
        return timer

    def repeat(self, interval_s: float, callback: Callable[[], None]) -> None:
        """Call again and again, so many seconds after the last call has ended."""

        def call() -> None:
            try:
                callback()
            finally:
                self.call_at(time.monotonic() + interval_s, call)

        self.call_at(time.monotonic() + interval_s, call)

    # Other threads

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Have the loop's thread call this soon; from any thread."""
        self._calls.append(callback)
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake_fd, 1)

    def ask(self, question: Callable[[], Answer], timeout_s: float) -> Answer:
        """The answer of the loop's thread; from any thread, also its own.

        Raises:
            TimeoutError: it did not answer in time.
        """
        if self._is_stopped or self._thread in (0, threading.get_ident()):
            return question()
        future: concurrent.futures.Future[Answer] = concurrent.futures.Future()

        def answer() -> None:
            try:
                future.set_result(question())
            except Exception as error:  # noqa: BLE001 -- handed to whoever asked
                future.set_exception(error)

        self.call_soon(answer)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            raise TimeoutError(f"the server did not answer within {timeout_s:g} s") from None

    def defer(self, callback: Callable[[], None]) -> None:
        """Call this at the end of this turn or in the next one; from the loop's thread."""
        self._calls.append(callback)

    # The thread

    def run(self) -> None:
        """Be the loop until `stop`."""
        self._thread = threading.get_ident()
        poll, handlers, calls, timers = self._epoll.poll, self._handlers, self._calls, self._timers
        monotonic = time.monotonic
        pause_s = 0.0
        while not self._is_stopped:
            for fd, events in poll(pause_s, _MAX_EVENTS):
                handler = handlers.get(fd)
                if handler is not None:
                    try:
                        handler(events)
                    except Exception:
                        logger.exception("a part of the server broke")
                elif fd == self._wake_fd:
                    os.eventfd_read(fd)
                    self._is_woken = False
            for _ in range(len(calls)):
                self._call(calls.popleft())
            pause_s = -1.0
            if timers:
                pause_s = timers[0][0] - monotonic()
                if pause_s <= 0.0:
                    self._ring()
                    pause_s = 0.0
            if calls:
                pause_s = 0.0

    def stop(self) -> None:
        """End `run` after this turn; from any thread."""
        self._is_stopped = True
        self.call_soon(_nothing)

    def finish(self) -> None:
        """Call what was handed over and not called yet, after `run` has ended."""
        while self._calls:
            self._call(self._calls.popleft())

    def close(self) -> None:
        """Free the descriptors, after `run` has ended."""
        if not self.is_closed:
            self.is_closed = True
            while self.at_close:
                self._call(self.at_close.pop())
            self._epoll.close()
            os.close(self._wake_fd)

    def _ring(self) -> None:
        now_s = time.monotonic()
        while self._timers and self._timers[0][0] <= now_s:
            callback = heapq.heappop(self._timers)[2].callback
            if callback is not None:
                self._call(callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            logger.exception("a part of the server broke")


def _nothing() -> None:
    """Wakes the loop."""
