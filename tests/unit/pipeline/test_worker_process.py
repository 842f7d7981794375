"""Segments: sealed, shared by descriptor, and given back while others map them."""

from __future__ import annotations

import mmap
import resource

import pytest

from yarn_accel.pipeline.worker_process import Buffers


@pytest.fixture
def buffers():
    buffers = Buffers()
    yield buffers
    buffers.close()


@pytest.mark.parametrize("is_shared", [False, True])
def test_memory_returns_at_once_unless_a_client_has_it(buffers, is_shared):
    buffers.create(1, 65536)
    segment = buffers.by_id[1]
    segment.is_shared = is_shared
    segment.view[:] = b"x" * 65536
    with mmap.mmap(segment.fd, 65536) as other:
        buffers.destroy(1)
        assert other[0] == (ord("x") if is_shared else 0)
    assert buffers.by_id == {}


def test_a_view_that_is_still_in_use_breaks_nothing(buffers):
    buffers.create(1, 65536)
    piece = buffers.by_id[1].view[:10]
    buffers.destroy(1)
    assert len(piece) == 10


def test_without_a_descriptor_there_is_no_segment(buffers):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        assert not buffers.create(1, 65536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert buffers.create(1, 65536)
