"""Inputs and outputs by URI: the threads that wait for storage, so that the loop does not.

Each thread takes one task after the other and hands what came of it to the loop. A file counts as it looked
when its request was judged: one that has changed by the time it is read fails the request.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from yarn_accel.errors import RejectedError, StorageError, UnavailableError
from yarn_accel.formats import describe, is_array_file, load
from yarn_accel.pipeline.plans import ReferencedFile, digest_of
from yarn_accel.storage import Stamp, Store
from yarn_accel.uris import split_member
from yarn_accel.wire import RemoteInput, TensorSpec

if TYPE_CHECKING:
    import numpy as np

    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.loop import EventLoop
    from yarn_accel.pipeline.plans import Plan, Plans, Work
    from yarn_accel.pipeline.workers.protocol import Area

    Array = np.ndarray[Any, Any]

logger = logging.getLogger(__name__)

#: One may read a large model, while another one looks whether others may still be read.
_MODEL_THREADS = 2
_Then = Callable[[Any, float], None]
_Task = tuple[Callable[[], Any], _Then]


class LookedAt(NamedTuple):
    """The referenced files of a request as they look now, and the plan that follows from them."""

    stamps: list[Stamp]
    plan: Plan
    digest: bytes


class InputsTaken(NamedTuple):
    """The inputs of a request, read: where they lie, and their bytes."""

    areas: tuple[Area, ...]
    bytes_in: int


class Storage:
    """The threads that read and write.

    Args:
        config: how many of them.
        store: where references are read and outputs written, unless a request has a store of its own.
        loop: the thread that results are handed to.
        n_logins: threads that log in as users.

    Attributes:
        busy_s: seconds that all threads of a kind together were busy.
    """

    def __init__(self, config: PipelineConfig, store: Store, loop: EventLoop, n_logins: int = 0) -> None:
        self._store = store
        self._loop = loop
        self._n_threads = {
            "read": config.read_threads,
            "write": config.write_threads,
            "login": n_logins,
            "model": _MODEL_THREADS,
        }
        self._tasks: dict[str, queue.SimpleQueue[_Task | None]] = {
            kind: queue.SimpleQueue() for kind in self._n_threads
        }
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self.busy_s = {"read": 0.0, "write": 0.0}

    def start(self) -> None:
        """Start the threads."""
        for kind, n_threads in self._n_threads.items():
            for index in range(n_threads):
                thread = threading.Thread(target=self._run, args=(kind,), name=f"{kind}-{index}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def close(self) -> None:
        """Stop the threads after what they are doing; what still waits fails."""
        self._is_closed = True
        for kind, n_threads in self._n_threads.items():
            for _ in range(n_threads):
                self._tasks[kind].put(None)
        for thread in self._threads:
            thread.join(timeout=5.0)

    def look(self, work: Work, plans: Plans, then: _Then) -> None:
        """Look at the referenced files of a request; `then` gets a `LookedAt` or an error."""
        self._tasks["read"].put((partial(self._look, work, plans), then))

    def look_at_output(self, uri: str, then: _Then, store: Store | None = None) -> None:
        """Look at a file; `then` gets its `Stamp`, or None if there is none, or an error."""
        self._tasks["read"].put((partial(stamp_or_none, store or self._store, uri), then))

    def read(self, work: Work, view: memoryview, then: _Then) -> None:
        """Read the referenced inputs of a request into `view`; `then` gets an `InputsTaken` or an error."""
        self._tasks["read"].put((partial(self._read, work, view), then))

    def look_at_model(self, look: Callable[[Store], Any], then: _Then, store: Store | None = None) -> None:
        """Look at a model, apart from what requests read; `then` gets what `look` returns, or an error."""
        self._tasks["model"].put((partial(look, store or self._store), then))

    def write(self, uri: str, outputs: dict[str, Array], then: _Then, store: Store | None = None) -> None:
        """Write arrays to a file; `then` gets its `Stamp` or an error."""
        self._tasks["write"].put((partial(self._write, uri, outputs, store or self._store), then))

    def log_in(self, task: Callable[[], Any], then: _Then) -> None:
        """Do something that waits for logins, apart from reading and writing; `then` gets its result."""
        self._tasks["login"].put((task, then))

    def _run(self, kind: str) -> None:
        tasks = self._tasks[kind]
        while (task := tasks.get()) is not None:
            began_s = time.monotonic()
            result = self._result_of(task[0])
            took_s = time.monotonic() - began_s
            self._loop.call_soon(partial(self._finish, kind, task[1], result, took_s))
            del task, result

    def _result_of(self, task: Callable[[], Any]) -> Any:
        try:
            if self._is_closed:
                raise UnavailableError("the server is shutting down")
            return task()
        except Exception as error:  # noqa: BLE001 -- one bad record must not stop the thread
            return error

    def _finish(self, kind: str, then: _Then, result: Any, took_s: float) -> None:
        if kind in self.busy_s:
            self.busy_s[kind] += took_s
        try:
            then(result, took_s)
        except Exception as error:
            logger.exception("what storage found could not be used")
            then(error, took_s)

    # In the threads

    def _look(self, work: Work, plans: Plans) -> LookedAt:
        stamps, files = look_at(work.store or self._store, work.plan.references)
        plan = plans.sized(work.plan, work.request, files)
        return LookedAt(stamps, plan, digest_of((), stamps))

    def _read(self, work: Work, view: memoryview) -> InputsTaken:
        plan, segment, store = work.plan, work.segment, work.store or self._store
        assert segment is not None
        left = zip(work.stamps, plan.files, strict=True)
        for item, offsets in zip(plan.inputs, plan.offsets, strict=True):
            if isinstance(item, RemoteInput):
                stamp, file = next(left)
                places = zip(offsets, file.specs, strict=True)
                views = [view[at : at + spec.nbytes] for at, spec in places]
                uri = item.uri if item.spec is not None else split_member(item.uri)[0]
                read_unchanged(store, uri, stamp, file, views)
        bytes_in = plan.payload_bytes + sum(stamp.n_bytes for stamp in work.stamps)
        return InputsTaken(plan.areas(segment.id), bytes_in)

    def _write(self, uri: str, outputs: dict[str, Array], store: Store) -> Stamp:
        """Write the outputs; once more if the storage may have recovered (a DataNode that was just lost)."""
        from yarn_accel.formats.npz_writer import npz_parts

        try:
            store.write_atomic(uri, npz_parts(outputs))
        except StorageError as error:
            if not error.transient or self._is_closed:
                raise
            logger.warning("writing once more: %s", error.message)
            store.write_atomic(uri, npz_parts(outputs))
        return store.stamp(uri)


def outputs_of(tensors: Sequence[tuple[str, Area]], view_of: Callable[[int], memoryview]) -> dict[str, Array]:
    """The outputs of a request as arrays where they lie."""
    return {
        name: array_at(view_of(area.segment)[area.offset : area.offset + area.spec.nbytes], area.spec)
        for name, area in tensors
    }


def look_at(store: Store, inputs: Iterable[RemoteInput]) -> tuple[list[Stamp], list[ReferencedFile]]:
    """The stamp of each referenced file, and the arrays it holds by its headers; no element is read.

    Raises:
        StorageError: one cannot be looked at; transient when it changes meanwhile.
        RejectedError: ``wrong-length``: one does not have the bytes its spec says; or as `describe`.
    """
    stamps, files = [], []
    for item in inputs:
        uri = item.uri if item.spec is not None else split_member(item.uri)[0]
        stamp = store.stamp(uri)
        stamps.append(stamp)
        if item.spec is not None:
            if stamp.n_bytes != item.spec.nbytes:
                raise RejectedError(
                    "wrong-length",
                    f"{uri}: {stamp.n_bytes} bytes, its spec says {item.spec.nbytes} ({item.spec})",
                )
            files.append(ReferencedFile((item.spec,)))
        elif is_array_file(item.uri):
            with _unless_changed(store, uri, stamp), store.opened(uri) as source:
                arrays = describe(source, item.uri)
            files.append(ReferencedFile(tuple([array.spec for array in arrays]), arrays))
        else:
            files.append(ReferencedFile((TensorSpec("|u1", (stamp.n_bytes,)),)))
    return stamps, files


def stamp_or_none(store: Store, uri: str) -> Stamp | None:
    """The stamp of a file; None when there is none.

    Raises:
        StorageError: nobody can say.
    """
    try:
        return store.stamp(uri)
    except StorageError:
        if store.exists(uri):
            raise
        return None


def read_unchanged(
    store: Store, uri: str, stamp: Stamp, file: ReferencedFile, views: Sequence[memoryview]
) -> None:
    """Fill a buffer for each array of a file that still looks as it did when the request was judged by it.

    Raises:
        StorageError: it cannot be read; transient when it has changed.
        RejectedError: as `load`.
    """
    with _unless_changed(store, uri, stamp), store.opened(uri) as source:
        if source.n_bytes != stamp.n_bytes:
            raise _changed(uri)
        for number, view in enumerate(views):
            if file.arrays:
                load(file.arrays[number], source, view)
            else:
                source.read_into(0, view)
    if store.stamp(uri) != stamp:
        raise _changed(uri)


@contextlib.contextmanager
def _unless_changed(store: Store, uri: str, stamp: Stamp) -> Iterator[None]:
    """An error within counts as the file's own only if the file is still the one that was stamped."""
    try:
        yield
    except (RejectedError, StorageError):
        if store.stamp(uri) == stamp:
            raise
        raise _changed(uri) from None


def _changed(uri: str) -> StorageError:
    return StorageError(f"{uri}: it was changed while it was read", transient=True)


def array_at(view: memoryview, spec: TensorSpec) -> Array:
    """The array of that description whose memory begins at the beginning of `view`; no copy."""
    import numpy as np

    order: Any = spec.order
    array: Array = np.ndarray(spec.shape, spec.dtype, view, order=order)
    return array
