"""What the worker of a task service and its master say to each other: two documents in JSON.

A worker sends a `WorkerReport`: everything it holds. The master replies with a `WorkerOrder`: everything the
worker is to hold. Both are complete, so either may be lost, repeated or late:

- An attempt that is listed and not held yet is queued; it starts when it fits, in the order of the list. One
  that lacks a GPU holds back only those who want GPUs; one that lacks cores or memory holds back all.
- An attempt that is listed no more is ended where it runs (`CANCELLED`), taken back where it waits
  (`TAKEN_BACK`). It may also have ended by itself before: the report says what was.
- An attempt that is listed with ``take_back`` is taken back where it waits; where it runs it goes on.
- An attempt that ended is in every report until an order lists it no more *and* was made after a report that
  showed its end (`WorkerOrder.report_sequence`). So no end is lost.
- An order counts if it is not older than the last one, by (master_attempt, sequence), and if it is meant for
  this incarnation of the worker. The master raises ``sequence`` with every change of the list. It never lists
  an attempt again that it had dropped: another try is another attempt.

Times are seconds before the report was made, since the clocks of two nodes differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from yarn_accel.core.tasks.attempt_orders import (
    AttemptId,
    AttemptOrder,
    attempt_document,
    parse_attempt,
    parse_attempt_id,
)
from yarn_accel.core.tasks.checked_document import CheckedObject
from yarn_accel.core.tasks.events import TaskMeasurement
from yarn_accel.core.tasks.values import ResourceId

VERSION = 1
#: Bodies on the wire. As many results as a report may have fit, each twice as long as a text in JSON.
MAX_ORDER_BYTES = 16 * 1024 * 1024
MAX_REPORT_BYTES = 24 * 1024 * 1024
#: Attempts in an order, and in a report, which also has those that end.
MAX_LISTED = 128
MAX_HELD = 512
#: Counters of one attempt, as many as Hadoop allows.
MAX_COUNTERS = 120
#: Characters of an error or a status.
MAX_LINE = 500
#: Characters of a function's result as JSON.
MAX_RESULT = 16 * 1024
_MAX_GROUP, _MAX_COUNTER_NAME = 128, 64
_MAX_NAME = 200
_MAX_COUNT = 2**53
_MAX_S = 1e9
_MAX_CORES, _MAX_GPUS = 4096, 64

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*\Z")
_INCARNATION = re.compile(r"[0-9a-f]{16}\Z")


class AttemptPhase(Enum):
    """Where an attempt is at its worker."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


class AttemptOutcome(Enum):
    """How an attempt ended."""

    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    OUT_OF_MEMORY = "out-of-memory"
    TAKEN_BACK = "taken-back"
    """It never started."""
    CANCELLED = "cancelled"
    """It ran, and the order listed it no more."""


class Counter(NamedTuple):
    """A counter of ``reporter:counter:group,name,amount``, summed up."""

    group: str
    name: str
    value: int


class OrderNumber(NamedTuple):
    """Which order is the newer one; the attempt is that of the master's application."""

    master_attempt: int
    sequence: int


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt.

    Attributes:
        exit_status: of the command, negative for a signal; None: it did not end by itself, or never started.
        error: one line for its owner; empty: there was none.
        is_transient: it was no fault of the task: storage was away, say. Another try may work.
        was_done_before: its output was there already, so nothing was computed, or what was is dropped.
        wall_s: from the start to the commit.
        measured: None where nothing was, as after an attempt that failed.
        result: what a function returned, as JSON; empty: there was no function, or it is not done.
    """

    outcome: AttemptOutcome
    exit_status: int | None = None
    error: str = ""
    counters: tuple[Counter, ...] = ()
    was_done_before: bool = False
    wall_s: float = 0.0
    measured: TaskMeasurement | None = None
    is_transient: bool = False
    result: str = ""


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """An attempt as its worker has it.

    Attributes:
        since_s: for so long it is in this phase.
        status: what it said last by ``reporter:status:``.
        read_bytes: what of its split was read.
        end: only of one that ended.
    """

    attempt: AttemptId
    phase: AttemptPhase
    since_s: float
    status: str = ""
    read_bytes: int = 0
    end: AttemptEnd | None = None


@dataclass(frozen=True, slots=True)
class IoSample:
    """The I/O of the node, of everybody on it.

    Attributes:
        bytes_per_s: TotalIO: of the disks and links that count, over the last sampling interval.
        readers: #IOtask: attempts of this worker in their read phase.
        age_s: when that was.
    """

    bytes_per_s: float
    readers: int
    age_s: float


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker is and holds.

    Attributes:
        incarnation: 16 hexadecimal digits, random per process.
        sequence: grows with every report of an incarnation.
        order: the last order that was taken; None: none yet.
        bandwidth_bytes_per_s: of the node's disk or link; 0: not known here.
        accelerator: the kind of its GPUs.
        problem: why there was no order last time, or none that could be taken; empty: there was.
    """

    worker: ResourceId
    node: str
    incarnation: str
    sequence: int
    order: OrderNumber | None
    cores: int
    gpus: int
    memory_bytes: int
    attempts: tuple[AttemptReport, ...] = ()
    io: IoSample | None = None
    bandwidth_bytes_per_s: float = 0.0
    accelerator: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """What a worker is to hold.

    Attributes:
        incarnation: whom it is meant for.
        report_sequence: the newest report that the master had taken in when it made this.
        attempts: first what is to run now, then the queue.
    """

    number: OrderNumber
    incarnation: str
    report_sequence: int
    attempts: tuple[AttemptOrder, ...] = ()


