"""Pauses after failures."""

import pytest

from torque_sched.daemon.back_off import Pauses, Steps


@pytest.mark.parametrize(("failures", "pause_s"), [(1, 5.0), (2, 10.0), (3, 20.0), (4, 30.0), (1000, 30.0)])
def test_pauses_double_up_to_the_longest(failures, pause_s):
    assert Steps(5.0, 30.0).pause_s(failures) == pause_s


def test_a_failure_soon_after_a_pause_takes_the_next_step_and_a_late_one_the_first():
    pauses = Pauses(Steps(5.0, 30.0))
    assert pauses.failed("n1", 100.0, "down") == 5.0
    assert pauses.failed("n1", 103.0, "down still") == 2.0
    assert pauses.failed("n1", 109.0, "down again") == 10.0
    assert pauses.failed("n1", 129.0, "down once more") == 5.0
