"""Remote read and remote write: the threads on both sides of the compute stage (`flow.Flow`).

::

    sessions ──by value──────────────┐
        └──references──> read ──> [read queue] ──> compute ──> [write queue] ──> write ──> storage
                                                                     └──────────────────> sessions

Inputs count against the read queue from before their memory is taken until a worker has them; results count
against the write queue until they have left.  A full write queue starts no computation, a full read queue or
memory makes readers and sessions wait, and these then take nothing more from their sockets.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from yarn_accel.errors import StorageError, UnavailableError
from yarn_accel.pipeline.arrays import array_at, flat_bytes, spec_of
from yarn_accel.pipeline.references import read_unchanged, stamps_of
from yarn_accel.pipeline.work import Work, check_size, plan_for
from yarn_accel.pipeline.workers.jobs import Area
from yarn_accel.wire import RemoteInput

if TYPE_CHECKING:
    from yarn_accel.adapters.hdfs import Stamp, Store
    from yarn_accel.pipeline.arrays import Array
    from yarn_accel.pipeline.budget import ByteBudget
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.counters import Counters
    from yarn_accel.pipeline.pool import Pool, Segment
    from yarn_accel.pipeline.trace import Trace
    from yarn_accel.pipeline.workers.jobs import JobDone

__all__ = ["Stages"]

logger = logging.getLogger(__name__)


class Stages:
    """The threads that read referenced inputs and write outputs.

    Args:
        writing: counts the bytes of outputs until they are written.
        take_memory: reserves memory for a work and lays it out.
        confirm: whether a work with inputs of this digest must be computed.
        on_read: called with each work whose inputs are complete.
        on_written: called with each work whose outputs are stored, and the seconds that took.
        on_failed: called with each work that cannot go on, and why.
    """

    def __init__(
        self,
        config: PipelineConfig,
        store: Store,
        pool: Pool,
        counters: Counters,
        writing: ByteBudget,
        *,
        take_memory: Callable[[Work], None],
        confirm: Callable[[Work, bytes], bool],
        on_read: Callable[[Work], None],
        on_written: Callable[[Work, JobDone, float], None],
        on_failed: Callable[[Work, Exception], None],
        trace: Trace | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._pool = pool
        self._counters = counters
        self._writing = writing
        self._take_memory = take_memory
        self._confirm = confirm
        self._on_read = on_read
        self._on_written = on_written
        self._on_failed = on_failed
        self._trace = trace
        self._to_read: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._to_write: queue.SimpleQueue[tuple[Work, JobDone] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        #: Seconds all threads of a stage together were busy.
        self.busy_s = {"read": 0.0, "write": 0.0}

    def start(self) -> None:
        """Start the threads."""
        for name, n_threads, body in (
            ("read", self._config.read_threads, self._read_loop),
            ("write", self._config.write_threads, self._write_loop),
        ):
            for index in range(n_threads):
                thread = threading.Thread(target=body, name=f"{name}-{index}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def close(self) -> None:
        """Stop the threads after what they are doing; what still waits is given up."""
        self._is_closed = True
        for _ in range(self._config.read_threads):
            self._to_read.put(None)
        for _ in range(self._config.write_threads):
            self._to_write.put(None)
        for thread in self._threads:
            thread.join(timeout=5.0)

    def read(self, work: Work) -> None:
        """Have the referenced inputs of a work read."""
        work.entry.stage = "read"
        self._to_read.put(work)

    def write(self, work: Work, done: JobDone) -> None:
        """Have the outputs of a work written to where it says."""
        work.entry.stage = "write"
        work.bytes_out = sum(area.spec.nbytes for _, area in done.tensors)
        self._writing.count(work.bytes_out)
        self._to_write.put((work, done))

    # Remote read

    def _read_loop(self) -> None:
        while (work := self._to_read.get()) is not None:
            started_s = time.monotonic()
            try:
                if not work.is_dropped and not self._is_closed and not self._read(work):
                    continue
            except Exception as error:  # noqa: BLE001 -- one bad record must not stop the stage
                self._on_failed(work, error)
            else:
                now_s = time.monotonic()
                work.read_s = now_s - started_s
                self.busy_s["read"] += work.read_s
                if self._trace is not None:
                    self._trace.span("read", "read", work.request.operation, started_s, now_s, id=work.id)
                self._on_read(work)
            del work

    def _read(self, work: Work) -> bool:
        """Read the referenced inputs to their places; False: the answer is known, or on its way."""
        stamps = stamps_of(self._store, work.references)
        sizes = [stamp.n_bytes for stamp in stamps]
        check_size(work.plan.payload_bytes + sum(sizes), self._config.max_request_bytes)
        # A request that cost a worker its life was confirmed before.
        if not work.n_lost and not self._confirm(work, work.digest(stamps)):
            return False
        if work.holding.arena is None:
            work.plan = plan_for(work.plan.operation, work.request, sizes)
            self._take_memory(work)
        arena = work.holding.arena
        assert arena is not None
        left = iter(stamps)
        areas: list[Area] = []
        for item, at in zip(work.request.inputs, work.plan.offsets, strict=True):
            if isinstance(item, RemoteInput):
                areas += self._read_file(item, next(left), arena, at)
            else:
                areas.append(Area(arena.id, at, item))
        work.inputs = tuple(areas)
        if not work.plan.specs:
            self._complete_plan(work)
        work.bytes_in = work.plan.payload_bytes + sum(sizes)
        self._counters.add("bytes_in", sum(sizes), work.tenant)
        return True

    def _read_file(self, item: RemoteInput, stamp: Stamp, arena: Segment, at: int) -> list[Area]:
        view = arena.view[at : at + stamp.n_bytes]
        read_unchanged(self._store, item.uri, stamp, view)
        if item.spec is not None:
            return [Area(arena.id, at, item.spec)]
        return _areas_in(view, item.uri, arena.id, at)

    def _complete_plan(self, work: Work) -> None:
        """Now that the inputs are known: check them, and find room for the outputs."""
        operation, params = work.plan.operation, work.request.params
        specs = [area.spec for area in work.inputs]
        operation.check(specs, params)
        room = operation.output_bytes(specs, params)
        if operation.overwrites and work.request.keep_inputs:
            room += work.plan.inputs_end
        if room <= work.output_bytes:
            return
        # Waiting for more while holding some could block others who do the same; so it is now or later again.
        segment = self._pool.try_acquire(room)
        if segment is None:
            raise StorageError("no memory for the outputs just now", transient=True)
        work.holding.more = segment
        work.output_segment, work.output_offset, work.output_bytes = segment.id, 0, room

    # Remote write

    def _write_loop(self) -> None:
        while (item := self._to_write.get()) is not None:
            work, done = item
            started_s = time.monotonic()
            try:
                if self._is_closed:
                    raise UnavailableError("the server is shutting down")
                self._write(work, done)
                work.output_stamp = self._store.stamp(work.request.output_uri)
            except Exception as error:  # noqa: BLE001 -- one bad record must not stop the stage
                self._writing.release(work.bytes_out)
                self._on_failed(work, error)
            else:
                now_s = time.monotonic()
                self.busy_s["write"] += now_s - started_s
                if self._trace is not None:
                    self._trace.span("write", "write", work.request.operation, started_s, now_s, id=work.id)
                self._writing.release(work.bytes_out)
                self._on_written(work, done, now_s - started_s)
            del item, work, done

    def _write(self, work: Work, done: JobDone) -> None:
        """Write the outputs; once more if the storage may have recovered (a DataNode that was just lost)."""
        from yarn_accel.pipeline.npz import npz_parts

        uri = work.request.output_uri
        try:
            self._store.write_atomic(uri, npz_parts(_outputs(work, done)))
        except StorageError as error:
            if not error.transient or self._is_closed:
                raise
            logger.warning("writing once more: %s", error.message)
            self._store.write_atomic(uri, npz_parts(_outputs(work, done)))


def _outputs(work: Work, done: JobDone) -> dict[str, Array]:
    view = work.holding.view
    return {
        name: array_at(view(area.segment, area.offset, area.spec.nbytes), area.spec)
        for name, area in done.tensors
    }


def _areas_in(view: memoryview, uri: str, segment: int, at: int) -> list[Area]:
    """The arrays of a file that describes itself, moved within its memory to where they are aligned."""
    import numpy as np

    from yarn_accel.pipeline.npz import read_npy, read_npz

    if uri.endswith(".npz"):
        arrays = list(read_npz(view, uri).values())
    elif uri.endswith(".npy"):
        arrays = [read_npy(view, uri)]
    else:
        arrays = [np.frombuffer(view, np.uint8)]
    areas = []
    end = 0
    base = np.frombuffer(view, np.uint8).__array_interface__["data"][0] if len(view) else 0
    for array in arrays:
        spec = spec_of(array)
        begin = array.__array_interface__["data"][0] - base
        if not spec.nbytes or begin % 64:
            # Each array lies behind a header longer than what aligning it needs, so it only ever moves down.
            view[end : end + spec.nbytes] = flat_bytes(array)
            begin = end
        areas.append(Area(segment, at + begin, spec))
        end = begin + -(-spec.nbytes // 64) * 64
    return areas
