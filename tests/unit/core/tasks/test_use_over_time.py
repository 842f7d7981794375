"""Means of what a node did, in equal steps."""

import math

from yarn_accel.core.tasks.outcome import NodeUse
from yarn_accel.core.tasks.use_over_time import use_over_time


def test_a_step_is_a_mean_of_what_happened_in_it():
    use = [NodeUse(0.0, 100e6, 1, 1, 0), NodeUse(1.5, 0.0, 2, 1, 1), NodeUse(3.0, 0.0, 0, 0, 0)]
    steps = use_over_time(use, 4.0, 4)
    assert steps.step_s == 1.0
    assert steps.io_bytes_per_s == (100e6, 50e6, 0.0, 0.0)
    assert steps.gpus_computing == (0.0, 0.5, 1.0, 0.0)
    assert steps.gpus == (1.0, 1.0, 1.0, 0.0)
    assert steps.cores == (1.0, 1.5, 2.0, 0.0)


def test_io_that_is_not_known_is_no_part_of_a_mean():
    use = [NodeUse(0.0, math.nan, 1, 0, 0), NodeUse(1.5, 8.0, 1, 0, 0)]
    assert use_over_time(use, 3.0, 3).io_bytes_per_s == (None, 8.0, 8.0)


def test_what_was_after_the_end_is_left_out():
    use = [
        NodeUse(0.0, 1.0, 1, 0, 0),
        NodeUse(1.5, 3.0, 1, 0, 0),
        NodeUse(2.5, 9.0, 9, 9, 9),
        NodeUse(7.0, 9.0, 9, 9, 9),
    ]
    assert use_over_time(use, 2.0, 2).io_bytes_per_s == (1.0, 2.0)
