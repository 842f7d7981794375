"""One request on its way through the stages, what it needs, and the memory it holds."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from yarn_accel.errors import AccelError, RejectedError, StorageError, UnavailableError
from yarn_accel.pipeline.arrays import lay_out
from yarn_accel.pipeline.ledger import Answer, Entry
from yarn_accel.pipeline.workers.jobs import Area
from yarn_accel.wire import Failed, RemoteInput, Request, TensorSpec, payload_digest

if TYPE_CHECKING:
    from yarn_accel.operations.operation import Operation, Params
    from yarn_accel.pipeline.budget import ByteBudget
    from yarn_accel.pipeline.loans import Loan, Loans
    from yarn_accel.pipeline.pool import Pool, Segment
    from yarn_accel.pipeline.session import Session

__all__ = ["Holding", "Plan", "Work", "check_size", "failed", "failure", "output_room", "plan_for"]

_numbers = itertools.count(1)
#: Output area for a request whose inputs describe themselves only when they are read.
_GUESS_BYTES = 64 * 1024
_MAX_AREAS = 64
#: Up to here the bytes themselves are compared, which costs less than their digest.
_FEW_BYTES = 256


@dataclass(slots=True, eq=False)
class Plan:
    """What requests of one kind need: same operation, same parameters, same inputs.

    Attributes:
        params_text: the parameters, to tell whether another request has the same.
        specs: of the inputs; empty when some are only known once they are read.
        offsets: of the inputs in the arena.
        inputs_end: bytes of the arena up to the end of the inputs; the outputs begin there.
        payload_bytes: of the inputs that come by value.
        output_bytes: upper bound of the outputs that do not lie in the inputs.
        amount: what computing costs: flops, or where there is no usual count the bytes that are moved.
        batch_key: requests of equal keys may be computed together; None: alone.
        arena_bytes: inputs and outputs together.
        references: the inputs to be read from storage.
        kinds: of devices that can compute it.
        expected_s: how long that should take, by kind; replaced, never changed.
        likeness: the same for all plans that ask the same of a worker.
    """

    operation: Operation
    params_text: str
    inputs: tuple[TensorSpec | RemoteInput, ...]
    specs: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    inputs_end: int
    payload_bytes: int
    output_bytes: int
    amount: float
    batch_key: Hashable | None
    arena_bytes: int = 0
    references: tuple[RemoteInput, ...] = ()
    kinds: tuple[str, ...] = ("cpu",)
    expected_s: dict[str, float] = field(default_factory=dict)
    likeness: Hashable | None = None
    _areas: dict[int, tuple[Area, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arena_bytes = self.inputs_end + self.output_bytes
        self.references = tuple(item for item in self.inputs if isinstance(item, RemoteInput))
        self.kinds = tuple(self.operation.forms) or ("cpu",)

    def fits(self, request: Request) -> bool:
        """Whether this is the plan of that request."""
        return (
            request.operation == self.operation.name
            and request.inputs == self.inputs
            and (repr(request.params) if request.params else "{}") == self.params_text
        )

    def areas(self, segment: int) -> tuple[Area, ...]:
        """Where the inputs lie in an arena; segments come again, so this is remembered."""
        areas = self._areas.get(segment)
        if areas is None:
            places = zip(self.offsets, self.specs, strict=True)
            areas = tuple([Area(segment, offset, spec) for offset, spec in places])
            if len(self._areas) >= _MAX_AREAS:
                self._areas.clear()
            self._areas[segment] = areas
        return areas


class Holding:
    """The memory of one request.

    Attributes:
        arena: its own segment; None when its inputs lie in a lent one and it needs no other.
        more: another, when its outputs turned out to need it.
        lent_inputs: the lent segment its inputs lie in.
        is_answered: the client may use `lent_inputs` again, while the answer leaves.
        lent_outputs: the lent segment taken for its outputs.
        is_shown: whether the client is told what lies there, and will give it back.
    """

    __slots__ = (
        "_loans",
        "_pool",
        "_share",
        "arena",
        "held_bytes",
        "is_answered",
        "is_shown",
        "lent_inputs",
        "lent_outputs",
        "more",
    )

    def __init__(self, pool: Pool, share: ByteBudget, loans: Loans) -> None:
        self._pool = pool
        self._share = share
        self._loans = loans
        self.held_bytes = 0
        self.arena: Segment | None = None
        self.more: Segment | None = None
        self.lent_inputs: Loan | None = None
        self.lent_outputs: Loan | None = None
        self.is_answered = False
        self.is_shown = False

    @property
    def n_bytes(self) -> int:
        """What returns to the pool; a lent segment never does, and may be written to by its client."""
        if self.arena is None or self.lent_inputs is not None:
            return 1 << 60
        return self.arena.n_bytes

    def hold(self, n_bytes: int) -> None:
        """Count bytes in the share of the connection; waits until they fit.

        Raises:
            UnavailableError: the connection ended meanwhile.
        """
        self._share.reserve(n_bytes)
        self.held_bytes = n_bytes

    def leave_share(self) -> None:
        """The answer has left: the connection may go on, even if the memory is kept for who asks again."""
        held_bytes, self.held_bytes = self.held_bytes, 0
        if held_bytes:
            self._share.release(held_bytes)

    def answered(self) -> None:
        """Let the client use the memory of its inputs again: it may read its answer at any moment now."""
        if self.lent_inputs is not None and not self.is_answered:
            self.is_answered = True
            self._loans.answered(self.lent_inputs)

    def free(self) -> None:
        """Give all of it back; a second call does nothing."""
        arena, self.arena = self.arena, None
        if arena is not None:
            self._pool.release(arena)
        more, self.more = self.more, None
        if more is not None:
            self._pool.release(more)
        self.leave_share()
        inputs, self.lent_inputs = self.lent_inputs, None
        outputs, self.lent_outputs = self.lent_outputs, None
        if inputs is not None:
            if self.is_answered:
                self._loans.left(inputs)
            else:
                self._loans.done(inputs)
        if outputs is not None:
            self._loans.done(outputs)
            if not self.is_shown:
                self._loans.give_back(outputs.segment.id)

    def view(self, segment: int, offset: int, n_bytes: int) -> memoryview:
        """Some bytes of one of its segments."""
        arena = self.arena
        if arena is not None and arena.id == segment:
            return arena.view[offset : offset + n_bytes]
        lent = [loan.segment for loan in (self.lent_inputs, self.lent_outputs) if loan is not None]
        for mine in [self.more, *lent]:
            if mine is not None and mine.id == segment:
                return mine.view[offset : offset + n_bytes]
        raise KeyError(segment)


class Work:
    """A request that was admitted.

    Attributes:
        session: whose request it is; others may wait for its answer too.
        arrived_s: when its header arrived, monotonic seconds; so are `due_s` (0: no deadline), `ready_s` (its
            inputs are complete) and `started_s` (a worker has it).
        read_bytes: what it counts in the read queue.
        bytes_in: of all inputs; so is `bytes_out` of outputs that are written to storage.
        output_stamp: what was written looks like.
        inputs: where they lie.
        output_segment: where outputs go, with offset and length.
        device: what computes it.
        n_lost: workers it may have cost.
        n_gone: workers that were lost while they had it, whoever was the reason.
        is_dropped: nobody waits for it any more.
    """

    # Most requests never differ from these, and setting them takes time.
    due_s = 0.0
    ready_s = 0.0
    started_s = 0.0
    read_s = 0.0
    read_bytes = 0
    bytes_in = 0
    bytes_out = 0
    output_stamp: Any = None
    inputs: tuple[Area, ...] = ()
    output_segment = 0
    output_offset = 0
    output_bytes = 0
    device = ""
    n_lost = 0
    n_gone = 0
    is_dropped = False

    def __init__(
        self,
        tenant: str,
        session: Session,
        entry: Entry,
        request: Request,
        plan: Plan,
        holding: Holding,
        arrived_s: float,
    ) -> None:
        self.id = next(_numbers)
        self.tenant = tenant
        self.session = session
        self.entry = entry
        self.request = request
        self.plan = plan
        self.holding = holding
        self.arrived_s = arrived_s

    @property
    def references(self) -> tuple[RemoteInput, ...]:
        """The inputs to be read from storage."""
        return self.plan.references

    def digest(self, stamps: Sequence[object] = ()) -> bytes:
        """What tells this request's inputs from others: their bytes, and what is known of files.

        A few bytes stand for themselves; which way it is depends on the header alone, which is compared too.
        """
        if stamps:
            return payload_digest([*self.payload_views(), repr(stamps).encode()])
        view = self.holding.view
        parts = [view(area.segment, area.offset, area.spec.nbytes) for area in self.inputs]
        if len(parts) == 1 and len(parts[0]) <= _FEW_BYTES:
            return bytes(parts[0])
        return payload_digest(parts)

    def payload_views(self) -> list[memoryview]:
        """Where the payload of the request belongs: the memory of the inputs that come by value."""
        arena = self.holding.arena
        if arena is None:
            return []
        view, plan = arena.view, self.plan
        if len(plan.specs) == 1 and plan.payload_bytes:
            return [view[: plan.payload_bytes]]
        return [
            view[offset : offset + item.nbytes]
            for item, offset in zip(plan.inputs, plan.offsets, strict=True)
            if isinstance(item, TensorSpec)
        ]


def plan_for(operation: Operation, request: Request, sizes: Sequence[int] = ()) -> Plan:
    """Check a request as far as its header goes, and say what it needs.

    Args:
        operation: the one it names.
        request: the header.
        sizes: bytes of the referenced inputs, when they are known.

    Raises:
        RejectedError: the operation does not take such inputs or parameters.
    """
    inputs, params = request.inputs, request.params
    specs = [item.spec if isinstance(item, RemoteInput) else item for item in inputs]
    known = tuple(spec for spec in specs if spec is not None)
    left = iter(sizes)
    n_bytes = [
        next(left, spec.nbytes if spec is not None else 0) if isinstance(item, RemoteInput) else item.nbytes
        for item, spec in zip(inputs, specs, strict=True)
    ]
    offsets, end = lay_out(n_bytes)
    payload_bytes = sum(item.nbytes for item in inputs if isinstance(item, TensorSpec))
    text = repr(params)
    if len(known) < len(specs):
        return Plan(
            operation, text, inputs, (), offsets, end, payload_bytes, _GUESS_BYTES, 2 * sum(n_bytes), None
        )
    operation.check(known, params)
    return Plan(
        operation,
        text,
        inputs,
        known,
        offsets,
        end,
        payload_bytes,
        output_room(operation, known, params, may_overwrite=True),
        operation.flops(known, params) or operation.bytes_moved(known, params),
        (operation.name, known, text) if end <= _BATCHED_BYTES else None,
    )


#: Larger requests are never computed together, whatever the configuration says of the sum.
_BATCHED_BYTES = 1024 * 1024


def output_room(
    operation: Operation, specs: Sequence[TensorSpec], params: Params, may_overwrite: bool
) -> int:
    """Bytes of the output area; where the inputs must stay, with room for a copy to work on."""
    n_bytes = operation.output_bytes(specs, params)
    if operation.overwrites and not may_overwrite:
        n_bytes += lay_out([spec.nbytes for spec in specs])[1]
    return n_bytes


def check_size(n_bytes: int, limit_bytes: int) -> None:
    """Refuse inputs that are too large together.

    Raises:
        RejectedError: ``request-too-large``.
    """
    if n_bytes > limit_bytes:
        raise RejectedError(
            "request-too-large", f"{n_bytes} bytes of inputs, at most {limit_bytes} are taken"
        )


def failure(error: Exception) -> Answer:
    """An error as the answer its client gets."""
    if isinstance(error, RejectedError):
        return failed("rejected", error.code, error.message, error.cure)
    if isinstance(error, StorageError):
        return failed("storage", "storage", error.message, error.cure, error.transient)
    if isinstance(error, UnavailableError):
        return failed("unavailable", "unavailable", error.message, error.cure, True)
    if isinstance(error, MemoryError):
        return failed("unavailable", "out-of-memory", "the server is out of memory", "", True)
    message = error.message if isinstance(error, AccelError) else f"{type(error).__name__}: {error}"
    return failed("internal", "internal-error", f"the server broke: {message}")


def failed(kind: str, code: str, message: str, cure: str = "", transient: bool = False) -> Answer:
    """A failure as an answer, with its texts as the wire allows them."""
    text = "".join(char if char.isprintable() else " " for char in message)
    return Answer(Failed(0, kind, code, text[:2000], cure[:500], transient))
