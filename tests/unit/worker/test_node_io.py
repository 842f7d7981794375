"""A worker's samples of its node: bytes and readers are of one moment, and the age says of which."""

from __future__ import annotations

import pytest

from yarn_accel.worker import node_io
from yarn_accel.worker.node_io import NodeIo
from yarn_accel.worker.read_phase import ReaderCount, ReadPhase


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_reader_that_began_near_the_end_of_a_sample_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_io, "total_bytes_per_s", lambda sample, source: 7e6)
    readers, clock = ReaderCount(), Hands()
    io = NodeIo(readers, (), "link", clock)
    assert io.latest() is None
    readers.begin(ReadPhase(clock.now_s))
    for quarter in range(4):
        clock.now_s += 0.25
        if quarter == 3:
            readers.begin(ReadPhase(clock.now_s))
        io.look()
    clock.now_s += 0.2
    sample = io.latest()
    assert sample is not None
    # Of 100.5 s: the second reader began at 101.0 s, and is counted by its figures until the next sample.
    assert (sample.bytes_per_s, sample.readers, round(sample.age_s, 6)) == (7e6, 1, 0.7)
    for _ in range(4):
        clock.now_s += 0.25
        io.look()
    again = io.latest()
    assert again is not None
    assert again.readers == 2
