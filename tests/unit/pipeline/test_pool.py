"""Segments: sizes, reuse, the ceiling, the order of those who wait, and what is lent."""

import fcntl
import os
import threading
import time

import pytest

from yarn_accel.errors import UnavailableError
from yarn_accel.pipeline.pool import LEAST_BYTES, Pool, class_bytes

MIB = 1 << 20


@pytest.fixture
def pool():
    pool = Pool(4 * MIB)
    yield pool
    pool.close()


@pytest.mark.parametrize(
    ("n_bytes", "size"),
    [(0, LEAST_BYTES), (1, LEAST_BYTES), (65537, 98304), (98305, 131072), (MIB, MIB), (MIB + 1, 1572864)],
)
def test_sizes_are_powers_of_two_and_halves_between(n_bytes, size):
    assert class_bytes(n_bytes) == size


def test_the_last_one_freed_is_reused_first(pool):
    first, second = pool.acquire(100), pool.acquire(100)
    first.view[0] = 7
    pool.release(second)
    pool.release(first)
    assert pool.acquire(50) is first
    assert first.view[0] == 7
    assert pool.segment(first.id) is first
    assert (pool.bytes, pool.free_bytes, pool.used_bytes) == (2 * LEAST_BYTES, LEAST_BYTES, LEAST_BYTES)


def test_the_length_of_a_segment_cannot_be_changed(pool):
    segment = pool.acquire(100)
    for n_bytes in (0, 2 * MIB):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fd, n_bytes)
    with pytest.raises(PermissionError):
        fcntl.fcntl(segment.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_free_segments_of_other_sizes_make_room_and_the_ceiling_holds():
    dropped = []
    pool = Pool(4 * MIB, dropped.append)
    small = [pool.acquire(MIB) for _ in range(4)]
    assert pool.try_acquire(1) is None
    for segment in small[:3]:
        pool.release(segment)
    assert pool.try_acquire(3 * MIB + 1) is None
    large = pool.acquire(2 * MIB)
    assert large.n_bytes == 2 * MIB
    assert dropped == [small[0].id, small[1].id]
    pool.acquire(MIB)
    assert pool.peak_bytes == pool.bytes == 4 * MIB
    with pytest.raises(KeyError):
        pool.segment(small[0].id)


def test_what_its_size_class_would_not_allow_still_gets_the_whole_pool():
    pool = Pool(5 * MIB)
    segment = pool.acquire(5 * MIB)
    assert segment.n_bytes == 5 * MIB
    with pytest.raises(UnavailableError, match="more than the server has"):
        pool.acquire(5 * MIB + 1)


def wait_for(is_true):
    until_s = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until_s
        time.sleep(0.001)


def test_who_waits_is_served_in_order(pool):
    held = [pool.acquire(MIB) for _ in range(4)]
    got = []

    def want(n_bytes):
        segment = pool.acquire(n_bytes)
        got.append(n_bytes)
        pool.release(segment)

    threads = []
    for n_bytes in (3 * MIB, 100):
        threads.append(threading.Thread(target=want, args=(n_bytes,)))
        threads[-1].start()
        wait_for(lambda: pool.n_waiting == len(threads))
    pool.release(held[0])
    time.sleep(0.02)
    assert got == []
    assert pool.try_acquire(1) is None
    pool.release(held[1])
    pool.release(held[2])
    for thread in threads:
        thread.join(60)
    assert got == [3 * MIB, 100]
    assert pool.peak_bytes <= 4 * MIB


def test_memory_is_evicted_before_somebody_waits():
    kept = []
    pool = Pool(MIB, evict=lambda n_bytes: [pool.release(kept.pop()) for _ in range(len(kept))])
    kept.append(pool.acquire(MIB))
    assert pool.acquire(LEAST_BYTES).n_bytes == LEAST_BYTES


def test_closing_wakes_those_who_wait_and_frees_everything(pool):
    held = pool.acquire(4 * MIB)
    errors = []

    def want():
        try:
            pool.acquire(1)
        except UnavailableError as error:
            errors.append(error)

    thread = threading.Thread(target=want)
    thread.start()
    wait_for(lambda: pool.n_waiting == 1)
    pool.close()
    thread.join(60)
    assert len(errors) == 1
    assert pool.used_bytes == 4 * MIB
    pool.release(held)
    assert (pool.bytes, pool.used_bytes) == (0, 0)
    with pytest.raises(UnavailableError):
        pool.acquire(1)


def test_a_lent_segment_is_fresh_bounded_and_never_reused(pool):
    used = pool.acquire(MIB)
    used.view[:3] = b"abc"
    pool.release(used)
    lent = pool.lend(MIB)
    assert lent.is_lent
    assert bytes(lent.view[:3]) == bytes(3)
    assert pool.lent_bytes == MIB
    assert pool.lend(3 * MIB // 2) is None
    pool.end_loan(lent)
    assert pool.lent_bytes == 0
    with pytest.raises(KeyError):
        pool.segment(lent.id)
    assert pool.acquire(MIB) is used
