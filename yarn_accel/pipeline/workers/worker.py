"""The loop of a worker process: orders in, answers out.

A GPU's worker has several batches under way at once (`Lanes`), each answered when it is done: copies of one
overlap with the computation of another, and a long one delays none of the others.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from yarn_accel.core.requests.records import Failure
from yarn_accel.pipeline.workers.execution import (
    Answer,
    Executor,
    Forms,
    Segments,
    Task,
    Template,
    Tensor,
)
from yarn_accel.pipeline.workers.launching import N_LANES, ControlWord, bind_to
from yarn_accel.pipeline.workers.measuring import WARMING, measure
from yarn_accel.pipeline.workers.protocol import (
    DONE,
    DONE_HEAD,
    HEAD,
    JOB_HEAD,
    RUN,
    Channel,
    Numbering,
    areas,
    decode,
    encode_object,
    plain,
    specs_from,
)
from yarn_accel.wire.schema import json_encoder

_MAX_TEXT_BYTES = 4 << 20
_QUIET_S = 0.2
_encode_strict = json_encoder(sort_keys=False)


class Worker:
    """The loop of one worker."""

    def __init__(self, channel: Channel, control: ControlWord) -> None:
        self._channel = channel
        self._control = control
        self._segments = Segments()
        self._executor = Executor(self._segments, control)
        self._forms = Forms("cpu")
        self._templates: dict[int, Template] = {}
        self._layouts = Numbering()
        self._device: Any = None
        self._lanes: Lanes | None = None

    def serve(self) -> None:
        """Work until the owner closes the channel."""
        self._warm_up()
        while True:
            message, fds = self._channel.receive()
            if not message:
                return
            if message[0] != RUN:
                self._heed(decode(message.decode()), fds)
            elif self._lanes is None:
                self._answer(self._executor.run(self._tasks(message)))
            else:
                self._lanes.put(self._tasks(message))

    # Jobs

    def _answer(self, answers: list[Answer]) -> None:
        parts = [HEAD.pack(DONE, len(answers))]
        for answer in answers:
            parts += self._encode_answer(answer)
        self._channel.send(b"".join(parts))
        if self._device is not None and self._device.fault:
            self._channel.send(encode_object(sick=self._device.fault))

    def _tasks(self, message: bytes) -> list[Task]:
        _, n_jobs = HEAD.unpack_from(message)
        position = HEAD.size
        tasks: list[Task] = []
        for _ in range(n_jobs):
            job, number, may_overwrite, is_alone, segment, offset, n_bytes, due_s = JOB_HEAD.unpack_from(
                message, position
            )
            template = self._templates[number]
            place = areas(len(template.layout))
            places = place.unpack_from(message, position + JOB_HEAD.size)
            position += JOB_HEAD.size + place.size
            output = segment, offset, n_bytes
            tasks.append(Task(job, template, may_overwrite, *output, places, due_s, is_alone))
        return tasks

    def _encode_answer(self, answer: Answer) -> list[bytes]:
        text = self._text(answer)
        has_failed = answer.error is not None
        layout, places = (0, []) if has_failed else (self._layout(answer.tensors), answer.places)
        head = DONE_HEAD.pack(
            answer.task,
            has_failed,
            answer.overwritten,
            len(places) // 2,
            layout,
            len(text),
            answer.compute_s,
            answer.kernel_s,
        )
        return [head, areas(len(places) // 2).pack(*places), text]

    def _text(self, answer: Answer) -> bytes:
        """The facts or the error as JSON; facts that cannot be said so, or are too long, become an error."""
        if answer.error is None:
            try:
                text = _encode_facts(answer.info)
            except (TypeError, ValueError, RecursionError) as error:
                answer.error = Failure("internal", "bad-outcome", f"info is not fit for JSON: {error}")
            else:
                if len(text) <= _MAX_TEXT_BYTES:
                    return text.encode()
                answer.error = Failure("internal", "bad-outcome", f"info has {len(text)} characters")
        return _encode_strict(answer.error).encode()

    def _layout(self, tensors: tuple[Tensor, ...]) -> int:
        number, is_new = self._layouts.number(tensors)
        if is_new:
            self._channel.send(encode_object(layout=number, tensors=tensors))
        return number

    # Everything else

    def _warm_up(self) -> None:
        """As a standby: run beside the loop what is slow the first time, such as compiled code."""
        if not self._channel.is_readable(_QUIET_S):
            threading.Thread(target=_measure_all, args=(self._forms,), name="warm-up", daemon=True).start()

    def _heed(self, order: dict[str, Any], fds: Sequence[int]) -> None:
        for segment in order.get("drop", ()):
            self._segments.drop(segment)
        for (segment, n_bytes), fd in zip(order.get("map", ()), fds, strict=True):
            self._segments.map(segment, fd, n_bytes)
        if "template" in order:
            self._templates[order["template"]] = self._forms.template(
                order["operation"], order["params"], specs_from(order["specs"])
            )
        if "prepare" in order:
            self._prepare_gpu(order["prepare"], order["gpu"])
            self._device.free_memory()
            self._channel.send(encode_object(prepared=order["prepare"]["name"]))
        if "take" in order:
            self._take(order["take"], order["gpu"])
        if "measure" in order:
            self._measure(order["measure"])
        if "beside" in order:
            # Beside the loop: a driver in trouble may take its time.
            share, pids = self._device.share_memory, order["beside"]
            threading.Thread(target=share, args=(pids,), name="share", daemon=True).start()

    def _take(self, place: dict[str, Any], settings: dict[str, Any]) -> None:
        if place["cores"]:
            bind_to(place["cores"])
        if place["kind"] == "cuda":
            if self._device is None:
                self._prepare_gpu(place, settings)
            self._channel.send(encode_object(taken=self._device.versions(), toolkit=self._device.toolkit))

    def _prepare_gpu(self, place: dict[str, Any], settings: dict[str, Any]) -> None:
        from yarn_accel.pipeline.workers.launching import Device

        assigned = Device(**{**place, "cores": tuple(place["cores"])})
        # CUDA reads it when it starts, which it has not done in a standby process.
        os.environ.update(assigned.environment())
        from yarn_accel.pipeline.workers.cuda import CudaDevice

        device = CudaDevice(assigned, settings["memory_share"], settings["memory_wait_s"])
        self._device = device
        if settings["probe"]:
            device.probe()
        self._segments.on_map = device.pin
        self._forms = Forms("cuda")
        executors = [Executor(self._segments, self._control, lane) for lane in range(N_LANES)]
        for executor in executors:
            executor.around = device.stream()
            executor.explain = self._explain
        self._lanes = Lanes(executors, self._answer)

    def _explain(self, error: BaseException) -> Failure:
        """As `CudaDevice.explain`; ends the process where it can compute no more.

        Its control word then says which jobs it was at, and its owner has them tried once more.
        """
        failure: Failure = self._device.explain(error)
        if self._device.broken:
            with contextlib.suppress(OSError):
                self._channel.send(encode_object(broken=self._device.broken))
            os._exit(1)
        return failure

    def _measure(self, problem: Any) -> None:
        """Measure one problem beside the loop, so that a job that comes meanwhile does not wait for it."""
        threading.Thread(target=self._measure_now, args=problem, name="measure", daemon=True).start()

    def _measure_now(self, operation: str, n: int) -> None:
        words = self._control.words
        words[ControlWord.MEASURING] = 1
        before_ns = words[ControlWord.SINCE_NS]
        found = measure(self._forms, operation, n)
        if found is not None and words[ControlWord.SINCE_NS] != before_ns:
            # A job ran beside it: what was measured means nothing.
            found = {}
        words[ControlWord.MEASURING] = 0
        with contextlib.suppress(OSError):
            self._channel.send(encode_object(measured=found))


def _measure_all(forms: Forms) -> None:
    for problem in WARMING:
        measure(forms, *problem)


def _encode_facts(info: Any) -> str:
    """Facts as JSON: at once where they are fit for it, else made fit first."""
    try:
        return _encode_strict(info)
    except (TypeError, ValueError):
        return _encode_strict(plain(info))


class _SharedClock:
    """Runs at half speed for each of two that are busy at a time, at a third for each of three.

    So their times add up to the device's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_busy = 0
        self._read_s = 0.0
        self._time_s = 0.0

    def begin(self) -> float:
        """The time now; one more is busy."""
        return self._tick(1)

    def end(self) -> float:
        """The time now; one less is busy."""
        return self._tick(-1)

    def _tick(self, more: int) -> float:
        with self._lock:
            now_s = time.perf_counter()
            if self._n_busy:
                self._time_s += (now_s - self._read_s) / self._n_busy
            self._read_s = now_s
            self._n_busy += more
            return self._time_s


