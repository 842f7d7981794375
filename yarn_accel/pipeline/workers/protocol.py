"""How owner and worker talk: messages over a pair of SOCK_SEQPACKET sockets, descriptors beside them.

A message is one packet.  Its first byte says which:

- ``{``: a JSON object, for all that is rare: a shape is registered, a segment is mapped or dropped, ...
- ``RUN``: jobs, as packed numbers.  What repeats between jobs (operation, parameters, description of the
  inputs) was registered as a *template* before and is named by its number.
- ``DONE``: answers, likewise; what repeats (names and descriptions of outputs) is a registered *layout*.
- ``ELSEWHERE``: the message is too long for a packet; it lies in the memfd that comes with it.

Sending therefore never waits for a busy receiver, whatever the size of a batch.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
import struct
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from yarn_accel.wire.tensors import TensorSpec

RUN, DONE, ELSEWHERE = 1, 2, 3
#: kind, number of jobs
HEAD = struct.Struct("<BxxxI")
#: id, template, may it overwrite, is it computed alone, output segment, offset, bytes, when it is due; then
#: segment and offset of each input
JOB_HEAD = struct.Struct("<QI??xxQQQd")
#: id, has it failed, are inputs overwritten, tensors, layout, bytes of text, compute_s, kernel_s;
#: then segment and offset of each tensor, then the text: JSON of info, or of the error
DONE_HEAD = struct.Struct("<Q??HIIdd")
PLACE = struct.Struct("<QQ")
#: Templates and layouts remembered by both ends; the number used longest ago is given anew.
MAX_SLOTS = 1024

_MAX_PACKET_BYTES = 32768
_MAX_MESSAGE_BYTES = 64 << 20
_MAX_FDS = 128
_ANCILLARY_BYTES = socket.CMSG_SPACE(_MAX_FDS * 4)
_AREAS: dict[int, struct.Struct] = {}
_JOBS: dict[int, struct.Struct] = {}

encode = json.JSONEncoder(separators=(",", ":")).encode
decode = json.JSONDecoder().decode


class Channel:
    """One end of the pair."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, message: bytes, fds: Sequence[int] = ()) -> None:
        """Send one message; at most 128 descriptors.

        Raises:
            OSError: the other end is gone.
        """
        if len(message) > _MAX_PACKET_BYTES:
            self._send_elsewhere(message)
        elif fds:
            self._socket.sendmsg([message], [_rights(fds)])
        else:
            self._socket.send(message, socket.MSG_NOSIGNAL)

    def receive(self) -> tuple[bytes, list[int]]:
        """The next message and its descriptors, which the caller closes; empty when the other end is gone.

        Raises:
            ValueError: a message longer than 64 MiB, or one without its memfd.
        """
        try:
            message, ancillary, _, _ = self._receive()
        except ConnectionResetError:
            # Linux says first that the other end left something unread, once; what it sent comes after that.
            message, ancillary, _, _ = self._receive()
        if not ancillary:
            return message, []
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        if message[0] != ELSEWHERE:
            return message, list(fds)
        return _read_elsewhere(list(fds)), []

    def is_readable(self, timeout_s: float) -> bool:
        """Whether a message, or the end, is there by then."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(1000 * timeout_s))

    def close(self) -> None:
        """Close this end, which the other one takes as the end; also wakes who waits in `receive`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _receive(self) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        return self._socket.recvmsg(_MAX_PACKET_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)

    def _send_elsewhere(self, message: bytes) -> None:
        fd = os.memfd_create("yarn-accel-message", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(fd), "wb") as file:
                file.write(message)
            self._socket.sendmsg([bytes([ELSEWHERE])], [_rights([fd])])
        finally:
            os.close(fd)


def _rights(fds: Sequence[int]) -> tuple[int, int, array.array[int]]:
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds)


def _read_elsewhere(fds: list[int]) -> bytes:
    try:
        if len(fds) != 1 or os.fstat(fds[0]).st_size > _MAX_MESSAGE_BYTES:
            raise ValueError("a message that is too long")
        with os.fdopen(os.dup(fds[0]), "rb") as file:
            file.seek(0)
            return file.read(_MAX_MESSAGE_BYTES)
    finally:
        for fd in fds:
            os.close(fd)


class Numbering:
    """Numbers for what both ends shall remember; at most `MAX_SLOTS`, the least recently used goes first."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable) -> tuple[int, bool]:
        """The number of a key, and whether it is new and must be sent to the other end."""
        number = self._numbers.pop(key, None)
        is_new = number is None
        if number is None:
            number = len(self._numbers)
            if number >= MAX_SLOTS:
                number = self._numbers.pop(next(iter(self._numbers)))
        self._numbers[key] = number
        return number, is_new


def encode_object(**fields: Any) -> bytes:
    """A JSON message."""
    return encode(fields).encode()


def specs_to(specs: Iterable[TensorSpec]) -> list[Any]:
    """Descriptions as JSON values."""
    return [[spec.dtype, spec.shape, spec.order] for spec in specs]


def specs_from(values: Iterable[Any]) -> tuple[TensorSpec, ...]:
    """Descriptions from JSON values.

    Raises:
        ValueError: not a description that may travel.
    """
    return tuple(TensorSpec(dtype, tuple(shape), order) for dtype, shape, order in values)


def job_struct(n_inputs: int) -> struct.Struct:
    """One job with that many inputs."""
    found = _JOBS.get(n_inputs)
    if found is None:
        found = _JOBS[n_inputs] = struct.Struct(JOB_HEAD.format + "QQ" * n_inputs)
    return found


def areas(n: int) -> struct.Struct:
    """Segment and offset of ``n`` tensors."""
    found = _AREAS.get(n)
    if found is None:
        found = _AREAS[n] = struct.Struct("<" + "QQ" * n)
    return found
