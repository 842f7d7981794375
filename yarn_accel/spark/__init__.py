"""Pipeline servers in PySpark: one connection per task, bad records as columns, counters as accumulators.

::

    from yarn_accel.client import Call
    from yarn_accel.spark import map_in_pandas

    factors = map_in_pandas(
        matrices,  # columns: id string, path string
        lambda row: Call.of("qr", row.path, output=row.path + ".npz"),
        lambda row, reply: {"seconds": reply.seconds["total"]},
        schema="seconds double",
    )

What is listed here is public and stays; docs/spark.md shows all of it. It runs in executors: standard library
only, Python 3.8, PySpark imported where it is used. Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yarn_accel.spark.counters import SparkCounters
    from yarn_accel.spark.dataframe import map_in_pandas
    from yarn_accel.spark.packaging import write_py_files
    from yarn_accel.spark.rdd import map_partitions
    from yarn_accel.spark.records import RecordResult
    from yarn_accel.spark.task import connect

__all__ = [
    "RecordResult",
    "SparkCounters",
    "connect",
    "map_in_pandas",
    "map_partitions",
    "write_py_files",
]

_MODULES = {
    "RecordResult": "records",
    "SparkCounters": "counters",
    "connect": "task",
    "map_in_pandas": "dataframe",
    "map_partitions": "rdd",
    "write_py_files": "packaging",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    value = globals()[name] = getattr(module, name)
    return value
