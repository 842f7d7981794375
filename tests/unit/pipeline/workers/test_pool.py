"""What the pool says of its workers, in races that real processes lose too seldom to be tested with."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.workers.jobs import Lost, WorkerDown, WorkerUp
from yarn_accel.pipeline.workers.launching import launch
from yarn_accel.pipeline.workers.pool import WorkerPool
from yarn_accel.pipeline.workers.process import WorkerProcess


class Process:
    """A worker process that exists in words only."""

    def __init__(self) -> None:
        self.worker = -1
        self.pid = 0
        self.fate, self.detail = "died", "killed by SIGKILL"
        self.versions: dict[str, str] = {}
        self.entered_ns = 0
        self.door = threading.Lock()
        self.is_open = self.is_buried = self.is_on_probation = self.is_unfit = False

    def order(self, **fields: Any) -> None: ...

    def bury(self) -> tuple[Lost, ...]:
        return (Lost(7, False, True),)

    def close(self) -> None: ...


@pytest.fixture
def told() -> list[Any]:
    return []


@pytest.fixture
def pool(told: list[Any]) -> Any:
    config = PipelineConfig(master_secret_file=Path("/none"), workers=1, calibrate=False)
    return WorkerPool(config, lambda segment: pytest.fail("no segment"), lambda *_: None, told.append)


def test_a_process_takes_the_place_of_one_that_is_lost(pool: Any, told: list[Any]) -> None:
    first, second = Process(), Process()
    pool._enter(first)
    pool._enter(second)
    pool._bury(first)
    assert told == [
        WorkerUp(0, "cpu", "cpu"),
        WorkerDown(0, "cpu", "died", (Lost(7, False, True),), "killed by SIGKILL"),
        WorkerUp(1, "cpu", "cpu"),
    ]


def test_a_standby_that_is_lost_is_not_told(pool: Any, told: list[Any]) -> None:
    first, second = Process(), Process()
    pool._enter(first)
    pool._enter(second)
    pool._bury(second)
    assert told == [WorkerUp(0, "cpu", "cpu")]


def test_a_worker_that_is_lost_before_it_was_told_is_never_told(pool: Any, told: list[Any]) -> None:
    """Its place is given to it by one thread, and its end is seen by another one before the first goes on."""
    process = Process()
    announce = pool._announce

    def late(slot: Any, process: Any) -> None:
        pool._bury(process)
        announce(slot, process)

    pool._announce = late
    pool._enter(process)
    assert told == []


def test_what_the_server_cannot_take_does_not_end_the_thread(pool: Any, told: list[Any]) -> None:
    def broken(change: Any) -> None:
        told.append(change)
        raise ZeroDivisionError

    pool._on_change = broken
    process = Process()
    pool._enter(process)
    pool._bury(process)
    assert len(told) == 2
    assert pool.info()[0]["state"] == "starting"
    assert not pool.send(0, [])


def test_a_process_that_was_started_before_takes_the_first_place_and_no_other_is_started() -> None:
    settings = {"workers": 1, "standby_workers": 0, "devices": ("cpu",), "calibrate": False}
    config = PipelineConfig(master_secret_file=Path("/none"), **settings)  # type: ignore[arg-type]
    first, up = WorkerProcess(launch(1, ())), threading.Event()
    pool = WorkerPool(
        config, lambda segment: pytest.fail("no segment"), lambda *_: None, lambda _: up.set(), first=first
    )
    pool.start()
    try:
        assert up.wait(60.0)
        assert [(each["pid"], each["state"]) for each in pool.info()] == [(first.pid, "idle")]
    finally:
        pool.close()
