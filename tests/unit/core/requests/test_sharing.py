"""Shared memory: whose turn a segment is, where results go, and when it is destroyed."""

import dataclasses

import pytest

from tests.unit.core.requests.world import KIB, MIB, World, needs
from yarn_accel.core.requests import commands as c
from yarn_accel.core.requests import events as e


def shared(n_bytes=100, out=100, **changes):
    return dataclasses.replace(needs(n_bytes, out, **changes), payload_bytes=0)


@pytest.fixture
def world():
    world = World()
    world.worker()
    return world


@pytest.fixture
def a(world):
    return world.open()


def ask(world, connection, segment, n_bytes=100, out=100, key=None, **changes):
    what = shared(n_bytes, out, **changes)
    return world.ask(connection, key, what, shared=e.SharedInputs(segment, n_bytes))


def test_a_result_goes_behind_its_inputs_where_the_client_sees_it(world, a):
    segment = world.want(a, MIB)
    request = ask(world, a, segment)
    assert world.outputs[world.running[0]] == (segment, 128)
    world.finish()
    assert world.answer(a, request).segment == segment
    assert world.answer(a, request).reply == 0


def test_a_large_result_gets_shared_memory_of_its_own_that_is_shown_once(world, a):
    segment = world.want(a, 100 * KIB)
    first = ask(world, a, segment, 100 * KIB, 200 * KIB)
    world.finish()
    result = world.answer(a, first).segment
    assert result not in (0, segment)
    world.give_back(a, result)
    second = ask(world, a, segment, 100 * KIB, 200 * KIB)
    world.finish()
    assert world.answer(a, second).segment == result


def test_memory_for_a_result_that_failed_serves_the_next(world, a):
    segment = world.want(a, 100 * KIB)
    ask(world, a, segment, 100 * KIB, 200 * KIB)
    result = world.outputs[world.running[0]][0]
    world.finish(failure=e.Failure("rejected", "singular", "no"))
    ask(world, a, segment, 100 * KIB, 200 * KIB)
    assert world.outputs[world.running[0]][0] == result


def test_a_small_result_that_has_no_place_there_travels(world, a):
    segment = world.want(a, 64 * KIB)
    request = ask(world, a, segment, 64 * KIB, 1000)
    world.finish()
    assert world.answer(a, request).segment == 0


def test_inputs_that_must_stay_are_not_written_behind(world, a):
    segment = world.want(a, MIB)
    ask(world, a, segment, keep_inputs=True)
    assert world.outputs[world.running[0]][0] != segment


@pytest.mark.parametrize(
    ("n_bytes", "offset", "said"), [(MIB + 1, 0, "are named"), (100, 1, "not shared with this connection")]
)
def test_what_is_not_granted_or_too_short_is_refused(world, a, n_bytes, offset, said):
    segment = world.want(a, MIB)
    request = ask(world, a, segment + offset, n_bytes)
    assert world.code(a, request) == "bad-placement"
    assert said in world.answer(a, request).failure.message


def test_another_connection_cannot_name_it(world, a):
    segment = world.want(a, MIB)
    b = world.open()
    assert world.code(b, ask(world, b, segment)) == "bad-placement"


