"""A signal handler may raise between any two instructions: whatever it interrupts, no socket stays open.

One that nobody closed waits for the garbage collector, and CPython's finalizer of sockets drops what another
signal handler raises while it runs: an error of the caller would vanish during a later call.
"""

import contextlib
import gc
import inspect
import itertools
import linecache
import socket
import sys
import threading
import warnings

import numpy as np
import pytest

from tests.unit.client.conftest import MASTER, Peer
from yarn_accel import wire
from yarn_accel.client.binding import Endpoint
from yarn_accel.client.calls import Call
from yarn_accel.client.dispatch import Dispatcher
from yarn_accel.errors import AccelError
from yarn_accel.wire.credential import issue

CREDENTIAL = issue(MASTER, "alice", 2**40, "k1")


class Interruption(Exception):
    pass


def interrupted(action, at):
    """Interrupt an action at this step: a line, or a function that starts. The place; None: it has fewer."""
    steps, place = itertools.count(), None

    def trace(frame, event, argument):
        nonlocal place
        code, line = frame.f_code, frame.f_lineno
        # No handler runs in a generator that is dropped in the middle, nor between a line and a `try:`.
        is_possible = event == "call" or (
            event == "line" and linecache.getline(code.co_filename, line).strip() != "try:"
        )
        is_possible = is_possible and not code.co_flags & inspect.CO_GENERATOR
        if is_possible and next(steps) == at:
            place = f"{code.co_filename}:{line}, {event}"
            raise Interruption
        return trace

    before = sys.gettrace()
    gc.disable()  # Functions that it calls, as hypothesis has one, lose what is raised in them.
    sys.settrace(trace)
    try:
        action()
        assert place is None, f"the error is lost: {place}"
    except Interruption as error:
        # As a caller's own code may do, it keeps the error, which keeps the variables of all functions.
        error.kept = error
    finally:
        sys.settrace(before)
        gc.enable()
    return place


def answer(sock):
    with sock, contextlib.suppress(AccelError, OSError):
        peer = Peer(sock)
        peer.next_event()
        while isinstance(request := peer.next_request(), wire.Request):
            peer.answer(request)


@pytest.fixture
def endpoint(tmp_path):
    """A server that answers on as many connections as are made."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=answer, args=(listener.accept()[0],)).start()

        thread = threading.Thread(target=accept)
        thread.start()
        yield Endpoint("w1", "", 0, str(tmp_path / "socket"))
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(("what", "stride"), [("call", 7), ("close", 1)])
def test_wherever_it_is_interrupted_no_socket_is_left_to_the_garbage_collector(endpoint, what, stride):
    def call():
        dispatcher.outcome(Call.of("echo", np.ones(3), key="k"))

    with warnings.catch_warnings(record=True) as left:
        warnings.simplefilter("always")
        gc.collect()
        left.clear()  # of other tests
        for at in itertools.count(0, stride):
            dispatcher = Dispatcher([endpoint], CREDENTIAL)
            if what == "close":
                call()
            place = interrupted(call if what == "call" else dispatcher.close, at)
            dispatcher.close()
            if place is None:
                break
        gc.collect()
    assert [str(each.message) for each in left] == []
    assert at > 100
