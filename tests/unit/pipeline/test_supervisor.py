"""Which worker processes live, and who takes the first place."""

import threading
import time
from pathlib import Path

import pytest

from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.loop import EventLoop
from yarn_accel.pipeline.supervisor import WorkerSupervisor
from yarn_accel.pipeline.worker_process import WorkerProcess
from yarn_accel.pipeline.workers.launching import ControlWord, launch


class Engine:
    """Notes that a worker has started."""

    worker_done = worker_lost = measured = None

    def __init__(self):
        self.up = threading.Event()

    def worker_started(self, process, device, kind):
        self.up.set()


def test_a_process_that_was_started_before_takes_the_first_place_and_no_other_is_started():
    loop, engine, first = EventLoop(), Engine(), WorkerProcess(launch(1, ()))
    settings = {"workers": 1, "standby_workers": 0, "devices": ("cpu",), "calibrate": False}
    config = PipelineConfig(master_secret_file=Path("/none"), **settings)
    pool = WorkerSupervisor(config, loop, lambda segment: pytest.fail("no segment"), engine, first)
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

    def __init__(self, pid):
        self.control = ControlWord()
        self.process = self
        self.channel = self
        self.pid = pid

    def setblocking(self, flag): ...

    def fileno(self):
        return -1


@pytest.fixture
def silent(monkeypatch):
    """A process whose state and processor time the test says."""
    launched = Launched(1)
    process = WorkerProcess(launched)
    facts = ["S", 1.0]
    monkeypatch.setattr("yarn_accel.pipeline.worker_process._run_state", lambda pid: tuple(facts))
    process.facts = facts
    return process


def tick(process):
    process.control.words[ControlWord.ALIVE_NS] = time.monotonic_ns()


def test_a_worker_whose_word_moves_lives(silent):
    for _ in range(100):
        tick(silent)
        assert silent.look(1.0) == ""


def test_a_worker_whose_word_stands_still_is_judged_by_the_time_that_could_be_looked(silent):
    tick(silent)
    silent.look(0.25)
    silent.look(0.25)  # its processor time is new
    assert [bool(silent.look(0.25)) for _ in range(12)] == [False] * 11 + [True]


def test_a_worker_that_uses_the_processor_lives_though_its_word_stands_still(silent):
    for number in range(100):
        silent.facts[1] = float(number + 1)
        assert silent.look(1.0) == ""


def test_a_worker_that_waits_for_a_disk_is_waited_for(silent):
    silent.facts[0] = "D"
    assert [silent.look(1.0) for _ in range(100)] == [""] * 100


def test_a_stopped_worker_is_known_soon(silent):
    silent.facts[0] = "T"
    found = [silent.look(0.25) for _ in range(4)]
    assert found[:2] == ["", ""]
    assert found[-1] == "its process was stopped"
