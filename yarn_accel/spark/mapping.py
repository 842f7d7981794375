"""`map_partitions`, `map_in_pandas`, `predict_in_pandas`: calls for an RDD's records or a DataFrame's rows.

For DataFrames the nodes need pandas and pyarrow, as for Spark's own functions.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from yarn_accel.client.calls import Call, Reply, uri_of
from yarn_accel.errors import ConfigError
from yarn_accel.spark.batches import BatchPredictor, InputColumn
from yarn_accel.spark.records import RecordMapper, RecordResult, check_mode
from yarn_accel.spark.task import SparkCounters, connect, spark_context

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
        {"application_id": rdd.context.applicationId, "name": _next_name(), **connect_options},
    )

    def map_partition(index: int, records: Iterable[Any]) -> Iterator[RecordResult]:
        kept = mapper.results(records, f"split-{index}")
        return kept if keep is None else (each._replace(record=keep(each.record)) for each in kept)

    return rdd.mapPartitionsWithIndex(map_partition)


def _next_name() -> str:
    """Differs between the uses of this module in one driver, since one task may run several of them."""
    return f"map-{next(_NUMBERS)}"


@dataclass(frozen=True)
class TaskMapper:
    """It travels to the tasks: how to map records, where to count, how to connect."""

    records: RecordMapper | BatchPredictor
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


ERROR_COLUMNS = ("error_code", "error_message")
_MAX_ROWS = 1000


def map_in_pandas(
    df: Any,
    call: Callable[[Any], Call],
    result: Callable[[Any, Reply], Mapping[str, Any]],
    schema: str | Any,
    *,
    keep: Sequence[str] | None = None,
    counters: SparkCounters | None = None,
    mode: str = "PERMISSIVE",
    window: int | None = None,
    pack: int | str | None = None,
    **connect_options: Any,
) -> Any:
    """One call for each row of a DataFrame, by ``DataFrame.mapInPandas``: a DataFrame.

    Its columns are those of `keep`, those of `schema`, ``error_code`` and ``error_message``, which are null
    for a good row; for a bad one those of `schema` are. Rows come in the order in which they finish. What
    makes a row bad, and the other arguments, are as with `map_partitions`.

    Args:
        df: its rows are given to `call` and `result` as named tuples: ``row.path`` (``row[1]`` where the name
            of a column is no Python name).
        result: the values of the columns of `schema`, by name; one that is missing is null.
        schema: what `result` adds, as Spark's DDL (``"seconds double, rank int"``) or a StructType.
        keep: columns of `df` that stay; else all.

    Raises:
        ConfigError: the mode is unknown, or a column stands twice or does not exist, or the schema has none;
            or this PySpark is too old, or Spark Connect.
    """
    mapper = RecordMapper(call, result, check_mode(mode), window, pack)
    return _mapped(df, mapper, _added(df, schema), keep, counters, connect_options)


def predict_in_pandas(
    df: Any,
    model: str | os.PathLike[str],
    inputs: Sequence[str] | Mapping[str, str],
    schema: str | Any,
    *,
    keep: Sequence[str] | None = None,
    batch_size: int = 64,
    input_tensor_shapes: Mapping[str, Sequence[int]] | None = None,
    infer_options: Mapping[str, Any] | None = None,
    counters: SparkCounters | None = None,
    mode: str = "PERMISSIVE",
    window: int | None = None,
    **connect_options: Any,
) -> Any:
    """The predictions of an ONNX model for the rows of a DataFrame, a batch a request: a DataFrame.

    As ``pyspark.ml.functions.predict_batch_udf``, with a model that servers read in the place of a function
    that executors load. Columns, order and errors are as with `map_in_pandas`; the model is as with
    `Accelerator.infer`. A row that the model refuses is tried alone, and spoils no other one. Counters count
    rows, but ``sent`` and ``cpu_fallback`` requests.

    Args:
        df: a row's value for an input is a number, or numbers in a list.
        model: the URI, or a path that each node has, of an ``.onnx`` file.
        inputs: columns of `df` in the order of the model's inputs, or by the names of the inputs.
        schema: the model's outputs that are wanted, by their names: ``"label bigint, scores array<float>"``.
        batch_size: the most rows of a request.
        input_tensor_shapes: by the column, what the list of a row is to be, such as ``[3, 224, 224]``.
        infer_options: of `Accelerator.infer`: with ``image_size`` the one column is binary, encoded images.

    Raises:
        ConfigError: as `map_in_pandas`; or a column of `inputs` or `input_tensor_shapes` does not exist.
    """
    added = _added(df, schema)
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    wanted = list(named.values()) if named else [inputs] if isinstance(inputs, str) else list(inputs)
    shapes = input_tensor_shapes or {}
    for name in (*wanted, *shapes):
        if name not in df.columns or name not in wanted:
            what = f"the DataFrame has no column {name} for an input of the model"
            raise ConfigError(what, cure="take some of {}".format(", ".join(df.columns)))
    options = dict(infer_options or {})
    if not wanted or batch_size < 1 or (options.get("image_size") is not None and len(wanted) != 1):
        what = f"{len(wanted)} input columns in batches of {batch_size}"
        raise ConfigError(what, cure="name at least one column, one alone of images, and a batch_size from 1")
    columns = [
        InputColumn(
            list(df.columns).index(name),
            name,
            list(named)[number] if named else "",
            tuple(shapes[name]) if name in shapes else None,
        )
        for number, name in enumerate(wanted)
    ]
    outputs = {name: kind.startswith("array") for name, kind in added}
    uri = model if isinstance(model, str) else uri_of(model)
    predictor = BatchPredictor(uri, columns, outputs, batch_size, check_mode(mode), window, options)
    return _mapped(df, predictor, added, keep, counters, connect_options)


def _added(df: Any, schema: str | Any) -> list[Any]:
    """The fields of a schema; refuses a PySpark that cannot map them."""
    if not hasattr(df, "sparkSession"):
        raise ConfigError("this PySpark is too old for map_in_pandas", cure="take PySpark 3.5")
    return _fields(schema)


def _mapped(
    df: Any,
    records: RecordMapper | BatchPredictor,
    added: Sequence[Any],
    keep: Sequence[str] | None,
    counters: SparkCounters | None,
    connect_options: Mapping[str, Any],
) -> Any:
    """The DataFrame of kept columns, added ones and errors."""
    names = list(df.columns) if keep is None else list(keep)
    columns = [*names, *(name for name, _ in added), *ERROR_COLUMNS]
    _check_columns(columns, names, df.columns)
    application_id = spark_context(df.sparkSession).applicationId
    options = {"application_id": application_id, "name": _next_name(), **connect_options}
    mapper = TaskMapper(records, counters, options)
    kept_at = [(name, df.columns.index(name)) for name in names]

    def map_batches(batches: Iterable[Any]) -> Iterator[Any]:
        rows = (row for batch in batches for row in batch.itertuples(index=False, name="Row"))
        results = mapper.results(rows)
        while chunk := list(islice(results, _MAX_ROWS)):
            yield _frame(chunk, kept_at, columns)

    kept = [(name, df.schema[name].dataType.simpleString()) for name in names]
    errors = [(name, "string") for name in ERROR_COLUMNS]
    return df.mapInPandas(map_batches, _ddl([*kept, *added, *errors]))


def _fields(schema: str | Any) -> list[Any]:
    """Name and type of each column."""
    if isinstance(schema, str):
        from pyspark.sql.types import _parse_datatype_string

        schema = _parse_datatype_string(schema)
    if not hasattr(schema, "fields"):
        raise ConfigError(f"the schema {schema} has no columns", cure='write "name type, name type"')
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def _ddl(fields: Iterable[Any]) -> str:
    return ", ".join("`{}` {}".format(name.replace("`", "``"), kind) for name, kind in fields)


def _check_columns(columns: Sequence[str], kept: Sequence[str], existing: Sequence[str]) -> None:
    missing = [name for name in kept if name not in existing]
    if missing:
        what = "the DataFrame has no column {}".format(", ".join(missing))
        raise ConfigError(what, cure="keep some of {}".format(", ".join(existing)))
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        what = "the result would have several columns {}".format(", ".join(twice))
        raise ConfigError(what, cure="name the others with keep=[...], or rename one")


def _frame(chunk: Sequence[RecordResult], kept_at: Sequence[tuple[str, int]], columns: Sequence[str]) -> Any:
    """A pandas DataFrame; of objects, so that a missing number turns no column into floats."""
    import pandas as pd

    rows = []
    for record, value, code, message in chunk:
        row = {name: record[index] for name, index in kept_at}
        row.update(value or {})
        row.update(error_code=code, error_message=message)
        rows.append([row.get(name) for name in columns])
    return pd.DataFrame(rows, columns=list(columns), dtype=object)
