"""What a module of this package provides, what its client gets, and two ways to keep requests under way."""

from __future__ import annotations

import collections
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Address = Mapping[str, Any]
"""What a server says when it is ready; fit for JSON, its keys are the module's own business."""

More = Callable[[], bool]
"""Whether another request shall be sent; a client asks before each and drains when it is false."""


@dataclass(frozen=True, slots=True)
class Route:
    """How the bytes shall travel.

    Attributes:
        carrier: ``unix``, ``tcp`` or ``memory``; a candidate without one of them takes its best.
        checksum: ``none``, ``xxh3``, ``crc32`` or empty for the candidate's default.
    """

    carrier: str
    checksum: str = ""


class EchoClient(Protocol):
    """One connection to an echo service."""

    def echoes(self, payload: Any, more: More, window: int) -> Iterator[Any]:
        """Send `payload` again and again, `window` of them under way; yield every answer's bytes."""

    def close(self) -> None:
        """End the connection."""


def in_turn(send: Callable[[], Any], receive: Callable[[Any], Any], more: More, window: int) -> Iterator[Any]:
    """Fill the window, then take an answer and send the next request; answers in the order of requests.

    Args:
        send: begins a request; what it returns `receive` takes, and returns the answer.
    """
    under_way: collections.deque[Any] = collections.deque()
    while True:
        while len(under_way) < window and more():
            under_way.append(send())
        if not under_way:
            return
        yield receive(under_way.popleft())


def at_once(send: Callable[[], object], receive: Callable[[], Any], more: More, window: int) -> Iterator[Any]:
    """Send in a thread of its own while this one receives; answers in the order of requests."""
    slots = threading.Semaphore(window)
    sent: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def send_all() -> None:
        while slots.acquire() and more():
            sent.put(True)
            send()
        sent.put(False)

    sender = threading.Thread(target=send_all, daemon=True)
    sender.start()
    while sent.get():
        yield receive()
        slots.release()
    sender.join()
