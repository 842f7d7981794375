"""A worker is gone: what it had is computed elsewhere, so often as is reasonable."""

import pytest

from tests.unit.core.requests.world import World, needs
from yarn_accel.core.requests import events as e

READS = needs(reads=("hdfs://nn/in/x",))


@pytest.fixture
def world():
    world = World()
    world.worker(1)
    return world


@pytest.fixture
def a(world):
    return world.open()


def test_what_it_had_is_computed_by_the_next(world, a):
    request = world.ask(a)
    world.lose(1)
    assert not world.kind(a, request)
    world.worker(2)
    world.finish()
    assert world.kind(a, request) == "ReplyResult"


def test_it_keeps_its_place_in_the_queue(world, a):
    world.ask(a, "first")
    world.wait(1.0)
    world.ask(a, "second", needs(operation="lu"))
    world.lose(1)
    world.worker(2)
    assert [world.requests[work].key for work in world.running] == ["first"]


def test_one_that_may_have_cost_a_worker_is_computed_alone(world, a):
    what = needs(batch_key="together")
    world.ask(a, "blocks", needs(operation="lu"))
    for key in ("x", "y"):
        world.ask(a, key, what)
    world.finish(world.running[0])
    assert len(world.running) == 2
    world.lose(1, suspects=world.running[:1])
    world.worker(2)
    assert len(world.running) == 1


def test_after_two_crashes_it_fails(world, a):
    request = world.ask(a)
    world.lose(1, world.running)
    world.worker(2)
    world.lose(2, world.running)
    assert world.code(a, request) == "worker-lost"
    assert world.used_bytes == 0


def test_what_ended_two_processes_of_a_gpu_is_the_requests_fault_and_remembered(world, a):
    request = world.ask(a, "bad")
    for number in (1, 2):
        world.lose(number, world.running, code="gpu-failed")
        world.worker(number + 1)
    failure = world.answer(a, request).failure
    assert (failure.kind, failure.code, failure.transient) == ("rejected", "gpu-failed", False)
    assert "with 2 workers" in failure.message
    started = len(world.started)
    assert world.code(a, world.ask(a, "bad")) == "gpu-failed"
    assert len(world.started) == started, "it costs nobody a worker once more"


def test_nothing_is_computed_beside_one_that_may_have_cost_a_worker(world, a):
    """Also when its client had to send it again."""
    world.ask(a, "x")
    assert world.alone == []
    world.lose(1, world.running, world.running)
    world.worker(2)
    world.ask(a, "x")
    assert world.alone == world.running
    world.finish()
    world.ask(a, "x2")
    assert not set(world.alone) & set(world.running)


def test_the_innocent_have_more_patience_but_not_for_ever(world, a):
    request = world.ask(a)
    for number in range(1, 8):
        world.lose(number)
        world.worker(number + 1)
        assert not world.kind(a, request)
    world.lose(8)
    assert world.code(a, request) == "worker-lost"


def test_inputs_that_are_gone_are_asked_for_again(world, a):
    b = world.open()
    first, second = world.ask(a, "k"), world.ask(b, "k")
    world.lose(1, world.running, world.running)
    for connection, request in ((a, first), (b, second)):
        answer = world.answer(connection, request)
        assert (answer.retry_after_s, answer.reason) == (0.0, "again: the worker on cpu died")
    assert world.used_bytes == 0


def test_referenced_inputs_that_are_gone_are_read_again(world, a):
    request = world.ask(a, what=READS)
    world.looked()
    world.read()
    world.lose(1, world.running, world.running)
    world.looked()
    world.read()
    world.worker(2)
    world.finish()
    assert world.kind(a, request) == "ReplyResult"


def test_who_left_meanwhile_is_not_computed_again(world, a):
    request = world.ask(a)
    world.cancel(a, request)
    world.lose(1)
    assert not world.works


def test_a_late_answer_of_a_lost_worker_changes_nothing(world, a):
    request = world.ask(a)
    (work,) = world.running
    world.lose(1)
    world.worker(2)
    world.apply(e.Finished(1, (world.result(work),), world.now_s))
    assert not world.kind(a, request)
    world.finish()
    assert world.kind(a, request) == "ReplyResult"


def test_an_answer_that_comes_twice_counts_once(world, a):
    world.ask(a)
    world.ask(a, what=needs(operation="lu"))
    (work, *_) = world.running
    result = world.result(work)
    world.runs[1].remove(work)
    world.apply(e.Finished(1, (result, result), world.now_s))
    world.apply(e.Finished(1, (result,), world.now_s))
    assert world.machine.snapshot()["tenants"]["t"]["device_s"] == pytest.approx(0.01)


def test_a_batch_may_be_lost_in_part(world, a):
    what = needs(batch_key="together")
    world.ask(a, "blocks", needs(operation="lu"))
    requests = [world.ask(a, what=what) for _ in range(3)]
    world.finish(world.running[0])
    world.finish(world.running[0])
    world.lose(1, suspects=world.running[:1])
    world.worker(2)
    for _ in range(3):
        world.finish()
    assert {world.kind(a, request) for request in requests} == {"ReplyResult"}
