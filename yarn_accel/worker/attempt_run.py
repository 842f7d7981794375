"""Runs one attempt: its inputs into its folder, its split into its command, its output to a file, the commit.

A command has up to three threads: this one takes the output, one feeds the lines, one reads standard error.
Without an output file this one reads standard error, and without a split nothing is fed. The pipes between
are what bounds memory. A function is called in a process that may have run before. `run` ends only when
nothing that the attempt has started runs any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import posixpath
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path

from yarn_accel.core.tasks.attempt_orders import (
    AttemptOrder,
    FunctionCall,
    InputSplit,
    OutputFile,
    is_file_name,
)
from yarn_accel.core.tasks.worker_messages import MAX_LINE, AttemptEnd, AttemptOutcome
from yarn_accel.errors import AccelError, StorageError
from yarn_accel.storage import Store
from yarn_accel.worker.attempt_log import LogFolder
from yarn_accel.worker.file_cache import FileCache
from yarn_accel.worker.function_call import CallReply, FunctionProcessLost
from yarn_accel.worker.function_pool import FunctionPool, FunctionSlot
from yarn_accel.worker.guarded_process import Guard, GuardedProcess
from yarn_accel.worker.line_split import split_lines
from yarn_accel.worker.operation_program import OperationProgram
from yarn_accel.worker.python_environments import PythonEnvironments
from yarn_accel.worker.read_phase import ReaderCount, ReadPhase
from yarn_accel.worker.reuse import AttemptFolders
from yarn_accel.worker.streaming import (
    ATTEMPT_NAMES,
    ErrorLines,
    attempt_folder,
    printable,
    streaming_environment,
)
from yarn_accel.worker.task_folder import EarlierTasks, TaskFolderOutput


class AttemptOutput:
    """Writes and commits one attempt's output.

    Raises:
        StorageError: from every method; names the place.
    """

    def __init__(self, store: Store, order: AttemptOrder, output: OutputFile) -> None:
        self._store = store
        self._name = output.name
        self._folder = output.folder.rstrip("/")
        self._own = attempt_folder(order, output)
        self._target = f"{self._folder}/{output.name}"

    def is_committed(self) -> bool:
        """Whether some attempt of this task is done."""
        return self._store.exists(self._target)

    is_done_earlier = is_committed

    def prepare(self) -> None:
        """Make the attempt's folder: a command may put files there at once.

        The folder above it is the master's, see `task_folder`.
        """
        self._store.mkdir(self._own)

    def write(self, parts: Iterable[bytes]) -> int:
        """Write everything; nobody takes it for output yet."""
        return self._store.write_new(f"{self._own}/{self._name}", parts)

    def commit(self, check: Callable[[], None]) -> bool:
        """Make it the task's output; False where another attempt was first.

        Args:
            check: called right before the step that counts; raises where it must not be done any more.
        """
        if self.is_committed():
            return False
        for uri in self._store.list(self._own):
            name = posixpath.basename(uri)
            if name != self._name:
                self._store.rename(uri, f"{self._folder}/{name}", overwrite=True)
        check()
        try:
            self._store.rename(f"{self._own}/{self._name}", self._target, overwrite=False)
        except StorageError:
            if self.is_committed():
                return False
            raise
        return True

    def clean(self) -> None:
        """Delete what is left of this attempt; fine where that is nothing, or fails."""
        with contextlib.suppress(StorageError):
            self._store.delete(self._own)


_PIPE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RunPlace:
    """What all attempts of a worker share.

    Attributes:
        folders: each attempt has one while it runs.
        files: that applications ship, and that tasks leave for others.
        logs: each attempt's standard error stays there.
        environ: the worker's own environment.
        functions: the processes that call functions, and what all attempts occupy.
        environments: other Python environments than the worker's.
        earlier: tasks that were done before.
        program: starts operation tasks.
    """

    guard: Guard
    store: Store
    readers: ReaderCount
    files: FileCache
    folders: AttemptFolders
    logs: LogFolder
    environ: Mapping[str, str]
    functions: FunctionPool
    environments: PythonEnvironments
    earlier: EarlierTasks
    program: OperationProgram = field(default_factory=OperationProgram)
    clock: Callable[[], float] = time.monotonic


class _Stopped(Exception):
    """The attempt was ended; nothing of it counts."""


class AttemptRun:
    """One attempt.

    Args:
        devices: the names of its GPUs.
    """

    def __init__(self, place: RunPlace, order: AttemptOrder, devices: tuple[str, ...]) -> None:
        self._place = place
        self._order = order
        self._devices = devices
        self._folder = place.folders.of(order.attempt)
        self._output = self._make_output()
        self._lock = threading.Lock()
        self._is_stopped = False
        self._process: GuardedProcess | None = None
        self._failure: AccelError | None = None
        self._n_written = 0
        self._lines: ErrorLines | None = None
        #: What its process had read before it began.
        self._read_before = 0
        #: What it has read.
        self.phase = ReadPhase(place.clock())

    @property
    def session(self) -> int:
        """The session of its processes; 0: it has none yet."""
        return self._process.pid if self._process is not None else 0

    def sample(self, n_bytes: int) -> None:
        """Its processes have read so much by themselves, which counts where nothing is read for them."""
        if self._order.input is None and not self._order.inputs:
            self.phase.sample(n_bytes - self._read_before, self._place.clock())

    @property
    def status(self) -> str:
        """What it reported last."""
        return self._lines.status if self._lines is not None else ""

    def activity(self) -> tuple[int, ...]:
        """Differs from before when it read, wrote or reported something."""
        return self.phase.n_bytes, self._n_written, self._lines.n_lines if self._lines is not None else 0

    def stop(self, force: bool) -> None:
        """End it; what it has not committed yet, it never does."""
        with self._lock:
            self._is_stopped = True
            process = self._process
        if process is not None:
            process.signal(force)

    def run(self, processes_ended: Callable[[], None]) -> AttemptEnd:
        """Run it to its end; never raises.

        Args:
            processes_ended: called where its output is written now, and nothing of it runs any more.
        """
        try:
            end = self._run(processes_ended)
        except _Stopped:
            end = AttemptEnd(AttemptOutcome.FAILED, error="it was ended")
        except AccelError as error:
            end = AttemptEnd(AttemptOutcome.FAILED, error=printable(str(error)), is_transient=error.transient)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the master has to know that it ended
            end = AttemptEnd(AttemptOutcome.FAILED, error=printable(f"{type(error).__name__}: {error}"))
        finally:
            self._place.readers.end(self.phase)
        return end

    def clean(self) -> None:
        """Remove what is left of it on this node; called after `run`, when others know of its end."""
        if isinstance(self._output, TaskFolderOutput):
            self._output.keep_copies()
        self._place.folders.give_back(self._folder)

    def _run(self, processes_ended: Callable[[], None]) -> AttemptEnd:
        output = self._output
        if output is not None and output.is_done_earlier():
            result = output.kept_result() if isinstance(output, TaskFolderOutput) else ""
            return AttemptEnd(AttemptOutcome.DONE, was_done_before=True, result=result)
        try:
            with self._place.functions.slot(self._order, self._devices) as slot:
                end = self._compute(slot)
            if end.outcome is not AttemptOutcome.DONE:
                return end
            is_first = True
            if output is not None:
                processes_ended()
                if isinstance(output, TaskFolderOutput):
                    output.keep_result(end.result)
                is_first = output.commit(self._check)
            now_s = self._place.clock()
            return replace(
                end,
                was_done_before=not is_first,
                wall_s=now_s - self.phase.started_s,
                measured=self.phase.measured(now_s),
            )
        finally:
            if output is not None:
                output.clean()

    def _compute(self, slot: FunctionSlot) -> AttemptEnd:
        """Run its command, or call its function."""
        output = self._output
        self._prepare_folder()
        if output is not None:
            output.prepare()
        self._check()
        function = self._order.function
        return self._run_command(output) if function is None else self._run_function(slot, function)

    def _make_output(self) -> AttemptOutput | TaskFolderOutput | None:
        order, place = self._order, self._place
        if order.output is not None:
            return AttemptOutput(place.store, order, order.output)
        if order.output_folder is None:
            return None
        return TaskFolderOutput(
            place.store, place.files, place.earlier, order, order.output_folder, self._folder
        )

    def _check(self) -> None:
        if self._is_stopped:
            raise _Stopped

    def _prepare_folder(self) -> None:
        self._place.folders.make(self._folder)
        # A function's archives are where its process is.
        archives = self._order.function.archives if self._order.function is not None else ()
        for name, uri in self._order.files:
            if name in archives:
                continue
            self._check()
            self._place.files.link(uri, self._place_of(name))
        if self._order.inputs:
            self._fetch_inputs()

    def _fetch_inputs(self) -> None:
        """The files that the task takes, whole: its read phase, at least until its lines begin."""
        self._place.readers.begin(self.phase)
        for name, uri in self._order.inputs:
            self._check()
            self._place.files.link(uri, self._place_of(name), self._took)
        self.phase.end(self._place.clock())
        self._place.readers.end(self.phase)

    def _took(self, n_bytes: int) -> None:
        self._check()
        self.phase.read(n_bytes)

    def _place_of(self, name: str) -> Path:
        if not is_file_name(name):
            raise AccelError(f"{name!r} is no plain name of a file")
        return self._folder / name

    def _run_command(self, output: AttemptOutput | TaskFolderOutput | None) -> AttemptEnd:
        """Run the command with its three streams."""
        lines = self._lines = ErrorLines(self._place.logs.begin(self._order.attempt))
        status = self._run_streams(output if isinstance(output, AttemptOutput) else None)
        if self._failure is not None:
            raise self._failure
        if status:
            return AttemptEnd(AttemptOutcome.FAILED, status, _exit_error(status, lines), lines.counters)
        return AttemptEnd(AttemptOutcome.DONE, status, counters=lines.counters)

    def _run_streams(self, output: AttemptOutput | None) -> int:
        with contextlib.ExitStack() as ours:
            (stdin, lines_in), (errors, stderr) = _pipe(ours), _pipe(ours)
            # Without an output file the output is a part of the log.
            out, stdout = _pipe(ours) if output is not None else (errors, stderr)
            process = self._start(stdin, stdout, stderr)
            for theirs in (stdin, stdout, stderr):
                theirs.close()
            if self._order.input is None:
                lines_in.close()
                feeding = None
            else:
                feeding = _thread("split", self._feed, lines_in, self._order.input)
            if isinstance(self._output, TaskFolderOutput):
                self._output.begin()
            if output is None:
                self._read_errors(errors)
            else:
                reading = _thread("stderr", self._read_errors, errors)
                self._take_output(output, out)
                reading.join()
            end = process.wait()
            if feeding is not None:
                feeding.join()
        self.sample(end.read_bytes)
        return end.exit_status

    def _start(self, stdin: FileIO, stdout: FileIO, stderr: FileIO) -> GuardedProcess:
        program, order = self._place.program, self._order
        environment = {**self._environment(), **program.environment(order)}
        fds = stdin.fileno(), stdout.fileno(), stderr.fileno()
        argv = program.argv(order)
        process = self._place.guard.start(argv, environment, self._folder, fds, own=ATTEMPT_NAMES)
        self._runs_in(process)
        return process

    def _environment(self) -> dict[str, str]:
        order, place = self._order, self._place
        found = streaming_environment(order, self._devices, str(self._folder), place.environ)
        return {**found, **place.environments.variables(order, found.get("PATH", ""))}

    def _runs_in(self, process: GuardedProcess) -> None:
        with self._lock:
            self._process = process
            is_stopped = self._is_stopped
        if is_stopped:
            process.signal(force=True)

    def _run_function(self, slot: FunctionSlot, function: FunctionCall) -> AttemptEnd:
        """Call the function, in the process that the slot has, or a new one."""
        lines = self._lines = ErrorLines(self._place.logs.begin(self._order.attempt))
        try:
            reply = self._call(slot, function, lines)
        except FunctionProcessLost as error:
            text = f"{error}: {lines.last_line}" if lines.last_line else str(error)
            reply = CallReply("", text)
        finally:
            # From now on it is no more ours than any other attempt's.
            with self._lock:
                self._process = None
            lines.close()
        if reply.error:
            error_line = printable(reply.error)
            return AttemptEnd(AttemptOutcome.FAILED, error=error_line, counters=lines.counters)
        return AttemptEnd(AttemptOutcome.DONE, counters=lines.counters, result=reply.result)

    def _call(self, slot: FunctionSlot, function: FunctionCall, lines: ErrorLines) -> CallReply:
        order, place = self._order, self._place
        environ = {**self._environment(), **place.functions.environment(order)}
        interpreter = place.environments.interpreter(order)
        while True:
            if slot.process is None:
                slot.process = place.functions.start(order, function, self._devices, environ, interpreter)
            process = slot.process
            self._read_before = process.bytes_read
            self._runs_in(process.process)
            try:
                reply = process.call(function, self._folder, environ, self._take_log)
            except FunctionProcessLost as error:
                if error.has_begun or process.is_new:
                    raise
                # It ended while it was idle.
                slot.process = None
                continue
            self.sample(process.bytes_read)
            return reply

    def _take_log(self, text: bytes) -> None:
        lines = self._lines
        assert lines is not None
        try:
            lines.feed(text)
        except OSError as error:
            raise AccelError(f"the log cannot be written: {error.strerror}") from None
        self._note_reading(lines)

    def _feed(self, stdin: FileIO, split: InputSplit) -> None:
        """Give the command its lines; that it does not want all of them is its own affair."""
        try:
            self._place.readers.begin(self.phase)
            self._feed_split(split, stdin)
            self.phase.end(self._place.clock())
            if not self.phase.is_reported:
                self._place.readers.end(self.phase)
        except AccelError as error:
            self._fail(error)
        except OSError as error:
            self._fail(AccelError(f"the split could not be given to the command: {error.strerror}"))
        finally:
            stdin.close()

    def _feed_split(self, split: InputSplit, stdin: FileIO) -> None:
        with self._place.store.opened(split.uri) as file:
            for piece in split_lines(file, split):
                if not self._write_lines(stdin, memoryview(piece)):
                    return

    def _write_lines(self, stdin: FileIO, lines: memoryview) -> bool:
        """Whether the command took them, and may want more."""
        try:
            while lines:
                n_bytes = os.write(stdin.fileno(), lines)
                self.phase.read(n_bytes)
                lines = lines[n_bytes:]
        except BrokenPipeError:
            return False
        return True

    def _take_output(self, output: AttemptOutput, stdout: FileIO) -> None:
        try:
            output.write(self._output_parts(stdout))
        except AccelError as error:
            self._fail(error)

    def _output_parts(self, stdout: FileIO) -> Iterator[bytes]:
        last = b"\n"
        while part := os.read(stdout.fileno(), _PIPE_BYTES):
            self._n_written += len(part)
            last = part[-1:]
            yield part
        if last != b"\n":
            yield b"\n"

    def _read_errors(self, errors: FileIO) -> None:
        lines = self._lines
        assert lines is not None
        try:
            while text := os.read(errors.fileno(), 64 * 1024):
                lines.feed(text)
                self._note_reading(lines)
        except OSError as error:
            self._fail(AccelError(f"the log cannot be written: {error.strerror}"))
        finally:
            with contextlib.suppress(OSError):
                lines.close()

    def _note_reading(self, lines: ErrorLines) -> None:
        """It says itself what it reads, beside its lines."""
        if lines.reading is None:
            return
        self.phase.report(lines.reading.n_bytes, lines.reading.seconds)
        if lines.reading.is_done:
            self._place.readers.end(self.phase)
        else:
            self._place.readers.begin(self.phase)

    def _fail(self, error: AccelError) -> None:
        """End the command: what it needs is gone. The first failure is the one that is reported."""
        with self._lock:
            self._failure = self._failure or error
            process = self._process
        if process is not None:
            process.signal(force=True)


def _pipe(ours: contextlib.ExitStack) -> tuple[FileIO, FileIO]:
    """A pipe whose ends are closed when the stack is left, if not before."""
    read_end, write_end = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return ours.enter_context(FileIO(read_end, "r")), ours.enter_context(FileIO(write_end, "w"))


def _thread(name: str, work: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True, name=name)
    thread.start()
    return thread


def _exit_error(status: int, lines: ErrorLines) -> str:
    what = f"signal {-status} ended it" if status < 0 else f"exit status {status}"
    return f"{what}: {lines.last_line}"[:MAX_LINE] if lines.last_line else what
