"""Errors of the caller's own code, raised while the client works: they reach the caller unchanged.

A signal handler may raise between any two instructions, also inside the system call that waits for a server.
Its TimeoutError is not a server's, so no server counts as lost, and the object stays usable.
"""

import asyncio
import functools
import gc
import itertools
import random
import signal
import socket
import sys
import warnings

import numpy as np
import pytest

from tests.examples import examples
from yarn_accel.client import (
    AccelError,
    AuthenticationError,
    Call,
    RejectedError,
    UnavailableError,
    connect,
    connect_async,
)
from yarn_accel.errors import RemoteProtocolError

#: An interruption between a system call and the line that stores its socket closes that at once, and warns.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
    "ignore:unclosed:ResourceWarning",
)
SMALL = np.array([[4.0, 3.0], [6.0, 3.0]])
LARGE = np.random.default_rng(1).random((300, 300))
SETTINGS = {"workers": 1, "standby_workers": 0, "calibrate": False}
ERRORS = [
    functools.partial(TimeoutError, "alarm"),
    functools.partial(ConnectionResetError, 104, "alarm"),
    functools.partial(BrokenPipeError, "alarm"),
    functools.partial(BlockingIOError, "alarm"),
    functools.partial(InterruptedError, "alarm"),
    functools.partial(socket.timeout, "alarm"),
    functools.partial(OSError, "alarm"),
    functools.partial(UnavailableError, "alarm"),
    functools.partial(RejectedError, "alarm", "alarm"),
    functools.partial(AuthenticationError, "alarm"),
    functools.partial(RemoteProtocolError, "alarm"),
]
WAYS = {
    "unix": ("local", SETTINGS),
    "tcp": ("local", {**SETTINGS, "listen_host": "127.0.0.1", "unix_path": ""}),
    "inline": ("inline", None),
}


@pytest.fixture(scope="module", params=sorted(WAYS))
def accel(request):
    runner, settings = WAYS[request.param]
    with connect(runner, key_prefix="s", patience_s=60, server_settings=settings) as accel:
        accel.lu(SMALL)
        yield accel
        totals = {name: amount for (_, name), amount in accel.reporter.totals.items()}
        assert totals.get("lost_servers", 0) == totals.get("resubmitted", 0) == 0
        assert totals.get("failed", 0) == 0


@pytest.fixture
def alarm():
    """`alarm(error, after_s)`: a signal handler raises `error` then."""
    before = signal.getsignal(signal.SIGALRM)

    def after(error, after_s):
        def raise_it(*args):
            del args
            raise error

        signal.signal(signal.SIGALRM, raise_it)
        signal.setitimer(signal.ITIMER_REAL, after_s)

    yield after
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def use(accel, way):
    """Go on for long enough that something is raised; every outcome is good."""
    if way == "call":
        for _ in range(10_000):
            accel.lu(SMALL)
        return
    array, options = {
        "small": (SMALL, {}),
        "large": (LARGE, {"window": 3}),
        "packed": (SMALL, {"window": 8, "pack": "auto", "ordered": True}),
    }[way]
    for _, outcome in accel.map((Call.of("lu", array) for _ in range(10_000)), **options):
        assert not isinstance(outcome, AccelError), outcome


@pytest.fixture
def ignored(monkeypatch):
    """Errors that Python itself could not raise, because the handler ran in a finalizer.

    Functions that others have called by the garbage collector (hypothesis has one) do not run meanwhile: what
    is raised in them is lost.
    """
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: found.append(event.exc_value))
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.callbacks.extend(callbacks)


def raised_by(set_alarm, accel, way):
    try:
        set_alarm()
        use(accel, way)
    except Exception as error:  # noqa: BLE001 -- it is the caller's own
        return error
    return None


@pytest.mark.parametrize("way", ["call", "small", "large", "packed"])
def test_what_a_signal_handler_raises_reaches_the_caller(accel, alarm, ignored, way):
    moments, lost = random.Random(way), []
    for number in range(examples(60)):
        error = ERRORS[number % len(ERRORS)]()
        found = raised_by(functools.partial(alarm, error, moments.uniform(0.0005, 0.02)), accel, way)
        if found is not error and error not in ignored:
            lost.append((error, found))
    assert lost == []
    assert accel.lu(SMALL).piv.tolist() == [1, 1]


@pytest.mark.parametrize("make", ERRORS)
def test_what_the_calls_raise_reaches_the_caller(accel, make):
    error = make()

    class Array:
        def __array__(self, dtype=None, copy=None):
            raise error

    def raising(record):
        if record == 5:
            raise error
        return LARGE

    for calls in (
        (Call.of("lu", raising(record)) for record in itertools.count()),
        (Call.of("lu", Array()) for _ in range(3)),
    ):
        with pytest.raises(type(error)) as caught:
            list(accel.map(calls, window=3))
        assert caught.value is error
    assert accel.lu(SMALL).piv.tolist() == [1, 1]


@pytest.mark.parametrize("make", [ERRORS[0], ERRORS[7]])
def test_what_a_callback_raises_reaches_the_caller(make):
    error = make()

    def on_wait(text):
        raise error

    with connect("inline", on_wait=on_wait) as accel:
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                accel.lu(SMALL)
            assert caught.value is error


@pytest.mark.parametrize("make", ERRORS)
def test_what_the_calls_of_a_coroutine_raise_reaches_it(make):
    error = make()

    def calls():
        for record in itertools.count():
            if record == 5:
                raise error
            yield Call.of("lu", SMALL)

    async def main():
        async with connect_async("inline") as accel:
            async for _, outcome in accel.map(calls(), window=3):
                assert not isinstance(outcome, AccelError)

    with pytest.raises(type(error)) as caught:
        asyncio.run(main())
    assert caught.value is error
