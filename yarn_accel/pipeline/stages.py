"""The three stages: remote read, compute, remote write, joined by two queues bounded in bytes.

::

    sessions ──by value──────────────┐
        └──references──> read ──> [read queue] ──> compute ──> [write queue] ──> write ──> sessions, storage

Inputs count against the read queue from before their memory is taken until a compute worker takes them;
results count against the write queue until they have left.  So memory is bounded by the two bounds plus what
the workers hold, and a full queue makes its producers wait: compute workers, readers, and in the end the
sessions, which then receive nothing more from their sockets.
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from yarn_accel.errors import AccelError, RejectedError, StorageError
from yarn_accel.pipeline.arrays import flat_bytes, plain, sendable, spec_of
from yarn_accel.pipeline.budget import ByteBudget
from yarn_accel.pipeline.counters import Counters
from yarn_accel.pipeline.ledger import Answer, Entry, Ledger, addressed
from yarn_accel.pipeline.npz import npz_parts
from yarn_accel.pipeline.references import read_reference, sizes_of
from yarn_accel.pipeline.session import Parcel, Session
from yarn_accel.pipeline.work import Work, check_size, failure
from yarn_accel.wire import NamedTensor, Result

if TYPE_CHECKING:
    from yarn_accel.adapters.hdfs import Store
    from yarn_accel.pipeline.config import PipelineConfig

__all__ = ["DEVICE", "Stages"]

logger = logging.getLogger(__name__)

#: What computes here, as replies name it.
DEVICE = "cpu"


class Stages:
    """The threads of the three stages and the queues between them."""

    def __init__(self, config: PipelineConfig, store: Store, ledger: Ledger, counters: Counters) -> None:
        self.read_budget = ByteBudget(config.queue_bytes)
        self.write_budget = ByteBudget(config.queue_bytes)
        self._config = config
        self._store = store
        self._ledger = ledger
        self._counters = counters
        self._to_read: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._to_compute: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._to_write: queue.SimpleQueue[Work | Session | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        for name, n_threads, body in (
            ("read", self._config.read_threads, self._read_loop),
            ("compute", self._config.n_workers, self._compute_loop),
            ("write", self._config.write_threads, self._write_loop),
        ):
            for index in range(n_threads):
                thread = threading.Thread(target=body, name=f"{name}-{index}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def close(self) -> None:
        """Stop the threads after what they are doing; what still waits is dropped."""
        self.read_budget.close()
        self.write_budget.close()
        for _ in range(self._config.read_threads):
            self._to_read.put(None)
        for _ in range(self._config.n_workers):
            self._to_compute.put(None)
        for _ in range(self._config.write_threads):
            self._to_write.put(None)
        for thread in self._threads:
            thread.join(timeout=5.0)
        while not self._to_write.empty():
            if isinstance(left := self._to_write.get(), Session):
                left.send_outbox()

    def put(self, work: Work) -> None:
        """Take a work whose by-value inputs are complete."""
        if work.references:
            work.entry.stage = "read"
            work.entered_s = time.monotonic()
            self._to_read.put(work)
        else:
            work.seconds["read"] = time.monotonic() - work.arrived_s
            self._enqueue_compute(work)

    def send(self, session: Session) -> None:
        """Have the outbox of a session sent by a writer."""
        self._to_write.put(session)

    def finish(
        self,
        entry: Entry,
        answer: Answer,
        operation: str = "",
        bytes_out: int = 0,
        on_gone: Callable[[], None] | None = None,
        is_writer: bool = False,
    ) -> None:
        """Answer everyone who waits for a request.

        Args:
            entry: the request in the ledger.
            answer: what they get.
            operation: for the counters; empty when it is not a known one.
            bytes_out: bytes of the outputs, for the counters.
            on_gone: called when all answers have left.
            is_writer: whether this thread may send; otherwise a writer does.
        """
        waiters = self._ledger.settle(entry, answer)
        lease = _Lease(len(waiters), on_gone)
        result = "done" if isinstance(answer.message, Result) else _counter_of(answer)
        for waiter in waiters:
            self._counters.add_for(operation or "unknown", result)
            self._counters.add("bytes_out", bytes_out)
            if waiter is not waiters[0]:
                self._counters.add("duplicates")
            parcel = Parcel(addressed(answer, waiter), answer.payload, lease.give_back)
            if not waiter.session.post(parcel):
                continue
            if is_writer:
                waiter.session.send_outbox()
            else:
                self._to_write.put(waiter.session)

    # Remote read

    def _read_loop(self) -> None:
        while (work := self._to_read.get()) is not None:
            try:
                self._read(work)
            except Exception as error:  # noqa: BLE001 -- one bad record must not stop the stage
                self._release(self.read_budget, work)
                self._fail(work, error)
            else:
                self._enqueue_compute(work)

    def _read(self, work: Work) -> None:
        """Fill in the referenced inputs; all bytes are reserved at once, so nobody waits holding a part."""
        sizes = sizes_of(self._store, work.references)
        check_size(work.bytes_in + sum(sizes), self._config.max_request_bytes)
        if work.reserved_bytes == 0:
            self.read_budget.reserve(sum(sizes))
            work.reserved_bytes = sum(sizes)
        elif work.reserved_bytes != work.bytes_in + sum(sizes):
            raise StorageError("a referenced file changed while the request was received", transient=True)
        started_s = time.monotonic()
        arrays = []
        left = iter(zip(work.references, sizes, strict=True))
        for array in work.arrays:
            if array is not None:
                arrays.append(array)
            else:
                reference, n_bytes = next(left)
                arrays.extend(read_reference(self._store, reference, n_bytes))
        work.operation.check([spec_of(array) for array in arrays], work.request.params)
        work.arrays = list(arrays)
        work.bytes_in += sum(sizes)
        work.seconds["read"] = time.monotonic() - started_s
        self._counters.add("bytes_in", sum(sizes))

    # Compute

    def _enqueue_compute(self, work: Work) -> None:
        self._counters.add_seconds("read", work.seconds["read"])
        work.entry.stage = "queue"
        work.entered_s = time.monotonic()
        self._to_compute.put(work)

    def _compute_loop(self) -> None:
        while (work := self._to_compute.get()) is not None:
            work.seconds["queue"] = time.monotonic() - work.entered_s
            self._counters.add_seconds("queue", work.seconds["queue"])
            self._release(self.read_budget, work)
            if self._ledger.drop_if_abandoned(work.entry):
                continue
            try:
                self._compute(work)
            except Exception as error:
                if not isinstance(error, AccelError):
                    logger.exception("operation %s broke", work.operation.name)
                self._fail(work, error)
            else:
                work.entered_s = time.monotonic()
                self._to_write.put(work)
            del work

    def _compute(self, work: Work) -> None:
        started_s = time.monotonic()
        if work.due_s and started_s > work.due_s:
            raise RejectedError("deadline-exceeded", "the deadline passed before the computation began")
        work.entry.stage = "compute"
        arrays = [array for array in work.arrays if array is not None]
        work.arrays = []
        outcome = work.operation.run(arrays, work.request.params)
        outcome.arrays = {name: sendable(array) for name, array in outcome.arrays.items()}
        work.outcome = outcome
        work.bytes_out = sum(array.nbytes for array in outcome.arrays.values())
        work.seconds["compute"] = time.monotonic() - started_s
        self._counters.add_seconds("compute", work.seconds["compute"], work.operation.name)
        work.entry.stage = "write"
        self.write_budget.reserve(work.bytes_out)
        work.reserved_bytes = work.bytes_out

    # Remote write

    def _write_loop(self) -> None:
        while (item := self._to_write.get()) is not None:
            if isinstance(item, Session):
                item.send_outbox()
                continue
            try:
                answer = self._write(item)
            except Exception as error:  # noqa: BLE001 -- one bad record must not stop the stage
                self._release(self.write_budget, item)
                self._fail(item, error)
            else:
                n_bytes, item.reserved_bytes, item.outcome = item.reserved_bytes, 0, None
                self.finish(
                    item.entry,
                    answer,
                    item.operation.name,
                    item.bytes_out,
                    functools.partial(self.write_budget.release, n_bytes),
                    is_writer=True,
                )
                del answer
            del item

    def _write(self, work: Work) -> Answer:
        assert work.outcome is not None
        arrays = work.outcome.arrays
        started_s = time.monotonic()
        tensors: tuple[NamedTensor, ...] = ()
        payload: tuple[memoryview, ...] = ()
        if work.request.output_uri:
            self._store.write_atomic(work.request.output_uri, npz_parts(arrays))
            work.seconds["write"] = time.monotonic() - started_s
            self._counters.add_seconds("write", work.seconds["write"])
        else:
            tensors = tuple(NamedTensor(name, spec_of(array)) for name, array in arrays.items())
            payload = tuple(flat_bytes(array) for array in arrays.values())
        seconds = {**work.seconds, "total": time.monotonic() - work.arrived_s}
        result = Result(
            id=0,
            info=plain(work.outcome.info),
            tensors=tensors,
            server=self._config.name,
            device=DEVICE,
            seconds={name: round(value, 6) for name, value in seconds.items()},
            bytes_in=work.bytes_in,
            bytes_out=work.bytes_out,
        )
        return Answer(result, payload)

    def _fail(self, work: Work, error: Exception) -> None:
        self.finish(work.entry, failure(error), work.operation.name)

    def _release(self, budget: ByteBudget, work: Work) -> None:
        n_bytes, work.reserved_bytes = work.reserved_bytes, 0
        budget.release(n_bytes)


class _Lease:
    """Calls back once when each of several holders has given it back."""

    def __init__(self, n_holders: int, on_gone: Callable[[], None] | None) -> None:
        self._lock = threading.Lock()
        self._n_holders = n_holders
        self._on_gone = on_gone
        if n_holders == 0 and on_gone is not None:
            on_gone()

    def give_back(self) -> None:
        with self._lock:
            self._n_holders -= 1
            is_last = self._n_holders == 0
        if is_last and self._on_gone is not None:
            self._on_gone()


def _counter_of(answer: Answer) -> str:
    return "rejected" if getattr(answer.message, "kind", "") == "rejected" else "failed"
