"""Cutting a stream of bytes into frames, with payloads received straight into the owner's buffers.

A frame is a fixed prefix (magic, kind, length of the varying part, header length, payload length, tag), the
header, the payload and, where a checksum was negotiated and there is a payload, the checksum of the payload.
Both lengths are compared with the limits as soon as the prefix is there, before anything is allocated for
them; a header that does not fit the buffer makes it grow only as its bytes arrive.

The receiver never owns payload memory.  When a frame with a payload has been announced, the owner says where
the payload goes (`FrameReceiver.take_payload`) or that it is not wanted (`skip_payload`).  What had come
together with the header is copied once, at most one buffer; for the rest `wanted` hands out the owner's
memory itself, so that ``sock.recv_into(receiver.wanted())`` needs no copy, and each piece is added to the
checksum while it is still in the cache.
"""

import struct
from dataclasses import dataclass
from typing import List, NamedTuple, Optional, Sequence

from yarn_accel.errors import LocalProtocolError, RemoteProtocolError
from yarn_accel.wire.checksums import TRAILER_BYTES, Buffer, Checksum, checksum_maker
from yarn_accel.wire.tags import TAG_BYTES

_MAGIC = b"YA"
_UNTAGGED = struct.Struct("!2sBBIQ")
_PREFIX = struct.Struct("!2sBBIQ{}s".format(TAG_BYTES))
#: The prefix, without and with its tag.
UNTAGGED_BYTES = _UNTAGGED.size
PREFIX_BYTES = _PREFIX.size
_BUFFER_BYTES = 32 * 1024
_NO_BUFFER = memoryview(bytearray())


@dataclass(frozen=True)
class Limits:
    """The largest header and payload, in bytes; a frame that announces more ends the connection."""

    header_bytes: int = 1024 * 1024
    payload_bytes: int = 1 << 40


class Frame(NamedTuple):
    """A frame up to and including its header; `payload_bytes` more follow.

    Attributes:
        prefix: the first `UNTAGGED_BYTES`, as they came.
        varying_bytes: length of the header's varying part (see `codec`).
    """

    kind: int
    varying_bytes: int
    payload_bytes: int
    prefix: bytes
    tag: bytes
    header: bytes


def pack_prefix(kind: int, header_bytes: int, payload_bytes: int, varying_bytes: int = 0) -> bytes:
    """The prefix without its tag."""
    return _UNTAGGED.pack(_MAGIC, kind, varying_bytes, header_bytes, payload_bytes)


