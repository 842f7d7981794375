"""Where idle connections wait without a thread: one epoll for all of them."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable
from typing import Protocol

__all__ = ["Parkable", "Parking"]

logger = logging.getLogger(__name__)

_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT


class Parkable(Protocol):
    """What can wait here."""

    def fileno(self) -> int:
        """The descriptor whose readiness it waits for."""


class Parking:
    """A thread that watches idle connections.

    Args:
        resume: called, from that thread, with each one that has something to read or was closed.
    """

    def __init__(self, resume: Callable[[Parkable], None]) -> None:
        self._resume = resume
        self._epoll = select.epoll()
        self._lock = threading.Lock()
        self._parked: dict[int, Parkable] = {}
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._runner = threading.Thread(target=self._watch, name="parking", daemon=True)
        self._is_closed = False

    def start(self) -> None:
        """Start watching."""
        self._runner.start()

    @property
    def n_parked(self) -> int:
        """Connections that wait here now."""
        return len(self._parked)

    def park(self, item: Parkable) -> bool:
        """Watch `item` until it is ready, once; False: not any more, the server stops."""
        with self._lock:
            if self._is_closed:
                return False
            number = item.fileno()
            self._parked[number] = item
            # A descriptor that was closed has left the epoll by itself, so its number may come again.
            try:
                self._epoll.register(number, _EVENTS)
            except FileExistsError:
                self._epoll.modify(number, _EVENTS)
            except OSError:
                del self._parked[number]
                return False
            return True

    def close(self) -> None:
        """Stop watching, and resume all that still wait."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        os.eventfd_write(self._wake_fd, 1)
        if self._runner.ident is not None:
            self._runner.join(timeout=5.0)
        with self._lock:
            left = list(self._parked.values())
            self._parked.clear()
        for item in left:
            self._resume(item)
        self._epoll.close()
        os.close(self._wake_fd)

    def _watch(self) -> None:
        while not self._is_closed:
            for number, _ in self._epoll.poll():
                with self._lock:
                    item = self._parked.pop(number, None)
                if item is not None:
                    self._resume(item)
