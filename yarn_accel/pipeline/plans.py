"""What a request needs, from its header: worked out once for all requests of one kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from yarn_accel.core.requests.events import Needs
from yarn_accel.errors import RejectedError
from yarn_accel.pipeline.arrays import lay_out
from yarn_accel.pipeline.workers.jobs import Area
from yarn_accel.wire import RemoteInput, Request, TensorSpec

if TYPE_CHECKING:
    from yarn_accel.operations.operation import Operation, Params

__all__ = ["Plan", "Plans"]

_likenesses = itertools.count(1)
#: Output area for a request whose inputs describe themselves only when they are read.
_GUESS_BYTES = 64 * 1024
_MAX_AREAS = 64
#: Kinds of requests remembered for all connections together.
_MAX_PLANS = 256
#: Larger requests are never computed together, whatever the configuration says of the sum.
_BATCHED_BYTES = 1024 * 1024
_PER_INPUT_BYTES = 256
_Input = TensorSpec | RemoteInput


class Plan:
    """What requests of one kind need: same operation, same parameters, same inputs.

    Attributes:
        params_text: the parameters, to tell whether another request has the same.
        specs: of the inputs; empty when some are only known once they are read.
        offsets: of the inputs in their segment.
        inputs_end: bytes of the inputs laid out; the outputs begin there.
        payload_bytes: of the inputs that come by value.
        references: the inputs to be read from storage.
        likeness: the same for all plans that ask the same of a worker; None: unknown.
        needs: what the request machine must know, by whether the inputs must stay as they are.
    """

    __slots__ = (
        "_areas",
        "inputs",
        "inputs_end",
        "likeness",
        "needs",
        "offsets",
        "operation",
        "params_text",
        "payload_bytes",
        "references",
        "specs",
    )

    def __init__(
        self, operation: Operation, request: Request, sizes: Sequence[int], reads: tuple[str, ...]
    ) -> None:
        self.operation = operation
        self.inputs: tuple[_Input, ...] = request.inputs
        self.params_text = _params_text(request)
        self.references = tuple(item for item in self.inputs if isinstance(item, RemoteInput))
        specs = [item.spec if isinstance(item, RemoteInput) else item for item in self.inputs]
        self.specs = tuple(spec for spec in specs if spec is not None)
        n_bytes = _sizes(self.inputs, sizes)
        self.offsets, self.inputs_end = lay_out(n_bytes)
        self.payload_bytes = sum(item.nbytes for item in self.inputs if isinstance(item, TensorSpec))
        if len(self.specs) < len(specs):
            self.specs = ()
        self.likeness: Hashable | None = None
        self._areas: dict[int, tuple[Area, ...]] = {}
        if self.specs or not specs:
            operation.check(self.specs, request.params)
        self.needs = tuple([self._needs(request, reads, sum(n_bytes), keep) for keep in (False, True)])

    def fits(self, request: Request) -> bool:
        """Whether this is the plan of that request."""
        return (
            request.operation == self.operation.name
            and request.inputs == self.inputs
            and (repr(request.params) if request.params else "{}") == self.params_text
        )

    def areas(self, segment: int) -> tuple[Area, ...]:
        """Where the inputs lie in a segment; segments come again, so this is remembered."""
        areas = self._areas.get(segment)
        if areas is None:
            places = zip(self.offsets, self.specs, strict=True)
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
            view[offset : offset + item.nbytes]
            for item, offset in zip(self.inputs, self.offsets, strict=True)
            if isinstance(item, TensorSpec)
        ]

    def _needs(self, request: Request, reads: tuple[str, ...], n_bytes: int, keep_inputs: bool) -> Needs:
        operation, params = self.operation, request.params
        is_known = bool(self.specs) or not self.inputs
        output_bytes, amount, batch_key = _GUESS_BYTES, 2.0 * n_bytes, None
        if is_known:
            output_bytes = _output_bytes(operation, self.specs, params, may_overwrite=not keep_inputs)
            amount = operation.flops(self.specs, params) or operation.bytes_moved(self.specs, params)
            if self.inputs_end <= _BATCHED_BYTES:
                batch_key = (operation.name, self.specs, self.params_text)
        return Needs(
            operation.name,
            (operation.name, self.params_text, self.inputs),
            tuple(operation.forms) or ("cpu",),
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
    """

    def __init__(
        self,
        find_operation: Callable[[str], Operation],
        normalised: Callable[[str], str],
        max_request_bytes: int,
    ) -> None:
        self._find_operation = find_operation
        self._normalised = normalised
        self._max_request_bytes = max_request_bytes
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
            plan = Plan(operation, request, (), tuple([self._normalised(uri) for uri in uris]))
            _check_size(plan.payload_bytes, self._max_request_bytes)
            if not plan.references:
                plan.likeness = next(_likenesses)
                if len(self._known) >= _MAX_PLANS:
                    self._known.clear()
                self._known[kind] = plan
        return plan

    def sized(self, plan: Plan, request: Request, sizes: Sequence[int]) -> Plan:
        """The plan of the same request, now that the bytes of the referenced inputs are known.

        Raises:
            RejectedError: the inputs are wrong or too large together.
        """
        _check_size(plan.payload_bytes + sum(sizes), self._max_request_bytes)
        return Plan(plan.operation, request, sizes, plan.needs[0].reads)


def _output_bytes(
    operation: Operation, specs: Sequence[TensorSpec], params: Params, may_overwrite: bool
) -> int:
    """Bytes of the output area; where the inputs must stay, with space for a copy to work on."""
    n_bytes = operation.output_bytes(specs, params)
    if operation.overwrites and not may_overwrite:
        n_bytes += lay_out([spec.nbytes for spec in specs])[1]
    return n_bytes


def _check_size(n_bytes: int, limit_bytes: int) -> None:
    """Refuse inputs that are too large together.

    Raises:
        RejectedError: ``request-too-large``.
    """
    if n_bytes > limit_bytes:
        raise RejectedError(
            "request-too-large", f"{n_bytes} bytes of inputs, at most {limit_bytes} are taken"
        )


def _params_text(request: Request) -> str:
    return repr(request.params) if request.params else "{}"


def _sizes(inputs: Sequence[_Input], sizes: Sequence[int]) -> list[int]:
    """Bytes of each input; of those to be read what was looked up, else what their descriptions say."""
    left = iter(sizes)
    found = []
    for item in inputs:
        if isinstance(item, RemoteInput):
            found.append(next(left, item.spec.nbytes if item.spec is not None else 0))
        else:
            found.append(item.nbytes)
    return found
