"""A shared disk: max-min, never above its capacity, undisturbed readers end on time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel.sim.disk import Reader, SharedDisk


def test_one_reader_gets_what_it_can_use() -> None:
    disk: SharedDisk[str] = SharedDisk(128.0, 0.1)
    disk.add(Reader("a", 1000.0, 50.0, 3.0), 3.0)
    assert (disk.next_end_s, disk.io_bytes_per_s, disk.n_readers) == (23.0, 50.0, 1)


def test_what_a_slow_reader_leaves_goes_to_the_others() -> None:
    disk: SharedDisk[str] = SharedDisk(100.0, 0.0)
    readers = [Reader(name, 1000.0, limit, 0.0) for name, limit in (("a", 80.0), ("b", 10.0), ("c", 80.0))]
    for reader in readers:
        disk.add(reader, 0.0)
    assert [reader.end_s for reader in readers] == [1000 / 45, 100.0, 1000 / 45]
    assert (disk.io_bytes_per_s, disk.requested_bytes_per_s) == (100.0, 170.0)


def test_a_reader_that_comes_later_slows_the_first_one() -> None:
    disk: SharedDisk[str] = SharedDisk(100.0, 0.25)
    first, second = Reader("a", 1000.0, 100.0, 0.0), Reader("b", 200.0, 100.0, 5.0)
    disk.add(first, 0.0)
    disk.add(second, 5.0)  # 80 in all, 40 each
    assert (first.end_s, second.end_s) == (17.5, 10.0)
    assert disk.ended(10.0) == [second]
    assert first.end_s == 13.0
    assert (first.is_alone, second.is_alone) == (False, False)


def test_one_that_leaves_makes_space() -> None:
    disk: SharedDisk[str] = SharedDisk(100.0, 0.0)
    first, second = Reader("a", 1000.0, 100.0, 0.0), Reader("b", 1000.0, 100.0, 0.0)
    disk.add(first, 0.0)
    disk.add(second, 0.0)
    disk.remove(second, 10.0)
    assert first.end_s == 15.0
    assert disk.n_readers == 1


def test_capacity_falls_with_the_readers() -> None:
    disk: SharedDisk[str] = SharedDisk(128.0, 0.112)
    assert [round(disk.capacity_bytes_per_s(n), 1) for n in (0, 1, 2, 6)] == [128.0, 128.0, 115.1, 82.1]


@given(
    st.lists(
        st.tuples(st.floats(0.1, 1e4), st.floats(1e-3, 128.0), st.floats(0.0, 50.0)), min_size=1, max_size=12
    ),
    st.floats(0.0, 1.0),
)
@settings(max_examples=examples(200), deadline=None)
def test_every_byte_is_read_once_and_no_limit_is_passed(arrivals, gamma) -> None:
    disk: SharedDisk[int] = SharedDisk(128.0, gamma)
    waiting = sorted((at_s, size, limit) for size, limit, at_s in arrivals)
    given_bytes, now_s = 0.0, 0.0
    while waiting or disk.n_readers:
        next_s = min(disk.next_end_s, waiting[0][0] if waiting else math.inf)
        given_bytes += disk.io_bytes_per_s * (next_s - now_s)
        now_s = next_s
        for reader in disk.ended(now_s):
            alone_s = arrivals[reader.owner][0] / reader.limit_bytes_per_s
            assert now_s - reader.started_s >= alone_s * (1 - 1e-9)
            if reader.is_alone:
                assert now_s - reader.started_s == pytest.approx(alone_s)
        while waiting and waiting[0][0] <= now_s:
            at_s, size, limit = waiting.pop(0)
            disk.add(Reader(arrivals.index((size, limit, at_s)), size, limit, now_s), now_s)
        assert disk.io_bytes_per_s <= disk.capacity_bytes_per_s(disk.n_readers) * (1 + 1e-9)
        assert disk.io_bytes_per_s <= disk.requested_bytes_per_s * (1 + 1e-9)
    assert given_bytes == pytest.approx(sum(size for size, _, _ in arrivals), rel=1e-6)
