"""The counters of a job, as accumulators that the driver reads."""

from __future__ import annotations

from typing import Any

from yarn_accel.errors import ConfigError

COUNTER_NAMES = (
    *("records_in", "sent", "done", "rejected", "cancelled", "cpu_fallback", "bytes"),
    *("resubmitted", "lost_servers", "moved"),
)


class SparkCounters:
    """What became of all records: ``records_in`` = ``done`` + ``rejected`` + ``cancelled``.

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
