"""Equations (1) to (6), by numbers one can check by hand."""

import math

import pytest

from yarn_accel.core.tasks.contention import (
    PROGRESS,
    READ_SECONDS,
    affinity,
    closed_loop_seconds,
    data_rate,
    mean_delay,
    profile_of,
)
from yarn_accel.core.tasks.values import FormFigures

MB = 1e6
KNN = profile_of(FormFigures(10, 5), 800 * MB)


def test_rate_and_request():
    assert data_rate(1000, 4) == 250
    assert KNN == (10, 5, 15, 80 * MB)
    assert profile_of(FormFigures(0, 5), 800 * MB).request_bytes_per_s == 0


@pytest.mark.parametrize("form", READ_SECONDS)
def test_nobody_is_delayed_while_the_disk_has_enough(form):
    """B itself is enough."""
    assert READ_SECONDS[form](KNN, 48 * MB, 5, 128 * MB) == 10


@pytest.mark.parametrize(
    ("form", "seconds"),
    [
        # 128 / 4 = 32 MB/s for each
        ("equal-share", 25),
        # 180 MB/s are wanted
        ("proportional", 10 * 180 / 128),
        # 28 MB/s are left, and 32 are its share
        ("max-min", 25),
    ],
)
def test_above_saturation(form, seconds):
    assert READ_SECONDS[form](KNN, 100 * MB, 3, 128 * MB) == pytest.approx(seconds)


def test_the_forms_differ_where_others_read_little():
    """Three readers of 20 MB/s leave 68 MB/s; the equal share would be 32."""
    assert READ_SECONDS["max-min"](KNN, 60 * MB, 3, 128 * MB) == pytest.approx(10 * 80 / 68)
    assert READ_SECONDS["equal-share"](KNN, 60 * MB, 3, 128 * MB) == 25


def test_a_small_request_within_its_share_is_not_delayed():
    small = profile_of(FormFigures(10, 5), 100 * MB)
    assert READ_SECONDS["equal-share"](small, 127 * MB, 1, 128 * MB) == 10
    assert READ_SECONDS["max-min"](small, 127 * MB, 1, 128 * MB) == 10
    assert READ_SECONDS["proportional"](small, 127 * MB, 1, 128 * MB) > 10


@pytest.mark.parametrize(("read_s", "compute_s"), [(10, 5), (10, 0), (0, 5), (1, 50)])
@pytest.mark.parametrize("n", [1, 2, 4, 16])
def test_the_closed_loop_is_a_fixed_point(read_s, compute_s, n):
    profile = profile_of(FormFigures(read_s, compute_s), 800 * MB)
    task_s = closed_loop_seconds(profile, n, 128 * MB)
    loop_read_s = task_s - compute_s
    readers = 1 + (n - 1) * (loop_read_s / task_s)
    shared_s = read_s * max(1, profile.request_bytes_per_s * readers / (128 * MB))
    assert loop_read_s == pytest.approx(shared_s)


def test_affinity_is_the_mean_speedup_of_one_to_g_tasks():
    cpu = profile_of(FormFigures(150, 0), 800 * MB)
    speedups = [150 / closed_loop_seconds(KNN, k, 128 * MB) for k in (1, 2, 3, 4)]
    assert speedups[0] == 10
    assert affinity(cpu, KNN, 4, 128 * MB) == pytest.approx(sum(speedups) / 4)
    assert affinity(cpu, KNN, 4, 128 * MB, "at-g") == speedups[3]


def test_mean_delay():
    assert mean_delay([(10, 10), (30, 10)]) == 2
    assert mean_delay([]) == 1


def test_progress():
    rate, virtual = PROGRESS["rate"], PROGRESS["virtual-time"]
    assert rate(3, 100, 60, 10) == 6
    assert rate(0, 100, 10, 10) == 0
    assert 0 < rate(1, 100, 10, 10) < rate(1, 101, 10, 10) < math.inf
    assert virtual(3, 100, 60, 10) == 310
