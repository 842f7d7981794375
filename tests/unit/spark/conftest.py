"""Stands in for the few objects of PySpark that are used, each as small as its use."""

from __future__ import annotations

import sys
import types
from collections import namedtuple
from dataclasses import dataclass

import pytest


@dataclass
class FakeTask:
    """The answer of `TaskContext.get()` in a task."""

    stage: int = 3
    partition: int = 7

    def stageId(self):
        return self.stage

    def partitionId(self):
        return self.partition


@dataclass
class FakeAccumulator:
    value: int

    def add(self, amount):
        self.value += amount


class FakeContext:
    """A SparkContext that runs nothing."""

    applicationId = "application_1_0002"

    def accumulator(self, value):
        return FakeAccumulator(value)


@dataclass
class FakeRdd:
    """An RDD that computes its partitions here when it is collected."""

    partitions: list
    context: FakeContext

    def mapPartitionsWithIndex(self, function):
        found = [list(function(index, iter(part))) for index, part in enumerate(self.partitions)]
        return FakeRdd(found, self.context)

    def collect(self):
        return [each for part in self.partitions for each in part]


@pytest.fixture
def context():
    return FakeContext()


@pytest.fixture
def task(monkeypatch):
    """This process runs a task; None in its place: it runs none."""
    module = types.ModuleType("pyspark")
    module.TaskContext = types.SimpleNamespace(get=lambda: module.task)
    module.task = FakeTask()
    monkeypatch.setitem(sys.modules, "pyspark", module)
    return module


@dataclass
class FakeType:
    """A type of a column, or a field of a schema with that type."""

    kind: str
    name: str = ""

    @property
    def dataType(self):
        return self

    def simpleString(self):
        return self.kind


class FakeFrame(list):
    """Rows with named columns, as much of a DataFrame of pandas as is used."""

    def __init__(self, rows, columns, dtype=None):
        super().__init__(rows)
        self.columns = columns

    def itertuples(self, index, name):
        made = namedtuple(name, self.columns, rename=True)
        return (made(*row) for row in self)


class FakeDataFrame:
    """A DataFrame of Spark in one partition of two batches, which is mapped at once."""

    def __init__(self, rows, columns, kinds, context):
        self.rows, self.columns = rows, columns
        self.schema = {name: FakeType(kind) for name, kind in zip(columns, kinds, strict=True)}
        self.sparkSession = types.SimpleNamespace(sparkContext=context)

    def mapInPandas(self, function, ddl):
        middle = len(self.rows) // 2
        batches = [FakeFrame(part, self.columns) for part in (self.rows[:middle], self.rows[middle:])]
        frames = list(function(iter(batches)))
        found = [dict(zip(frame.columns, row, strict=True)) for frame in frames for row in frame]
        return types.SimpleNamespace(rows=found, ddl=ddl)


@pytest.fixture
def pandas(monkeypatch):
    """Stands in for pandas, which the tests do without."""
    module = types.ModuleType("pandas")
    module.DataFrame = FakeFrame
    monkeypatch.setitem(sys.modules, "pandas", module)
    return module
