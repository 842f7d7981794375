"""One thread for everything: descriptors, times, and what other threads hand over."""

import os
import threading
import time

import pytest

from yarn_accel.pipeline.loop import EventLoop


@pytest.fixture
def loop():
    """A loop in a thread of its own."""
    loop = EventLoop()
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield loop
    loop.stop()
    thread.join()
    loop.close()


def wait(event):
    assert event.wait(120)


def test_calls_of_many_threads_are_not_lost(loop):
    seen = []

    def call():
        for _ in range(500):
            loop.call_soon(lambda: seen.append(1))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loop.ask(lambda: len(seen), 60) == 2000


def test_times_come_in_their_order_and_can_be_cancelled(loop):
    seen, is_over = [], threading.Event()

    def plan():
        now_s = time.monotonic()
        loop.call_at(now_s + 0.03, is_over.set)
        loop.call_at(now_s + 0.02, lambda: seen.append("late"))
        loop.call_at(now_s + 0.01, lambda: seen.append("early"))
        loop.call_at(now_s + 0.015, lambda: seen.append("never")).cancel()

    loop.ask(plan, 60)
    wait(is_over)
    assert seen == ["early", "late"]


def test_what_repeats_goes_on_after_it_broke(loop):
    n_calls, is_over = [], threading.Event()

    def break_down():
        n_calls.append(1)
        if len(n_calls) == 3:
            is_over.set()
        raise ZeroDivisionError

    loop.ask(lambda: loop.repeat(0.001, break_down), 60)
    wait(is_over)


def test_an_answer_or_an_error_reaches_who_asked(loop):
    assert loop.ask(threading.get_ident, 60) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        loop.ask(lambda: 1 // 0, 60)


def test_a_loop_that_hangs_is_not_waited_for(loop):
    go_on = threading.Event()
    loop.call_soon(lambda: go_on.wait(300))
    with pytest.raises(TimeoutError, match=r"within 0\.05 s"):
        loop.ask(os.getpid, 0.05)
    go_on.set()


def test_after_its_end_what_was_handed_over_is_done_by_who_ends_it():
    loop, seen = EventLoop(), []
    loop.call_soon(lambda: loop.defer(lambda: seen.append(1)))
    loop.finish()
    assert seen == [1]
    loop.stop()
    assert loop.ask(lambda: 7, 60) == 7
    loop.close()
    loop.close()