# ---- documents


def order_document(order: WorkerOrder) -> dict[str, Any]:
    """An order as `parse_order` reads it."""
    return {
        "version": VERSION,
        "number": list(order.number),
        "incarnation": order.incarnation,
        "report_sequence": order.report_sequence,
        "attempts": [attempt_document(each) for each in order.attempts],
    }


class OrderParser:
    """Reads the orders of one master, one after the other.

    Each order lists an attempt until it has ended. So what the order before had, value by value, is not read
    again.
    """

    def __init__(self) -> None:
        #: The attempts of the last order by their ids: as they came, and as they were read.
        self._last: dict[AttemptId, tuple[Any, AttemptOrder]] = {}

    def parse(self, document: Any) -> WorkerOrder:
        """Read an order.

        Raises:
            RemoteProtocolError: names the place.
        """
        top = _opened(document, "order")
        order = WorkerOrder(
            number=_order_number(top),
            incarnation=top.text("incarnation", 16, _INCARNATION),
            report_sequence=top.count("report_sequence", _MAX_COUNT),
            attempts=tuple(map(self._attempt, top.objects("attempts", MAX_LISTED))),
        )
        top.close()
        _no_doubles(top, (each.attempt for each in order.attempts))
        came = top.values("attempts", MAX_LISTED)
        self._last = {each.attempt: (value, each) for value, each in zip(came, order.attempts, strict=True)}
        return order

    def _attempt(self, source: CheckedObject) -> AttemptOrder:
        value, order = self._last.get(parse_attempt_id(source), (None, None))
        return order if order is not None and source.is_equal_to(value) else parse_attempt(source)


def parse_order(document: Any) -> WorkerOrder:
    """Read one order, see `OrderParser.parse`."""
    return OrderParser().parse(document)


def report_document(report: WorkerReport) -> dict[str, Any]:
    """A report as `parse_report` reads it."""
    io = report.io
    return {
        "version": VERSION,
        "worker": report.worker,
        "node": report.node,
        "incarnation": report.incarnation,
        "sequence": report.sequence,
        "number": None if report.order is None else list(report.order),
        "cores": report.cores,
        "gpus": report.gpus,
        "memory_bytes": report.memory_bytes,
        "attempts": [_report_of_attempt(each) for each in report.attempts],
        "io": io and {"bytes_per_s": io.bytes_per_s, "readers": io.readers, "age_s": io.age_s},
        "bandwidth_bytes_per_s": report.bandwidth_bytes_per_s,
        "accelerator": report.accelerator,
        "problem": report.problem,
    }


def parse_report(document: Any) -> WorkerReport:
    """Read a report.

    Raises:
        RemoteProtocolError: names the place.
    """
    top = _opened(document, "report")
    report = WorkerReport(
        worker=ResourceId(top.text("worker", _MAX_NAME, _NAME)),
        node=top.text("node", _MAX_NAME, _NAME),
        incarnation=top.text("incarnation", 16, _INCARNATION),
        sequence=top.count("sequence", _MAX_COUNT),
        order=None if top.is_null("number") else _order_number(top),
        cores=top.count("cores", _MAX_CORES),
        gpus=top.count("gpus", _MAX_GPUS),
        memory_bytes=top.count("memory_bytes", _MAX_COUNT),
        attempts=tuple(_attempt_report(each) for each in top.objects("attempts", MAX_HELD)),
        io=None if top.is_null("io") else _io_sample(top.below("io")),
        bandwidth_bytes_per_s=top.number("bandwidth_bytes_per_s", _MAX_COUNT),
        accelerator=top.line("accelerator", _MAX_NAME),
        problem=top.line("problem", MAX_LINE),
    )
    top.close()
    _no_doubles(top, (each.attempt for each in report.attempts))
    return report


