"""One thread for everything: descriptors, times, and what other threads hand over."""

import os
import socket
import threading
import time

import pytest

from yarn_accel.pipeline.loop import READ, WRITE, EventLoop


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


def test_a_descriptor_is_reported_while_it_is_ready(loop):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    received, is_over = bytearray(), threading.Event()

    def ready(events):
        received.extend(ours.recv(1))
        if received.endswith(b"."):
            loop.forget(ours.fileno())
            is_over.set()

    with ours, theirs:
        loop.ask(lambda: loop.watch(ours.fileno(), READ, ready), 60)
        theirs.sendall(b"hello.")
        wait(is_over)
    assert received == b"hello."


def test_a_descriptor_can_be_watched_for_something_else(loop):
    ours, theirs = socket.socketpair()
    seen = threading.Event()

    def ready(events):
        if events & WRITE:
            loop.forget(ours.fileno())
            seen.set()

    with ours, theirs:
        loop.ask(lambda: loop.watch(ours.fileno(), READ, ready), 60)
        assert not seen.is_set()
        loop.ask(lambda: loop.change(ours.fileno(), WRITE), 60)
        wait(seen)


def test_calls_of_other_threads_come_in_their_order(loop):
    seen, is_over = [], threading.Event()
    for number in range(1000):
        loop.call_soon(lambda number=number: seen.append(number))
    loop.call_soon(is_over.set)
    wait(is_over)
    assert seen == list(range(1000))


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