class FrameReceiver:
    """Bytes in, frames out; see the module for the life of a payload.

    The owner repeats: read into `wanted` (or `wanted_all`), report with `received`, then call `next_frame`
    until it returns None; after a frame with a payload, `take_payload` or `skip_payload`, then read on until
    `payload_done`.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._new_checksum = checksum_maker("none")
        self._trailer_bytes = 0
        # Bytes not looked at yet are _buffer[_start:_end].
        self._buffer = _NO_BUFFER
        self._start = 0
        self._end = 0
        # The payload of the current frame: announced, then taken (with views) or skipped (without).
        self._is_announced = False
        self._is_moving = False
        self._views: List[memoryview] = []
        self._left = 0
        self._checksum: Optional[Checksum] = None

    def use_checksum(self, name: str) -> None:
        """Expect this checksum behind every payload from now on."""
        self._new_checksum = checksum_maker(name)
        self._trailer_bytes = TRAILER_BYTES[name]

    @property
    def is_mid_frame(self) -> bool:
        """Whether some, but not all, bytes of a frame have arrived."""
        return self._end > self._start or self._is_announced

    @property
    def payload_left(self) -> int:
        """Payload bytes of the current frame that have not arrived yet."""
        return self._left

    def rest(self) -> None:
        """Free the buffer if nothing is in it; the next `wanted` makes a new one."""
        if not self.is_mid_frame:
            self._buffer = _NO_BUFFER
            self._start = self._end = 0

    def wanted(self) -> memoryview:
        """Where the next bytes from the peer belong; never empty."""
        if self._is_moving and self._left:
            return self._views[0] if self._views else self._space()[: self._left]
        return self._space()

    def wanted_all(self) -> List[memoryview]:
        """Where the next bytes belong, with what may follow the payload, for one ``recvmsg_into``."""
        if self._is_moving and self._left:
            return [*self._views, self._space()] if self._views else [self._space()[: self._left]]
        return [self._space()]

    def received(self, n_bytes: int) -> None:
        """Say that `n_bytes` were read into `wanted` or `wanted_all`."""
        if not self._left or not self._is_moving:
            self._end += n_bytes
        elif self._views:
            self._end += self._count_payload(n_bytes)
        else:
            self._left -= n_bytes
        if self._end > len(self._buffer) or self._left < 0:
            raise LocalProtocolError("more bytes reported than were wanted")

    def receive_data(self, data: Buffer) -> None:
        """Take bytes that the owner already has; same as reading them into `wanted`, but with a copy."""
        view = memoryview(data)
        while len(view) and self._is_moving and self._left:
            target = self.wanted()
            n_bytes = min(len(target), len(view))
            target[:n_bytes] = view[:n_bytes]
            self.received(n_bytes)
            view = view[n_bytes:]
        if len(view):
            if len(self._buffer) - self._end < len(view):
                self._move_to(max(_BUFFER_BYTES, self._end - self._start + len(view)))
            self._buffer[self._end : self._end + len(view)] = view
            self._end += len(view)

    def next_frame(self) -> Optional[Frame]:
        """The next frame's prefix and header, or None when more bytes are needed.

        Raises:
            RemoteProtocolError: not a frame of this protocol, or a length above the limits.
        """
        if self._is_announced:
            raise LocalProtocolError("the payload of the frame before is still to be taken")
        start, stop = self._start, self._end
        if start == stop:
            return None
        head_end = start + PREFIX_BYTES
        if stop < head_end:
            _check_magic(bytes(self._buffer[start : min(stop, start + len(_MAGIC))]))
            return None
        magic, kind, varying, header_bytes, payload_bytes, tag = _PREFIX.unpack_from(self._buffer, start)
        if magic != _MAGIC:
            _check_magic(magic)
        limits = self.limits
        if header_bytes > limits.header_bytes or payload_bytes > limits.payload_bytes:
            raise _too_long(header_bytes, payload_bytes, limits)
        end = head_end + header_bytes
        if stop < end:
            return None
        whole = bytes(self._buffer[start:end])
        frame = Frame(kind, varying, payload_bytes, whole[:UNTAGGED_BYTES], tag, whole[PREFIX_BYTES:])
        self._start = end
        self._is_announced = payload_bytes > 0
        self._left = payload_bytes
        return frame

    def take_payload(self, views: Sequence[memoryview]) -> None:
        """Have the payload of the current frame written into these buffers, one after the other.

        Raises:
            LocalProtocolError: there is no payload to take, or the buffers have another total length.
        """
        self._check_announced()
        flat = [view.cast("B") for view in views if view.nbytes]
        if sum(map(len, flat)) != self._left:
            raise LocalProtocolError(
                "buffers of another length than the payload's {} bytes".format(self._left)
            )
        self._views = flat
        self._checksum = self._new_checksum()
        self._is_moving = True
        while flat and self._end > self._start:
            n_bytes = min(len(flat[0]), self._end - self._start)
            flat[0][:n_bytes] = self._buffer[self._start : self._start + n_bytes]
            self._start += n_bytes
            self._count_payload(n_bytes)

    def arrived_payload(self) -> Optional[memoryview]:
        """The payload of the current frame if all of it came with the header, which ends the frame.

        None: there is more to come, so `take_payload`.  The view is good until more bytes are received.

        Raises:
            RemoteProtocolError: the checksum does not match.
        """
        end = self._start + self._left
        stop = end + self._trailer_bytes
        if self._end < stop or not self._is_announced or self._is_moving:
            return None
        payload = self._buffer[self._start : end]
        if self._trailer_bytes:
            checksum = self._new_checksum()
            checksum.update(payload)
            _check_trailer(self._buffer[end:stop], checksum)
        self._start = stop
        self._left = 0
        self._is_announced = False
        return payload

    def skip_payload(self) -> None:
        """Throw the payload of the current frame away: no memory, no look at its checksum."""
        self._check_announced()
        self._views = []
        self._checksum = None
        self._is_moving = True
        n_bytes = min(self._left, self._end - self._start)
        self._start += n_bytes
        self._left -= n_bytes

    def payload_done(self) -> bool:
        """Whether the payload has arrived completely; True ends the frame.

        Raises:
            RemoteProtocolError: the checksum does not match.
        """
        if not self._is_moving:
            return False
        end = self._start + self._trailer_bytes
        if self._left or self._end < end:
            return False
        trailer = self._buffer[self._start : end]
        if self._trailer_bytes and self._checksum is not None:
            _check_trailer(trailer, self._checksum)
        self._start = end
        self._is_announced = self._is_moving = False
        return True

    def _check_announced(self) -> None:
        if not self._is_announced or self._is_moving:
            raise LocalProtocolError("there is no payload to take")

    def _count_payload(self, n_bytes: int) -> int:
        """Add received bytes to the checksum; returns how many of them lie behind the payload."""
        views = self._views
        while views and n_bytes:
            view = views[0]
            if n_bytes < len(view):
                views[0] = view[n_bytes:]
                view = view[:n_bytes]
            else:
                del views[0]
            if self._trailer_bytes and self._checksum is not None:
                self._checksum.update(view)
            self._left -= len(view)
            n_bytes -= len(view)
        return n_bytes

    def _space(self) -> memoryview:
        """The free end of the buffer, after making some if there is none."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) != _BUFFER_BYTES:
                self._buffer = memoryview(bytearray(_BUFFER_BYTES))
            return self._buffer
        if self._end == len(self._buffer):
            held = self._end - self._start
            if held >= PREFIX_BYTES + self.limits.header_bytes:
                raise LocalProtocolError("events must be taken before more can be received")
            self._move_to(max(_BUFFER_BYTES, min(2 * held, PREFIX_BYTES + self.limits.header_bytes)))
        return self._buffer[self._end :]

    def _move_to(self, n_bytes: int) -> None:
        """Move what the buffer holds to the front of a new one of this size."""
        held = self._end - self._start
        buffer = memoryview(bytearray(n_bytes))
        buffer[:held] = self._buffer[self._start : self._end]
        self._buffer, self._start, self._end = buffer, 0, held


def _too_long(header_bytes: int, payload_bytes: int, limits: Limits) -> RemoteProtocolError:
    what, n_bytes, most = "header", header_bytes, limits.header_bytes
    if n_bytes <= most:
        what, n_bytes, most = "payload", payload_bytes, limits.payload_bytes
    return RemoteProtocolError("a {} of {} bytes, at most {} allowed".format(what, n_bytes, most))


def _check_trailer(trailer: memoryview, checksum: Checksum) -> None:
    if trailer != checksum.digest():
        raise RemoteProtocolError("the checksum of a payload does not match: damaged on the way")


def _check_magic(begin: bytes) -> None:
    if not _MAGIC.startswith(begin):
        raise RemoteProtocolError("the peer does not speak this protocol (no frame begins with these bytes)")
