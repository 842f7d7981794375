"""Stands in for the few objects of PySpark that are used, each as small as its use."""

from __future__ import annotations

import sys
import types
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
