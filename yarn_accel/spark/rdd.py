"""`map_partitions`: calls for the records of an RDD."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from yarn_accel.client.calls import Call, Reply
from yarn_accel.spark.counters import SparkCounters
from yarn_accel.spark.records import RecordMapper, RecordResult, check_mode
from yarn_accel.spark.task import connect

_NUMBERS = itertools.count(1)


def map_partitions(
    rdd: Any,
    call: Callable[[Any], Call],
    result: Callable[[Any, Reply], Any],
    *,
    keep: Callable[[Any], Any] | None = None,
    counters: SparkCounters | None = None,
    mode: str = "PERMISSIVE",
    window: int | None = None,
    pack: int | str | None = None,
    **connect_options: Any,
) -> Any:
    """One call for each record of an RDD, by ``RDD.mapPartitions``: an RDD of `RecordResult`.

    Results come in the order in which they finish. A record is bad where the server rejects it, or where
    `call` or `result` raises `RejectedError`, `StorageError` or ValueError (code ``invalid-record``). What is
    not the record's fault, such as a server that nobody can reach with ``fallback=False``, fails the task,
    which Spark tries again.

    Args:
        rdd: of anything.
        call: makes the call of a record, in the executor.
        result: makes the value of a record and its reply, in the executor; it must be something that pickles.
        keep: what of a record its result holds, such as its id; else all of it.
        counters: get what became of the records.
        mode: PERMISSIVE, or FAILFAST: the first bad record fails the job (after ``spark.task.maxFailures``
            tries).
        window: calls of one task under way at once; else ``ACCEL_WINDOW``, 4.
        pack: how many small calls may travel as one request, or "auto"; else ``ACCEL_PACK``, 1.
        connect_options: of `yarn_accel.client.connect`.

    Raises:
        ConfigError: the mode is unknown.
    """
    mapper = TaskMapper(
        RecordMapper(call, result, check_mode(mode), window, pack),
        counters,
        {"application_id": rdd.context.applicationId, "name": next_name(), **connect_options},
    )

    def map_partition(index: int, records: Iterable[Any]) -> Iterator[RecordResult]:
        kept = mapper.results(records, f"split-{index}")
        return kept if keep is None else (each._replace(record=keep(each.record)) for each in kept)

    return rdd.mapPartitionsWithIndex(map_partition)


def next_name() -> str:
    """Differs between the uses of this module in one driver, since one task may run several of them."""
    return f"map-{next(_NUMBERS)}"


@dataclass(frozen=True)
class TaskMapper:
    """What travels to the tasks: how to map records, whom to tell, how to connect."""

    records: RecordMapper
    counters: SparkCounters | None
    connect_options: Mapping[str, Any]

    def results(self, records: Iterable[Any], part: str = "") -> Iterator[RecordResult]:
        """The results of one partition.

        Args:
            part: goes into the keys of calls: after ``coalesce`` a task maps several partitions.
        """
        options: dict[str, Any] = dict(self.connect_options)
        options["name"] = "/".join(filter(None, (options["name"], part)))
        with connect(self.counters, count_calls=False, **options) as accel:
            yield from self.records.results(accel, records, accel.reporter.count)
