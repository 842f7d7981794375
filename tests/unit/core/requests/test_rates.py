"""What is expected of a device follows what it does."""

import pytest

from yarn_accel.core.requests.rates import RateTable, size_class


def test_what_was_seen_is_expected():
    rates = RateTable()
    rates.observe("lu", 1e9, "cpu", 0.5)
    assert rates.expected_s("lu", 1e9, "cpu") == pytest.approx(0.5)
    assert rates.expected_s("lu", 1.05e9, "cpu") == pytest.approx(0.525)


def test_what_was_not_seen_is_judged_by_what_is_nearest():
    rates = RateTable()
    rates.observe("lu", 1e6, "cpu", 1e-2)
    rates.observe("lu", 1e9, "cpu", 1.0)
    assert rates.expected_s("lu", 1e10, "cpu") == pytest.approx(10.0)
    assert rates.expected_s("lu", 1e5, "cpu") == pytest.approx(1e-3)
    assert rates.expected_s("qr", 1e9, "cpu") in (pytest.approx(1.0), pytest.approx(10.0))
    assert rates.expected_s("lu", 2e9, "cuda:0") == pytest.approx(0.01)
    assert rates.expected_s("lu", 2e9, "unheard-of") == pytest.approx(1.0)


def test_what_was_never_seen_is_not_called_short():
    rates = RateTable()
    assert rates.expected_s("new", 10, "cpu") == 0.01
    rates.observe("new", 10, "cpu", 1e-5)
    assert rates.expected_s("new", 10, "cpu") == pytest.approx(1e-5)


def test_it_is_never_nothing():
    rates = RateTable()
    never_seen_s = rates.expected_s("echo", 0, "cpu")
    assert rates.observe("echo", 0, "cpu", 0.0) == never_seen_s > 0
    assert rates.expected_s("echo", 0, "cpu") == never_seen_s


def test_it_follows_a_device_that_changes_and_is_not_upset_by_one_hiccup():
    rates = RateTable()
    for _ in range(20):
        rates.observe("lu", 1e9, "cpu", 1.0)
    rates.observe("lu", 1e9, "cpu", 1000.0)
    assert rates.expected_s("lu", 1e9, "cpu") < 3.0
    for _ in range(30):
        rates.observe("lu", 1e9, "cpu", 4.0)
    assert rates.expected_s("lu", 1e9, "cpu") == pytest.approx(4.0, rel=0.05)


def test_early_on_it_is_the_mean():
    rates = RateTable()
    for seconds in (1.0, 2.0, 3.0):
        rates.observe("lu", 1e9, "cpu", seconds)
    assert rates.expected_s("lu", 1e9, "cpu") == pytest.approx(2.0)


def test_size_classes_are_powers_of_two():
    assert [size_class(work) for work in (0, 0.5, 1, 2, 3, 4, 1e12)] == [0, 0, 0, 1, 1, 2, 39]
