"""The line that memory and queues share: in order, and nobody is left standing in it."""

import threading

import pytest

from yarn_accel.errors import UnavailableError
from yarn_accel.pipeline.waiting import WaitingLine


def test_each_gets_what_was_found_for_it_until_nothing_is_found():
    line = WaitingLine()
    first, second, third = (line.join(n_bytes) for n_bytes in (3, 30, 1))
    line.serve(lambda n_bytes: f"{n_bytes} bytes" if n_bytes < 10 else None)
    assert first.wait() == "3 bytes"
    assert list(line.waiters) == [second, third], "the small one behind does not overtake"
    line.serve(lambda n_bytes: f"{n_bytes} bytes")
    assert (second.wait(), third.wait(), len(line.waiters)) == ("30 bytes", "1 bytes", 0)


def test_what_is_granted_may_count_as_nothing():
    line = WaitingLine()
    waiter = line.join(0)
    line.serve(lambda n_bytes: n_bytes)
    assert waiter.wait() == 0


def test_a_closed_line_lets_nobody_wait():
    line = WaitingLine()
    errors = []

    def wait(waiter):
        try:
            waiter.wait()
        except UnavailableError as error:
            errors.append(error)

    thread = threading.Thread(target=wait, args=(line.join(1),))
    thread.start()
    line.close()
    thread.join(60)
    assert len(errors) == 1
    with pytest.raises(UnavailableError):
        line.join(1).wait()
