"""What a dispatcher knows of one server: its connection, its requests, and when it may be asked again."""

from __future__ import annotations

from typing import List, Optional

from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call
from yarn_accel.errors import AccelError

#: Seconds for which a server that failed is passed over; they double with every failure of a new try.
FIRST_BACKOFF_S = 10.0
LONGEST_BACKOFF_S = 120.0
#: Where there is no other, it is tried again after these pauses, and a busy one after as long as it asks for.
_FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class DispatchedCall:
    """A call without outcome so far.

    Attributes:
        server: where it was sent; None: it waits, or is computed on this node.
        n_attempts: how many servers were lost with it.
        n_moves: how often it was moved while it waited at a server.
        target: name of the server it is to go to next; empty: any.
        is_recalled: its cancellation was asked for.
        is_cancelled: the caller asked for that; it goes nowhere else.
        storage_failed_s: when its storage failed first; None: it did not.
        sent_s: when it was sent.
        expected_s: what it should take at its server.
        seq: the report of the server's load by which that server was chosen.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.server: Optional[ServerState] = None
        self.n_attempts = 0
        self.n_moves = 0
        self.target = ""
        self.is_recalled = self.is_cancelled = False
        self.storage_failed_s: Optional[float] = None
        self.sent_s = 0.0
        self.expected_s = 0.0
        self.seq = -1


class ServerState:
    """A server.

    Attributes:
        calls: what was sent there and has no answer, oldest first.
        is_open: there is a connection.
        is_draining: that takes nothing new.
        is_doubted: others say that it does not work.
        error: why there is no connection.
        retry_s: it is not connected to before this.
        failed_s: when the connection ended, or could not be opened.
        n_failures: how often that has happened in a row.
        failed_until_s: others are preferred until then.
        busy_until_s: nothing is sent there before this.
        busy_text: why, in a sentence: what the server answered, or what its storage did.
        busy_since_s: since when all its answers were "not now"; None: the last one was another.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.calls: List[DispatchedCall] = []
        self.is_open = self.is_draining = self.is_doubted = False
        self.error: Optional[AccelError] = None
        self.retry_s = self.failed_until_s = self.busy_until_s = 0.0
        self.busy_since_s: Optional[float] = None
        self.busy_text = ""
        self.failed_s = -1.0
        self.n_failures = 0
        self._backoff_s = 0.0
        self._pause_s = 0.0

    def is_ready(self, now_s: float) -> bool:
        """Whether it takes requests and has not just failed; it may still be busy, or not connected."""
        return not self.is_draining and now_s >= self.failed_until_s

    def record_failure(self, now_s: float) -> None:
        """Prefer others for a while; a failure during that while changes nothing."""
        if now_s < self.failed_until_s:
            return
        if now_s > self.failed_until_s + LONGEST_BACKOFF_S:
            self._backoff_s = 0.0
        self._backoff_s = min(2 * self._backoff_s, LONGEST_BACKOFF_S) or FIRST_BACKOFF_S
        self.failed_until_s = now_s + self._backoff_s

    def record_success(self) -> None:
        """It answers."""
        self._backoff_s = self._pause_s = self.failed_until_s = 0.0
        self.busy_since_s = None

    def connected(self) -> None:
        """A connection was opened."""
        self.is_open, self.is_draining, self.is_doubted = True, False, False
        self.error = None
        self.n_failures = 0
        self.busy_until_s = 0.0
        self.busy_since_s = None

    def failed(self, now_s: float, jitter: float) -> None:
        """The connection ended, or none could be opened."""
        self.failed_s = now_s
        self.n_failures += 1
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) or _FIRST_PAUSE_S
        self.retry_s = now_s + self._pause_s * jitter
        self.record_failure(now_s)