def test_what_was_returned_cannot_be_named_and_serves_the_same_connection_again(world, a):
    segment = world.want(a, MIB)
    world.give_back(a, segment)
    assert world.code(a, ask(world, a, segment)) == "bad-placement"
    assert world.want(a, MIB // 2) == segment
    world.give_back(a, segment)
    assert world.want(a, 1000) != segment, "far too large for that"
    world.give_back(a, 12345)


def test_one_request_at_a_time_may_write_into_a_segment_several_may_read(world, a):
    segment = world.want(a, MIB)
    ask(world, a, segment)
    assert world.code(a, ask(world, a, segment, keep_inputs=True)) == "bad-placement"
    world.finish()
    requests = [ask(world, a, segment, keep_inputs=True) for _ in range(3)]
    assert world.code(a, ask(world, a, segment)) == "bad-placement"
    for _ in requests:
        world.finish()
    assert all(world.kind(a, request) == "ReplyResult" for request in requests)


def test_its_client_may_name_a_segment_again_while_the_answer_leaves(world, a):
    segment = world.want(a, 64 * KIB)
    world.stop(a)
    ask(world, a, segment, 64 * KIB, 1000)
    world.finish()
    request = ask(world, a, segment, 64 * KIB, 1000)
    assert not world.kind(a, request)
    world.close(a)
    assert segment in world.memory, "it is in use"
    world.finish()
    assert segment not in world.memory


def test_bounds_of_a_connection_and_of_all(world, a):
    assert world.want(a, 3 * MIB)
    assert world.want(a, 2 * MIB) is None
    assert world.want(a, MIB)
    assert world.want(world.open(), 4 * MIB)
    assert world.want(world.open(), 64 * KIB) is None, "half of the memory is granted"


def test_what_cannot_be_made_is_busy(world, a):
    world.can_create = False
    assert world.want(a, MIB) is None
    assert world.used_bytes == 0


def test_without_shared_memory_for_its_result_a_request_takes_other_memory(world, a):
    segment = world.want(a, 100 * KIB)
    world.can_create = False
    request = ask(world, a, segment, 100 * KIB, 200 * KIB)
    world.can_create = True
    world.wait(0.2)
    world.finish()
    assert world.answer(a, request).segment == 0


def test_it_is_destroyed_with_its_connection_when_nothing_uses_it(world, a):
    used, unused = world.want(a, MIB), world.want(a, MIB)
    ask(world, a, used)
    world.close(a)
    assert unused not in world.memory
    assert used in world.memory
    world.finish()
    assert used not in world.memory


def test_what_one_client_may_write_to_is_not_sent_to_another(world, a):
    b = world.open()
    segments = world.want(a, MIB), world.want(b, MIB)
    first = ask(world, a, segments[0], key="k")
    second = ask(world, b, segments[1], key="k")
    world.finish()
    assert world.answer(a, first).segment == segments[0]
    assert world.answer(b, second).reason.startswith("again: ")


def test_a_result_elsewhere_is_sent_to_all(world, a):
    b = world.open()
    segments = world.want(a, 64 * KIB), world.want(b, 64 * KIB)
    first = ask(world, a, segments[0], 64 * KIB, 1000, key="k")
    second = ask(world, b, segments[1], 64 * KIB, 1000, key="k")
    world.finish()
    assert (world.kind(a, first), world.kind(b, second)) == ("ReplyResult", "ReplyResult")
    assert world.used_bytes == 128 * KIB


def test_a_large_result_there_is_never_kept(world, a):
    segment = world.want(a, MIB)
    ask(world, a, segment, 100, 500 * KIB, key="k")
    world.finish(compute_s=10.0)
    assert all(work is None for work in world.remembered.values())


def test_a_small_result_is_copied_before_its_client_may_write(world, a):
    segment = world.want(a, MIB)
    ask(world, a, segment, key="k")
    (work,) = world.running
    commands = world.machine.apply(e.Finished(1, (world.result(work),), world.now_s))
    kinds = [type(command) for command in commands]
    assert kinds.index(c.Remember) < kinds.index(c.ReplyResult)


def test_inputs_overwritten_by_a_worker_that_is_lost_are_asked_for_again(world, a):
    segment = world.want(a, MIB)
    request = ask(world, a, segment)
    world.lose(1, world.running, world.running)
    assert world.answer(a, request).reason.startswith("again: ")
    world.worker(2)
    ask(world, a, segment)
    assert len(world.running) == 1


def test_a_known_answer_lets_go_of_the_inputs(world, a):
    segment = world.want(a, MIB)
    ask(world, a, segment, key="k")
    world.finish()
    assert world.kind(a, ask(world, a, segment, key="k")) == "Repeat"
    ask(world, a, segment)
    assert len(world.running) == 1
