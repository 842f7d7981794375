"""The gate: what is looked at before any memory is taken for a request, and the memory it gets then."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from yarn_accel.errors import AccelError, AuthenticationError, RejectedError, StorageError
from yarn_accel.operations.registry import OPERATIONS
from yarn_accel.pipeline.ledger import Ledger, Waiter, addressed
from yarn_accel.pipeline.pool import LEAST_BYTES
from yarn_accel.pipeline.references import Rights, sizes_of, stamp_or_none
from yarn_accel.pipeline.sending import Parcel
from yarn_accel.pipeline.work import Holding, Plan, Work, check_size, failure, output_room, plan_for
from yarn_accel.pipeline.workers.jobs import Area
from yarn_accel.wire import Busy, RemoteInput, Request, TensorSpec

if TYPE_CHECKING:
    from yarn_accel.adapters.hdfs import Store
    from yarn_accel.operations.operation import Operation
    from yarn_accel.pipeline.budget import ByteBudget
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.counters import Counters
    from yarn_accel.pipeline.delivery import Delivery
    from yarn_accel.pipeline.pool import Pool
    from yarn_accel.pipeline.session import Session

__all__ = ["Admission"]

logger = logging.getLogger(__name__)

_DRAIN_RETRY_S = 1.0
_FULL_RETRY_S = 0.1
#: Smaller inputs count in no queue: the memory as a whole and `max_in_flight` bound them, at less cost.
_SMALL_BYTES = 16 * 1024
#: Kinds of requests remembered for all connections together.
_MAX_PLANS = 256
_likenesses = itertools.count(1)


class Admission:
    """Decides about each request as soon as its header is there.

    Args:
        reading: counts the bytes of inputs until a worker has them.
        find_operation: the operation of a name; raises `RejectedError` for an unknown one.
    """

    def __init__(
        self,
        config: PipelineConfig,
        store: Store,
        pool: Pool,
        reading: ByteBudget,
        ledger: Ledger,
        counters: Counters,
        delivery: Delivery,
        find_operation: Callable[[str], Operation],
    ) -> None:
        self._config = config
        self._store = store
        self._pool = pool
        self._reading = reading
        self._ledger = ledger
        self._counters = counters
        self._delivery = delivery
        self._find_operation = find_operation
        self._known_rights: dict[str, Rights] = {}
        self._plans: dict[tuple[str, str, tuple[TensorSpec | RemoteInput, ...]], Plan] = {}
        self.is_draining = False

    def admit(self, session: Session, request: Request) -> Work | None:
        """The work to do, with memory for the inputs that follow; None when the request was answered at once.

        Waits while the read queue or the memory is full: that is the back-pressure to the socket.

        Raises:
            AuthenticationError: the credential expired while the connection was open.
        """
        credential = session.credential
        arrived_s = time.monotonic()
        if credential.expires_s <= time.time():
            raise AuthenticationError(f"the credential of tenant {credential.tenant} has expired")
        tenant = credential.tenant
        # Only names we know: a client must not be able to make the table of counters grow.
        operation = request.operation if request.operation in OPERATIONS else "unknown"
        self._counters.add_for(operation, "requests", tenant)
        if self.is_draining:
            self._turn_away(session, request, _DRAIN_RETRY_S, "shutting down")
            return None
        if self._ledger.n_waiting(session) >= self._config.max_in_flight:
            self._turn_away(session, request, _FULL_RETRY_S, "too many requests of this connection")
            return None
        entry = self._ledger.admit(tenant, request, Waiter(session, request.id)).entry
        if entry is None:
            self._refuse_reuse(session, request)
            return None
        holding = Holding(self._pool, session.held, session.loans)
        work = None
        try:
            plan = session.plan
            if plan is None or not plan.fits(request):
                plan = session.plan = self._plan(request, tenant)
            work = Work(tenant, session, entry, request, plan, holding, arrived_s)
            if request.deadline_s:
                work.due_s = arrived_s + request.deadline_s
            self._prepare(work)
        except Exception as error:
            if not isinstance(error, AccelError):
                logger.exception("a request could not be admitted")
            self.stop_reading(work)
            holding.free()
            self._delivery.failure(entry, failure(error), work.plan.operation.name if work else "")
            return None
        session.works[request.id] = work
        return work

    def confirm(self, work: Work, digest: bytes) -> bool:
        """Whether a request whose inputs are there must be computed; if not, it is seen to.

        The same request may be under way already, or have been answered a while ago.
        """
        verdict = self._ledger.confirm(work.entry, digest, self._written(work))
        if verdict.entry is not None:
            return True
        session, request = work.session, work.request
        session.works.pop(request.id, None)
        self.stop_reading(work)
        work.holding.free()
        if verdict.is_conflict:
            self._refuse_reuse(session, request)
        elif verdict.answer is not None:
            answer = verdict.answer
            self._counters.add("duplicates")
            self._counters.add("done")
            message = addressed(answer, Waiter(session, request.id))
            on_gone = None if answer.lease is None else answer.lease.give_back
            session.sender.post(Parcel(message, answer.payload, on_gone))
        return False

    def stop_reading(self, work: Work | None) -> None:
        """Take the inputs of a work out of the read queue."""
        if work is not None and work.read_bytes:
            n_bytes, work.read_bytes = work.read_bytes, 0
            self._reading.release(n_bytes)

    def take_memory(self, work: Work) -> None:
        """Reserve inputs and outputs of a work in one go, and lay them out; waits for both.

        Whoever held a part and waited for the rest could block another who does the same.
        """
        plan, request = work.plan, work.request
        n_bytes = plan.inputs_end
        room = plan.output_bytes
        if request.keep_inputs and plan.specs:
            room = output_room(plan.operation, plan.specs, request.params, may_overwrite=False)
        if n_bytes + room > self._pool.bound_bytes:
            raise RejectedError(
                "request-too-large",
                f"{n_bytes} bytes of inputs and {room} of outputs, the server has {self._pool.bound_bytes}",
            )
        if n_bytes > _SMALL_BYTES:
            self._reading.reserve(n_bytes)
            work.read_bytes = n_bytes
        arena = work.holding.arena = self._pool.acquire(n_bytes + room)
        number = arena.id
        work.output_segment, work.output_offset, work.output_bytes = number, n_bytes, room
        if plan.specs:
            work.inputs = plan.areas(number)

    def _turn_away(self, session: Session, request: Request, retry_after_s: float, reason: str) -> None:
        self._counters.add("busy")
        session.sender.post(Parcel(Busy(request.id, retry_after_s, reason)))

    def _refuse_reuse(self, session: Session, request: Request) -> None:
        self._counters.add("rejected")
        error = RejectedError("key-reused", f"key {request.key!r} was used for another request")
        session.sender.post(Parcel(addressed(failure(error), Waiter(session, request.id))))

    def _plan(self, request: Request, tenant: str) -> Plan:
        """The plan of a request of another kind than the one before; checked, unless it is known.

        Raises:
            RejectedError: what it names is unknown, wrong, too large or not allowed.
        """
        kind = request.operation, repr(request.params) if request.params else "{}", request.inputs
        plan = self._plans.get(kind)
        if plan is None:
            plan = plan_for(self._find_operation(request.operation), request)
            check_size(plan.payload_bytes, self._config.max_request_bytes)
            if not plan.references:
                plan.likeness = next(_likenesses)
                if len(self._plans) >= _MAX_PLANS:
                    self._plans.clear()
                self._plans[kind] = plan
        return plan

    def _prepare(self, work: Work) -> None:
        request, plan = work.request, work.plan
        references = work.references
        if references or request.output_uri:
            self._rights(work.tenant).check(references, request.output_uri)
        work.bytes_in = plan.payload_bytes
        self._counters.add("bytes_in", plan.payload_bytes, work.tenant)
        if request.placement is not None:
            self._use_lent(work)
            return
        # References without a spec count nothing yet, but few bytes of them are read at once.
        if plan.inputs_end > _SMALL_BYTES:
            work.holding.hold(plan.inputs_end)
        if not references:
            self.take_memory(work)
        elif plan.payload_bytes:
            # Some inputs come now, others are to be read: memory for both is taken now.
            sizes = sizes_of(self._store, references)
            check_size(plan.payload_bytes + sum(sizes), self._config.max_request_bytes)
            work.plan = plan_for(plan.operation, request, sizes)
            self.take_memory(work)

    def _rights(self, tenant: str) -> Rights:
        rights = self._known_rights.get(tenant)
        if rights is None:
            rights = self._known_rights[tenant] = Rights(self._config.tenant(tenant))
        return rights

    def _written(self, work: Work) -> object:
        """What lies where the output goes, if it may be what this request wrote before."""
        uri = work.request.output_uri
        if not uri or not self._ledger.knows(work.entry):
            return None
        try:
            return stamp_or_none(self._store, uri)
        except StorageError:
            return None

    def _use_lent(self, work: Work) -> None:
        """The inputs lie in shared memory already; find a place for the outputs that the client sees too."""
        request, plan, holding = work.request, work.plan, work.holding
        loans = work.session.loans
        placement = request.placement
        assert placement is not None
        if work.references:
            raise RejectedError("bad-placement", "inputs by reference and in shared memory do not mix")
        specs = [item for item in request.inputs if isinstance(item, TensorSpec)]
        ends = [at + spec.nbytes for at, spec in zip(placement.offsets, specs, strict=True)]
        end = -(-max(ends, default=0) // 64) * 64
        loan = loans.use(placement.segment, max(ends, default=0), exclusive=not request.keep_inputs)
        holding.lent_inputs = loan
        work.inputs = tuple(
            [Area(loan.segment.id, at, spec) for at, spec in zip(placement.offsets, specs, strict=True)]
        )
        room = plan.output_bytes
        if request.keep_inputs:
            room = output_room(plan.operation, plan.specs, request.params, may_overwrite=False)
        elif end + room <= loan.segment.n_bytes:
            work.output_segment, work.output_offset, work.output_bytes = loan.segment.id, end, room
            return
        if room > LEAST_BYTES:
            holding.lent_outputs = loans.lend(room, for_result=True)
        if holding.lent_outputs is not None:
            number = holding.lent_outputs.segment.id
        else:
            holding.arena = self._pool.acquire(room)
            number = holding.arena.id
        work.output_segment, work.output_offset, work.output_bytes = number, 0, room
