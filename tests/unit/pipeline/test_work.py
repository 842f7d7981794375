"""What is computed about a request: when its inputs are the same, and what workers need not compare."""

from types import SimpleNamespace

import pytest

from yarn_accel.pipeline.work import Work
from yarn_accel.pipeline.workers.jobs import Area
from yarn_accel.wire import TensorSpec


def digest(parts):
    """Of a work whose inputs are these, one segment each."""
    holding = SimpleNamespace(view=lambda segment, offset, n_bytes: memoryview(parts[segment])[:n_bytes])
    work = Work("t", None, None, None, None, holding, 0.0)
    work.inputs = tuple(Area(i, 0, TensorSpec("|u1", (len(part),))) for i, part in enumerate(parts))
    return work.digest()


@pytest.mark.parametrize("n_bytes", [1, 16, 256, 257, 5000, 100_000])
def test_a_digest_tells_inputs_apart(n_bytes):
    part = bytes(n_bytes)
    assert digest([part]) == digest([bytearray(part)])
    assert digest([part]) != digest([part[:-1] + b"\1"])
    assert len(digest([part])) <= 256


def test_a_digest_of_little_stays_when_the_inputs_are_overwritten():
    part = bytearray(b"before")
    before = digest([part])
    part[:] = b"after."
    assert before == digest([b"before"])


def test_two_inputs():
    assert digest([b"ab", b"cd"]) == digest([b"ab", b"cd"]) != digest([b"ab", b"ce"])
