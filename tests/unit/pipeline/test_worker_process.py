"""Segments: sealed, shared by descriptor, given back while others map them; and who has which batch."""

from __future__ import annotations

import mmap
import resource
import socket
import time
from pathlib import Path

import pytest

from yarn_accel.pipeline.config import PipelineConfig
from yarn_accel.pipeline.loop import EventLoop
from yarn_accel.pipeline.worker_process import Buffers, WorkerLiedError, WorkerProcess
from yarn_accel.pipeline.workers.launching import ControlWord, Launched
from yarn_accel.pipeline.workers.protocol import DONE, DONE_HEAD, HEAD, Channel, Job


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


# Who has which batch


@pytest.fixture
def on_gpu(buffers):
    """The owner's end of a worker on a GPU, the worker's end of its channel, and what was answered."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    loop, answers = EventLoop(), []
    process = WorkerProcess(Launched(ours, ControlWord(), None))
    process.device = "cuda:0"
    buffers.create(1, 65536)
    config = PipelineConfig(
        master_secret_file=Path("/none"), hang_min_s=1.0, hang_factor=1.0, gpu_memory_wait_s=0
    )
    segments = buffers.by_id.__getitem__
    process.attend(loop, segments, config, lambda who, done: answers.extend(done), lambda who, message: None)
    yield process, Channel(theirs), answers
    loop.forget(process.fd)
    ours.close()
    theirs.close()
    process.close()
    loop.close()


def job(number, is_alone=False):
    return Job(number, "echo", {}, (), 1, 0, 0, False, "echo", is_alone=is_alone)


def done(number):
    return HEAD.pack(DONE, 1) + DONE_HEAD.pack(number, True, False, 0, 0, len(_ERROR), 0.0, 0.0) + _ERROR


_ERROR = b'["rejected", "bad", "no"]'


def test_a_later_batch_may_be_answered_first(on_gpu):
    process, worker, answers = on_gpu
    for number in (1, 2, 3):
        process.send([job(number)])
    for number in (3, 1):
        worker.send(done(number))
        process._ready(1)
    assert [each.job for each in answers] == [3, 1]
    assert process.busy_since_s() > 0
    assert [each.job for each in process._lost()] == [2]
    with pytest.raises(WorkerLiedError, match="begins no batch"):
        process._answers(done(3))
    worker.send(done(2))
    process._ready(1)
    assert process.busy_since_s() == 0.0


def test_a_batch_is_late_by_its_own_time_and_only_once_a_lane_has_it(on_gpu):
    process, worker, _ = on_gpu
    process.send([job(1)], expected_s=1000.0)
    for number in (2, 3, 4):
        process.send([job(number)])
    now_s = time.monotonic()
    assert process.overdue_s(now_s + 500.0) > 400.0, "the second one, though the first may take so long"
    for number in (2, 3):
        worker.send(done(number))
        process._ready(1)
    begun_s = process._batches[4].started_s
    assert begun_s >= now_s, "a lane was free for it only then"


def test_one_that_is_alone_begins_after_all_others(on_gpu):
    process, worker, _ = on_gpu
    process.send([job(1)], expected_s=1000.0)
    process.send([job(2, is_alone=True)])
    assert process.overdue_s(time.monotonic() + 500.0) <= 0
    worker.send(done(1))
    process._ready(1)
    assert process.overdue_s(time.monotonic() + 500.0) > 400.0
