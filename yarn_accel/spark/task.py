"""`connect` in a task of Spark: keys that all attempts at the task share, counters that reach the driver."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from yarn_accel import client
from yarn_accel.client.accelerator import Accelerator
from yarn_accel.client.reporter import COUNTER_GROUP, Reporter
from yarn_accel.errors import ConfigError

LOGGER = logging.getLogger("yarn_accel.spark")
_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_\d+_\d+\Z")


@dataclass(frozen=True)
class SparkTask:
    """The task that this process runs.

    Attributes:
        application_id: Spark's, which on YARN is YARN's; empty: unknown.
        stage: id of the stage, the same in every attempt at it.
        partition: which part of the stage's data this is.
    """

    application_id: str
    stage: int
    partition: int

    @classmethod
    def current(cls, application_id: str = "", environ: Mapping[str, str] | None = None) -> SparkTask:
        """Ask Spark.

        Args:
            application_id: where the driver has said it; else that of the container of this executor.
            environ: in place of the process's environment.

        Raises:
            ConfigError: this process runs no task.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise ConfigError(
                "this process runs no task of Spark",
                cure="call it within mapPartitions or mapInPandas, or take yarn_accel.client.connect",
            )
        container = (os.environ if environ is None else environ).get("CONTAINER_ID", "")
        found = _CONTAINER.match(container)
        if not application_id and found is not None:
            application_id = "application_" + found.group(1)
        return cls(application_id, context.stageId(), context.partitionId())

    def key_prefix(self, name: str = "") -> str:
        """The prefix of idempotency keys: the same in every attempt at this task, different in all others.

        Empty where the application is unknown, since stages and partitions are counted from 0 in each.
        """
        if not self.application_id:
            return ""
        parts = (self.application_id, f"stage-{self.stage}", f"part-{self.partition}", name)
        return "/".join(part for part in parts if part)


@contextlib.contextmanager
def connect(
    counters: SparkCounters | None = None,
    *,
    application_id: str = "",
    name: str = "",
    environ: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Accelerator]:
    """Connect as `yarn_accel.client.connect`, in a function that `mapPartitions` or `mapInPandas` calls.

    Every attempt at a task gives its calls the same keys, so a server that has computed one for an attempt
    that was killed, or for its speculative twin, answers without computing again.

    Args:
        counters: get, at the end, what was counted here; every call is a record unless ``count_calls=False``.
        application_id: ``SparkContext.applicationId``; executors on YARN know it by themselves.
        name: differs between several connections of one task.
        environ: in place of the process's environment.
        options: those of `yarn_accel.client.connect`; what it waits for is logged as ``yarn_accel.spark``.

    Raises:
        ConfigError: this process runs no task of Spark; else as `yarn_accel.client.connect`.
    """
    environ = os.environ if environ is None else environ
    task = SparkTask.current(application_id, environ)
    reporter = Reporter(is_silent=True)
    given: dict[str, Any] = {
        "key_prefix": task.key_prefix(name),
        "on_wait": LOGGER.warning,
        **options,
        # Tasks with different numbers begin with different servers of a binding.
        "environ": {**environ, "mapreduce_task_partition": str(task.partition)},
        "reporter": reporter,
    }
    try:
        with client.connect(**given) as accel:
            yield accel
    finally:
        if counters is not None:
            own = {key: amount for (group, key), amount in reporter.totals.items() if group == COUNTER_GROUP}
            counters.add(own)


COUNTER_NAMES = (
    *("records_in", "sent", "done", "rejected", "cancelled", "cpu_fallback", "bytes"),
    *("resubmitted", "lost_servers", "moved"),
)


class SparkCounters:
    """Counts of all records: ``records_in`` = ``done`` + ``rejected`` + ``cancelled``.

    Made on the driver, given to `map_partitions`, `map_in_pandas` or `connect`, read on the driver after an
    action. Spark adds what a task counted once the task has succeeded, so a failed attempt counts nothing. A
    task that runs again for another action, or because what it had written was lost, counts again: cache what
    is used twice.

    ``sent`` are calls, ``cancelled`` records that were taken from a partition that Spark stopped reading
    (``take``, ``limit``), ``cpu_fallback`` calls that the executor computed itself, ``bytes`` those of
    inputs; ``lost_servers``, ``resubmitted`` and ``moved`` say what the connections met.

    Args:
        spark: the SparkSession, or its SparkContext.

    Raises:
        ConfigError: it is a session of Spark Connect, which has neither.
    """

    def __init__(self, spark: Any) -> None:
        context = spark_context(spark)
        self._accumulators = {name: context.accumulator(0) for name in COUNTER_NAMES}

    def add(self, amounts: dict[str, int]) -> None:
        """Add to the counters, in a task; a name that is none of them is left out."""
        for name, amount in amounts.items():
            if amount and name in self._accumulators:
                self._accumulators[name].add(amount)

    @property
    def value(self) -> dict[str, int]:
        """All counters by name; on the driver only, as with an accumulator."""
        return {name: int(each.value) for name, each in self._accumulators.items()}


def spark_context(spark: Any) -> Any:
    """The SparkContext of a session, or the one given.

    Raises:
        ConfigError: the session has none.
    """
    context = getattr(spark, "sparkContext", spark)
    if not hasattr(context, "accumulator"):
        what = "this session has no SparkContext, as with Spark Connect"
        raise ConfigError(what, cure="submit the program with spark-submit")
    return context
