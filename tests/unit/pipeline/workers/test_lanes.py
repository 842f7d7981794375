"""Several batches at a time: answered in order, and the device's time is charged once."""

import threading
from types import SimpleNamespace

import pytest

from yarn_accel.pipeline.workers import lanes
from yarn_accel.pipeline.workers.execution import Answer


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
        assert self.may_end.acquire(timeout=60)
        return [Answer(task.id, compute_s=1.0, kernel_s=1.0) for task in tasks]


def task(number, is_alone=False):
    return SimpleNamespace(id=number, is_alone=is_alone)


@pytest.mark.parametrize("n_lanes", [2, 3])
def test_nothing_is_computed_beside_one_that_is_to_be_alone(clock, n_lanes):
    answered, news = [], threading.Semaphore(0)

    def answer(answers):
        answered.append(answers[0].task)
        news.release()

    executors = [Executor() for _ in range(n_lanes)]
    several = lanes.Lanes(executors, answer)
    for number in range(2 + n_lanes):
        several.put([task(number, number == 1)])
    for number in range(2 + n_lanes):
        executor = executors[number % n_lanes]
        assert executor.begun.acquire(timeout=60)
        for other in executors:
            if number < 2 and other is not executor:
                assert not other.begun.acquire(timeout=0.05), "the one before is not answered"
        executor.may_end.release()
        assert news.acquire(timeout=60)
    assert answered == list(range(2 + n_lanes))


def test_answers_keep_their_order_and_no_second_is_charged_twice(clock):
    answered, news = [], threading.Semaphore(0)

    def answer(answers):
        answered.append(answers)
        news.release()

    executors = [Executor(), Executor()]
    both = lanes.Lanes(executors, answer)
    for number, executor in enumerate(executors):
        both.put([task(number), task(number + 10)])
        assert executor.begun.acquire(timeout=60)
    clock.now_s += 2.0
    executors[1].may_end.release()
    assert not news.acquire(timeout=0.05), "the second waits for the first"
    executors[0].may_end.release()
    for _ in executors:
        assert news.acquire(timeout=60)
    assert [[one.task for one in answers] for answers in answered] == [[0, 10], [1, 11]]
    assert [one.compute_s for answers in answered for one in answers] == [0.5] * 4
    assert [one.kernel_s for answers in answered for one in answers] == [1.0] * 4


def test_who_was_alone_is_charged_what_it_says(clock):
    answered, news = [], threading.Semaphore(0)
    executor = Executor()
    alone = lanes.Lanes([executor], lambda answers: (answered.append(answers), news.release()))
    alone.put([task(1)])
    assert executor.begun.acquire(timeout=60)
    clock.now_s += 5.0
    executor.may_end.release()
    assert news.acquire(timeout=60)
    assert answered[0][0].compute_s == 1.0