class Lanes:
    """One thread for each executor; whichever is free takes the batch that came first.

    While several batches are under way each is charged its part of the time, or tenants would pay more than
    once for a device and computations would seem to take longer than they do.

    Args:
        executors: each with its own lane of the control word and its own stream.
        answer: called with the answers to one batch; never called twice at a time.
    """

    def __init__(self, executors: Sequence[Executor], answer: Callable[[list[Answer]], None]) -> None:
        self._answer = answer
        self._answering = threading.Lock()
        self._clock = _SharedClock()
        self._waiting: deque[list[Task]] = deque()
        self._changed = threading.Condition()
        self._n_running = 0
        self._is_one_alone = False
        for executor in executors:
            threading.Thread(target=self._run, args=(executor,), name="lane", daemon=True).start()

    def put(self, tasks: list[Task]) -> None:
        """Have a batch computed by the first lane that is free; does not wait."""
        with self._changed:
            self._waiting.append(tasks)
            self._changed.notify()

    def _run(self, executor: Executor) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._may_begin)
                tasks = self._waiting.popleft()
                self._is_one_alone = _is_alone(tasks)
                self._n_running += 1
            began_s = self._clock.begin()
            answers = executor.run(tasks)
            _charge(answers, self._clock.end() - began_s)
            with self._answering:
                self._answer(answers)
            with self._changed:
                self._n_running -= 1
                self._is_one_alone = False
                # All of them, as the one that was alone may have kept several waiting.
                self._changed.notify_all()

    def _may_begin(self) -> bool:
        """Whether the first batch that waits may be computed beside those under way."""
        if not self._waiting or self._is_one_alone:
            return False
        return not (self._n_running and _is_alone(self._waiting[0]))


def _is_alone(tasks: Sequence[Task]) -> bool:
    return any(task.is_alone for task in tasks)


def _charge(answers: list[Answer], most_s: float) -> None:
    """Reduce what a batch is charged to its part of the device's time."""
    sum_s = sum(answer.compute_s for answer in answers)
    if sum_s > most_s:
        for answer in answers:
            answer.compute_s *= most_s / sum_s
