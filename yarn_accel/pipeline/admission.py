"""The gate: what is looked at before any memory is taken for a request."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from yarn_accel.errors import AccelError, AuthenticationError, RejectedError
from yarn_accel.pipeline.arrays import Array, empty
from yarn_accel.pipeline.ledger import Entry, Ledger, Waiter
from yarn_accel.pipeline.references import Prefixes, sizes_of
from yarn_accel.pipeline.session import Parcel, Session
from yarn_accel.pipeline.work import Work, check_size, failure
from yarn_accel.wire import Busy, RemoteInput, Request, TensorSpec

if TYPE_CHECKING:
    from yarn_accel.adapters.hdfs import Store
    from yarn_accel.operations.operation import Operation
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.counters import Counters
    from yarn_accel.pipeline.stages import Stages

__all__ = ["Admission"]

logger = logging.getLogger(__name__)

_DRAIN_RETRY_S = 1.0
_FULL_RETRY_S = 0.1


class Admission:
    """Decides about each request as soon as its header is there.

    Args:
        find_operation: the operation of a name; raises `RejectedError` for an unknown one.
    """

    def __init__(
        self,
        config: PipelineConfig,
        store: Store,
        ledger: Ledger,
        counters: Counters,
        stages: Stages,
        find_operation: Callable[[str], Operation],
    ) -> None:
        self._config = config
        self._store = store
        self._ledger = ledger
        self._counters = counters
        self._stages = stages
        self._find_operation = find_operation
        self._prefixes = Prefixes(config.allowed_prefixes)
        self.is_draining = False

    def admit(self, session: Session, request: Request) -> Work | None:
        """The work to do, with memory for the inputs that follow; None when the request was answered at once.

        Waits while the read queue is full: that is the back-pressure to the socket.

        Raises:
            AuthenticationError: the credential expired while the connection was open.
        """
        if session.credential.expires_s <= time.time():
            raise AuthenticationError(f"the credential of tenant {session.credential.tenant} has expired")
        self._counters.add("requests")
        if self.is_draining:
            self._turn_away(session, request, _DRAIN_RETRY_S, "shutting down")
            return None
        if self._ledger.n_waiting(session) >= self._config.max_in_flight:
            self._turn_away(session, request, _FULL_RETRY_S, "too many requests of this connection")
            return None
        entry = self._enter(session, request)
        if entry is None:
            return None
        work = None
        try:
            operation = self._find_operation(request.operation)
            work = Work(entry, request, operation, [], time.monotonic())
            self._prepare(work)
        except Exception as error:
            if not isinstance(error, AccelError):
                logger.exception("a request could not be admitted")
            self._refuse(entry, work, error)
            return None
        return work

    def _turn_away(self, session: Session, request: Request, retry_after_s: float, reason: str) -> None:
        self._counters.add("busy")
        session.post_and_send(Parcel(Busy(request.id, retry_after_s, reason)))

    def _enter(self, session: Session, request: Request) -> Entry | None:
        """Enter the request into the ledger; None when it is known there and needs no computation."""
        verdict = self._ledger.admit(session.credential.tenant, request, Waiter(session, request.id))
        if verdict.is_conflict:
            self._counters.add("rejected")
            error = RejectedError("key-reused", f"key {request.key!r} was used for another request")
            message = dataclasses.replace(failure(error).message, id=request.id)
            session.post_and_send(Parcel(message))
        elif verdict.answer is not None:
            self._counters.add("duplicates")
            self._counters.add("done")
            message = dataclasses.replace(verdict.answer.message, id=request.id)
            session.post_and_send(Parcel(message, verdict.answer.payload))
        return verdict.entry

    def _prepare(self, work: Work) -> None:
        request = work.request
        if request.deadline_s:
            work.due_s = work.arrived_s + request.deadline_s
        for uri in [item.uri for item in work.references] + [request.output_uri] * bool(request.output_uri):
            self._prefixes.check(uri)
        specs = [item.spec if isinstance(item, RemoteInput) else item for item in request.inputs]
        if all(spec is not None for spec in specs):
            work.operation.check([spec for spec in specs if spec is not None], request.params)
        by_value = [item for item in request.inputs if isinstance(item, TensorSpec)]
        work.bytes_in = sum(spec.nbytes for spec in by_value)
        check_size(work.bytes_in, self._config.max_request_bytes)
        if by_value:
            # Who brings some inputs and refers to others reserves both now: to hold a part and wait for the
            # rest would let two such requests block each other.
            n_bytes = work.bytes_in + sum(sizes_of(self._store, work.references))
            check_size(n_bytes, self._config.max_request_bytes)
            self._stages.read_budget.reserve(n_bytes)
            work.reserved_bytes = n_bytes
        work.arrays = [_memory_for(item) for item in request.inputs]
        self._counters.add("bytes_in", work.bytes_in)

    def _refuse(self, entry: Entry, work: Work | None, error: Exception) -> None:
        if work is not None and work.reserved_bytes:
            self._stages.read_budget.release(work.reserved_bytes)
            work.reserved_bytes = 0
        self._stages.finish(entry, failure(error), work.operation.name if work is not None else "")


def _memory_for(item: TensorSpec | RemoteInput) -> Array | None:
    return None if isinstance(item, RemoteInput) else empty(item)