def _opened(document: Any, name: str) -> CheckedObject:
    top = CheckedObject(document, name)
    if (version := top.count("version", _MAX_COUNT)) != VERSION:
        raise top.error("version", f"is {version}, {VERSION} is expected")
    return top


def _order_number(top: CheckedObject) -> OrderNumber:
    master_attempt, sequence = top.counts("number", 2, _MAX_COUNT)
    return OrderNumber(master_attempt, sequence)


def _no_doubles(top: CheckedObject, attempts: Iterable[AttemptId]) -> None:
    seen: set[AttemptId] = set()
    for attempt in attempts:
        if attempt in seen:
            raise top.error("attempts", f"has {attempt} twice")
        seen.add(attempt)


def _report_of_attempt(report: AttemptReport) -> dict[str, Any]:
    return {
        "attempt": report.attempt,
        "phase": report.phase.value,
        "since_s": report.since_s,
        "status": report.status,
        "read_bytes": report.read_bytes,
        "end": report.end and _end_document(report.end),
    }


def _attempt_report(source: CheckedObject) -> AttemptReport:
    report = AttemptReport(
        attempt=parse_attempt_id(source),
        phase=source.choice("phase", AttemptPhase),
        since_s=source.number("since_s", _MAX_S),
        status=source.line("status", MAX_LINE),
        read_bytes=source.count("read_bytes", _MAX_COUNT),
        end=None if source.is_null("end") else _end(source.below("end")),
    )
    source.close()
    if (report.end is not None) != (report.phase is AttemptPhase.ENDED):
        raise source.error("end", "belongs to an attempt that ended, and to no other")
    return report


def _end_document(end: AttemptEnd) -> dict[str, Any]:
    measured = end.measured
    return {
        "outcome": end.outcome.value,
        "exit_status": end.exit_status,
        "error": end.error,
        "counters": [list(each) for each in end.counters],
        "was_done_before": end.was_done_before,
        "is_transient": end.is_transient,
        "wall_s": end.wall_s,
        "result": end.result,
        "measured": measured
        and {
            "read_bytes": measured.read_bytes,
            "read_s": measured.read_s,
            "compute_s": measured.compute_s,
            "alone": measured.alone,
        },
    }


def _end(source: CheckedObject) -> AttemptEnd:
    end = AttemptEnd(
        outcome=source.choice("outcome", AttemptOutcome),
        exit_status=None if source.is_null("exit_status") else source.count("exit_status", 65536, -256),
        error=source.line("error", MAX_LINE),
        counters=_counters(source),
        was_done_before=source.flag("was_done_before"),
        wall_s=source.number("wall_s", _MAX_S),
        is_transient=source.flag("is_transient"),
        measured=None if source.is_null("measured") else _measurement(source.below("measured")),
        result=source.text("result", MAX_RESULT),
    )
    source.close()
    return end


def _counters(source: CheckedObject) -> tuple[Counter, ...]:
    found: dict[tuple[str, str], Counter] = {}
    for row in source.rows("counters", MAX_COUNTERS, 3):
        counter = Counter(
            row.text(0, _MAX_GROUP), row.text(1, _MAX_COUNTER_NAME), row.count(2, _MAX_COUNT, -_MAX_COUNT)
        )
        found[counter.group, counter.name] = counter
    return tuple(found.values())


def _measurement(source: CheckedObject) -> TaskMeasurement:
    measured = TaskMeasurement(
        read_bytes=source.number("read_bytes", _MAX_COUNT),
        read_s=source.number("read_s", _MAX_S),
        compute_s=source.number("compute_s", _MAX_S),
        alone=source.flag("alone"),
    )
    source.close()
    return measured


def _io_sample(source: CheckedObject) -> IoSample:
    sample = IoSample(
        bytes_per_s=source.number("bytes_per_s", _MAX_COUNT),
        readers=source.count("readers", _MAX_COUNT),
        age_s=source.number("age_s", _MAX_S),
    )
    source.close()
    return sample
