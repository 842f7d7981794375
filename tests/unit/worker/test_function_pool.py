"""Which process serves which call, and which idle ones have to go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from yarn_accel.core.tasks.attempt_orders import AttemptId, AttemptOrder, FunctionCall
from yarn_accel.core.tasks.values import AppId, Form, FormDemand, TaskId
from yarn_accel.storage import Store
from yarn_accel.worker.file_cache import FileCache
from yarn_accel.worker.function_pool import FunctionPool, PoolLimits
from yarn_accel.worker.guarded_process import Guard

MIB = 1024 * 1024


class Processes:
    """A pool with a real guard, and calls in it."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        self.folder = folder
        self.guard = Guard(lambda: None)
        files = FileCache(Store(), folder / "files", MIB)
        limits = PoolLimits(cores=4, memory_bytes=400 * MIB, idle_s=60.0)
        self.pool = FunctionPool(self.guard, files, folder / "functions", limits, lambda: self.now_s)

    def run(self, order: AttemptOrder, *devices: str) -> int:
        """Call ``os:getpid`` in the slot of an attempt."""
        assert order.function is not None
        with self.pool.slot(order, devices) as slot:
            environ = {"PATH": "", **self.pool.environment(order)}
            if slot.process is None:
                slot.process = self.pool.start(order, order.function, devices, environ)
            reply = slot.process.call(order.function, self.folder, environ, lambda text: None)
            assert reply.error == ""
            return int(reply.result)

    def is_there(self, pid: int) -> bool:
        return Path(f"/proc/{pid}").exists()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    found = Processes(tmp_path_factory.mktemp("pool"))
    yield found
    found.guard.close()


def order(app: str, cores: int = 1, mib: int = 0, gpus: int = 0) -> AttemptOrder:
    return AttemptOrder(
        AttemptId("attempt_1_0001_m_000001_0"),
        AppId(app),
        TaskId("a/1"),
        Form.GPU if gpus else Form.CPU,
        (),
        FormDemand(cores, gpus, mib * MIB),
        function=FunctionCall("os:getpid", "[]"),
    )


def test_calls_of_one_application_share_a_process_as_long_as_it_is_not_idle_for_too_long(
    processes: Processes,
) -> None:
    first = processes.run(order("a"))
    processes.now_s += 59.0
    processes.pool.end_idle()
    assert processes.run(order("a")) == first
    processes.now_s += 61.0
    processes.pool.end_idle()
    assert not processes.is_there(first)
    assert processes.run(order("a")) != first


def test_those_idle_longest_end_where_cores_or_memory_are_wanted(processes: Processes) -> None:
    old, new = processes.run(order("old", 2, 100)), processes.run(order("new", 1, 100))
    with processes.pool.slot(order("cores", 2), ()):
        assert not processes.is_there(old)
        assert processes.is_there(new)
    with processes.pool.slot(order("memory", 1, 301), ()):
        assert not processes.is_there(new)


def test_an_idle_process_leaves_its_gpu_to_others(processes: Processes) -> None:
    first, second = processes.run(order("a", gpus=1), "0"), processes.run(order("a", gpus=1), "1")
    assert processes.run(order("a", gpus=1), "0") == first
    command = replace(order("b", gpus=1), function=None, argv=("true",))
    with processes.pool.slot(command, ("0",)):
        assert not processes.is_there(first)
        assert processes.is_there(second)


def test_two_calls_at_once_have_two_processes(processes: Processes) -> None:
    first = processes.run(order("twice"))
    with processes.pool.slot(order("twice"), ()) as slot:
        assert slot.process is not None
        assert slot.process.process.pid == first
        assert processes.run(order("twice")) != first
    processes.now_s += 1000.0
    processes.pool.end_idle()
    assert list((processes.folder / "functions").iterdir()) == []
