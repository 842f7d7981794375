"""Shared memory that the server has lent to this connection, and who uses which segment now.

A segment is an mmap of a descriptor the server sent.  It has users: the requests that name it and are not
answered yet, and the views of it that the caller still holds (an answer that lies in it, or memory from
`Client.allocate`).  When the last user is gone it is free for the next request, unless the server lent it by
itself for an answer: then it is given back.

Segments stay mapped until the connection ends, so that their pages stay warm.  All of this belongs to the
thread of the client, but for the moment in which a view dies: that may be in any thread, so it only appends
to a deque.
"""

from __future__ import annotations

import collections
import mmap
from typing import Deque, Dict, List, Optional

from yarn_accel.client.memory import Region
from yarn_accel.errors import RemoteProtocolError
from yarn_accel.wire.messages import ALIGNMENT_BYTES

__all__ = ["LentMemory", "Segment", "aligned"]

_LEAST_BYTES = 64 * 1024
_REFUSED_S = 1.0


def aligned(n_bytes: int) -> int:
    """Where a tensor may begin that follows `n_bytes` of others."""
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Segment:
    """One lent segment.

    Attributes:
        is_ours: lent because we asked, so it is used again here; otherwise it is given back.
        n_users: requests under way and views that need its content.
    """

    __slots__ = ("id", "is_ours", "n_users", "region")

    def __init__(self, segment_id: int, region: Region, is_ours: bool) -> None:
        self.id = segment_id
        self.region = region
        self.is_ours = is_ours
        self.n_users = 0


class LentMemory:
    """The segments of one connection.

    Args:
        max_bytes: most that the server lends to a connection.
    """

    def __init__(self, max_bytes: int) -> None:
        #: Bytes of all segments of this connection.
        self.lent_bytes = 0
        self._max_bytes = max_bytes
        self._refused_bytes = 0
        self._refused_until_s = 0.0
        self._segments: Dict[int, Segment] = {}
        self._free: List[Segment] = []
        self._to_return: List[int] = []
        self._given_up: Dict[int, int] = {}
        self._dropped: Deque[Segment] = collections.deque()

    def add(self, segment_id: int, fd: int, n_bytes: int, is_ours: bool) -> Segment:
        """Map a segment that was just lent; the descriptor stays the caller's to close.

        Raises:
            RemoteProtocolError: the descriptor is not memory of that length, or the number is in use.
        """
        known = self._segments.get(segment_id)
        if known is not None and known.n_users:
            raise RemoteProtocolError("segment {} is lent again while it is in use".format(segment_id))
        try:
            region = Region(mmap.mmap(fd, n_bytes, flags=mmap.MAP_SHARED), n_bytes)
        except (OSError, ValueError) as error:
            raise RemoteProtocolError("a lent segment cannot be mapped: {}".format(error)) from None
        if known is not None:
            self.lent_bytes -= known.region.n_bytes
            self._free = [segment for segment in self._free if segment is not known]
        segment = Segment(segment_id, region, is_ours)
        self._segments[segment_id] = segment
        self._given_up.pop(segment_id, None)
        self.lent_bytes += n_bytes
        return segment

    def get(self, segment_id: int) -> Segment:
        """A segment by its number.

        Raises:
            RemoteProtocolError: it was never lent.
        """
        segment = self._segments.get(segment_id)
        if segment is None:
            raise RemoteProtocolError("an answer lies in segment {}, which was not lent".format(segment_id))
        return segment

    def take(self, n_bytes: int) -> Optional[Segment]:
        """The smallest free segment of at least that length, with one user from now on."""
        self._collect()
        best = None
        for segment in self._free:
            n_found = segment.region.n_bytes
            if n_found >= n_bytes and (best is None or n_found <= best.region.n_bytes):
                best = segment
        if best is not None:
            self._free.remove(best)
            best.n_users = 1
        return best

    def hold(self, segment: Segment) -> memoryview:
        """All of a segment as a view that is one more user until nothing made of it is left."""
        segment.n_users += 1
        return segment.region.lend(self._dropped.append, segment)

    def leave(self, segment: Segment) -> None:
        """One user less."""
        segment.n_users -= 1
        if segment.n_users == 0:
            if segment.is_ours:
                self._free.append(segment)
            else:
                self._to_return.append(segment.id)

    def give_up(self, segment: Segment) -> None:
        """One user less, of a call that was cancelled: the server may still be at work in it.

        So it goes back to the server, which lends it again when it is idle.
        """
        segment.is_ours = False
        self._given_up[segment.id] = segment.region.n_bytes
        self.leave(segment)

    def wish(self, n_bytes: int, now_s: float) -> int:
        """How much to ask for to hold inputs of that length and small outputs; 0: asking is pointless now."""
        left = self._max_bytes - self.lent_bytes + sum(self._given_up.values())
        is_refused = now_s < self._refused_until_s and n_bytes >= self._refused_bytes
        if n_bytes > left or is_refused:
            return 0
        return min(aligned(n_bytes) + max(_LEAST_BYTES, n_bytes // 8), left)

    def refused(self, n_bytes: int, now_s: float) -> None:
        """The server does not lend that much now: for a while it is not asked for as much again."""
        self._refused_bytes = n_bytes
        self._refused_until_s = now_s + _REFUSED_S

    def to_return(self) -> List[int]:
        """Numbers of the segments to give back to the server now; each is told once."""
        self._collect()
        told, self._to_return = self._to_return, []
        return told

    def _collect(self) -> None:
        while self._dropped:
            self.leave(self._dropped.popleft())
