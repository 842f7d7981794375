"""A worker's work on one batch: inputs as arrays where they lie, the operation, outputs found or placed.

`Segments` is the worker's view of the shared memory: mapped once, arrays in it without a copy. `Forms` knows
which function computes an operation on this worker's kind of device. `Executor` runs it. The outputs of an
operation are looked for in three places: an input or a placed array itself, memory of the job reached by a
view (any contiguous one), and elsewhere; only the last are copied, into the output area.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns, perf_counter
from typing import Any

import numpy as np

from yarn_accel.core.requests.records import EXPIRED, Failure
from yarn_accel.errors import AccelError, RejectedError, StorageError, UnavailableError
from yarn_accel.operations import registry
from yarn_accel.operations.dense import scipy_version
from yarn_accel.operations.operation import converted
from yarn_accel.pipeline.workers.launching import ControlWord, LaneState
from yarn_accel.wire import ITEM_BYTES, MAX_DIMENSIONS, TensorSpec
from yarn_accel.wire.messages import ALIGNMENT_BYTES

Array = np.ndarray[Any, Any]
_MAX_MESSAGE = 2000
_MAX_CURE = 500
_IDLE, _READING, _OVERWRITING = int(LaneState.IDLE), int(LaneState.READING), int(LaneState.OVERWRITING)
Tensor = tuple[str, str, tuple[int, ...], str]
"""Name, dtype, shape and order of an output."""


class _BadOutcomeError(Exception):
    """An operation returned what is no outcome."""


class OutputTooLargeError(Exception):
    """The outputs need more space than the operation had announced."""


@dataclass(frozen=True, slots=True)
class MappedSegment:
    """A segment in this process: its memory, and the address of its first byte."""

    memory: mmap.mmap
    address: int


class Segments:
    """The segments this worker has mapped, by id.

    Attributes:
        on_map: called with a new mapping (a GPU worker pins it); what it returns undoes that.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, MappedSegment] = {}
        self.on_map: Callable[[MappedSegment], Callable[[], None]] | None = None
        self._undo: dict[int, Callable[[], None]] = {}

    def map(self, segment: int, fd: int, n_bytes: int) -> None:
        """Map a segment, and close its descriptor."""
        try:
            memory = mmap.mmap(fd, n_bytes)
        finally:
            os.close(fd)
        mapping = MappedSegment(memory, _address(np.frombuffer(memory, np.uint8)))
        self.by_id[segment] = mapping
        if self.on_map is not None:
            self._undo[segment] = self.on_map(mapping)

    def drop(self, segment: int) -> None:
        """Unmap a segment; should an operation have kept an array in it, as soon as that is gone."""
        mapping = self.by_id.pop(segment, None)
        undo = self._undo.pop(segment, None)
        if undo is not None:
            undo()
        if mapping is not None:
            with contextlib.suppress(BufferError):
                mapping.memory.close()

    def array(
        self, segment: int, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any], order: Any
    ) -> Array:
        """An array in a mapped segment."""
        if 0 in shape:
            return np.empty(shape, dtype, order)
        made: Array = np.ndarray(shape, dtype, self.by_id[segment].memory, offset, None, order)
        return made


