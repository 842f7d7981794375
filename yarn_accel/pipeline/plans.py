"""One request as the server knows it (`Work`), and what it needs (`Plan`).

A plan is worked out from the header once for all requests of one kind; for inputs by reference a second one,
when their files were looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from yarn_accel.core.requests.records import ConnectionRecord, Failure, Needs, SegmentRecord, WorkRecord
from yarn_accel.errors import AccelError, RejectedError, StorageError, UnavailableError
from yarn_accel.formats import StoredArray, conversions, name_plain_bytes
from yarn_accel.operations.operation import SMALL_ORDER
from yarn_accel.pipeline.workers.protocol import Area
from yarn_accel.uris import split_member
from yarn_accel.wire import (
    ALIGNMENT_BYTES,
    LARGE_PACK_BYTES,
    RemoteInput,
    Request,
    TensorSpec,
    payload_digest,
)

if TYPE_CHECKING:
    from yarn_accel.operations.operation import Operation, Params
    from yarn_accel.pipeline.workers.protocol import JobDone
    from yarn_accel.storage import Store
    from yarn_accel.wire import Result

#: Up to here the bytes themselves are compared, which costs less than their digest.
_FEW_BYTES = 256
_likenesses = itertools.count(1)
_MAX_AREAS = 64
#: Kinds of requests remembered for all connections together.
_MAX_PLANS = 256
#: Larger requests are never computed together, whatever the configuration says of the sum.
_BATCHED_BYTES = 1024 * 1024
_PER_INPUT_BYTES = 256
_Input = TensorSpec | RemoteInput


class Work(WorkRecord):
    """A request on its way: beside what the machine decides by, its header, its bytes and its times.

    Attributes:
        plan: what it needs; another one when its files were looked at.
        arrived_s: when its header arrived, monotonic seconds; so are `ready_s` (its inputs are complete) and
            `started_s` (a worker has it).
        store: where it reads and writes; None: where the server itself does.
        stamps: what its referenced files looked like.
        segment: where its inputs lie.
        inputs: where each of them lies.
        is_without_inputs: they were lost, so that it must not be computed.
        bytes_in: of all inputs.
        device: what computes it.
        done: what its worker said.
        result: the message of its answer, once it was made; so is `payload`, what goes with it.
    """

    # Most requests never differ from these, and setting them takes time.
    store: Store | None = None
    stamps: Sequence[Any] = ()
    ready_s = 0.0
    started_s = 0.0
    read_s = 0.0
    write_s = 0.0
    segment: SegmentRecord | None = None
    inputs: tuple[Area, ...] = ()
    is_without_inputs = False
    device = ""
    done: JobDone | None = None
    result: Result | None = None
    payload: tuple[memoryview, ...] = ()

    def __init__(self, connection: ConnectionRecord, request: Request, plan: Plan, arrived_s: float) -> None:
        super().__init__(connection, request.id, request.key, plan.needs[request.keep_inputs], arrived_s)
        self.request = request
        self.plan = plan
        self.bytes_in = plan.payload_bytes


class ReferencedFile(NamedTuple):
    """The arrays that a file gives to the request that names it.

    Attributes:
        specs: of its arrays.
        arrays: where they lie in the file; empty: the whole file is the one array.
    """

    specs: tuple[TensorSpec, ...]
    arrays: tuple[StoredArray, ...] = ()


class Plan:
    """The needs of requests of one kind: same operation, same parameters, same inputs.

    Attributes:
        params_text: the parameters, to tell whether another request has the same.
        kinds: of devices that compute it.
        specs: of the arrays that the inputs are; empty while some are not known yet.
        offsets: of the arrays in their segment, for each input.
        files: what the references give; empty: nobody has looked at them.
        converted: what reading changes in the elements, see `conversions`.
        inputs_end: bytes of the inputs laid out; the outputs begin there.
        payload_bytes: of the inputs that come by value.
        references: the inputs to be read from storage.
        likeness: the same for all plans that ask the same of a worker; None: unknown.
        needs: what the request machine must know, by whether the inputs must stay as they are.
    """

    def __init__(
        self,
        operation: Operation,
        request: Request,
        files: Sequence[ReferencedFile],
        reads: tuple[str, ...],
        kinds: tuple[str, ...],
    ) -> None:
        self.operation = operation
        self.kinds = kinds
        self.inputs: tuple[_Input, ...] = request.inputs
        self.params_text = _params_text(request)
        self._params = request.params
        self.references = tuple(item for item in self.inputs if isinstance(item, RemoteInput))
        self.files = tuple(files)
        self.converted = conversions([array for file in files for array in file.arrays])
        groups = _specs_of(self.inputs, self.files)
        specs = tuple([spec for group in groups for spec in group or ()])
        offsets, self.inputs_end = lay_out([spec.nbytes for spec in specs])
        left = iter(offsets)
        self.offsets = tuple([tuple([next(left) for _ in group or ()]) for group in groups])
        self.payload_bytes = sum(item.nbytes for item in self.inputs if isinstance(item, TensorSpec))
        is_known = None not in groups
        self.specs = specs if is_known else ()
        self.likeness: Hashable | None = None
        self._areas: dict[int, tuple[Area, ...]] = {}
        if is_known:
            self._check(request)
        n_bytes = sum([spec.nbytes for spec in specs])
        self.needs = tuple([self._needs(request, reads, n_bytes, keep) for keep in (False, True)])

    def fits(self, request: Request) -> bool:
        """Whether this is the plan of that request."""
        return (
            request.operation == self.operation.name
            and request.inputs == self.inputs
            and (request.params is self._params or _params_text(request) == self.params_text)
        )

    def areas(self, segment: int) -> tuple[Area, ...]:
        """Where the inputs lie in a segment; segments come again, so this is remembered."""
        areas = self._areas.get(segment)
        if areas is None:
            places = zip(itertools.chain.from_iterable(self.offsets), self.specs, strict=True)
            areas = tuple([Area(segment, offset, spec) for offset, spec in places])
            if len(self._areas) >= _MAX_AREAS:
                self._areas.clear()
            self._areas[segment] = areas
        return areas

    def payload_views(self, view: memoryview) -> list[memoryview]:
        """Where the payload of a request belongs in the segment of its inputs."""
        if len(self.inputs) == 1 and self.payload_bytes:
            return [view[: self.payload_bytes]]
        return [
            view[offsets[0] : offsets[0] + item.nbytes]
            for item, offsets in zip(self.inputs, self.offsets, strict=True)
            if isinstance(item, TensorSpec)
        ]

    def _check(self, request: Request) -> None:
        try:
            specs = self.operation.computed_specs(self.specs, request.params)
            self.operation.check(specs, request.params)
        except RejectedError as error:
            uris = [item.uri for item in self.references if item.spec is None]
            raise name_plain_bytes(error, uris) from None

    def _goes_with_others(self) -> bool:
        """Whether computing several such requests by one call can pay: small ones, and a GPU's stacks."""
        if self.inputs_end <= _BATCHED_BYTES:
            return True
        is_stackable = "cuda" in self.kinds and self.operation.takes_stacks
        return (
            is_stackable
            and self.inputs_end <= LARGE_PACK_BYTES
            and all(max(spec.shape[-2:], default=0) <= SMALL_ORDER for spec in self.specs)
        )

    def _needs(self, request: Request, reads: tuple[str, ...], n_bytes: int, keep_inputs: bool) -> Needs:
        operation, params = self.operation, request.params
        is_known = bool(self.specs) or not self.inputs
        output_bytes, amount, batch_key = 0, 2.0 * n_bytes, None
        if is_known:
            output_bytes = _output_bytes(operation, self.specs, params, may_overwrite=not keep_inputs)
            specs = operation.computed_specs(self.specs, params)
            amount = operation.flops(specs, params) or operation.bytes_moved(specs, params)
            if self._goes_with_others():
                batch_key = (operation.name, self.specs, self.params_text)
        return Needs(
            operation.name,
            (operation.name, self.params_text, self.inputs),
            self.kinds,
            amount,
            batch_key,
            self.payload_bytes,
            self.inputs_end,
            output_bytes,
            keep_inputs,
            reads,
            len(self.params_text) + _PER_INPUT_BYTES * len(self.inputs),
        )


