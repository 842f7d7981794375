"""A worker: several batches at a time are answered in order and charged once; its word outlives it."""

from __future__ import annotations

import faulthandler
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
    """Is done with a batch when the test says so, and says that it took a second for each task."""

    def __init__(self):
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def run(self, tasks):
        self.begun.release()
        assert self.may_end.acquire(timeout=300)
        return [Answer(task.id, compute_s=1.0, kernel_s=1.0) for task in tasks]


def listener():
    """What was answered, what tells of it, and who is to be answered."""
    answered, news = [], threading.Semaphore(0)
    return answered, news, lambda answers: (answered.append(answers), news.release())


def task(number, is_alone=False):
    return SimpleNamespace(id=number, is_alone=is_alone)


@pytest.mark.parametrize("n_lanes", [2, 3])
def test_nothing_is_computed_beside_one_that_is_to_be_alone(clock, n_lanes):
    answered, news, answer = listener()
    executors = [Executor() for _ in range(n_lanes)]
    several = lanes.Lanes(executors, answer)
    for number in range(2 + n_lanes):
        several.put([task(number, number == 1)])
    for number in range(2 + n_lanes):
        executor = executors[number % n_lanes]
        assert executor.begun.acquire(timeout=300)
        for other in executors:
            if number < 2 and other is not executor:
                assert not other.begun.acquire(timeout=0.05), "the one before is not answered"
        executor.may_end.release()
        assert news.acquire(timeout=300)
    assert [answers[0].task for answers in answered] == list(range(2 + n_lanes))


def test_answers_keep_their_order_and_no_second_is_charged_twice(clock):
    answered, news, answer = listener()
    executors = [Executor(), Executor()]
    both = lanes.Lanes(executors, answer)
    for number, executor in enumerate(executors):
        both.put([task(number), task(number + 10)])
        assert executor.begun.acquire(timeout=300)
    clock.now_s += 2.0
    executors[1].may_end.release()
    assert not news.acquire(timeout=0.05), "the second waits for the first"
    executors[0].may_end.release()
    for _ in executors:
        assert news.acquire(timeout=300)
    assert [[one.task for one in answers] for answers in answered] == [[0, 10], [1, 11]]
    assert [one.compute_s for answers in answered for one in answers] == [0.5] * 4
    assert [one.kernel_s for answers in answered for one in answers] == [1.0] * 4


def test_who_was_alone_is_charged_what_it_says(clock):
    answered, news, answer = listener()
    executor = Executor()
    alone = lanes.Lanes([executor], answer)
    alone.put([task(1)])
    assert executor.begun.acquire(timeout=300)
    clock.now_s += 5.0
    executor.may_end.release()
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
