"""Segments of shared memory that the server lends to one connection, and how many users each has.

A segment is an mmap of a descriptor that the server sent. Its users are the requests that name it and have no
answer yet, and the views that the caller holds: an answer in it, or memory from `Client.allocate`. A segment
without users serves the next request; one that the server granted by itself for an answer is returned.

Segments stay mapped until the connection ends, which keeps their pages warm. Only the client's thread changes
this state, with one exception: a view may be dropped in any thread, which a `DropQueue` notes.
"""

from __future__ import annotations

import mmap
from typing import Dict, List, Optional

from yarn_accel.client.memory import DropQueue, Region
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.errors import RemoteProtocolError
from yarn_accel.wire.messages import ALIGNMENT_BYTES

_LEAST_BYTES = 64 * 1024
_REFUSED_S = 1.0


def aligned(n_bytes: int) -> int:
    """Where a tensor may begin that follows `n_bytes` of others."""
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class SharedSegment:
    """One granted segment.

    Attributes:
        is_reusable: granted at the request of this client, which keeps it; others are returned after use.
        n_users: requests under way and views that need its content.
    """

    __slots__ = ("id", "is_reusable", "n_users", "region")

    def __init__(self, segment_id: int, region: Region, is_reusable: bool) -> None:
        self.id = segment_id
        self.region = region
        self.is_reusable = is_reusable
        self.n_users = 0


class SharedMemory:
    """The segments of one connection.

    Args:
        max_bytes: most that the server lends to a connection.
    """

    def __init__(self, max_bytes: int) -> None:
        #: Bytes of all segments of this connection.
        self.n_bytes = 0
        self._max_bytes = max_bytes
        self._refused_bytes = 0
        self._refused_until_s = 0.0
        self._segments: Dict[int, SharedSegment] = {}
        self._free: List[SharedSegment] = []
        self._to_return: List[int] = []
        self._retired: Dict[int, int] = {}
        self._drops = DropQueue()

    def add(self, segment_id: int, fd: int, n_bytes: int, is_reusable: bool) -> SharedSegment:
        """Map a segment that was just granted; the descriptor stays the caller's to close.

        Raises:
            RemoteProtocolError: the descriptor is not memory of that length, or the number is in use.
        """
        known = self._segments.get(segment_id)
        if known is not None and known.n_users:
            raise RemoteProtocolError("segment {} is granted again while it is in use".format(segment_id))
        try:
            region = Region(mmap.mmap(fd, n_bytes, flags=mmap.MAP_SHARED), n_bytes)
        except (OSError, ValueError) as error:
            reraise_from_signal(error)
            raise RemoteProtocolError("a granted segment cannot be mapped: {}".format(error)) from None
        if known is not None:
            self.n_bytes -= known.region.n_bytes
            self._free = [segment for segment in self._free if segment is not known]
        segment = SharedSegment(segment_id, region, is_reusable)
        self._segments[segment_id] = segment
        self._retired.pop(segment_id, None)
        self.n_bytes += n_bytes
        return segment

    def get(self, segment_id: int) -> SharedSegment:
        """A segment by its number.

        Raises:
            RemoteProtocolError: it was never granted.
        """
        segment = self._segments.get(segment_id)
        if segment is None:
            raise RemoteProtocolError(
                "an answer lies in segment {}, which was not granted".format(segment_id)
            )
        return segment

    def take(self, n_bytes: int) -> Optional[SharedSegment]:
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

    def hold(self, segment: SharedSegment) -> memoryview:
        """All of a segment as a view that is one more user until nothing made of it is left."""
        segment.n_users += 1
        return segment.region.lend(self._drops, segment)

    def release(self, segment: SharedSegment) -> None:
        """Remove one user."""
        segment.n_users -= 1
        if segment.n_users == 0:
            if segment.is_reusable:
                self._free.append(segment)
            else:
                self._to_return.append(segment.id)

    def retire(self, segment: SharedSegment) -> None:
        """Remove the user that was a cancelled call, and return the segment to the server.

        The server may still write to it, so it lends it again only when that has ended.
        """
        segment.is_reusable = False
        self._retired[segment.id] = segment.region.n_bytes
        self.release(segment)

    def bytes_to_request(self, n_bytes: int, now_s: float) -> int:
        """Bytes to request for inputs of that length and small outputs; 0: the server would refuse now."""
        left = self._max_bytes - self.n_bytes + sum(self._retired.values())
        is_refused = now_s < self._refused_until_s and n_bytes >= self._refused_bytes
        if n_bytes > left or is_refused:
            return 0
        return min(aligned(n_bytes) + max(_LEAST_BYTES, n_bytes // 8), left)

    def note_refusal(self, n_bytes: int, now_s: float) -> None:
        """Request no segment of that length or longer for the next `_REFUSED_S` seconds."""
        self._refused_bytes = n_bytes
        self._refused_until_s = now_s + _REFUSED_S

    def segments_to_return(self) -> List[int]:
        """Numbers of the segments to return to the server now; each appears once."""
        self._collect()
        reported, self._to_return = self._to_return, []
        return reported

    def _collect(self) -> None:
        for segment in self._drops.take():
            self.release(segment)
