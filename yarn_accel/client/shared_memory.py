"""The memory of inputs and answers: a pool for answers, and segments that the server lends to a connection.

An answer is handed out as views of memory that this module owns.  Each time memory is handed out, one ctypes
array is laid over all of it, and every view (memoryview or numpy array) keeps that array alive; when the last
of them dies, so does the array, and a `DropQueue` hears of it.  No copy, and nothing to close.  Views die in
any thread and in the middle of anything, so all that happens then is an append to a deque, which is no Python
function: a signal handler that ran within a finalizer could not raise anything to its caller.

Large answers that come through the socket are received into memory of a `ReplyPool`, which keeps what comes
back: fresh memory costs a page fault every 4 KiB, which for large answers is more than the transfer itself.

On the server's own node, large inputs and answers go through *segments*: an mmap of a descriptor that the
server sent.  Inputs are copied into one once, or not at all if they lie in what `Client.empty` gave, which is
seen by their addresses; answers are views of one.  The users of a segment are the requests that name it and
have no answer yet, and the views that the caller holds.  A segment without users serves the next request; one
that the server granted by itself for an answer is returned.  Segments stay mapped until the connection ends,
which keeps their pages warm.  Only the client's thread changes this state; a view may be dropped in any
thread, which a `DropQueue` notes.

A view is good for as long as somebody holds it: whatever becomes of client, connection and server, its pages
are the mapping's, and the server gives memory of a connection to no other one.  A child process sees the same
pages as its parent.  So a segment of which views were held across a fork is never used again by the parent,
as the child may hold them still: it is lost to the connection.
"""

from __future__ import annotations

import collections
import mmap
import os
import weakref
from typing import Any, Deque, Dict, Iterator, List, Optional, Sequence, Tuple

from yarn_accel.client.calls import Call, Tensor
from yarn_accel.client.signal_errors import reraise_from_signal
from yarn_accel.errors import RemoteProtocolError
from yarn_accel.wire import ALIGNMENT_BYTES, Buffer, Placement, Result

#: Smaller answers get memory of their own: malloc is quicker than a finalizer.
POOL_FROM_BYTES = 256 * 1024
#: Inputs of at least this length go through a segment if there is one; measured: both take equally long.
SHARED_MEMORY_MIN_BYTES = 64 * 1024
_IDLE_BYTES = 256 * 1024 * 1024
_PAGE = 4096
_LEAST_BYTES = 64 * 1024
_REFUSED_S = 1.0


_forks: List[None] = []
"""Two for each fork of this process, before and after it."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: _forks.append(None), after_in_parent=lambda: _forks.append(None))


def aligned(n_bytes: int) -> int:
    """Where a tensor may begin that follows `n_bytes` of others."""
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class _DropRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference with the owner that the queue gives when the subject has died."""

    __slots__ = ("owner",)
    owner: Any


class DropQueue:
    """Collects what was watched and has died since `take` was called last."""

    def __init__(self) -> None:
        self._watched: Dict[int, _DropRef] = {}
        self._dead: Deque[_DropRef] = collections.deque()

    def watch(self, subject: object, owner: object) -> None:
        """Have `take` give `owner` when `subject` has died."""
        reference = _DropRef(subject, self._dead.append)
        reference.owner = owner
        self._watched[id(reference)] = reference

    def take(self) -> Iterator[Any]:
        """The owners of what has died, each once for each time it was watched."""
        while self._dead:
            yield self._watched.pop(id(self._dead.popleft())).owner


class Region:
    """A mapping of which views are handed out.

    Args:
        mapping: the memory.
        n_bytes: its length.

    Raises:
        ImportError: this Python was built without ctypes.
    """

    __slots__ = ("_kind", "_mapping", "address", "n_bytes", "view")

    def __init__(self, mapping: mmap.mmap, n_bytes: int) -> None:
        import ctypes

        self.n_bytes = n_bytes
        #: The memory itself, for the owner; it keeps nothing but the mapping alive.
        self.view = memoryview(mapping)
        self._mapping = mapping
        self._kind: Any = ctypes.c_ubyte * n_bytes
        self.address: int = ctypes.addressof(self._kind.from_buffer(mapping))

    def lend(self, drops: DropQueue, owner: object) -> memoryview:
        """All of the memory as a view; `drops` gets the owner when nothing made of that view is left."""
        whole = self._kind.from_buffer(self._mapping)
        drops.watch(whole, owner)
        return memoryview(whole).cast("B")


class ReplyPool:
    """Memory for large answers, used again when the caller has dropped the last array of an answer.

    Args:
        idle_bytes: most that is kept while nobody uses it.
    """

    def __init__(self, idle_bytes: int = _IDLE_BYTES) -> None:
        self._idle: Deque[Region] = collections.deque()
        self._drops = DropQueue()
        self._idle_limit_bytes = idle_bytes

    def take(self, n_bytes: int) -> memoryview:
        """Writable memory of that length; its content is arbitrary."""
        region = self._fitting(n_bytes)
        if region is None:
            region = _map(n_bytes)
        return region.lend(self._drops, region)[:n_bytes]

    def buffers(self, sizes: Sequence[int]) -> List[memoryview]:
        """Buffers of these lengths, cut from one piece."""
        whole = self.take(max(1, sum(aligned(n_bytes) for n_bytes in sizes)))
        found = []
        offset = 0
        for n_bytes in sizes:
            found.append(whole[offset : offset + n_bytes])
            offset += aligned(n_bytes)
        return found

    def _fitting(self, n_bytes: int) -> Optional[Region]:
        """An idle region that is not much too large; the pool is brought below its limit on the way."""
        self._idle.extend(self._drops.take())
        found = None
        kept_bytes = 0
        for _ in range(len(self._idle)):
            region = self._idle.pop()
            if found is None and n_bytes <= region.n_bytes <= 2 * n_bytes:
                found = region
            elif kept_bytes + region.n_bytes <= self._idle_limit_bytes:
                kept_bytes += region.n_bytes
                self._idle.appendleft(region)
        return found