class Plans:
    """The plans of the kinds of requests that came of late.

    Args:
        find_operation: the operation of a name; raises `RejectedError` for an unknown one.
        normalised: a URI as the rights are written; raises `RejectedError` for what is none.
        max_request_bytes: largest inputs of one request.
        device_kinds: what there is to compute on.
        rest_kinds: what computes operations that have a form for none of these.
    """

    def __init__(
        self,
        find_operation: Callable[[str], Operation],
        normalised: Callable[[str], str],
        max_request_bytes: int,
        device_kinds: Callable[[], tuple[str, ...]],
        rest_kinds: Callable[[], tuple[str, ...]],
    ) -> None:
        self._find_operation = find_operation
        self._normalised = normalised
        self._max_request_bytes = max_request_bytes
        self._device_kinds = device_kinds
        self._rest_kinds = rest_kinds
        self._known: dict[tuple[str, str, tuple[_Input, ...]], Plan] = {}

    def plan(self, request: Request) -> Plan:
        """The plan of a request; checked, unless it is known.

        Raises:
            RejectedError: what it names is unknown, wrong or too large.
        """
        kind = request.operation, _params_text(request), request.inputs
        plan = self._known.get(kind)
        if plan is None:
            operation = self._find_operation(request.operation)
            uris = [item.uri for item in request.inputs if isinstance(item, RemoteInput)]
            reads = tuple([self._normalised(split_member(uri)[0]) for uri in uris])
            _check_size(_by_value(request), self._max_request_bytes)
            plan = Plan(operation, request, (), reads, self._kinds(operation))
            if not plan.references:
                plan.likeness = next(_likenesses)
                if len(self._known) >= _MAX_PLANS:
                    self._known.clear()
                self._known[kind] = plan
        return plan

    def sized(self, plan: Plan, request: Request, files: Sequence[ReferencedFile]) -> Plan:
        """The plan of the same request, now that it is known what the referenced files hold.

        Raises:
            RejectedError: the inputs are wrong or too large together.
        """
        specs = _by_value(request) + [spec for file in files for spec in file.specs]
        _check_size(specs, self._max_request_bytes)
        return Plan(plan.operation, request, files, plan.needs[0].reads, plan.kinds)

    def _kinds(self, operation: Operation) -> tuple[str, ...]:
        """The devices for which it has a form; where there are none of them, those for the rest."""
        kinds = self._device_kinds()
        return tuple([kind for kind in operation.forms or ("cpu",) if kind in kinds]) or self._rest_kinds()


