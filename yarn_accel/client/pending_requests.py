"""What a dispatcher has still to send: requests, those that came back, and the pauses it was asked for."""

from __future__ import annotations

import collections
import random
import time
from dataclasses import dataclass
from typing import Deque, Optional

from yarn_accel.client.call_source import CallSource
from yarn_accel.client.calls import Call
from yarn_accel.errors import AccelError, UnavailableError

__all__ = ["LONGEST_PAUSE_S", "STORAGE_PAUSE_S", "Pause", "PendingRequest", "PendingRequests"]

LONGEST_PAUSE_S = 2.0
STORAGE_PAUSE_S = 0.5


@dataclass
class PendingRequest:
    """A call on its way.

    Attributes:
        n_attempts: how many servers were lost with it in flight.
        n_moves: how often it was moved while it waited.
        target: the server it is being moved to; empty: it is not.
        storage_failed_s: when its storage failed first, by the monotonic clock; None: it did not.
    """

    call: Call
    n_attempts: int = 0
    n_moves: int = 0
    target: str = ""
    storage_failed_s: Optional[float] = None

    def may_wait_for_storage(self, patience_s: float) -> bool:
        """Whether it is to be tried again after its storage failed for a moment.

        A NameNode goes on naming a DataNode that died, often the nearest one, until it knows of its death: so
        time counts, not the number of tries.
        """
        now_s = time.monotonic()
        if self.storage_failed_s is None:
            self.storage_failed_s = now_s
        return now_s - self.storage_failed_s < patience_s


class PendingRequests:
    """The requests still to be sent: those given back first, then what the source says."""

    def __init__(self, source: CallSource) -> None:
        self._source = source
        self._waiting: Deque[PendingRequest] = collections.deque()

    def has_more(self) -> bool:
        """Whether there is one to be sent now."""
        if not self._waiting:
            following = self._source.next()
            if following is not None:
                self._waiting.append(PendingRequest(following))
        return bool(self._waiting)

    def take(self) -> PendingRequest:
        """The next one; there must be one, see `has_more`."""
        return self._waiting.popleft()

    def give_back(self, job: PendingRequest) -> None:
        """One that must be sent again."""
        self._waiting.append(job)

    def put_first(self, job: PendingRequest) -> None:
        """One that is to be sent before all others."""
        self._waiting.appendleft(job)


class Pause:
    """A time in which nothing is sent, because the server or the storage asked for it."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._until_s = 0.0
        self._since_s: Optional[float] = None

    @property
    def until_s(self) -> float:
        """When it ends, by the monotonic clock."""
        return self._until_s

    def begin(self, seconds: float, why: AccelError) -> None:
        """Send nothing for some seconds, a few more so that the clients do not all come back at once.

        A series of these longer than the patience gives the server up.
        """
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        if isinstance(why, UnavailableError) and now_s - self._since_s > self._patience_s:
            raise why
        self._until_s = now_s + min(seconds, LONGEST_PAUSE_S) * random.uniform(1.0, 1.25)

    def over(self) -> None:
        """The server answers again: the patience starts anew."""
        self._since_s = None

    def is_on(self) -> bool:
        """Whether nothing is to be sent now."""
        return time.monotonic() < self._until_s

    def sleep(self) -> None:
        """Until it ends."""
        time.sleep(max(0.0, self._until_s - time.monotonic()))
