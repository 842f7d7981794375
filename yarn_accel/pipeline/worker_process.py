"""The owner's end of one worker process, and the memory that it shares with its owner.

A process is handed jobs, and its answers are understood; when it has ended, it is seen what was lost. It is
not believed: an answer that names a job it does not have, or memory outside of that job, is a
`WorkerLiedError`, and the process is replaced.

Memory is anonymous files (memfd) of fixed length, mapped once. Which segments there are, how large they are
and who uses them is decided by `core.requests`; here they are made and given back. The length of a segment is
sealed, so nobody who holds its descriptor can make another mapping of it fault.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import signal
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from yarn_accel.core.requests.records import Failure
from yarn_accel.operations import registry
from yarn_accel.pipeline.loop import READ, WRITE
from yarn_accel.pipeline.workers.launching import N_LANES, ControlWord, LaneState, Launched
from yarn_accel.pipeline.workers.protocol import (
    DONE,
    DONE_HEAD,
    HEAD,
    MAX_SLOTS,
    PLACE,
    RUN,
    Area,
    Channel,
    Job,
    JobDone,
    Lost,
    Numbering,
    decode,
    encode,
    encode_object,
    job_struct,
    specs_from,
    specs_to,
)
from yarn_accel.wire import TensorSpec

if TYPE_CHECKING:
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.loop import EventLoop

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
#: A process whose word stands still, and that uses no processor time, for so long will answer nothing; one
#: that was stopped by a signal is not waited for so long.
_STILL_S = 3.0
_STOPPED_S = 0.5
#: The id that an answer begins with.
_JOB_ID = struct.Struct("<Q")
_MAP_AT_ONCE = 100
_MAX_FACTS = 512
_CLOCK_SLACK_S = 1.0
_MAX_FACT_BYTES = 1024
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Segment:
    """One piece of shared memory.

    Attributes:
        id: its number, never used again in this process.
        fd: its descriptor, owned here.
        n_bytes: its length.
        view: all of it, writable.
        is_shared: whether a client holds its descriptor too.
    """

    __slots__ = ("_map", "fd", "id", "is_shared", "n_bytes", "view")

    def __init__(self, number: int, n_bytes: int) -> None:
        self.id = number
        self.n_bytes = n_bytes
        self.is_shared = False
        self.fd = os.memfd_create(f"yarn-accel-{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, n_bytes)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self.fd, n_bytes)
        except BaseException:
            os.close(self.fd)
            raise
        self.view = memoryview(self._map)

    def close(self) -> None:
        """Give the memory back, at once even if workers still map it; what a client has stays its own."""
        if not self.is_shared:
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE)
        os.close(self.fd)
        with contextlib.suppress(BufferError):
            self.view.release()
            self._map.close()


class Buffers:
    """All segments of a server, by number."""

    def __init__(self) -> None:
        self.by_id: dict[int, Segment] = {}

    def create(self, number: int, n_bytes: int) -> Segment | None:
        """Make a segment; None: the system has no descriptor or no memory left."""
        try:
            segment = self.by_id[number] = Segment(number, n_bytes)
        except OSError:
            return None
        return segment

    def destroy(self, number: int) -> None:
        """Give a segment back to the system."""
        self.by_id.pop(number).close()

    def close(self) -> None:
        """Give all of them back."""
        while self.by_id:
            self.by_id.popitem()[1].close()


class WorkerLiedError(Exception):
    """A worker answered what cannot be true."""


@dataclass(slots=True)
class _Batch:
    """Jobs sent in one message, answered in one message; under way since `started_s`, 0: it is not yet."""

    jobs: dict[int, Job]
    sizes: list[tuple[int, ...]]
    limit_s: float
    sent_s: float
    is_alone: bool
    started_s: float = 0.0


@dataclass(slots=True)
class _Layout:
    """Of each tensor its name, its description and how many bytes it has."""

    tensors: tuple[tuple[str, TensorSpec, int], ...]


@dataclass(slots=True)
class Tally:
    """Counts of the work that a process has done."""

    n_jobs: int = 0
    busy_s: float = 0.0
    started_s: float = field(default_factory=time.monotonic)


class WorkerProcess:
    """One process, from its start to its end; nothing here ever waits for it.

    Attributes:
        worker: its number, once it has a place; so is `device`, the name of what it computes on.
        is_open: whether it takes jobs.
        is_on_probation: whether its device has to prove itself.
        is_unfit: whether it could not even start.
        has_lied: whether it said what cannot be true.
        prepares: of a standby, the GPU that it makes ready, since `prepares_since_s`; empty: none.
        is_prepared: whether it has done so.
        is_unkillable: whether SIGKILL did not end it in time, as in a driver that never returns (state D).
        killed_s: when it was first killed, monotonic seconds; 0: never.
        beside: of a GPU's worker, the processes without a part of its memory that it last heard of, at
            `shared_s`.
        toolkit: the CUDA libraries it computes with, in one line; empty: none, or unknown.
    """

    def __init__(self, launched: Launched) -> None:
        """Take over a process."""
        self.worker = -1
        self.device = ""
        self.fate = "died"
        self.detail = ""
        self.versions: dict[str, str] = {}
        self.toolkit = ""
        self.entered_ns = 0
        self.is_open = False
        self.is_on_probation = False
        self.is_unfit = False
        self.has_lied = False
        self.prepares = ""
        self.prepares_since_s = 0.0
        self.is_prepared = False
        self.is_unkillable = False
        self.killed_s = 0.0
        self.beside: list[int] = []
        self.shared_s = 0.0
        self.tally = Tally()
        self.control = launched.control
        self._is_gone = False
        #: By the id of its first job, in the order in which they were sent.
        self._batches: dict[int, _Batch] = {}
        self._busy_since_s = 0.0
        self._templates = Numbering()
        self._sizes: dict[int, tuple[int, ...]] = {}
        self._layouts: dict[int, _Layout] = {}
        self._facts: dict[bytes, Any] = {}
        self._mapped: set[int] = set()
        self._dropped: list[int] = []
        #: Messages that the socket did not take; the descriptors are our own copies.
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._alive_ns = 0
        self._used_s = 0.0
        self._still_s = 0.0
        launched.channel.setblocking(False)
        self.fd = launched.channel.fileno()
        self._channel = Channel(launched.channel)
        self._popen = launched.process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def is_measuring(self) -> bool:
        """Whether it is at a calibration."""
        return not self._is_gone and bool(self.control.words[ControlWord.MEASURING])

    def idle_s(self) -> float:
        """For how long it has had nothing to do; 0 when it has, or is gone."""
        if self._is_gone or self._batches:
            return 0.0
        last_ns = max(self.control.words[ControlWord.SINCE_NS], self.entered_ns)
        return (time.monotonic_ns() - last_ns) / 1e9

    def attend(
        self,
        loop: EventLoop,
        segments: Callable[[int], Segment],
        config: PipelineConfig,
        on_answers: Callable[[WorkerProcess, list[JobDone]], None],
        on_message: Callable[[WorkerProcess, Any], None],
    ) -> None:
        """Listen to it from now on.

        Args:
            loop: watches its channel.
            segments: finds the memory of its jobs by number.
            config: says after how many seconds a batch is overdue.
            on_answers: given all answers to one batch, in its order.
            on_message: given everything else that it says: None when it is gone, and answers while
                `is_on_probation`.
        """
        self._loop, self._segments, self._config = loop, segments, config
        self._on_answers, self._on_message = on_answers, on_message
        loop.watch(self.fd, READ, self._ready)

    # To the worker

    def send(self, jobs: Sequence[Job], expected_s: float = 0.0) -> bool:
        """Hand a batch over, also to a worker that is busy.

        Args:
            jobs: computed in this order.
            expected_s: how long they should take; by that it is judged who is stuck.

        Returns:
            False when the process is gone: the jobs were not begun, and are not among those it lost.
        """
        if self._is_gone:
            return False
        config = self._config
        limit_s = max(config.hang_min_s, config.hang_factor * expected_s)
        if self.device != "cpu":
            limit_s += config.gpu_memory_wait_s
        parts = [HEAD.pack(RUN, len(jobs))]
        batch = _Batch({}, [], limit_s, time.monotonic(), any(job.is_alone for job in jobs))
        for job in jobs:
            number = self._template(job)
            parts.append(self._encode_job(job, number))
            batch.jobs[job.id] = job
            batch.sizes.append(self._sizes[number])
        if not self._batches:
            self._busy_since_s = batch.sent_s
        self._batches[jobs[0].id] = batch
        self._begin(batch.sent_s)
        self._tell(b"".join(parts))
        return True

    def withdraw(self, jobs: Sequence[int]) -> bool:
        """End it if it has got one of these jobs, of a batch that could not be handed over as a whole.

        Returns:
            whether it had one; they are then among what it leaves unanswered.
        """
        has_any = any(job in batch.jobs for batch in self._batches.values() for job in jobs)
        if has_any:
            self.kill("died", "a batch could not be handed over")
        return has_any

    def order(self, **fields: Any) -> None:
        """Send a JSON message."""
        if not self._is_gone:
            self._tell(encode_object(**fields))

    def drop(self, segment: int) -> None:
        """Have a segment unmapped: now, or when the batch it is at has ended."""
        if segment in self._mapped:
            self._mapped.discard(segment)
            self._dropped.append(segment)
            if not self._batches and not self._is_gone:
                self._flush_dropped()

    def _flush(self) -> None:
        """Send what the socket did not take before, as far as it does now."""
        while self._unsent:
            message, fds = self._unsent[0]
            try:
                self._channel.send(message, fds)
            except BlockingIOError:
                return
            except OSError:
                self._discard_unsent()
                break
            self._unsent.popleft()
            _close_all(fds)
        self._loop.change(self.fd, READ)

    def _template(self, job: Job) -> int:
        """The number of what this job has in common with others; the worker learns of a new one."""
        likeness = job.likeness
        if likeness is None:
            params = encode(job.params) if job.params else "{}"
            likeness = job.operation, params, tuple([area.spec for area in job.inputs])
        number, is_new = self._templates.number(likeness)
        if is_new:
            specs = tuple([area.spec for area in job.inputs])
            self._tell(
                encode_object(
                    template=number, operation=job.operation, params=job.params, specs=specs_to(specs)
                )
            )
            self._sizes[number] = tuple([spec.nbytes for spec in specs])
        return number

    def _encode_job(self, job: Job, number: int) -> bytes:
        places: list[int] = []
        for area in job.inputs:
            places += (area.segment, area.offset)
        mapped = self._mapped
        if job.output_segment not in mapped or not mapped.issuperset(places[::2]):
            self._map({job.output_segment, *places[::2]} - mapped)
        return job_struct(len(job.inputs)).pack(
            job.id,
            number,
            job.may_overwrite,
            job.is_alone,
            job.output_segment,
            job.output_offset,
            job.output_bytes,
            job.due_s,
            *places,
        )

    def _map(self, wanted: set[int]) -> None:
        found = [self._segments(segment) for segment in sorted(wanted)]
        for start in range(0, len(found), _MAP_AT_ONCE):
            some = found[start : start + _MAP_AT_ONCE]
            message = encode_object(map=[[one.id, one.n_bytes] for one in some])
            self._tell(message, [one.fd for one in some])
        self._mapped |= wanted

    def _flush_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, []
            self._tell(encode_object(drop=dropped))

    def _tell(self, message: bytes, fds: Sequence[int] = ()) -> None:
        if self._dropped:
            self._flush_dropped()
        if not self._unsent:
            try:
                self._channel.send(message, fds)
            except BlockingIOError:
                pass
            except OSError:
                # The process is dying, which its channel tells soon.
                return
            else:
                return
        if not self._unsent:
            self._loop.change(self.fd, READ | WRITE)
        self._unsent.append((message, [os.dup(fd) for fd in fds]))

    def _discard_unsent(self) -> None:
        while self._unsent:
            _close_all(self._unsent.popleft()[1])

    # From the worker

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if not events & ~WRITE:
            return
        message: list[JobDone] | dict[str, Any] | None
        try:
            message = self._receive()
        except BlockingIOError:
            return
        except WorkerLiedError as lie:
            self.has_lied = True
            self.kill("died", f"it lied: {lie}")
            message = None
        if message is None:
            self._loop.forget(self.fd)
        if isinstance(message, list) and not self.is_on_probation:
            self._on_answers(self, message)
        else:
            self._on_message(self, message)

    def _receive(self) -> list[JobDone] | dict[str, Any] | None:
        """The answers to one batch, or a JSON message; None when the process is gone.

        Raises:
            BlockingIOError: there is nothing now.
            WorkerLiedError: it answered what cannot be true.
        """
        while True:
            try:
                message, fds = self._channel.receive()
            except BlockingIOError:
                raise
            except OSError:
                return None
            except ValueError as error:
                raise WorkerLiedError(str(error)) from None
            for fd in fds:
                os.close(fd)
            if not message:
                return None
            try:
                if message[0] == DONE:
                    return self._answers(message)
                fields: dict[str, Any] = decode(message.decode())
                if "layout" not in fields:
                    return fields
                self._learn(fields)
            except (struct.error, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
                raise WorkerLiedError(f"an answer that means nothing: {error!r}") from None

    def _learn(self, fields: dict[str, Any]) -> None:
        tensors = fields["tensors"]
        specs = specs_from(tensor[1:] for tensor in tensors)
        names = tuple(str(tensor[0]) for tensor in tensors)
        number = int(fields["layout"])
        if not 0 <= number < MAX_SLOTS:
            raise ValueError(f"layout {number}")
        sizes = [spec.nbytes for spec in specs]
        self._layouts[number] = _Layout(tuple(zip(names, specs, sizes, strict=True)))

    def _answers(self, message: bytes) -> list[JobDone]:
        (first,) = _JOB_ID.unpack_from(message, HEAD.size)
        batch = self._batches.get(first)
        if batch is None:
            raise WorkerLiedError(f"an answer to job {first}, which begins no batch that it has")
        jobs = batch.jobs
        _, n_answers = HEAD.unpack_from(message)
        if n_answers != len(jobs):
            raise WorkerLiedError(f"{n_answers} answers to {len(jobs)} jobs")
        position, done = HEAD.size, []
        most_s = time.monotonic() - batch.sent_s + _CLOCK_SLACK_S
        for job, sizes in zip(jobs.values(), batch.sizes, strict=True):
            answer, position = self._answer(job, sizes, message, position)
            # Written so that NaN fails, too: these figures go into everybody's accounts.
            if not (0.0 <= answer.compute_s <= most_s and 0.0 <= answer.kernel_s <= most_s):
                raise WorkerLiedError(f"job {job.id} is said to have taken {answer.compute_s} s")
            done.append(answer)
        del self._batches[first]
        self._settle(done)
        return done

    def _answer(self, job: Job, sizes: tuple[int, ...], message: bytes, position: int) -> tuple[JobDone, int]:
        number, failed, overwritten, n_tensors, layout_number, n_text, compute_s, kernel_s = (
            DONE_HEAD.unpack_from(message, position)
        )
        if number != job.id:
            raise WorkerLiedError(f"an answer to job {number} in place of {job.id}")
        position += DONE_HEAD.size
        text_at = position + 16 * n_tensors
        end = text_at + n_text
        facts = self._fact(message[text_at:end])
        if failed:
            return JobDone(job.id, (), {}, compute_s, kernel_s, overwritten, Failure(*facts)), end
        layout = self._layouts[layout_number]
        if len(layout.tensors) != n_tensors:
            raise WorkerLiedError("tensors without a description")
        tensors = []
        for name, spec, n_bytes in layout.tensors:
            segment, offset = PLACE.unpack_from(message, position)
            position += PLACE.size
            if not _is_inside(job, sizes, segment, offset, n_bytes):
                raise WorkerLiedError(f"an output outside of the memory of job {job.id}")
            tensors.append((name, Area(segment, offset, spec)))
        return JobDone(job.id, tuple(tensors), facts, compute_s, kernel_s, overwritten), end

    def _fact(self, text: bytes) -> Any:
        facts = self._facts.get(text)
        if facts is None:
            facts = decode(text.decode())
            if len(text) <= _MAX_FACT_BYTES:
                if len(self._facts) >= _MAX_FACTS:
                    self._facts.clear()
                self._facts[text] = facts
        return facts

    def _settle(self, done: list[JobDone]) -> None:
        now_s = time.monotonic()
        tally = self.tally
        tally.n_jobs += len(done)
        tally.busy_s += now_s - self._busy_since_s
        self._busy_since_s = now_s
        self._begin(now_s)
        if not self._batches and self._dropped:
            self._flush_dropped()

    def _begin(self, now_s: float) -> None:
        """Note which batches the worker's lanes have taken: the first ones, but nothing beside one alone."""
        n_lanes = 1 if self.device == "cpu" else N_LANES
        for k, batch in enumerate(self._batches.values()):
            if k >= n_lanes or (k and batch.is_alone):
                return
            batch.started_s = batch.started_s or now_s
            if batch.is_alone:
                return

    # Its end

    def overdue_s(self, now_s: float) -> float:
        """For how many seconds a batch it is at has been over its limit; 0 or less: none is."""
        under_way = [batch for batch in self._batches.values() if batch.started_s]
        return max([now_s - batch.started_s - batch.limit_s for batch in under_way], default=0.0)

    def busy_since_s(self) -> float:
        """When the oldest batch it is at was begun, monotonic seconds; 0 when it has none."""
        return next(iter(self._batches.values())).started_s if self._batches else 0.0

    def busy_s(self, now_s: float) -> float:
        """For how many seconds it has had something to compute so far."""
        return self.tally.busy_s + (now_s - self._busy_since_s if self._batches else 0.0)

    def look(self, passed_s: float) -> str:
        """Look whether it runs; to be called again and again while this process runs itself.

        Args:
            passed_s: since the last look, as far as this process could look at all.

        Returns:
            why it will answer nothing any more; empty: it lives.  It may stand still for a while: on a busy
            machine it gets no processor, and an operation in native code may keep its other threads from
            running, but then it uses processor time.
        """
        alive_ns = self.control.words[ControlWord.ALIVE_NS]
        if alive_ns != self._alive_ns or self._is_gone:
            self._alive_ns, self._still_s = alive_ns, 0.0
            return ""
        state, used_s = _run_state(self.pid)
        if used_s > self._used_s:
            self._used_s, self._still_s = used_s, 0.0
            return ""
        if state == "D":
            return ""
        self._still_s += passed_s
        if state == "T" and self._still_s >= _STOPPED_S:
            return "its process was stopped"
        return f"nothing in it has run for {self._still_s:.1f} s" if self._still_s >= _STILL_S else ""

    def kill(self, fate: str = "died", detail: str = "") -> None:
        """End it now; the end of its channel tells when that has happened."""
        self.fate, self.detail = fate, self.detail or detail
        self._kill()

    def accuse_device(self, fault: str) -> None:
        """End it because of a fault of its device, which also explains an end that was seen before."""
        if self.fate != "sick":
            self.detail = f"{fault}; {self.detail}" if self.detail else fault
        self.kill("sick")

    def has_ended(self) -> bool:
        """Whether it has ended and writes nothing any more; it is killed if it has not."""
        if self._popen.poll() is None:
            self._kill()
        return self._popen.poll() is not None

    def _kill(self) -> None:
        self.killed_s = self.killed_s or time.monotonic()
        self._popen.kill()

    def bury(self) -> tuple[Lost, ...]:
        """Take leave of it after it has ended, or was given up; returns the jobs it leaves unanswered."""
        self._is_gone = True
        lost = self._lost()
        self._batches.clear()
        self._discard_unsent()
        self._channel.close()
        if self.is_unkillable:
            text = f"process {self.pid} goes on after SIGKILL, in state {_run_state(self.pid)[0]}"
            self.detail = f"{self.detail}; {text}" if self.detail else text
        self.detail = self.detail or self._cause()
        return lost

    def _lost(self) -> tuple[Lost, ...]:
        """Of a batch it was at: the jobs before the control word's are finished but unreported.

        Who lied, or ended after its last job but before its answer, has no such alibi: every job of the
        batches under way may be the reason, or the same one could cost one worker after the other.
        """
        lost: list[Lost] = []
        for batch in self._batches.values():
            if batch.started_s and self.has_lied:
                lost += [Lost(job.id, _destroys(job), True, job.request) for job in batch.jobs.values()]
                continue
            state, first, count = self.control.job_at(batch.jobs)
            at = list(batch.jobs).index(first) if count else -1
            is_done = at >= 0 and state is LaneState.IDLE
            for i, job in enumerate(batch.jobs.values()):
                if is_done or i < at:
                    lost.append(Lost(job.id, _destroys(job), is_done, job.request))
                elif at >= 0 and i < at + count:
                    is_overwritten = state is LaneState.OVERWRITING and job.may_overwrite
                    lost.append(Lost(job.id, is_overwritten, True, job.request))
                else:
                    lost.append(Lost(job.id, False, False, job.request))
        return tuple(lost)

    def _cause(self) -> str:
        code = self._popen.returncode
        if code is not None and code < 0:
            text = f"killed by {signal.Signals(-code).name}"
        else:
            text = f"ended with status {code}"
        frames = self.control.last_frames()
        return f"{text} at {' in '.join(frames[:2])}" if frames else text

    def close(self) -> None:
        """Give back what is left after `bury`."""
        self.control.close()


def _run_state(pid: int) -> tuple[str, float]:
    """The state of a process as the kernel has it, and the processor time it has used, in seconds."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123 -- read often
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return "X", 0.0
    return words[0], (int(words[11]) + int(words[12])) / _TICKS_PER_S


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _is_inside(job: Job, sizes: tuple[int, ...], segment: int, offset: int, n_bytes: int) -> bool:
    """Whether a tensor lies in the output area or in an input; an empty one lies anywhere."""
    if not n_bytes:
        return True
    end = offset + n_bytes
    if segment == job.output_segment and job.output_offset <= offset <= end <= _output_end(job):
        return True
    for area, size in zip(job.inputs, sizes, strict=True):
        if segment == area.segment and offset >= area.offset and end <= area.offset + size:
            return True
    return False


def _output_end(job: Job) -> int:
    return job.output_offset + job.output_bytes


def _destroys(job: Job) -> bool:
    operation = registry.OPERATIONS.get(job.operation)
    return job.may_overwrite and (operation is None or operation.overwrites)
