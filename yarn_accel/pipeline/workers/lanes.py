"""Several batches under way at once, answered in the order they came: copies of one overlap with another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from yarn_accel.pipeline.workers.execution import Answer, Executor, Task

__all__ = ["Lanes"]


class Lanes:
    """One thread for each executor.

    Args:
        executors: each with its own lane of the control word and its own stream.
        answer: told the answers to one batch; never called twice at a time.
    """

    def __init__(self, executors: Sequence[Executor], answer: Callable[[list[Answer]], None]) -> None:
        self._answer = answer
        self._last = threading.Event()
        self._last.set()
        self._n_batches = 0
        self._queues: list[queue.SimpleQueue[tuple[list[Task], threading.Event, threading.Event]]] = []
        for executor in executors:
            waiting: queue.SimpleQueue[tuple[list[Task], threading.Event, threading.Event]] = (
                queue.SimpleQueue()
            )
            self._queues.append(waiting)
            threading.Thread(target=self._run, args=(executor, waiting), name="lane", daemon=True).start()

    def put(self, tasks: list[Task]) -> None:
        """Have a batch computed by the next lane; does not wait."""
        before, self._last = self._last, threading.Event()
        self._queues[self._n_batches % len(self._queues)].put((tasks, before, self._last))
        self._n_batches += 1

    def _run(
        self,
        executor: Executor,
        waiting: queue.SimpleQueue[tuple[list[Task], threading.Event, threading.Event]],
    ) -> None:
        while True:
            tasks, before, done = waiting.get()
            answers = executor.run(tasks)
            before.wait()
            self._answer(answers)
            done.set()
