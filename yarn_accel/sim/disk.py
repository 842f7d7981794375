"""A node's disk, shared max-min among those who read from it; its capacity falls with their number.

With n readers it gives ``bandwidth / (1 + gamma * (n - 1))`` bytes per second in all. No reader gets more
than it can use; what one leaves goes to the others in equal parts. Only the rates that change are worked out
again, so an undisturbed reader ends exactly when it would end alone.
"""

from __future__ import annotations

import bisect
import math
from typing import Generic, TypeVar

Owner = TypeVar("Owner")

#: Ends this close together are one moment: what is left of a read is then no more than a rounding error.
_SAME_MOMENT_S = 1e-9


class Reader(Generic[Owner]):
    """One stream of bytes off a disk.

    Attributes:
        owner: whose it is.
        limit_bytes_per_s: the most it can use.
        rate_bytes_per_s: what it gets now.
        is_alone: nobody else has read so far while it did.
        started_s: when it began.
        end_s: when it will have read all, as things stand.
    """

    __slots__ = (
        "_left_bytes",
        "_since_s",
        "end_s",
        "is_alone",
        "limit_bytes_per_s",
        "owner",
        "rate_bytes_per_s",
        "started_s",
    )

    def __init__(self, owner: Owner, size_bytes: float, limit_bytes_per_s: float, now_s: float) -> None:
        self.owner = owner
        self.limit_bytes_per_s = limit_bytes_per_s
        self.is_alone = True
        self.started_s = now_s
        self.end_s = math.inf
        self._left_bytes = size_bytes
        self.rate_bytes_per_s = 0.0
        self._since_s = now_s

    def set_rate(self, bytes_per_s: float, now_s: float) -> None:
        """Go on at another rate from now."""
        self._left_bytes -= self.rate_bytes_per_s * (now_s - self._since_s)
        self._since_s = now_s
        self.rate_bytes_per_s = bytes_per_s
        self.end_s = now_s + max(self._left_bytes, 0.0) / bytes_per_s


class SharedDisk(Generic[Owner]):
    """The disk, or the link to the storage, of one node.

    Attributes:
        io_bytes_per_s: what it gives now, to all readers.
        requested_bytes_per_s: what its readers could use.
        next_end_s: when the first of them will have read all; infinite without readers.
    """

    __slots__ = (
        "_bandwidth_bytes_per_s",
        "_gamma",
        "_readers",
        "_since_s",
        "_total_bytes",
        "io_bytes_per_s",
        "next_end_s",
        "requested_bytes_per_s",
    )

    def __init__(self, bandwidth_bytes_per_s: float, gamma: float) -> None:
        self._bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self._gamma = gamma
        # By what they can use, the least first: equal readers give equal sums, in whatever order they came.
        self._readers: list[Reader[Owner]] = []
        self._total_bytes = 0.0
        self._since_s = 0.0
        self.io_bytes_per_s = 0.0
        self.requested_bytes_per_s = 0.0
        self.next_end_s = math.inf

    @property
    def n_readers(self) -> int:
        """#IOtask: how many read now."""
        return len(self._readers)

    def total_bytes(self, now_s: float) -> float:
        """What it has given so far."""
        return self._total_bytes + self.io_bytes_per_s * (now_s - self._since_s)

    def capacity_bytes_per_s(self, n_readers: int) -> float:
        """What it gives in all to so many readers that could use more."""
        return self._bandwidth_bytes_per_s / (1.0 + self._gamma * max(n_readers - 1, 0))

    def add(self, reader: Reader[Owner], now_s: float) -> None:
        """Let somebody read."""
        bisect.insort(self._readers, reader, key=lambda each: each.limit_bytes_per_s)
        if len(self._readers) > 1:
            for each in self._readers:
                each.is_alone = False
        self._share(now_s)

    def remove(self, reader: Reader[Owner], now_s: float) -> None:
        """Let one stop before its end."""
        self._readers.remove(reader)
        self._share(now_s)

    def ended(self, now_s: float) -> list[Reader[Owner]]:
        """Take out those that have read all by now."""
        done = [each for each in self._readers if each.end_s <= now_s + _SAME_MOMENT_S]
        if done:
            self._readers = [each for each in self._readers if each.end_s > now_s + _SAME_MOMENT_S]
            self._share(now_s)
        return done

    def _share(self, now_s: float) -> None:
        self._total_bytes, self._since_s = self.total_bytes(now_s), now_s
        readers = self._readers
        n_left = len(readers)
        left = self.capacity_bytes_per_s(n_left)
        io, requested, next_end_s = 0.0, 0.0, math.inf
        for reader in readers:
            limit = reader.limit_bytes_per_s
            share = left / n_left
            rate = limit if limit <= share else share
            if rate != reader.rate_bytes_per_s:
                reader.set_rate(rate, now_s)
            left -= rate
            n_left -= 1
            io += rate
            requested += limit
            if reader.end_s < next_end_s:
                next_end_s = reader.end_s
        self.io_bytes_per_s = io
        self.requested_bytes_per_s = requested
        self.next_end_s = next_end_s
