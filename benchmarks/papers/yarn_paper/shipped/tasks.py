"""The independent tasks of one mapper: lines in, one row with two times for each out.

A line is JSON: ``{"task": 7, "operation": "emulated-lu", "params": {...}, "payload_bytes": 3300}`` or, for
real compute, ``{"task": 7, "operation": "lu", "order": 500}``. What is sent is made before anything is
timed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.current_attempt import CurrentAttempt
from yarn_accel.errors import AccelError, RejectedError, StartupError
from yarn_accel.wire import TensorSpec

Dispatch = Callable[[Iterable[Call]], Iterator[tuple[Call, Reply | AccelError]]]
_FALLBACK_DEVICE = "cpu:fallback"
_POLL_S = 0.005


@dataclass(frozen=True)
class TaskRow:
    """What became of one task.

    Attributes:
        task: its number.
        node: where the mapper ran.
        server: who answered; ``local`` for the mapper's own CPU.
        is_fallback: the mapper's own CPU computed it.
        compute_s: seconds of the kernel.
        sent_s, done_s: Unix seconds.
    """

    task: int
    node: str
    server: str
    is_fallback: bool
    compute_s: float
    sent_s: float
    done_s: float

    def format(self) -> str:
        """One line of output."""
        return json.dumps([*vars(self).values()])


def parse_row(line: str) -> TaskRow:
    """What `TaskRow.format` wrote."""
    return TaskRow(*json.loads(line))


@dataclass(frozen=True)
class StartBarrier:
    """Holds every mapper back until all are there.

    The times are scaled down, the start of a mapper is not: without a barrier the mappers of a short task
    phase would run one after the other.

    Attributes:
        folder: shared by the nodes.
        n_mappers: 0: nobody waits.
    """

    folder: Path
    n_mappers: int
    patience_s: float = 60.0

    def wait(self, attempt: CurrentAttempt) -> None:
        """Say that this task is ready, and wait for the others.

        Raises:
            StartupError: they do not come.
        """
        if not self.n_mappers:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / attempt.task_id).touch()
        until_s = time.monotonic() + self.patience_s
        while (n_here := sum(1 for _ in self.folder.iterdir())) < self.n_mappers:
            if time.monotonic() > until_s:
                raise StartupError(
                    f"{n_here} of {self.n_mappers} mappers reached the barrier within {self.patience_s:g} s",
                    cure="see that the cluster can run all of them at once",
                )
            time.sleep(_POLL_S)


def warm_up(dispatch: Dispatch, attempt: CurrentAttempt) -> None:
    """Have the connection made, so that no task pays for it."""
    one = Tensor(TensorSpec("|u1", (1,)), b"\0")
    for _, answer in dispatch(iter((Call(attempt.request_key(0, "echo"), "echo", {}, (one,)),))):
        if isinstance(answer, AccelError):
            raise answer


def play(
    lines: Iterable[str],
    dispatch: Dispatch,
    attempt: CurrentAttempt,
    barrier: StartBarrier,
    count: Callable[[str, int], None],
    clock: Callable[[], float] = time.time,
) -> Iterator[TaskRow]:
    """Send all tasks and yield each as it is done.

    Behind a barrier everything is read and made first; without one, line by line as it is sent, so that
    Hadoop sees by what was read how far the mapper is.

    Raises:
        AccelError: a task failed, or not all mappers reach the barrier.
    """
    made = _Inputs(attempt)
    calls: Iterable[Call] = (made.call(json.loads(line)) for line in lines if line.strip())
    if barrier.n_mappers:
        calls = list(calls)
    warm_up(dispatch, attempt)
    barrier.wait(attempt)
    sent: dict[str, float] = {}

    def sending() -> Iterator[Call]:
        for call in calls:
            count("records_in", 1)
            count("sent", 1)
            sent[call.key] = clock()
            yield call

    for call, answer in dispatch(sending()):
        done_s = clock()
        if isinstance(answer, AccelError):
            raise answer
        is_fallback = answer.device == _FALLBACK_DEVICE
        count("done", 1)
        count("cpu_fallback", int(is_fallback))
        yield TaskRow(
            task=int(call.key.split("/")[-2]),
            node=attempt.node,
            server=answer.server,
            is_fallback=is_fallback,
            compute_s=float(answer.seconds.get("compute", 0.0)),
            sent_s=sent[call.key],
            done_s=done_s,
        )


class _Inputs:
    """What the tasks send; equal ones share memory."""

    def __init__(self, attempt: CurrentAttempt) -> None:
        self._attempt = attempt
        self._made: dict[tuple[str, int], Tensor] = {}

    def call(self, line: Mapping[str, Any]) -> Call:
        """The request of one line."""
        operation = str(line["operation"])
        key = self._attempt.request_key(int(line["task"]), operation)
        size = int(line["order"] if "order" in line else line["payload_bytes"])
        make = _matrix if "order" in line else _payload
        known = self._made.get((operation, size))
        if known is None:
            known = self._made[operation, size] = make(operation, size)
        return Call(key, operation, dict(line.get("params", {})), (known,))


def _payload(_: str, n_bytes: int) -> Tensor:
    """Bytes that nobody looks at."""
    return Tensor(TensorSpec("|u1", (n_bytes,)), bytes(n_bytes))


def _matrix(operation: str, order: int) -> Tensor:
    """A random matrix in single precision; for Cholesky a positive definite one."""
    import numpy as np

    if order < 1:
        raise RejectedError("wrong-shape", f"a matrix of order {order}")
    matrix = np.random.default_rng(order).standard_normal((order, order)).astype(np.float32)
    if operation == "cholesky":
        matrix = matrix @ matrix.T + np.float32(order) * np.eye(order, dtype=np.float32)
        matrix = (matrix + matrix.T) / 2
    return Tensor.of(matrix)
