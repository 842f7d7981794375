"""Cutting a stream of bytes into frames, with payloads received straight into the owner's buffers.

A frame is a fixed prefix (magic, kind, flags, header length, payload length, tag), the header, the payload
and, where a checksum was negotiated and there is a payload, the checksum of the payload.  Both lengths are
compared with the limits as soon as the prefix is there, before anything is allocated for them.

The receiver never owns payload memory.  When a frame with a payload has been announced, the owner says where
the payload goes (`FrameReceiver.take_payload`) or that it is not wanted (`skip_payload`); `wanted` then hands
out a view of exactly that memory, so that ``sock.recv_into(receiver.wanted())`` needs no copy.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Union

from yarn_accel.errors import LocalProtocolError, RemoteProtocolError

__all__ = [
    "CHECKSUMS",
    "FLAGS_NONE",
    "PREFIX_BYTES",
    "TAG_BYTES",
    "Buffer",
    "Frame",
    "FrameReceiver",
    "Limits",
    "pack_prefix",
    "payload_trailer",
]

Buffer = Union[bytes, bytearray, memoryview]

_MAGIC = b"YA"
_PREFIX = struct.Struct("!2sBBIQ")
TAG_BYTES = 16
PREFIX_BYTES = _PREFIX.size + TAG_BYTES
FLAGS_NONE = 0
_SCRATCH_BYTES = 64 * 1024

#: Checksum name -> running update(data, value), or None for no checksum.  The trailer is the value, 4 bytes.
CHECKSUMS: Dict[str, Optional[Callable[[Buffer, int], int]]] = {"crc32": zlib.crc32, "none": None}


@dataclass(frozen=True)
class Limits:
    """The largest header and payload, in bytes; a frame that announces more ends the connection."""

    header_bytes: int = 1024 * 1024
    payload_bytes: int = 1 << 40


@dataclass(frozen=True)
class Frame:
    """A frame up to and including its header; `payload_bytes` more follow."""

    kind: int
    prefix: bytes
    tag: bytes
    header: bytes
    payload_bytes: int


def pack_prefix(kind: int, header_bytes: int, payload_bytes: int) -> bytes:
    """The prefix without its tag."""
    return _PREFIX.pack(_MAGIC, kind, FLAGS_NONE, header_bytes, payload_bytes)


def payload_trailer(checksum: str, payload: Sequence[Buffer]) -> bytes:
    """The bytes that follow a payload: its checksum, or nothing."""
    update = CHECKSUMS[checksum]
    if update is None or not payload:
        return b""
    value = 0
    for part in payload:
        value = update(part, value)
    return value.to_bytes(4, "big")


class FrameReceiver:
    """Bytes in, frames out; see the module for the life of a payload.

    The owner repeats: read into `wanted`, report with `received`, then call `next_frame` until it returns
    None; after a frame with a payload, `take_payload` or `skip_payload`, then read on until `payload_done`.
    """

    def __init__(self, limits: Limits, checksum: str = "none") -> None:
        self.limits = limits
        self.checksum = checksum
        self._inbox = bytearray()
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._frame: Optional[Frame] = None
        self._views: Optional[List[memoryview]] = None
        self._left = 0
        self._trailer_left = 0
        self._value = 0
        self._checked = False

    @property
    def is_mid_frame(self) -> bool:
        """Whether some, but not all, bytes of a frame have arrived."""
        return bool(self._inbox) or self._frame is not None

    @property
    def payload_left(self) -> int:
        """Payload bytes of the current frame that have not arrived yet."""
        return self._left

    def wanted(self) -> memoryview:
        """Where the next bytes from the peer belong; never empty."""
        if self._views:
            return self._views[0]
        if self._frame is not None and self._views is not None and self._left:
            return self._scratch[: min(self._left, _SCRATCH_BYTES)]
        return self._scratch

    def received(self, n_bytes: int) -> None:
        """Say that `n_bytes` were read into `wanted`."""
        if self._views or (self._views is not None and self._left):
            self._count_payload(n_bytes)
        else:
            self._inbox += self._scratch[:n_bytes]

    def receive_data(self, data: Buffer) -> None:
        """Take bytes that the owner already has; same as reading them into `wanted`, but with a copy."""
        view = memoryview(data)
        while len(view):
            if self._views is not None and self._left:
                target = self.wanted()
                n_bytes = min(len(target), len(view))
                target[:n_bytes] = view[:n_bytes]
                self._count_payload(n_bytes)
                view = view[n_bytes:]
            else:
                self._inbox += view
                return

    def next_frame(self) -> Optional[Frame]:
        """The next frame's prefix and header, or None when more bytes are needed.

        Raises:
            RemoteProtocolError: not a frame of this protocol, or a length above the limits.
        """
        if self._frame is not None:
            raise LocalProtocolError("the payload of the frame before is still to be taken")
        if len(self._inbox) < PREFIX_BYTES:
            self._check_magic()
            return None
        _, kind, flags, header_bytes, payload_bytes = _PREFIX.unpack_from(self._inbox)
        self._check_magic()
        if flags != FLAGS_NONE:
            raise RemoteProtocolError("frame flags {:#x} are not known".format(flags))
        if header_bytes > self.limits.header_bytes:
            raise RemoteProtocolError(
                "a header of {} bytes, at most {} allowed".format(header_bytes, self.limits.header_bytes)
            )
        if payload_bytes > self.limits.payload_bytes:
            raise RemoteProtocolError(
                "a payload of {} bytes, at most {} allowed".format(payload_bytes, self.limits.payload_bytes)
            )
        end = PREFIX_BYTES + header_bytes
        if len(self._inbox) < end:
            return None
        prefix = bytes(self._inbox[: _PREFIX.size])
        tag = bytes(self._inbox[_PREFIX.size : PREFIX_BYTES])
        frame = Frame(kind, prefix, tag, bytes(self._inbox[PREFIX_BYTES:end]), payload_bytes)
        del self._inbox[:end]
        if payload_bytes:
            self._frame = frame
            self._views = None
            self._left = payload_bytes
        return frame

    def take_payload(self, views: Sequence[memoryview]) -> None:
        """Have the payload of the current frame written into these buffers, one after the other.

        Raises:
            LocalProtocolError: there is no payload to take, or the buffers have another total length.
        """
        self._start_payload(checked=True)
        flat = [view.cast("B") for view in views if view.nbytes]
        if sum(view.nbytes for view in flat) != self._left:
            raise LocalProtocolError(
                "buffers of another length than the payload's {} bytes".format(self._left)
            )
        self._views = flat
        self._drain_inbox()

    def skip_payload(self) -> None:
        """Throw the payload of the current frame away: no memory, no look at its checksum."""
        self._start_payload(checked=False)
        self._views = []
        self._drain_inbox()

    def payload_done(self) -> bool:
        """Whether the payload has arrived completely; True ends the frame.

        Raises:
            RemoteProtocolError: the checksum does not match.
        """
        if self._frame is None:
            raise LocalProtocolError("no payload is being received")
        if self._views is None or self._left or len(self._inbox) < self._trailer_left:
            return False
        told = int.from_bytes(self._inbox[: self._trailer_left], "big")
        if self._trailer_left and self._checked and told != self._value:
            raise RemoteProtocolError(
                "the {} of a payload does not match: damaged on the way".format(self.checksum)
            )
        del self._inbox[: self._trailer_left]
        self._frame = None
        self._views = None
        return True

    def _start_payload(self, checked: bool) -> None:
        if self._frame is None or self._views is not None:
            raise LocalProtocolError("there is no payload to take")
        self._value = 0
        self._checked = checked
        self._trailer_left = 0 if CHECKSUMS[self.checksum] is None else 4

    def _drain_inbox(self) -> None:
        early = bytes(self._inbox[: self._left])
        del self._inbox[: self._left]
        rest = bytes(self._inbox)
        self._inbox.clear()
        self.receive_data(early)
        self._inbox += rest

    def _count_payload(self, n_bytes: int) -> None:
        if n_bytes > self._left:
            raise LocalProtocolError("more bytes reported than were wanted")
        self._left -= n_bytes
        if not self._views:
            return
        view = self._views[0]
        update = CHECKSUMS[self.checksum]
        if update is not None:
            self._value = update(view[:n_bytes], self._value)
        if n_bytes == len(view):
            self._views.pop(0)
        else:
            self._views[0] = view[n_bytes:]

    def _check_magic(self) -> None:
        if self._inbox and not _MAGIC.startswith(bytes(self._inbox[: len(_MAGIC)])):
            raise RemoteProtocolError(
                "the peer does not speak this protocol (no frame begins with these bytes)"
            )