class OutputArea:
    """Where one job puts its outputs: space in a segment, handed out in pieces aligned to 64 bytes."""

    __slots__ = ("_free", "_segments", "_stop", "placed", "segment")

    def __init__(self, segments: Segments, segment: int, offset: int, n_bytes: int) -> None:
        self._segments = segments
        self.segment = segment
        self._free = offset
        self._stop = offset + n_bytes
        self.placed: list[tuple[Array, int, int]] = []

    def place(self, name: str, shape: tuple[int, ...], dtype: Any, order: str = "C") -> Array:
        """A writable array of undefined content for the output of that name.

        Raises:
            OutputTooLargeError: no space.
        """
        kind = np.dtype(dtype)
        n_bytes = kind.itemsize
        for size in shape:
            n_bytes *= int(size)
        offset = -(-self._free // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if offset + n_bytes > self._stop:
            raise OutputTooLargeError(
                f"output {name!r} needs {n_bytes} bytes, {max(0, self._stop - offset)} are left"
            )
        self._free = offset + n_bytes
        array = self._segments.array(self.segment, offset, tuple(int(n) for n in shape), kind, order)
        self.placed.append((array, self.segment, offset))
        return array


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@dataclass(slots=True)
class Template:
    """The operation, parameters and layout that many jobs have in common.

    Attributes:
        run: ``run(arrays, params, place)``.
        run_batch: the same for a list of these, when the operation has a batched form for this device.
        layout: per input: shape, dtype, order.
        computed: the inputs as the operation gets them, where some have to be converted.
        facts: added to what the operation says of its computation.
    """

    operation: str
    params: dict[str, Any]
    run: Callable[..., Any]
    run_batch: Callable[..., Any] | None
    overwrites: bool
    layout: tuple[tuple[tuple[int, ...], np.dtype[Any], str], ...]
    computed: tuple[TensorSpec, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        operation: str,
        params: dict[str, Any],
        specs: Sequence[TensorSpec],
        run: Callable[..., Any],
        run_batch: Callable[..., Any] | None,
        overwrites: bool,
    ) -> Template:
        """A template for inputs of these descriptions."""
        layout = tuple((spec.shape, np.dtype(spec.dtype), spec.order) for spec in specs)
        return cls(operation, params, run, run_batch, overwrites, layout)


class Forms:
    """The operations for one kind of device."""

    def __init__(self, device_kind: str) -> None:
        self.device_kind = device_kind

    def template(self, name: str, params: dict[str, Any], specs: Sequence[TensorSpec]) -> Template:
        """The template of jobs of that kind; one that fails each job where the operation cannot be loaded."""
        try:
            operation = registry.get(name)
            run, run_batch = operation.form(self.device_kind), operation.batch_form(self.device_kind)
            facts = {} if run is not None else {"computed_on": "cpu"}
            run = run or operation.form("cpu") or operation.run
            computed = operation.computed_specs(specs, params)
        except Exception as error:  # noqa: BLE001 -- the job must fail, not the worker
            return Template.make(name, params, specs, _failing(error), None, False)
        template = Template.make(name, params, specs, run, run_batch, operation.overwrites)
        template.facts = facts
        if computed != tuple(specs):
            template.computed = computed
        return template


def prepare(extra_operations: Sequence[str]) -> None:
    """Load all operations, the site's own too, so that the first job finds everything imported.

    An operation that cannot be loaded fails when it is asked for and does not keep the worker from others.
    """
    registry.load_more(extra_operations)
    for operation in registry.OPERATIONS.values():
        try:
            operation.form("cpu")
            operation.batch_form("cpu")
        except Exception:  # noqa: BLE001 -- it is said to whoever asks for the operation
            continue


def versions() -> dict[str, str]:
    """The versions that the speed of this worker depends on."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy_version,
        "blas": f"{blas.get('name', '')} {blas.get('version', '')}",
    }


def _failing(error: Exception) -> Callable[..., Any]:
    def run(*_: Any) -> Any:
        raise error

    return run


@dataclass(slots=True)
class Task:
    """One job as it arrived; ``places`` are segment and offset of each input, one after the other.

    It is not begun after ``due_s`` (monotonic seconds, the same for all processes of a host; 0: no deadline).
    Nothing is computed beside one that ``is_alone``.
    """

    id: int
    template: Template
    may_overwrite: bool
    output_segment: int
    output_offset: int
    output_bytes: int
    places: tuple[int, ...]
    due_s: float = 0.0
    is_alone: bool = False


@dataclass(slots=True)
class Answer:
    """The answer to one task; ``places`` are segment and offset of each tensor, one after the other."""

    task: int
    overwritten: bool = False
    tensors: tuple[Tensor, ...] = ()
    places: list[int] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    compute_s: float = 0.0
    kernel_s: float = 0.0
    error: Failure | None = None


class Executor:
    """Runs tasks and keeps the control word true.

    Attributes:
        around: a context manager that each computation runs in (the stream of a GPU); it ends when results
            are complete.
        explain: turns an exception into the answer's error; a GPU worker knows more kinds of them.
    """

    def __init__(self, segments: Segments, control: ControlWord, lane: int = 0) -> None:
        self._segments = segments
        self._words = control.words
        self._state, self._first, self._count = (
            lane * ControlWord.LANE + field
            for field in (ControlWord.STATE, ControlWord.FIRST, ControlWord.COUNT)
        )
        self.around: Any = None
        self.explain: Callable[[BaseException], Failure] = error_of

    def run(self, tasks: Sequence[Task]) -> list[Answer]:
        """Answer every task, in order; one whose time is over by the error `EXPIRED`."""
        words = self._words
        answers: list[Answer] = []
        start = 0
        while start < len(tasks):
            now_ns = monotonic_ns()
            if _is_late(tasks[start], now_ns):
                answers.append(Answer(tasks[start].id, error=EXPIRED))
                start += 1
                continue
            stop = _end_of_batch(tasks, start, now_ns)
            words[self._first] = tasks[start].id
            words[self._count] = stop - start
            words[ControlWord.SINCE_NS] = now_ns
            words[self._state] = _READING
            if stop - start > 1:
                answers += self._run_together(tasks[start:stop])
            else:
                answers.append(self._run_one(tasks[start]))
            start = stop
        words[self._state] = _IDLE
        return answers

    def _run_one(self, task: Task) -> Answer:
        started_s = perf_counter()
        answer = Answer(task.id)
        try:
            output = OutputArea(self._segments, task.output_segment, task.output_offset, task.output_bytes)
            arrays = self._inputs(task)
            self._announce((task,), (answer,))
            given, facts = _given(task.template, arrays)
            began_s = perf_counter()
            outcome = self._call(task.template.run, given, task.template.params, output.place)
            answer.kernel_s = perf_counter() - began_s
            self._take(answer, task, arrays, output, outcome)
            if facts:
                answer.info = {**answer.info, **facts}
        except BaseException as error:  # noqa: BLE001 -- also SystemExit of an operation must not end us
            answer.error = self.explain(error)
        answer.compute_s = perf_counter() - started_s
        return answer

    def _run_together(self, tasks: Sequence[Task]) -> list[Answer]:
        started_s = perf_counter()
        answers = [Answer(task.id) for task in tasks]
        try:
            outputs = [
                OutputArea(self._segments, task.output_segment, task.output_offset, task.output_bytes)
                for task in tasks
            ]
            inputs = [self._inputs(task) for task in tasks]
            self._announce(tasks, answers)
            began_s = perf_counter()
            params = tasks[0].template.params
            given = [_given(tasks[0].template, arrays) for arrays in inputs]
            items = [
                (arrays, params, output.place) for (arrays, _), output in zip(given, outputs, strict=True)
            ]
            outcomes = self._call(tasks[0].template.run_batch, items)
            kernel_s = (perf_counter() - began_s) / len(tasks)
            for answer, task, arrays, output, outcome in zip(
                answers, tasks, inputs, outputs, outcomes, strict=True
            ):
                answer.kernel_s = kernel_s
                self._take_or_fail(answer, task, arrays, output, outcome)
            for answer, (_, facts) in zip(answers, given, strict=True):
                if facts:
                    answer.info = {**answer.info, **facts}
        except BaseException as error:  # noqa: BLE001 -- also SystemExit of an operation must not end us
            for answer in answers:
                answer.error = self.explain(error)
        compute_s = (perf_counter() - started_s) / len(tasks)
        for answer in answers:
            answer.compute_s = compute_s
        return answers

    def _take_or_fail(
        self, answer: Answer, task: Task, arrays: list[Array], output: OutputArea, outcome: Any
    ) -> None:
        try:
            if isinstance(outcome, AccelError):
                raise outcome
            self._take(answer, task, arrays, output, outcome)
        except Exception as error:  # noqa: BLE001 -- one bad item must not spoil the others
            answer.error = self.explain(error)

    def _call(self, function: Any, *arguments: Any) -> Any:
        if self.around is None:
            return function(*arguments)
        with self.around:
            return function(*arguments)

    def _inputs(self, task: Task) -> list[Array]:
        """The inputs where they lie; read-only unless the operation works in place and may."""
        make = self._segments.array
        places = task.places
        arrays = [
            make(places[2 * i], places[2 * i + 1], shape, dtype, order)
            for i, (shape, dtype, order) in enumerate(task.template.layout)
        ]
        if not (task.may_overwrite and task.template.overwrites):
            for array in arrays:
                array.flags.writeable = False
        return arrays

    def _announce(self, tasks: Sequence[Task], answers: Sequence[Answer]) -> None:
        """Say in the control word, before it happens, that inputs will be destroyed."""
        if not tasks[0].template.overwrites:
            return
        for task, answer in zip(tasks, answers, strict=True):
            if task.may_overwrite:
                self._words[self._state] = _OVERWRITING
                answer.overwritten = True

    def _take(
        self, answer: Answer, task: Task, arrays: list[Array], output: OutputArea, outcome: Any
    ) -> None:
        """Find the outputs, or place them, and describe them.

        Raises:
            _BadOutcomeError: something else than arrays that may travel, and facts.
            OutputTooLargeError: no space for what had to be copied.
        """
        if not isinstance(getattr(outcome, "arrays", None), dict):
            raise _BadOutcomeError(f"returned {type(outcome).__name__}, not an Outcome")
        tensors: list[Tensor] = []
        for name, array in outcome.arrays.items():
            if not isinstance(array, np.ndarray) or array.ndim > MAX_DIMENSIONS:
                raise _BadOutcomeError(f"output {name!r} is {type(array).__name__}, no array that travels")
            dtype = array.dtype.str
            place = self._place_of(array, task, arrays, output) if dtype in ITEM_BYTES else None
            if place is None:
                array, place = _placed(str(name), array, output)
                dtype = array.dtype.str
            answer.places += place
            tensors.append((str(name), dtype, array.shape, _order(array)))
        answer.tensors = tuple(tensors)
        answer.info = outcome.info

    def _place_of(
        self, array: Array, task: Task, arrays: list[Array], output: OutputArea
    ) -> tuple[int, int] | None:
        for placed, segment, offset in output.placed:
            if placed is array:
                return segment, offset
        for i, one in enumerate(arrays):
            if one is array:
                return task.places[2 * i], task.places[2 * i + 1]
        return self._place_by_address(array, task, output)

    def _place_by_address(self, array: Array, task: Task, output: OutputArea) -> tuple[int, int] | None:
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            return None
        address = array.__array_interface__["data"][0]
        areas = [
            (task.places[2 * i], task.places[2 * i + 1], dtype.itemsize * math.prod(shape))
            for i, (shape, dtype, _) in enumerate(task.template.layout)
        ]
        areas.append((task.output_segment, task.output_offset, task.output_bytes))
        for segment, offset, n_bytes in areas:
            mapping = self._segments.by_id.get(segment)
            if mapping is not None:
                first = mapping.address + offset
                if first <= address and address + array.nbytes <= first + n_bytes:
                    return segment, address - mapping.address
        return None


def _given(template: Template, arrays: list[Array]) -> tuple[list[Array], dict[str, Any]]:
    """The inputs as the operation takes them, and what is to be said of that."""
    if not template.computed:
        return arrays, template.facts
    found, changes = converted(arrays, template.computed)
    return found, {**template.facts, "converted": changes}


def _end_of_batch(tasks: Sequence[Task], start: int, now_ns: int) -> int:
    """Behind the last of the tasks that are computed as one with the first."""
    stop = start + 1
    template = tasks[start].template
    if template.run_batch is not None:
        while stop < len(tasks) and tasks[stop].template is template and not _is_late(tasks[stop], now_ns):
            stop += 1
    return stop


def _is_late(task: Task, now_ns: int) -> bool:
    return task.due_s > 0.0 and now_ns >= task.due_s * 1e9


def _placed(name: str, array: Array, output: OutputArea) -> tuple[Array, tuple[int, int]]:
    """A copy in the output area, in C order unless the array is in Fortran order."""
    dtype = array.dtype.newbyteorder("<").str
    if dtype not in ITEM_BYTES:
        raise _BadOutcomeError(f"output {name!r} has the type {array.dtype}, which does not travel")
    copy = output.place(name, array.shape, dtype, _order(array))
    np.copyto(copy, array)
    _, segment, offset = output.placed[-1]
    return copy, (segment, offset)


def _order(array: Array) -> str:
    flags = array.flags
    return "F" if flags.f_contiguous and not flags.c_contiguous else "C"


def error_of(error: BaseException) -> Failure:
    """An exception in the words of the wire."""
    if isinstance(error, AccelError):
        message, cure = _one_line(error.message)[:_MAX_MESSAGE], error.cure[:_MAX_CURE]
        if isinstance(error, RejectedError):
            return Failure("rejected", error.code, message, cure)
        if isinstance(error, StorageError):
            return Failure("storage", "storage", message, cure, error.transient)
        if isinstance(error, UnavailableError):
            return Failure("unavailable", error.code, message, cure, True)
    if isinstance(error, MemoryError):
        return Failure("unavailable", "out-of-memory", "the worker is out of memory", "", True)
    if isinstance(error, OutputTooLargeError):
        return Failure("internal", "output-too-large", _one_line(str(error)))
    if isinstance(error, _BadOutcomeError):
        return Failure("internal", "bad-outcome", "the operation " + _one_line(str(error)))
    text = _one_line(f"the operation broke: {type(error).__name__}: {error}")
    return Failure("internal", "internal-error", text[:_MAX_MESSAGE])


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