def _output_bytes(
    operation: Operation, specs: Sequence[TensorSpec], params: Params, may_overwrite: bool
) -> int:
    """Bytes of the output area; where the inputs must stay, with space for a copy to work on."""
    n_bytes = operation.area_bytes(specs, params)
    if operation.overwrites and not may_overwrite:
        n_bytes += lay_out([spec.nbytes for spec in specs])[1]
    return n_bytes


def _text(spec: TensorSpec) -> str:
    return f"{'x'.join(map(str, spec.shape)) or 'one'} {spec.dtype}"


def _check_size(specs: Sequence[TensorSpec], limit_bytes: int) -> None:
    """Refuse inputs that are too large together.

    Raises:
        RejectedError: ``request-too-large``.
    """
    n_bytes = sum([spec.nbytes for spec in specs])
    if n_bytes > limit_bytes:
        raise RejectedError(
            "request-too-large",
            f"{n_bytes} bytes of inputs ({', '.join(_text(spec) for spec in specs[:4])}), "
            f"at most {limit_bytes} are taken",
            cure=f"raise max_request_bytes of the server to {n_bytes} or more",
        )


def _by_value(request: Request) -> list[TensorSpec]:
    return [item for item in request.inputs if isinstance(item, TensorSpec)]


def _params_text(request: Request) -> str:
    return repr(request.params) if request.params else "{}"


def _specs_of(
    inputs: Sequence[_Input], files: Sequence[ReferencedFile]
) -> list[tuple[TensorSpec, ...] | None]:
    """The arrays that each input is; None: not known before its file is looked at."""
    left = iter(files)
    found: list[tuple[TensorSpec, ...] | None] = []
    for item in inputs:
        if isinstance(item, TensorSpec):
            found.append((item,))
        elif files:
            found.append(next(left).specs)
        else:
            found.append((item.spec,) if item.spec is not None else None)
    return found


def lay_out(sizes: Iterable[int]) -> tuple[tuple[int, ...], int]:
    """Aligned offsets for tensors of these bytes one behind the other, and the aligned end of the last."""
    offsets = []
    end = 0
    for n_bytes in sizes:
        offsets.append(end)
        end += -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return tuple(offsets), end


def digest_of(parts: Sequence[memoryview], stamps: Sequence[object] = ()) -> bytes:
    """The digest of a request's inputs: of their bytes, and of the stamps of files.

    A few bytes stand for themselves; which way it is depends on the header alone, which is compared too.
    """
    if stamps:
        return payload_digest([*parts, repr(stamps).encode()])
    if sum(map(len, parts)) <= _FEW_BYTES:
        return b"".join(parts)
    return payload_digest(parts)


def failure_of(error: Exception) -> Failure:
    """An error as the answer its client gets."""
    if isinstance(error, RejectedError):
        return Failure("rejected", error.code, error.message, error.cure)
    if isinstance(error, StorageError):
        return Failure("storage", error.code, error.message, error.cure, error.transient)
    if isinstance(error, UnavailableError):
        return Failure("unavailable", "unavailable", error.message, error.cure, True)
    if isinstance(error, MemoryError):
        return Failure("unavailable", "out-of-memory", "the server is out of memory", "", True)
    message = error.message if isinstance(error, AccelError) else f"{type(error).__name__}: {error}"
    return Failure("internal", "internal-error", f"the server broke: {message}")
