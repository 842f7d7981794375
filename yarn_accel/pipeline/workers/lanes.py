"""Several batches under way at once, answered in the order they came: copies of one overlap with another."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from yarn_accel.pipeline.workers.execution import Answer, Executor, Task


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


@dataclass(frozen=True, slots=True)
class _LaneBatch:
    """What one lane computes.

    Attributes:
        begins_after: what is answered before it may begin.
        before: the batch before, which is answered first.
        done: this one is answered.
    """

    tasks: list[Task]
    begins_after: threading.Event
    before: threading.Event
    done: threading.Event


class Lanes:
    """One thread for each executor.

    While several batches are under way each is charged its part of the time, or tenants would pay more than
    once for a device and computations would seem to take longer than they do.

    Args:
        executors: each with its own lane of the control word and its own stream.
        answer: called with the answers to one batch; never called twice at a time.
    """

    def __init__(self, executors: Sequence[Executor], answer: Callable[[list[Answer]], None]) -> None:
        self._answer = answer
        self._clock = _SharedClock()
        self._last = threading.Event()
        self._last.set()
        self._last_alone = self._last
        self._n_batches = 0
        self._queues: list[queue.SimpleQueue[_LaneBatch]] = []
        for executor in executors:
            waiting: queue.SimpleQueue[_LaneBatch] = queue.SimpleQueue()
            self._queues.append(waiting)
            threading.Thread(target=self._run, args=(executor, waiting), name="lane", daemon=True).start()

    def put(self, tasks: list[Task]) -> None:
        """Have a batch computed by the next lane; does not wait."""
        before, self._last = self._last, threading.Event()
        is_alone = any(task.is_alone for task in tasks)
        # Answers keep their order, so all before `before` are answered, too.
        batch = _LaneBatch(tasks, before if is_alone else self._last_alone, before, self._last)
        if is_alone:
            self._last_alone = self._last
        self._queues[self._n_batches % len(self._queues)].put(batch)
        self._n_batches += 1

    def _run(self, executor: Executor, waiting: queue.SimpleQueue[_LaneBatch]) -> None:
        while True:
            batch = waiting.get()
            batch.begins_after.wait()
            began_s = self._clock.begin()
            answers = executor.run(batch.tasks)
            _charge(answers, self._clock.end() - began_s)
            batch.before.wait()
            self._answer(answers)
            batch.done.set()


def _charge(answers: list[Answer], most_s: float) -> None:
    """Reduce what a batch is charged to its part of the device's time."""
    sum_s = sum(answer.compute_s for answer in answers)
    if sum_s > most_s:
        for answer in answers:
            answer.compute_s *= most_s / sum_s
