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
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yarn_accel import __version__

if TYPE_CHECKING:
    from yarn_accel.spark.mapping import map_in_pandas, map_partitions, predict_in_pandas
    from yarn_accel.spark.records import RecordResult
    from yarn_accel.spark.task import SparkCounters, connect

__all__ = [
    "RecordResult",
    "SparkCounters",
    "connect",
    "map_in_pandas",
    "map_partitions",
    "predict_in_pandas",
    "write_py_files",
]

_MODULES = {
    "RecordResult": "records",
    "SparkCounters": "task",
    "connect": "task",
    "map_in_pandas": "mapping",
    "map_partitions": "mapping",
    "predict_in_pandas": "mapping",
}


def write_py_files(folder: str | os.PathLike[str] = ".") -> str:
    """Write ``yarn-accel-VERSION.zip`` into a folder; its path, for ``--py-files`` or ``addPyFile``.

    It is the one file that executors need: the client library and this package, standard library Python 3.8
    alone (below 1 MB).  Equal sources give equal bytes.  Arrays by value need numpy on the nodes.
    """
    from yarn_accel.client.archive import write_client_archive

    target = Path(folder) / f"yarn-accel-{__version__}.zip"
    target.parent.mkdir(parents=True, exist_ok=True)
    return str(write_client_archive(target, is_compressed=True))


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    value = globals()[name] = getattr(module, name)
    return value
