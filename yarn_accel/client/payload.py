"""Encodes a call into a request with its payload, and decodes the tensors of its result.

A payload below `SHARED_MEMORY_MIN_BYTES` goes through the socket. A larger one on the server's node goes
through a segment of shared memory: the inputs are copied into it once, or not at all if `Client.allocate`
made them there, and the results are views of it. Results that come through the socket are received into
memory of a pool.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from yarn_accel.client.calls import Call, Reference, SharedLocation, Tensor
from yarn_accel.client.memory import POOL_FROM_BYTES, ReplyPool
from yarn_accel.client.shared_memory import SharedMemory, SharedSegment, aligned
from yarn_accel.errors import RejectedError, RemoteProtocolError
from yarn_accel.wire import Buffer, Placement, RemoteInput, Request, Result, TensorSpec

#: Inputs of at least this length go through shared memory if there is some; measured: both take equally long.
SHARED_MEMORY_MIN_BYTES = 64 * 1024
_NOTHING: Tuple[Any, ...] = ()


class EncodedRequest(NamedTuple):
    """A request ready to be sent.

    Attributes:
        payload: the inputs by value, unless they lie in `segment`.
        segment: shared memory the request uses until it is answered.
    """

    request: Request
    payload: Sequence[Buffer]
    n_bytes: int
    segment: Optional[SharedSegment]


def inputs_of(call: Call) -> Tuple[Tuple[Union[TensorSpec, RemoteInput], ...], List[Buffer], int]:
    """The descriptions of a call's inputs, the bytes of those by value, and how many these are.

    Raises:
        LocalProtocolError: an input's data does not fit its description.
        RejectedError: an input cannot travel.
    """
    if call.error is not None:
        raise call.error
    specs: List[Union[TensorSpec, RemoteInput]] = []
    payload: List[Buffer] = []
    n_bytes = 0
    for item in call.inputs:
        if type(item) is Tensor:
            specs.append(item.spec)
            flat = item.flat()
            payload.append(flat)
            n_bytes += len(flat)
        else:
            assert isinstance(item, Reference)
            specs.append(RemoteInput(item.uri, item.spec))
    return tuple(specs), payload, n_bytes


def request_of(
    call: Call,
    request_id: int,
    specs: Tuple[Union[TensorSpec, RemoteInput], ...],
    placement: Optional[Placement] = None,
    is_kept: bool = False,
) -> Request:
    """A call as a request; `specs` are those of `inputs_of`."""
    return Request(
        request_id,
        call.key,
        call.operation,
        call.params,
        specs,
        call.output_uri,
        call.deadline_s,
        call.priority,
        placement,
        is_kept,
    )


class PayloadCodec:
    """Encodes and decodes the payloads of one connection.

    Args:
        shared_memory: the memory the server lends to this connection; None: it lends none.
        pool: memory for results that come through the socket.
        max_request_bytes: largest inputs the server takes.
        copy_results: hand out results as memory of their own, so that shared memory is free at once.
    """

    def __init__(
        self,
        shared_memory: Optional[SharedMemory],
        pool: ReplyPool,
        max_request_bytes: int,
        copy_results: bool,
    ) -> None:
        self.shared_memory = shared_memory
        self._pool = pool
        self._max_request_bytes = max_request_bytes
        self._copy_results = copy_results

    def segment_bytes(self, call: Call) -> int:
        """Bytes of shared memory that the inputs of this call need; 0: none.

        A server takes inputs there only if none is a reference.
        """
        if self.shared_memory is None:
            return 0
        n_bytes = 0
        for item in call.inputs:
            if type(item) is not Tensor:
                return 0
            n_bytes += aligned(item.spec.nbytes)
        return n_bytes if n_bytes >= SHARED_MEMORY_MIN_BYTES and self._location_of(call) is None else 0

    def encode(self, call: Call, request_id: int, segment: Optional[SharedSegment]) -> EncodedRequest:
        """The request of a call.

        Args:
            segment: shared memory to put the inputs into, when the caller found some.

        Raises:
            LocalProtocolError: the call cannot be encoded.
            RejectedError: ``request-too-large``: its inputs are, for the server.
        """
        specs, payload, n_bytes = inputs_of(call)
        if n_bytes > self._max_request_bytes:
            raise RejectedError(
                "request-too-large",
                "{} bytes of inputs, at most {} are taken".format(n_bytes, self._max_request_bytes),
                cure="raise max_request_bytes of the server to {} or more".format(n_bytes),
            )
        placement, is_kept = None, False
        if self.shared_memory is not None:
            placement, segment, is_kept = self._place(self.shared_memory, call, payload, segment)
        request = request_of(call, request_id, specs, placement, is_kept)
        if placement is not None:
            return EncodedRequest(request, _NOTHING, 0, segment)
        return EncodedRequest(request, payload, n_bytes, None)

    def result_buffers(self, result: Result) -> List[memoryview]:
        """Where to receive the tensors of a result, one buffer for each."""
        sizes = [item.spec.nbytes for item in result.tensors]
        if sum(sizes) < POOL_FROM_BYTES:
            return [_new_buffer(n_bytes) for n_bytes in sizes]
        return self._large_buffers(sizes)

    def results_copied_from(self, result: Result, payload: memoryview) -> Dict[str, Tensor]:
        """The tensors of a small result, copied out of the receive buffer."""
        tensors = {}
        start = 0
        for item in result.tensors:
            spec = item.spec
            end = start + spec.nbytes
            tensors[item.name] = Tensor(spec, memoryview(bytearray(payload[start:end])))
            start = end
        return tensors

    def results_in_segment(self, result: Result, placement: Placement) -> Dict[str, Tensor]:
        """The tensors of a result that lies in shared memory.

        Raises:
            RemoteProtocolError: it does not lie inside a segment of this connection.
        """
        if self.shared_memory is None:
            raise RemoteProtocolError("an answer lies in shared memory, but none was granted")
        segment = self.shared_memory.get(placement.segment)
        whole = self.shared_memory.hold(segment)
        tensors = {}
        for item, offset in zip(result.tensors, placement.offsets):  # noqa: B905 -- Python 3.8
            end = offset + item.spec.nbytes
            if end > segment.region.n_bytes:
                raise RemoteProtocolError("an answer lies beyond the end of segment {}".format(segment.id))
            tensors[item.name] = Tensor(item.spec, whole[offset:end])
        return self._copied(tensors) if self._copy_results else tensors

    def allocate(self, specs: Sequence[TensorSpec], segment: Optional[SharedSegment]) -> List[Tensor]:
        """Tensors of arbitrary content, in the segment or, without one, in memory of this process."""
        if segment is None or self.shared_memory is None:
            buffers = self._large_buffers([spec.nbytes for spec in specs])
            return [Tensor(spec, buffer) for spec, buffer in zip(specs, buffers)]  # noqa: B905
        whole = self.shared_memory.hold(segment)
        self.shared_memory.release(segment)
        tensors = []
        offset = 0
        for spec in specs:
            location = SharedLocation(self.shared_memory, segment.id, offset)
            tensors.append(Tensor(spec, whole[offset : offset + spec.nbytes], location))
            offset += aligned(spec.nbytes)
        return tensors

    def _place(
        self,
        shared_memory: SharedMemory,
        call: Call,
        payload: Sequence[Buffer],
        segment: Optional[SharedSegment],
    ) -> Tuple[Optional[Placement], Optional[SharedSegment], bool]:
        """Where the inputs lie in shared memory, which memory that is, and whether it must stay unchanged."""
        location = self._location_of(call)
        if location is not None:
            segment = shared_memory.get(location.segment)
            segment.n_users += 1
            offsets = tuple(
                item.location.offset for item in call.inputs if type(item) is Tensor and item.location
            )
            return Placement(segment.id, offsets), segment, True
        if segment is None:
            return None, None, False
        placed = []
        offset = 0
        for part in payload:
            segment.region.view[offset : offset + len(part)] = part
            placed.append(offset)
            offset += aligned(len(part))
        return Placement(segment.id, tuple(placed)), segment, False

    def _location_of(self, call: Call) -> Optional[SharedLocation]:
        """Where all inputs lie already: in one segment of this connection, or nowhere."""
        found: Optional[SharedLocation] = None
        for item in call.inputs:
            if type(item) is not Tensor:
                return None
            location = item.location
            if location is None or location.memory is not self.shared_memory:
                return None
            if found is not None and location.segment != found.segment:
                return None
            found = location
        return found

    def _large_buffers(self, sizes: Sequence[int]) -> List[memoryview]:
        """Buffers of these lengths, cut from one piece of the pool."""
        whole = self._pool.take(max(1, sum(aligned(n_bytes) for n_bytes in sizes)))
        buffers = []
        offset = 0
        for n_bytes in sizes:
            buffers.append(whole[offset : offset + n_bytes])
            offset += aligned(n_bytes)
        return buffers

    def _copied(self, tensors: Dict[str, Tensor]) -> Dict[str, Tensor]:
        copies = {}
        for name, tensor in tensors.items():
            buffer = self._large_buffers([tensor.spec.nbytes])[0]
            buffer[:] = tensor.data
            copies[name] = Tensor(tensor.spec, buffer)
        return copies


def _new_buffer(n_bytes: int) -> memoryview:
    """Memory for a small answer; numpy's when it is loaded, since that is not cleared first."""
    numpy = sys.modules.get("numpy")
    return memoryview(bytearray(n_bytes) if numpy is None or n_bytes < 4096 else numpy.empty(n_bytes, "u1"))
