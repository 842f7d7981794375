"""What the zipapp of this benchmark runs on a node: our own verb, or a verb of `jobs` with times taken.

``paper-map --mappers N`` runs `tasks.play`. Any other verb is that of `jobs`, with two additions: the folder
that the job property ``accel.paper.folder`` names gets a file with the first request's and the last answer's
time, and with ``accel.paper.image`` (JSON: ``cpu_s``, ``device_s``) features are emulated. Streaming gives a
mapper the job's properties as variables, with underscores for dots.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.papers.yarn_paper.shipped.emulation import LOCK_FOLDER_VARIABLE, PREFIX
from jobs import entry
from jobs.entry import TaskContext, parse_verb, run_verb
from yarn_accel.client.calls import Call, Reply, Tensor
from yarn_accel.client.current_attempt import CurrentAttempt
from yarn_accel.errors import AccelError, RejectedError, StartupError
from yarn_accel.operations import load_more
from yarn_accel.wire import TensorSpec

# ---- The independent tasks of one mapper: lines in, one row with two times for each out.
#
# A line is JSON: ``{"task": 7, "operation": "emulated-lu", "params": {...}, "payload_bytes": 3300}`` or, for
# real compute, ``{"task": 7, "operation": "lu", "order": 500}``. What is sent is made before anything is
# timed.

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


Answers = Iterator[tuple[Call, Reply | AccelError]]
MapCalls = Callable[[Iterable[Call], int], Answers]

VERB = "paper-map"
BARRIER_FOLDER = "barrier"
EMULATED_IMAGE_VARIABLE = "accel_paper_image"
#: Where the agents listen, with ``{node}``; unset: where mappers look anyway.
AGENTS_VARIABLE = "accel_paper_agents"
_CPU_OPERATIONS = "benchmarks.papers.yarn_paper.shipped.emulation:CPU_OPERATIONS"
#: One BLAS thread for each mapper: the nodes of this cluster share the cores.
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def main(argv: Sequence[str]) -> int:
    """Run one verb; the exit code is that of `jobs.entry`."""
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")
    if AGENTS_VARIABLE in os.environ:
        os.environ["ACCEL_AGENT"] = os.environ[AGENTS_VARIABLE].format(node=os.environ.get("NM_HOST", ""))
    load_more([_CPU_OPERATIONS], entry_points=False)
    return entry.main(argv, parse=_parse, run=_run)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    if not argv or argv[0] != VERB:
        return parse_verb(argv)
    parser = argparse.ArgumentParser(prog=f"accel-job {VERB}")
    parser.add_argument("verb")
    parser.add_argument("--window", type=int, default=4)
    parser.add_argument("--mappers", type=int, default=0, help="how many wait for each other; 0: nobody")
    parser.add_argument("--patience-s", type=float, default=60.0)
    parser.add_argument("--no-fallback", action="store_true")
    return parser.parse_args(list(argv))


def _run(options: argparse.Namespace, context: TaskContext) -> None:
    folder = os.environ.get(LOCK_FOLDER_VARIABLE, "")
    if options.verb == VERB:
        _play(options, context, Path(folder))
    elif options.verb == "images-map":
        _images(options, context, Path(folder) if folder else None)
    else:
        run_verb(options, context)


def _play(options: argparse.Namespace, context: TaskContext, folder: Path) -> None:
    lines = (line.decode() for line in context.stdin)
    barrier = StartBarrier(folder / BARRIER_FOLDER, options.mappers)

    def dispatch(calls: Iterable[Call]) -> Answers:
        return context.map_calls(calls, options.window)

    for row in play(lines, dispatch, context.attempt, barrier, context.reporter.count):
        context.stdout.write(row.format().encode() + b"\n")
    context.stdout.flush()


def _images(options: argparse.Namespace, context: TaskContext, folder: Path | None) -> None:
    emulated = json.loads(os.environ.get(EMULATED_IMAGE_VARIABLE, "null"))
    times = Times(context.map_calls, emulated)
    warm_up(lambda calls: context.map_calls(calls, 1), context.attempt)
    run_verb(options, replace(context, map_calls=times.map_calls))
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        # The last attempt at a task is the one that counts; all of one task write the same file.
        path = folder / f"times-{context.attempt.task_id}.json"
        path.write_text(json.dumps({"sent_s": times.first_sent_s, "done_s": times.last_done_s}))


class Times:
    """Passes calls on, as emulated ones if wanted, and remembers the first sent and the last done.

    Args:
        map_calls: where they go.
        emulated: parameters of an emulated image; None: they stay as they are.
        clock: Unix seconds.
    """

    def __init__(
        self,
        map_calls: MapCalls,
        emulated: Mapping[str, Any] | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._map_calls = map_calls
        self._emulated = emulated
        self._clock = clock
        self.first_sent_s = 0.0
        self.last_done_s = 0.0

    def map_calls(self, calls: Iterable[Call], window: int) -> Answers:
        """Every call as it came, with its answer."""
        originals: dict[str, Call] = {}

        def sending() -> Iterator[Call]:
            for call in calls:
                self.first_sent_s = self.first_sent_s or self._clock()
                originals[call.key] = call
                yield call if self._emulated is None else _emulated(call, self._emulated)

        for sent, answer in self._map_calls(sending(), window):
            self.last_done_s = self._clock()
            yield originals.pop(sent.key), answer


def _emulated(call: Call, params: Mapping[str, Any]) -> Call:
    return replace(call, operation=PREFIX + call.operation, params={**call.params, **params})
