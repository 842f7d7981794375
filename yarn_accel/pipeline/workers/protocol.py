"""How owner and worker talk: jobs and answers, as messages over a pair of SOCK_SEQPACKET sockets.

A message is one packet, with descriptors beside it.  Its first byte says which:

- ``{``: a JSON object, for all that is rare: a shape is registered, a segment is mapped or dropped, ...
- ``RUN``: jobs, as packed numbers.  What repeats between jobs (operation, parameters, description of the
  inputs) was registered as a *template* before and is named by its number.
- ``DONE``: all answers to one ``RUN``, in its order; a GPU's worker may answer a later ``RUN`` first. What
  repeats (names and descriptions of outputs) is a registered *layout*.
- ``ELSEWHERE``: the message is too long for a packet; it lies in the memfd that comes with it.

Sending therefore never waits for a busy receiver, whatever the size of a batch.
"""

from __future__ import annotations

import array
import contextlib
import json
import math
import os
import select
import socket
import struct
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from yarn_accel.core.requests.records import Failure
from yarn_accel.wire import TensorSpec

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


class Area(NamedTuple):
    """Where one tensor lies: byte ``offset`` in the segment of that id."""

    segment: int
    offset: int
    spec: TensorSpec


class Job(NamedTuple):
    """One computation.

    Attributes:
        id: unique among the jobs under way.
        inputs: in the order of the request.
        output_segment: where outputs go that do not reuse the memory of an input: ``output_bytes`` from byte
            ``output_offset`` on.
        may_overwrite: whether the operation may destroy its inputs.  When it may not and the operation works
            in place, the worker copies them into the output area first, which then needs space for both.
        likeness: equal for jobs of the same operation, parameters and descriptions of inputs, so that these
            need not be compared; None: they are.
        due_s: not begun after this, monotonic seconds; 0: no deadline.  It fails as `EXPIRED` then.
        request: equal for every try of one request.
        is_alone: it may be what its last worker was lost by, so nothing is computed beside it.
    """

    id: int
    operation: str
    params: Mapping[str, Any]
    inputs: tuple[Area, ...]
    output_segment: int
    output_offset: int
    output_bytes: int
    may_overwrite: bool
    likeness: Hashable | None = None
    due_s: float = 0.0
    request: Hashable = None
    is_alone: bool = False


class JobDone(NamedTuple):
    """The answer to one job.

    Attributes:
        tensors: name and place of each output, inside the output area or inside an input.
        info: facts for the client, fit for JSON; shared between equal answers, so not to be changed.
        compute_s: seconds of the device the job is charged for; of a batch computed as one: an equal share,
            and half of the time in which the worker was at another batch too.
        kernel_s: seconds inside the operation, whatever else went on meanwhile.
        overwritten: whether the inputs are no longer what they were.
        error: set when there is no result.
    """

    job: int
    tensors: tuple[tuple[str, Area], ...]
    info: Mapping[str, Any]
    compute_s: float
    kernel_s: float
    overwritten: bool
    error: Failure | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """A job whose worker is gone.

    Attributes:
        overwritten: its inputs may no longer be what they were.
        is_suspect: the worker was at this job, so it may be the cause; others of its batch are innocent.
        request: as of `Job`.
    """

    job: int
    overwritten: bool
    is_suspect: bool
    request: Hashable = None


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


def plain(value: Any) -> Any:
    """A value as JSON can say it: numpy's scalars become Python's, NaN and infinities become None."""
    numpy: Any = sys.modules.get("numpy")  # without it, or before it is whole, nothing is of its types
    if hasattr(numpy, "generic") and isinstance(value, numpy.ndarray | numpy.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
