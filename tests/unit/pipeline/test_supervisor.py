"""What is said of workers, in races that real processes lose too seldom to be tested with."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.loop import EventLoop
from yarn_accel.pipeline.supervisor import WorkerSupervisor
from yarn_accel.pipeline.worker_process import Tally, WorkerProcess
from yarn_accel.pipeline.workers.launching import ControlWord, Device, launch
from yarn_accel.pipeline.workers.protocol import Lost


class Process:
    """A worker process that exists in words only."""

    def __init__(self) -> None:
        self.worker = -1
        self.device = ""
        self.pid = 0
        self.fd = -1
        self.fate, self.detail = "died", "killed by SIGKILL"
        self.versions: dict[str, str] = {}
        self.entered_ns = 0
        self.is_open = self.is_on_probation = self.is_unfit = self.is_measuring = False
        self.toolkit = ""
        self.tally = Tally()

    def order(self, **fields: Any) -> None: ...

    def kill(self, fate: str = "", detail: str = "") -> None: ...

    def busy_since_s(self) -> float:
        return 0.0

    def has_ended(self) -> bool:
        return True

    def bury(self) -> tuple[Lost, ...]:
        return (Lost(7, False, True),)

    def close(self) -> None: ...


class Engine:
    """Notes what it gets."""

    def __init__(self) -> None:
        self.reported: list[Any] = []
        self.up = threading.Event()

    def worker_started(self, process: Any, device: str, kind: str) -> None:
        self.reported.append(("started", process.worker, device, kind))
        self.up.set()

    def worker_done(self, process: Any, answers: Any) -> None: ...

    def worker_lost(self, process: Any, lost: Any) -> None:
        self.reported.append(("lost", process.worker, process.fate, lost, process.detail))

    def measured(self, found: Any) -> None: ...


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop()
    yield loop
    loop.close()


@pytest.fixture
def engine() -> Engine:
    return Engine()


def supervisor(loop: EventLoop, engine: Engine, first: Any = None, **settings: Any) -> Any:
    settings = {"workers": 1, "standby_workers": 0, "devices": ("cpu",), "calibrate": False, **settings}
    config = PipelineConfig(master_secret_file=Path("/none"), **settings)
    return WorkerSupervisor(config, loop, lambda segment: pytest.fail("no segment"), engine, first)


@pytest.fixture
def pool(loop: EventLoop, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Any:
    pool = supervisor(loop, engine)
    monkeypatch.setattr(pool, "_fill", lambda: None)
    return pool


def end(pool: Any, process: Process) -> None:
    pool._ending.append(process)
    pool._bury_soon(process, 0.0)


def test_a_process_takes_the_place_of_one_that_is_lost(pool: Any, engine: Engine) -> None:
    first, second = Process(), Process()
    pool._enter(first)
    pool._enter(second)
    end(pool, first)
    assert engine.reported == [
        ("started", 0, "cpu", "cpu"),
        ("lost", 0, "died", (Lost(7, False, True),), "killed by SIGKILL"),
        ("started", 1, "cpu", "cpu"),
    ]


def test_a_standby_that_is_lost_is_not_reported(pool: Any, engine: Engine) -> None:
    first, second = Process(), Process()
    pool._enter(first)
    pool._enter(second)
    end(pool, second)
    assert engine.reported == [("started", 0, "cpu", "cpu")]


def test_a_lost_worker_takes_nothing(pool: Any, engine: Engine) -> None:
    process = Process()
    pool._enter(process)
    end(pool, process)
    assert pool.info()[0]["state"] == "starting"


@pytest.mark.parametrize(("probes", "state"), [(True, "probing"), (False, "starting")])
def test_a_gpu_is_not_idle_before_its_worker_takes_requests(
    loop: EventLoop, engine: Engine, monkeypatch: pytest.MonkeyPatch, probes: bool, state: str
) -> None:
    monkeypatch.setattr(
        "yarn_accel.pipeline.supervisor.find_devices", lambda config: (Device("cuda:0", "cuda"),)
    )
    pool, process = supervisor(loop, engine, probe_gpus=probes), Process()
    monkeypatch.setattr(pool, "_fill", lambda: None)
    pool._enter(process)
    assert pool.info()[0]["state"] == state
    pool._heed(process, {"taken": {}, "toolkit": "the toolkit"})
    assert pool.info()[0]["state"] == "idle"
    assert engine.reported == [("started", 0, "cuda:0", "cuda")]


def test_a_process_that_was_started_before_takes_the_first_place_and_no_other_is_started(
    engine: Engine,
) -> None:
    loop, first = EventLoop(), WorkerProcess(launch(1, ()))
    pool = supervisor(loop, engine, first)
    pool.start()
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        assert engine.up.wait(120.0)
        found = loop.ask(pool.info, 60.0)
        assert [(each["pid"], each["state"]) for each in found] == [(first.pid, "idle")]
    finally:
        loop.stop()
        thread.join()
        pool.close()
        loop.close()


# Who lives


class Launched:
    """A process that never says anything, with its control word."""

    def __init__(self, pid: int) -> None:
        self.control = ControlWord()
        self.process = self
        self.channel = self
        self.pid = pid

    def setblocking(self, flag: bool) -> None: ...

    def fileno(self) -> int:
        return -1


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A process whose state and processor time the test says."""
    launched = Launched(1)
    process = WorkerProcess(launched)  # type: ignore[arg-type]
    facts = ["S", 1.0]
    monkeypatch.setattr("yarn_accel.pipeline.worker_process._run_state", lambda pid: tuple(facts))
    process.facts = facts  # type: ignore[attr-defined]
    return process


def tick(process: Any) -> None:
    process.control.words[ControlWord.ALIVE_NS] = time.monotonic_ns()


def test_a_worker_whose_word_moves_lives(silent: Any) -> None:
    for _ in range(100):
        tick(silent)
        assert silent.look(1.0) == ""


def test_a_worker_whose_word_stands_still_is_judged_by_the_time_that_could_be_looked(silent: Any) -> None:
    tick(silent)
    silent.look(0.25)
    silent.look(0.25)  # its processor time is new
    assert [bool(silent.look(0.25)) for _ in range(12)] == [False] * 11 + [True]


def test_a_worker_that_uses_the_processor_lives_though_its_word_stands_still(silent: Any) -> None:
    for number in range(100):
        silent.facts[1] = float(number + 1)
        assert silent.look(1.0) == ""


def test_a_worker_that_waits_for_a_disk_is_waited_for(silent: Any) -> None:
    silent.facts[0] = "D"
    assert [silent.look(1.0) for _ in range(100)] == [""] * 100


def test_a_stopped_worker_is_known_soon(silent: Any) -> None:
    silent.facts[0] = "T"
    found = [silent.look(0.25) for _ in range(4)]
    assert found[:2] == ["", ""]
    assert found[-1] == "its process was stopped"
