"""A task's own facts, its keys and counters, and the file that executors get."""

from __future__ import annotations

import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest

import yarn_accel.spark
from tests.fixtures.programs import ran
from tests.unit.spark.conftest import FakeRdd
from yarn_accel.client import Call, ConfigError
from yarn_accel.client.accelerator import CallKeys
from yarn_accel.spark import SparkCounters, connect, map_in_pandas, map_partitions, write_py_files
from yarn_accel.spark.task import SparkTask

CONTAINER = {"CONTAINER_ID": "container_e17_1700000000000_0042_02_000005"}


@pytest.mark.parametrize(
    ("given", "environ", "found"),
    [
        ("application_1_0002", CONTAINER, "application_1_0002"),
        ("", CONTAINER, "application_1700000000000_0042"),
        ("", {"CONTAINER_ID": "container_1700000000000_0042_01_000001"}, "application_1700000000000_0042"),
        ("", {"CONTAINER_ID": "no such thing"}, ""),
        ("", {}, ""),
    ],
)
def test_the_application_is_the_driver_s_or_the_container_s(task, given, environ, found):
    assert SparkTask.current(given, environ) == SparkTask(found, 3, 7)


def test_keys_hold_application_stage_and_partition_and_no_attempt():
    assert SparkTask("application_1_0002", 3, 7).key_prefix() == "application_1_0002/stage-3/part-7"
    assert SparkTask("application_1_0002", 3, 7).key_prefix("map-1").endswith("/part-7/map-1")
    assert SparkTask("application_1_0002", 4, 0).key_prefix() == "application_1_0002/stage-4/part-0"
    assert not SparkTask("", 3, 7).key_prefix("map-1"), "a random one is better than one that others have"


def test_outside_of_a_task_it_says_so(task):
    task.task = None
    with pytest.raises(ConfigError, match="runs no task of Spark"), connect(runner="inline"):
        pass


def test_keys_are_the_same_in_each_attempt_and_calls_are_counted(task, context):
    counters, keys = SparkCounters(context), []
    for _ in range(2):
        with connect(counters, application_id="application_1_0002", runner="inline") as accel:
            calls = [Call.of("gemm", np.eye(2), np.eye(2)) for _ in range(3)]
            keys.append([call.key for call, _ in accel.map(calls, ordered=True)])
    assert keys[0] == keys[1]
    assert keys[0][0] == "application_1_0002/stage-3/part-7/1/gemm"
    assert counters.value["records_in"] == counters.value["done"] == 6


def test_a_bad_record_is_a_result_and_every_record_is_counted(task, context):
    counters = SparkCounters(context)
    rdd = FakeRdd([[("a", 4.0), ("b", -1.0)], [("c", 9.0)], []], context)
    mapped = map_partitions(
        rdd,
        lambda record: Call.of("cholesky", [[record[1]]]),
        lambda record, reply: reply.arrays()["l"].item(),
        keep=lambda record: record[0],
        counters=counters,
        runner="inline",
    )
    assert [each[:3] for each in mapped.collect()] == [
        ("a", 2.0, None),
        ("b", None, "not-positive-definite"),
        ("c", 3.0, None),
    ]
    value = counters.value
    assert (value["records_in"], value["done"], value["rejected"]) == (3, 2, 1)


def test_two_maps_and_two_partitions_of_one_task_share_no_key(task, context, monkeypatch):
    """After ``coalesce`` one task maps several partitions, and a record may go through several maps."""
    keys = []

    def give(self, call):
        genuine(self, call)
        keys.append(call.key)

    genuine = CallKeys.give
    monkeypatch.setattr(CallKeys, "give", give)
    rdd = FakeRdd([[1], [2]], context)
    for _ in range(2):
        rdd = map_partitions(
            rdd, lambda record: Call.of("gemm", [[1.0]], [[1.0]]), lambda record, reply: 1, runner="inline"
        )
    assert len(set(keys)) == 4
    assert all(key.startswith("application_1_0002/stage-3/part-7/map-") for key in keys)


@pytest.mark.parametrize("is_session", [False, True], ids=["a context", "a session, which is as good"])
def test_counters_travel_to_no_other_names(context, is_session):
    counters = SparkCounters(types.SimpleNamespace(sparkContext=context) if is_session else context)
    counters.add({"done": 2, "records_in": 2, "something": 5, "rejected": 0})
    assert counters.value["done"] == 2
    assert "something" not in counters.value


def test_a_session_of_spark_connect_and_an_old_pyspark_are_refused():
    class Session:
        @property
        def sparkContext(self):
            raise AttributeError("[JVM_ATTRIBUTE_NOT_SUPPORTED]")

    with pytest.raises(ConfigError, match=r"Spark Connect: submit the program with spark-submit"):
        SparkCounters(Session())
    with pytest.raises(ConfigError, match=r"too old for map_in_pandas: take PySpark 3\.5"):
        map_in_pandas(object(), lambda row: None, lambda row, reply: {}, "x int")


def test_every_listed_name_is_there():
    for name in yarn_accel.spark.__all__:
        assert getattr(yarn_accel.spark, name)
    with pytest.raises(AttributeError, match="nothing"):
        _ = yarn_accel.spark.nothing


def test_equal_sources_make_equal_files(tmp_path):
    first, second = write_py_files(tmp_path / "one"), write_py_files(tmp_path / "two")
    assert Path(first).read_bytes() == Path(second).read_bytes()


def test_the_file_alone_is_enough_without_site_packages(tmp_path):
    """An executor has this file and a Python; numpy only where it is installed."""
    done = ran([sys.executable, "-m", "yarn_accel.spark", str(tmp_path)], check=True)
    path = done.stdout.strip()
    assert path.startswith(str(tmp_path))
    names = [
        name[:-3].replace("/", ".").removesuffix(".__init__")
        for name in zipfile.ZipFile(path).namelist()
        if not name.endswith("__main__.py") and "/operations/" not in name
    ]
    assert "yarn_accel.spark.mapping" in names
    program = (
        f"import importlib, sys; sys.path.insert(0, {path!r})\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
    )
    tried = ran([sys.executable, "-I", "-S", "-c", program], cwd=tmp_path)
    assert tried.returncode == 0, tried.stderr