def _map(n_bytes: int) -> Region:
    length = -(-n_bytes // _PAGE) * _PAGE
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE)
        except OSError as error:  # a kernel without them
            reraise_from_signal(error)
    return Region(mapping, length)


class SharedSegment:
    """One granted segment.

    Attributes:
        is_reusable: granted at the request of this client, which keeps it; others are returned after use.
        n_users: requests under way and views that need its content.
        n_forks: of this process, when the first view was handed out; None: none was.
    """

    __slots__ = ("id", "is_reusable", "n_forks", "n_users", "region")

    def __init__(self, segment_id: int, region: Region, is_reusable: bool) -> None:
        self.id = segment_id
        self.region = region
        self.is_reusable = is_reusable
        self.n_users = 0
        self.n_forks: Optional[int] = None


class SharedMemory:
    """The segments of one connection.

    Args:
        max_bytes: most that the server lends to a connection.

    Attributes:
        n_bytes: of all segments of this connection.
    """

    def __init__(self, max_bytes: int) -> None:
        self.n_bytes = 0
        self._max_bytes = max_bytes
        self._refused_bytes = 0
        self._refused_until_s = 0.0
        self._segments: Dict[int, SharedSegment] = {}
        self._free: List[SharedSegment] = []
        self._callers: Dict[int, SharedSegment] = {}
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
        if segment.n_forks is None:
            segment.n_forks = len(_forks)
        return segment.region.lend(self._drops, segment)

    def release(self, segment: SharedSegment) -> None:
        """Remove one user."""
        segment.n_users -= 1
        if segment.n_users == 0:
            self._callers.pop(segment.id, None)
            n_forks, segment.n_forks = segment.n_forks, None
            if n_forks is not None and n_forks != len(_forks):
                return
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

    # Tensors in segments

    def needed_bytes(self, call: Call) -> int:
        """Length of the segment that the inputs of a call are to be put into; 0: none.

        A server takes inputs there only if none is a reference.
        """
        n_bytes = 0
        for item in call.inputs:
            if type(item) is not Tensor:
                return 0
            n_bytes += aligned(item.spec.nbytes)
        return n_bytes if n_bytes >= SHARED_MEMORY_MIN_BYTES else 0

    def found(self, call: Call, payload: Sequence[Buffer]) -> Optional[Tuple[Placement, SharedSegment]]:
        """Where the inputs of a call lie, if all do in one segment whose content is the caller's own.

        The segment has one more user then; what lies there must stay unchanged. A server takes inputs only
        where an aligned place begins.

        Args:
            payload: their bytes.
        """
        if not self._callers or len(payload) != len(call.inputs):
            return None
        segment, offsets = None, []
        for part in payload:
            address = _address_of(part)
            if segment is None:
                segment = self._caller_segment(address)
            if segment is None or address is None:
                return None
            offset = address - segment.region.address
            if offset % ALIGNMENT_BYTES or not 0 <= offset <= segment.region.n_bytes - len(part):
                return None
            offsets.append(offset)
        if segment is None:
            return None
        segment.n_users += 1
        return Placement(segment.id, tuple(offsets)), segment

    def _caller_segment(self, address: Optional[int]) -> Optional[SharedSegment]:
        if address is not None:
            for segment in self._callers.values():
                if 0 <= address - segment.region.address < segment.region.n_bytes:
                    return segment
        return None

    def place(self, payload: Sequence[Buffer], segment: SharedSegment) -> Placement:
        """Put the inputs of a call into a segment.

        Args:
            payload: their bytes.
        """
        placed = []
        offset = 0
        for part in payload:
            segment.region.view[offset : offset + len(part)] = part
            placed.append(offset)
            offset += aligned(len(part))
        return Placement(segment.id, tuple(placed))

    def tensors_of(self, result: Result, placement: Placement) -> Dict[str, Tensor]:
        """The tensors of a result that lies in a segment.

        Raises:
            RemoteProtocolError: it does not lie inside a segment of this connection.
        """
        segment = self.get(placement.segment)
        whole = self.hold(segment)
        tensors = {}
        for item, offset in zip(result.tensors, placement.offsets):  # noqa: B905 -- Python 3.8
            end = offset + item.spec.nbytes
            if end > segment.region.n_bytes:
                raise RemoteProtocolError("an answer lies beyond the end of segment {}".format(segment.id))
            tensors[item.name] = Tensor(item.spec, whole[offset:end])
        return tensors

    def empty(self, n_bytes: int, segment: SharedSegment) -> memoryview:
        """Memory of arbitrary content in a segment, whose one user it becomes."""
        whole = self.hold(segment)
        self.release(segment)
        self._callers[segment.id] = segment
        return whole[:n_bytes]

    def _collect(self) -> None:
        for segment in self._drops.take():
            self.release(segment)


def _address_of(part: Buffer) -> Optional[int]:
    """Where a buffer begins; None: it is empty, or cannot be written to, as `Client.empty` gives none."""
    import ctypes

    view = memoryview(part)
    if view.readonly or not view.nbytes:
        return None
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
