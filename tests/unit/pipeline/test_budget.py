"""The bound on bytes that wait."""

import threading
import time

import pytest

from yarn_accel.errors import UnavailableError
from yarn_accel.pipeline.budget import ByteBudget


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


def until(is_true):
    deadline_s = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_what_fits_is_let_in_at_once_and_counted():
    budget = ByteBudget(100)
    budget.reserve(60)
    budget.reserve(40)
    assert (budget.used_bytes, budget.peak_bytes) == (100, 100)
    budget.release(60)
    budget.release(40)
    assert (budget.used_bytes, budget.peak_bytes) == (0, 100)


def test_what_does_not_fit_waits_for_room():
    budget = ByteBudget(100)
    budget.reserve(60)
    thread = in_thread(budget.reserve, 50)
    until(lambda: budget.n_waiting == 1)
    assert budget.used_bytes == 60
    budget.release(60)
    thread.join(60)
    assert budget.used_bytes == 50
    assert budget.peak_bytes == 60


def test_a_small_one_does_not_overtake_a_large_one():
    budget = ByteBudget(100)
    order = []

    def take(n_bytes):
        budget.reserve(n_bytes)
        order.append(n_bytes)

    budget.reserve(60)
    large = in_thread(take, 90)
    until(lambda: budget.n_waiting == 1)
    small = in_thread(take, 20)
    until(lambda: budget.n_waiting == 2)
    budget.release(60)
    large.join(60)
    assert order == [90]
    budget.release(90)
    small.join(60)
    assert order == [90, 20]


def test_what_is_larger_than_the_bound_is_let_in_alone():
    budget = ByteBudget(100)
    budget.reserve(1)
    thread = in_thread(budget.reserve, 500)
    until(lambda: budget.n_waiting == 1)
    budget.release(1)
    thread.join(60)
    assert budget.used_bytes == 500


def test_closing_lets_nobody_wait():
    budget = ByteBudget(100)
    budget.reserve(100)
    errors = []

    def take():
        try:
            budget.reserve(1)
        except UnavailableError as error:
            errors.append(error)

    thread = in_thread(take)
    until(lambda: budget.n_waiting == 1)
    budget.close()
    thread.join(60)
    assert len(errors) == 1
    with pytest.raises(UnavailableError):
        budget.reserve(1)
