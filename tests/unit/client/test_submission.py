"""Calls submitted from any thread: each future is settled once, whatever happens to the calls before it."""

import asyncio
import threading
import time
from concurrent.futures import wait

import pytest

from yarn_accel.client import AsyncAccelerator, Call, Reply
from yarn_accel.client.dispatch import Dispatcher
from yarn_accel.client.dispatch_state import ServersFound
from yarn_accel.client.submission import Submitter
from yarn_accel.client.task_servers import NO_CREDENTIAL
from yarn_accel.errors import AuthenticationError, LocalProtocolError, RejectedError

LIMIT_S = 120


class Executor:
    """Computes calls as the test says: ``hold`` waits, and everything is written down."""

    def __init__(self):
        self.keys = []
        self.started, self.may_end = threading.Event(), threading.Event()

    def call(self, call):
        self.keys.append(call.key)
        if call.key == "hold":
            self.started.set()
            assert self.may_end.wait(LIMIT_S)
        if call.key == "bad":
            raise RejectedError("not-finite", "NaN")
        if call.key == "fatal":
            raise AssertionError("a fault of this project")
        return Reply({}, {}, "here", "cpu", {}, 0, 0)


@pytest.fixture
def executor():
    executor = Executor()
    yield executor
    executor.may_end.set()


@pytest.fixture
def start(executor):
    started = []

    def start(window=2, settle=lambda call, outcome: None, **options):
        dispatcher = Dispatcher((), NO_CREDENTIAL, fallback=executor, **options)
        started.append(Submitter(dispatcher, window, 1, settle))
        return started[-1]

    yield start
    executor.may_end.set()
    for submitter in started:
        submitter.close()


def call(key):
    return Call(key, "lu")


def test_thousands_at_once_keep_their_order_and_the_window(start, executor):
    submitter = start(window=3)
    futures = [submitter.submit(call(str(number))) for number in range(3000)]
    assert all(isinstance(future.result(LIMIT_S), Reply) for future in futures)
    assert executor.keys == [str(number) for number in range(3000)]
    assert submitter.submit(call("again")).result(LIMIT_S), "it rests and starts again"


def test_many_threads_submit_to_one_queue(start, executor):
    submitter, futures = start(), []
    lock = threading.Lock()

    def work(name):
        for number in range(200):
            future = submitter.submit(call(f"{name}/{number}"))
            with lock:
                futures.append(future)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not wait(futures, LIMIT_S).not_done
    assert len(set(executor.keys)) == len(executor.keys) == 800


def test_an_error_is_of_its_own_future_alone(start):
    submitter = start()
    good, bad, after = (submitter.submit(call(key)) for key in ("good", "bad", "after"))
    assert bad.exception(LIMIT_S).code == "not-finite"
    assert good.result(LIMIT_S)
    assert after.result(LIMIT_S)


def test_what_waits_may_be_cancelled_and_is_never_computed(start, executor):
    submitter = start()
    held = submitter.submit(call("hold"))
    assert executor.started.wait(LIMIT_S)
    waiting = [submitter.submit(call(str(number))) for number in range(10)]
    assert all(future.cancel() for future in waiting[::2])
    executor.may_end.set()
    assert held.result(LIMIT_S)
    assert all(future.result(LIMIT_S) for future in waiting[1::2])
    assert set(executor.keys) == {"hold", *"13579"}


@pytest.mark.parametrize("is_cancelling", [False, True])
def test_close_waits_for_all_or_cancels_what_waits_and_takes_no_more(start, executor, is_cancelling):
    submitter = start()
    futures = [submitter.submit(call(key)) for key in ("hold", "1", "2", "3")]
    assert executor.started.wait(LIMIT_S)
    closing = threading.Thread(target=submitter.close, args=(is_cancelling,))
    closing.start()
    while True:
        try:
            futures.append(submitter.submit(call("more")))
        except LocalProtocolError:
            break
    assert not futures[0].done()
    executor.may_end.set()
    closing.join(LIMIT_S)
    assert all(future.done() for future in futures)
    assert [future.cancelled() for future in futures[2:]] == [is_cancelling] * len(futures[2:])
    submitter.close()


def test_an_error_that_ends_everything_is_that_of_each_and_the_next_starts_anew(start, executor):
    refusals = [AuthenticationError("wrong secret")]

    def find(is_urgent):
        if executor.may_end.is_set() and refusals:
            raise refusals.pop()
        return ServersFound(())

    submitter = start(window=3, find_servers=find)
    futures = [submitter.submit(call(key)) for key in ("hold", "1", "2", "3", "4")]
    assert executor.started.wait(LIMIT_S)
    executor.may_end.set()
    failed = [future for future in futures if future.exception(LIMIT_S) is not None]
    assert len({id(future.exception()) for future in failed}) == len(failed) >= 2
    assert submitter.submit(call("after")).result(LIMIT_S)


def test_a_fault_settles_what_is_open_with_it(start, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    submitter = start()
    assert isinstance(submitter.submit(call("fatal")).exception(LIMIT_S), AssertionError)
    until_s = time.monotonic() + LIMIT_S
    with pytest.raises(LocalProtocolError, match="is closed"):  # noqa: PT012 -- its thread ends a moment later
        while time.monotonic() < until_s:
            submitter.submit(call("more"))


def test_a_callback_of_a_future_may_submit_and_close(start):
    submitter = start()
    chained, closed = [], threading.Event()

    def on_done(future):
        chained.append(submitter.submit(call("second")))
        submitter.close()
        closed.set()

    submitter.submit(call("first")).add_done_callback(on_done)
    assert closed.wait(LIMIT_S)
    assert chained[0].result(LIMIT_S)


def test_coroutines_map_in_order_or_as_they_finish_and_leave_nothing_behind():
    from yarn_accel.client import connect

    async def slow():
        for number in range(20):
            await asyncio.sleep(0)
            yield Call.of("gemm", [[float(number)]], [[1.0]], tag=number)

    async def run(accel):
        async with AsyncAccelerator(accel) as own:
            calls = [Call.of("gemm", [[float(n)]], [[1.0]], tag=n) for n in range(20)]
            ordered = [(call.tag, reply) async for call, reply in own.map(calls, 4, ordered=True)]
            finished = [(call.tag, reply) async for call, reply in own.map(slow(), 4)]
            bad = [outcome async for _, outcome in own.map([Call.of("nonsense")])]
            async for _ in own.map(slow(), 4):
                break
            return ordered, finished, bad

    with connect("inline") as accel:
        ordered, finished, bad = asyncio.run(run(accel))
        assert accel.call("echo", b"x"), "what was given stays open"
    for found in (ordered, sorted(finished, key=lambda pair: pair[0])):
        assert [(tag, reply.arrays()["c"].item()) for tag, reply in found] == [(n, n) for n in range(20)]
    assert bad[0].code == "unknown-operation"


def test_before_it_is_connected_a_coroutine_says_so():
    from yarn_accel.client import connect_async

    with pytest.raises(LocalProtocolError, match="not connected yet"):
        asyncio.run(connect_async("inline").call("echo", b"x"))
