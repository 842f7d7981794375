"""A worker: several batches at a time are answered as they are done, charged once; its word outlives it."""

from __future__ import annotations

import faulthandler
import queue
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from yarn_accel.pipeline.workers import worker as lanes
from yarn_accel.pipeline.workers.execution import Answer
from yarn_accel.pipeline.workers.launching import N_LANES, ControlWord, LaneState


class Clock:
    """Stands until it is ordered to go on."""

    def __init__(self):
        self.now_s = 100.0

    def perf_counter(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(lanes, "time", clock)
    return clock


def test_time_alone_counts_whole_and_time_together_half(clock):
    shared = lanes._SharedClock()
    long_s = shared.begin()
    clock.now_s += 1.0
    short_s = shared.begin()
    clock.now_s += 4.0
    assert shared.end() - short_s == 2.0
    clock.now_s += 1.0
    assert shared.end() - long_s == 4.0
    clock.now_s += 50.0
    alone_s = shared.begin()
    clock.now_s += 3.0
    assert shared.end() - alone_s == 3.0, "idle time is nobody's"


class Executor:
    """Stands for all lanes: done with a batch when the test says so, at a second for each task."""

    def __init__(self):
        self._begun = queue.SimpleQueue()
        self._may_end = [threading.Event() for _ in range(20)]

    def run(self, tasks):
        self._begun.put(tasks[0].id)
        assert self._may_end[tasks[0].id].wait(300)
        return [Answer(task.id, compute_s=1.0, kernel_s=1.0) for task in tasks]

    def begun(self):
        return self._begun.get(timeout=300)

    def nothing_begins(self):
        with pytest.raises(queue.Empty):
            self._begun.get(timeout=0.05)

    def end(self, number):
        self._may_end[number].set()


@pytest.fixture
def executor():
    executor = Executor()
    yield executor
    for number in range(20):
        executor.end(number)


def listener():
    """What was answered, what tells of it, and who is to be answered."""
    answered, news = [], threading.Semaphore(0)
    return answered, news, lambda answers: (answered.append(answers), news.release())


def task(number, is_alone=False):
    return SimpleNamespace(id=number, is_alone=is_alone)


@pytest.mark.parametrize("n_lanes", [2, 3])
def test_nothing_is_computed_beside_one_that_is_to_be_alone(clock, executor, n_lanes):
    answered, news, answer = listener()
    several = lanes.Lanes([executor] * n_lanes, answer)
    for number in range(2 + n_lanes):
        several.put([task(number, number == 1)])
    for number in (0, 1):
        assert executor.begun() == number
        executor.nothing_begins()
        executor.end(number)
        assert news.acquire(timeout=300)
    assert {executor.begun() for _ in range(n_lanes)} == set(range(2, 2 + n_lanes))
    assert [answers[0].task for answers in answered] == [0, 1]


def test_a_long_batch_delays_none_that_another_lane_can_take(clock, executor):
    answered, news, answer = listener()
    three = lanes.Lanes([executor] * 3, answer)
    for number in range(9):
        three.put([task(number)])
    for number in range(1, 9):
        executor.end(number)
    for _ in range(1, 9):
        assert news.acquire(timeout=300)
    assert {answers[0].task for answers in answered} == set(range(1, 9))
    executor.end(0)
    assert news.acquire(timeout=300)
    assert answered[-1][0].task == 0


def test_no_second_is_charged_twice(clock, executor):
    answered, news, answer = listener()
    both = lanes.Lanes([executor] * 2, answer)
    for number in (0, 1):
        both.put([task(number), task(number + 10)])
        assert executor.begun() == number
    clock.now_s += 2.0
    for number in (1, 0):
        executor.end(number)
        assert news.acquire(timeout=300)
    assert [[one.task for one in answers] for answers in answered] == [[1, 11], [0, 10]]
    assert [one.compute_s for answers in answered for one in answers] == [0.5] * 4
    assert [one.kernel_s for answers in answered for one in answers] == [1.0] * 4


def test_who_was_alone_is_charged_what_it_says(clock, executor):
    answered, news, answer = listener()
    alone = lanes.Lanes([executor], answer)
    alone.put([task(1)])
    assert executor.begun() == 1
    clock.now_s += 5.0
    executor.end(1)
    assert news.acquire(timeout=300)
    assert answered[0][0].compute_s == 1.0


_PROGRAM = """
import ctypes, faulthandler, sys, threading, time
faulthandler.enable(int(sys.argv[1]))
def meanwhile(): time.sleep(600)
threading.Thread(target=meanwhile, daemon=True).start()
time.sleep(0.1)
def faulty(): ctypes.string_at(8)
faulty()
"""


@pytest.fixture
def control():
    word = ControlWord()
    yield word
    word.close()


def test_each_lane_says_what_it_is_at_and_no_number_stands_for_two_things(control):
    fields = [control.SINCE_NS, control.MEASURING, control.ALIVE_NS]
    for lane in range(N_LANES):
        fields += [lane * control.LANE + field for field in (control.STATE, control.FIRST, control.COUNT)]
        control.words[lane * control.LANE + control.STATE] = LaneState.READING
        control.words[lane * control.LANE + control.FIRST] = 10 + lane
        control.words[lane * control.LANE + control.COUNT] = 1 + lane
    assert len(set(fields)) == len(fields)
    found = [control.job_at({10 + lane}) for lane in range(N_LANES)]
    assert found == [(LaneState.READING, 10 + lane, 1 + lane) for lane in range(N_LANES)]


def test_nothing_is_reported_of_a_worker_that_no_fault_killed(control):
    assert control.last_frames() == []


def test_the_frames_are_those_of_the_thread_that_failed(control):
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(control.fd)], pass_fds=[control.fd], timeout=120, check=False
    )
    assert ended.returncode < 0
    frames = control.last_frames()
    assert "string_at" in frames[0]
    assert "faulty" in frames[1]
    assert not any("meanwhile" in frame for frame in frames)


def test_another_thread_listed_first_is_not_blamed(control):
    """All threads are notified, those that wait as well."""
    waits = threading.Event()
    thread = threading.Thread(target=waits.wait, daemon=True)
    thread.start()
    faulthandler.dump_traceback(control.fd, all_threads=True)
    waits.set()
    thread.join()
    frames = control.last_frames()
    assert Path(__file__).name in frames[0]
    assert not any("in wait" in frame for frame in frames)
