"""Tasks of Spark against real servers, without Spark: repeated, two at once, and with a killed server."""

from __future__ import annotations

import signal
import sys
import types
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from yarn_accel.client import Binding, Call
from yarn_accel.spark.mapping import TaskMapper
from yarn_accel.spark.records import RecordMapper

N_RECORDS = 40
FACTOR = np.eye(300)
SMALL = {"workers": 1, "standby_workers": 0, "calibrate": False}


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """This process runs a task of Spark, again and again the same one."""
    module = types.ModuleType("pyspark")
    context = types.SimpleNamespace(stageId=lambda: 3, partitionId=lambda: 7)
    module.TaskContext = types.SimpleNamespace(get=lambda: context)
    monkeypatch.setitem(sys.modules, "pyspark", module)


def call_of(number):
    if number % 10 == 9:
        raise ValueError("a nine")
    return Call.of("gemm", number * FACTOR, FACTOR)


class Accumulators(Counter):
    """Stands in for `SparkCounters`."""

    def add(self, amounts):
        self.update(amounts)


def attempt(servers, credential, after=lambda n_results: None, note=lambda server: None):
    """Run the task: its results by record, and what it counted."""
    counters = Accumulators()
    options = {
        "application_id": "application_1_0001", "name": "map-1", "environ": {}, "credential": credential,
        "binding": Binding(tuple(server.endpoint for server in servers)), "fallback": False,
        "patience_s": 120.0,
    }  # fmt: skip

    def value_of(number, reply):
        note(reply.server)
        return float(reply.arrays()["c"][0, 0])

    mapper = TaskMapper(RecordMapper(call_of, value_of, window=8), counters, options)
    results = []
    for result in mapper.results(range(N_RECORDS)):
        results.append(result)
        after(len(results))
    assert len(results) == N_RECORDS == counters["records_in"] == counters["done"] + counters["rejected"]
    assert counters["rejected"] == 4
    return {each.record: each.error_code or each.value for each in results}, counters


EXPECTED = {n: "invalid-record" if n % 10 == 9 else float(n) for n in range(N_RECORDS)}


def test_a_repeated_task_is_answered_without_computing(start_server, credential):
    server = start_server(**SMALL)
    for n_attempts in (1, 2):
        found, _ = attempt([server], credential)
        assert found == EXPECTED
        stats = server.stats()
        assert stats["operations"]["gemm"]["done"] == 36
        assert stats["duplicates"] == 36 * (n_attempts - 1)


def test_a_speculative_twin_computes_nothing_twice(start_server, credential):
    server = start_server(**SMALL)
    with ThreadPoolExecutor(2) as pool:
        twins = [pool.submit(attempt, [server], credential) for _ in range(2)]
        assert all(twin.result()[0] == EXPECTED for twin in twins)
    assert server.stats()["operations"]["gemm"]["done"] == 36


def test_a_killed_server_costs_no_record(spawn_server, credential):
    servers = [spawn_server(name, **SMALL).wait_ready() for name in ("w1", "w2")]
    used = []

    def kill(n_results):
        if n_results == 10:
            (busy,) = (server for server in servers if server.endpoint.name == used[-1])
            busy.process.send_signal(signal.SIGKILL)

    found, counters = attempt(servers, credential, kill, used.append)
    assert found == EXPECTED
    assert counters["lost_servers"] >= 1
    assert set(used) == {"w1", "w2"}
