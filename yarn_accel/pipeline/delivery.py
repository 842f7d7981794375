"""How an answer reaches everyone who waits for it, and the memory it lies in goes back.

An answer whose connection is lost on the way is kept by the ledger, within its bounds, for who asks again.
What lies in memory lent to a client is not: the client can write there, and may have begun to.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from yarn_accel.pipeline.lease import Lease
from yarn_accel.pipeline.ledger import Answer, Entry, Ledger, Waiter, addressed
from yarn_accel.pipeline.sending import Parcel
from yarn_accel.wire import Busy, Lent, NamedTensor, Placement, Result

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.counters import Counters
    from yarn_accel.pipeline.trace import Trace
    from yarn_accel.pipeline.work import Holding, Work
    from yarn_accel.pipeline.workers.jobs import JobDone

__all__ = ["AGAIN", "Delivery"]

#: How the reason of a `Busy` begins that asks for the same call again, at once.
AGAIN = "again: "


class Delivery:
    """Answers requests.

    Args:
        trace: where spans go; None: nowhere.
    """

    def __init__(
        self,
        config: PipelineConfig,
        ledger: Ledger,
        counters: Counters,
        trace: Trace | None,
    ) -> None:
        self._server = config.name
        self._ledger = ledger
        self._counters = counters
        self._trace = trace
        self._leaving: set[Entry] = set()

    @property
    def is_idle(self) -> bool:
        """Whether all that is no longer under way has been handed to the connections, too."""
        return not self._leaving

    def result(self, work: Work, done: JobDone, write_s: float = 0.0, is_written: bool = False) -> None:
        """Answer a request that was computed.

        Args:
            work: the request; its memory is given back when the answer has left.
            done: what the worker said.
            write_s: seconds spent writing the outputs to storage.
            is_written: whether they went there, and not into the answer.
        """
        self._leaving.add(work.entry)
        try:
            self._answer(work, done, write_s, is_written)
        finally:
            self._leaving.discard(work.entry)

    def _answer(self, work: Work, done: JobDone, write_s: float, is_written: bool) -> None:
        now_s = time.monotonic()
        holding, request = work.holding, work.request
        message, payload = self._message(work, done, now_s, write_s, is_written)
        bytes_out = message.bytes_out
        on_gone = holding.free if self._trace is None else self._traced(work, now_s)
        # The ledger copies what is small, so nobody else holds the memory of such an answer.
        is_small = bytes_out <= Ledger.SMALL_BYTES
        lease = None if is_small else Lease(on_gone, holding.n_bytes)
        answer = Answer(message, payload, lease, work.output_stamp)
        waiters = self._ledger.settle(work.entry, answer, done.compute_s)
        work.session.works.pop(request.id, None)
        self._counters.answered(request.operation, "done", work.tenant, message.seconds, bytes_out)
        if is_small and holding.lent_inputs is None and waiters == [(work.session, request.id)]:
            work.session.sender.post(Parcel(message, payload, on_gone))
            self._counters.fold()
            return
        if len(waiters) != 1:
            self._count_others("done", waiters)
        if lease is None:
            answer = answer._replace(lease=Lease(on_gone, holding.n_bytes))
        placement, is_clients = None, False
        if holding.lent_inputs is not None:
            placement = _placement(work, done) if payload else None
            is_clients = placement is not None or _is_in_inputs(work, done)
            if placement is None:
                # Its client may send the next request from there before the sender returns here.
                holding.answered()
        holding.is_shown = placement is not None
        self._hand_out(work, answer, waiters, placement, is_clients)
        self._counters.fold()

    def _message(
        self, work: Work, done: JobDone, now_s: float, write_s: float, is_written: bool
    ) -> tuple[Result, tuple[memoryview, ...]]:
        """What the client is told, and the payload that goes with it."""
        tensors: list[NamedTensor] = []
        payload: list[memoryview] = []
        bytes_out = 0
        for name, area in done.tensors:
            n_bytes = area.spec.nbytes
            bytes_out += n_bytes
            if not is_written:
                tensors.append(NamedTensor(name, area.spec))
                payload.append(work.holding.view(area.segment, area.offset, n_bytes))
        queue_s = work.started_s - work.ready_s
        seconds = {
            "read": work.read_s,
            "queue": queue_s if queue_s > 0.0 else 0.0,
            "compute": done.compute_s,
            "write": write_s,
            "total": now_s - work.arrived_s,
        }
        number, device = work.request.id, work.device
        message = Result(
            number, done.info, tuple(tensors), self._server, device, seconds, work.bytes_in, bytes_out
        )
        return message, tuple(payload)

    def _traced(self, work: Work, since_s: float) -> Callable[[], None]:
        """Give the memory back, and show in the trace how long the answer took to leave."""

        def gone() -> None:
            work.holding.free()
            if self._trace is not None:
                now_s = time.monotonic()
                self._trace.span("write", "session", work.request.operation, since_s, now_s, id=work.id)

        return gone

    def failure(self, entry: Entry, answer: Answer, operation: str, work: Work | None = None) -> None:
        """Answer a request that has no result, and give back the memory of its work."""
        self._leaving.add(entry)
        try:
            self._refuse(entry, answer, operation, work)
        finally:
            self._leaving.discard(entry)

    def _refuse(self, entry: Entry, answer: Answer, operation: str, work: Work | None) -> None:
        waiters = self._ledger.settle(entry, answer)
        outcome = "rejected" if getattr(answer.message, "kind", "") == "rejected" else "failed"
        if waiters:
            self._counters.answered(operation or "unknown", outcome, entry.tenant, {})
        if len(waiters) > 1:
            self._count_others(outcome, waiters)
        if work is not None:
            work.session.works.pop(work.request.id, None)
            work.holding.free()
        for waiter in waiters:
            waiter.session.sender.post(Parcel(addressed(answer, waiter)))

    def again(self, work: Work, reason: str) -> None:
        """Have everyone who waits send the same call once more: its inputs are gone."""
        entry = work.entry
        waiters = self._ledger.withdraw_entry(entry)
        work.session.works.pop(work.request.id, None)
        work.holding.free()
        for waiter in waiters:
            self._counters.add("busy", 1, entry.tenant)
            waiter.session.sender.post(Parcel(Busy(waiter.request_id, 0.0, AGAIN + reason)))

    def _count_others(self, outcome: str, waiters: list[Waiter]) -> None:
        for _ in waiters[1:]:
            self._counters.add(outcome)
            self._counters.add("duplicates")
        if not waiters:
            # Counted as done above, but nobody was there any more.
            self._counters.add(outcome, -1)

    def _hand_out(
        self,
        work: Work,
        answer: Answer,
        waiters: list[Waiter],
        placement: Placement | None,
        is_clients: bool,
    ) -> None:
        """Send the answer to all who wait; `is_clients`: it lies where its client may write from now on."""
        lease = answer.lease
        assert lease is not None
        if waiters:
            lease.take(len(waiters))
        lease.give_back()
        keep = functools.partial(self._ledger.keep, work.entry, answer)
        is_owner_told = False
        for waiter in waiters:
            if waiter.session is not work.session or waiter.request_id != work.request.id:
                self._hand_to_other(answer, waiter, is_clients, keep)
            elif placement is None:
                is_owner_told = True
                on_gone = _leaving(work.holding, lease) if work.holding.held_bytes else lease.give_back
                parcel = Parcel(answer.message, answer.payload, on_gone, on_unsent=keep)
                waiter.session.sender.post(parcel)
            else:
                self._send_place(work, answer, waiter, placement)
        if not is_owner_told:
            work.holding.leave_share()

    def _hand_to_other(
        self, answer: Answer, waiter: Waiter, is_clients: bool, keep: Callable[[], None]
    ) -> None:
        assert answer.lease is not None
        if not is_clients:
            on_gone = answer.lease.give_back
            parcel = Parcel(addressed(answer, waiter), answer.payload, on_gone, on_unsent=keep)
            waiter.session.sender.post(parcel)
            return
        # The result lies in memory that another client may write to from now on.
        answer.lease.give_back()
        self._counters.add("busy")
        reason = AGAIN + "the result went to another client"
        waiter.session.sender.post(Parcel(Busy(waiter.request_id, 0.0, reason)))

    def _send_place(self, work: Work, answer: Answer, waiter: Waiter, placement: Placement) -> None:
        """Tell the client where in its lent memory the result lies."""
        assert answer.lease is not None
        sender = waiter.session.sender
        loan = work.holding.lent_outputs
        if loan is not None and not loan.is_known and loan.segment.id == placement.segment:
            loan.is_known = True
            segment = loan.segment
            sender.post(Parcel(Lent(0, segment.id, segment.n_bytes), (), None, segment.fd))
        assert isinstance(answer.message, Result)
        message = dataclasses.replace(answer.message, placement=placement)
        # The memory is the client's from the moment it reads this, so it is given back before that.
        answer.lease.give_back()
        sender.post(Parcel(message))


def _leaving(holding: Holding, lease: Lease) -> Callable[[], None]:
    def left() -> None:
        holding.leave_share()
        lease.give_back()

    return left


def _is_in_inputs(work: Work, done: JobDone) -> bool:
    """Whether any output lies in the lent memory of the inputs."""
    loan = work.holding.lent_inputs
    return loan is not None and any(area.segment == loan.segment.id for _, area in done.tensors)


def _placement(work: Work, done: JobDone) -> Placement | None:
    """Where the client finds the outputs in memory lent to it; None: they must travel."""
    lent = [loan.segment.id for loan in (work.holding.lent_inputs, work.holding.lent_outputs) if loan]
    segments = {area.segment for _, area in done.tensors}
    if len(segments) != 1 or not segments <= set(lent):
        return None
    offsets = tuple(area.offset for _, area in done.tensors)
    if any(offset % 64 for offset in offsets):
        return None
    return Placement(segments.pop(), offsets)
