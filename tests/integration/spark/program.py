"""A job of PySpark that `spark-submit` runs; its functions are also the tests', for what must come out.

Every record is a number, of which its matrix follows; some are bad.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from yarn_accel.client import Call, parse_binding
from yarn_accel.spark import RecordResult, SparkCounters, map_in_pandas, map_partitions

SIDE = 24
CYCLE = 16
#: Of each cycle, one is bad for the function that makes the call, and one for the server.
SHORT, NOT_FINITE = 3, 5
#: The record at which a task waits until something has happened, if it shall; some before it are answered.
MEETING = 40
DEADLINE_S = 480.0


def call_of(number: int) -> Call:
    """A QR of the matrix of this number."""
    data = np.random.default_rng(number).standard_normal(SIDE * SIDE)
    if number % CYCLE == SHORT:
        data = data[1:]
    if number % CYCLE == NOT_FINITE:
        data[7] = np.nan
    return Call.of("qr", data.reshape(SIDE, SIDE), form="separate")


def value_of(reply) -> float:
    """|det A| by R."""
    return float(np.log(np.abs(np.diag(reply.arrays()["r"]))).sum())


def facts(reply) -> dict:
    """The row of a record that is done."""
    from pyspark import TaskContext

    return {
        "value": value_of(reply),
        "server": reply.server,
        "container": os.environ["CONTAINER_ID"],
        "attempt": TaskContext.get().attemptNumber(),
    }


def meet(folder: str, number: int, servers: list[str]) -> None:
    """At one record of the first attempt: say that it is reached, and wait for the file ``go-on``.

    Args:
        servers: who has answered this task so far.
    """
    from pyspark import TaskContext

    if not folder or number != MEETING or TaskContext.get().attemptNumber():
        return
    place = Path(folder)
    (place / "reached.part").write_text(
        json.dumps({"container": os.environ["CONTAINER_ID"], "server": servers[-1]})
    )
    (place / "reached.part").replace(place / "reached")
    until_s = time.monotonic() + DEADLINE_S
    while not (place / "go-on").exists():
        if time.monotonic() > until_s:
            raise TimeoutError("nothing happened")
        time.sleep(0.05)


def fail_once(results: Iterable[RecordResult]) -> Iterator[RecordResult]:
    """The first attempt at a task fails when it has all results."""
    from pyspark import TaskContext

    yield from results
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("this attempt fails, as was asked for")


def main() -> None:
    """Run the job; the result is one JSON file on the driver's machine."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("rdd", "dataframe"))
    parser.add_argument("--records", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--meet", default="")
    parser.add_argument("--mode", default="PERMISSIVE")
    parser.add_argument("--binding", type=Path)
    parser.add_argument("--fail-once", action="store_true")
    options = parser.parse_args()
    from pyspark.sql import SparkSession

    began_s = time.monotonic()
    spark = SparkSession.builder.getOrCreate()
    started_s = time.monotonic() - began_s
    counters = SparkCounters(spark)
    folder, n_parts = options.meet, 4
    settings = {"counters": counters, "mode": options.mode, "fallback": False, "patience_s": 120.0}

    if options.binding:
        settings["binding"] = parse_binding(options.binding.read_text())
    servers = []  # a copy of it travels with the functions below

    def number_call(number):
        meet(folder, number, servers)
        return call_of(number)

    def result(record, reply):
        servers.append(reply.server)
        return facts(reply)

    if options.kind == "rdd":
        numbers = spark.sparkContext.parallelize(range(options.records), n_parts)
        mapped = map_partitions(numbers, number_call, result, **settings)
        if options.fail_once:
            mapped = mapped.mapPartitions(fail_once)
        rows = [(each.record, each.value, *each[2:]) for each in mapped.collect()]
    else:
        frame = spark.range(0, options.records, 1, n_parts)
        schema = "value double, server string, container string, attempt int"
        mapped = map_in_pandas(frame, lambda row: number_call(row.id), result, schema, pack=4, **settings)
        names = ("value", "server", "container", "attempt")
        rows = [
            (row.id, None if row.error_code else {name: row[name] for name in names}, *row[-2:])
            for row in mapped.collect()
        ]
    result = {
        "application": spark.sparkContext.applicationId,
        "started_s": started_s,
        "rows": rows,
        "counters": counters.value,
    }
    options.out.write_text(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
