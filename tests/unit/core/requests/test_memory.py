"""Segments: sizes, reuse, the ceiling, who waits for them or may not keep them, and whose turn it is."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.core.requests.world import KIB, MIB, World, needs
from yarn_accel.core.requests import commands as c
from yarn_accel.core.requests import events as e
from yarn_accel.core.requests.memory import LEAST_BYTES, class_bytes
from yarn_accel.core.requests.records import SharedInputs

LARGE = needs(2 * MIB, 2 * MIB)
REPLY = needs(64, 4 * MIB)


@pytest.mark.parametrize(
    ("n_bytes", "size"),
    [(0, LEAST_BYTES), (1, LEAST_BYTES), (65537, 98304), (98305, 131072), (MIB, MIB), (MIB + 1, 1572864)],
)
def test_sizes_are_powers_of_two_and_halves_between(n_bytes, size):
    assert class_bytes(n_bytes) == size


def test_a_segment_that_was_freed_is_used_again(world, a):
    for _ in range(2):
        world.ask(a)
    world.finish()
    world.finish()
    before = dict(world.memory)
    world.ask(a)
    assert world.memory == before


def test_the_segment_that_was_freed_first_is_given_up_first(world, a):
    requests = [world.ask(a, what=needs(64, 2 * MIB - 64)) for _ in range(7)]
    segments = [world.outputs[world.work_of(a, request)][0] for request in requests]
    for _ in requests:
        world.finish()
    world.ask(a, what=needs(64, 4 * MIB - 64))
    assert segments[0] not in world.memory
    assert segments[-1] in world.memory


def test_what_its_size_class_would_not_allow_still_gets_the_whole_pool():
    world = World(pool_bytes=5 * MIB, queue_bytes=5 * MIB)
    world.worker()
    a = world.open()
    request = world.ask(a, what=needs(64, 5 * MIB - 64))
    world.finish()
    assert world.kind(a, request) == "ReplyResult"


@pytest.mark.parametrize("is_one_free", [False, True], ids=["", "though a segment of its size is free"])
def test_who_waits_is_not_read_from_and_served_in_order(is_one_free):
    world = World(pool_bytes=8 * MIB)
    a, b, d = world.open(), world.open(), world.open()
    if is_one_free:
        world.worker()
        world.ask(a)
        world.finish()
    world.ask(a, what=needs(64, 6 * MIB - 64))
    world.ask(b, "large", needs(64, 4 * MIB - 64))
    world.ask(d, "small", needs() if is_one_free else needs(64, MIB))
    assert world.blocked.keys() == {b, d}, "a small one does not pass a large one"
    world.worker(2)
    world.finish()
    assert not world.blocked
    order = [world.requests[work].key for work in world.works]
    assert order == (["large"] if is_one_free else ["large", "small"])


def test_a_segment_that_cannot_be_made_is_tried_again(world, a):
    world.can_create = False
    request = world.ask(a)
    world.wait(1.0)
    assert a in world.blocked
    world.can_create = True
    world.wait(0.2)
    world.finish()
    assert world.kind(a, request) == "ReplyResult"


def test_memory_that_is_freed_serves_at_once_though_none_can_be_made(world, a, b):
    world.ask(a)
    world.can_create = False
    request = world.ask(b)
    world.finish()
    assert len(world.running) == 1
    world.finish()
    assert world.kind(b, request) == "ReplyResult"


def test_who_left_while_its_memory_was_made_leaves_it_to_others(world, a, b):
    now_s = world.now_s
    (_, create) = world.ordered(e.Received(world.new_work(a, 1, "k", needs()), b"d", now_s))
    assert isinstance(create, c.CreateSegment)
    world.ordered(e.ConnectionClosed(a, now_s))
    world.ordered(e.SegmentCreated(create.segment, now_s))
    world.machine.validate()
    (receive, _) = world.ordered(e.Received(world.new_work(b, 1, "k", needs()), b"d", now_s))
    assert receive.segment == create.segment


def test_one_connection_holds_at_most_its_share_of_inputs():
    world = World(pool_bytes=64 * MIB, queue_bytes=8 * MIB)
    a, b = world.open(), world.open()
    for _ in range(2):
        world.ask(a, what=needs(2 * MIB))
    world.ask(a, what=needs(MIB))
    world.ask(b, what=needs(MIB))
    assert world.blocked.keys() == {a}


def test_inputs_that_no_worker_has_are_bounded_by_tenant():
    world = World(pool_bytes=64 * MIB, queue_bytes=4 * MIB)
    connections = [world.open() for _ in range(3)]
    for connection in connections:
        world.ask(connection, what=needs(2 * MIB))
    assert world.blocked.keys() == {connections[2]}
    other = world.open("other")
    world.ask(other, what=needs(2 * MIB))
    assert other not in world.blocked
    assert world.machine.snapshot()["queues"]["read"]["bytes"] == 6 * MIB
    world.worker()
    assert connections[2] not in world.blocked


# Results that nobody reads


def test_unread_results_stop_their_tenant_and_nobody_else():
    world = World(pool_bytes=64 * MIB, queue_bytes=8 * MIB)
    world.worker()
    a, other = world.open("light"), world.open("other")
    world.stop(a)
    for _ in range(2):
        world.ask(a, what=REPLY)
        world.finish()
    world.ask(a, what=REPLY)
    assert not world.running
    request = world.ask(other, what=REPLY)
    world.finish()
    assert world.kind(other, request) == "ReplyResult"
    world.go_on(a)
    assert len(world.running) == 1


def crowded(n=4):
    """A world of 24 MiB, and connections of one tenant in it that hold replies which they do not read."""
    world = World(queue_bytes=16 * MIB, pool_bytes=24 * MIB)
    world.worker()
    return world, stopped(world, n)


def stopped(world, n, what=REPLY):
    connections = [world.open("light") for _ in range(n)]
    for connection in connections:
        world.stop(connection)
        world.ask(connection, what=what)
        world.finish()
        world.wait(0.05)
    return connections


def test_who_reads_nothing_is_cut_off_when_another_tenant_waits():
    world, connections = crowded()
    other = world.open("other")
    request = world.ask(other, what=needs(64, 6 * MIB - 64))
    assert other in world.blocked
    world.wait(0.6)
    assert world.cut == connections[:1], "the one that stands still for longest, and no more than needed"
    world.finish()
    assert world.kind(other, request) == "ReplyResult"


def test_nobody_is_cut_off_for_a_request_of_the_same_tenant():
    world, _ = crowded(3)
    world.ask(world.open("other"), what=needs(64, 6 * MIB - 64), digest=None)
    one = world.open("light")
    world.ask(one, what=needs(64, 8 * MIB - 64))
    world.wait(10.0)
    assert world.cut == []
    assert one in world.blocked


def test_who_stays_within_its_share_is_not_cut_off():
    world, _ = crowded(2)
    other = world.open("other")
    world.ask(other, what=needs(64, 16 * MIB - 64))
    world.wait(10.0)
    assert world.cut == []
    assert other in world.blocked


def test_who_moves_is_not_cut_off():
    world, connections = crowded()
    world.ask(world.open("other"), what=needs(64, 6 * MIB - 64))
    for _ in range(10):
        world.wait(0.3)
        for connection in connections:
            world.apply(e.Moved(connection, world.now_s))
    assert world.cut == []
    world.wait(0.6)
    assert len(world.cut) == 1


def test_who_stops_in_the_middle_of_a_payload_is_cut_off():
    world = World(queue_bytes=16 * MIB, pool_bytes=24 * MIB)
    for _ in range(4):
        world.ask(world.open("light"), what=needs(3 * MIB, 3 * MIB), digest=None)
    other = world.open("other")
    world.ask(other, what=needs(64, 6 * MIB - 64))
    world.wait(0.6)
    assert len(world.cut) == 1
    assert other not in world.blocked


def test_shared_memory_that_is_not_used_is_cut_off():
    world = World(pool_bytes=16 * MIB, max_shared_bytes=4 * MIB)
    world.worker()
    for _ in range(2):
        assert world.want(world.open("light"), 4 * MIB)
    one = world.open("light")
    world.stop(one)
    world.ask(one, what=REPLY)
    world.finish()
    other = world.open("other")
    world.ask(other, what=needs(64, 4 * MIB - 64))
    world.wait(0.6)
    assert len(world.cut) == 1
    assert other not in world.blocked


def test_six_stopped_clients_of_one_tenant_delay_another_by_less_than_a_second():
    world = World(pool_bytes=64 * MIB, queue_bytes=32 * MIB)
    world.worker()
    connections = stopped(world, 6, needs(4 * MIB, 4 * MIB))
    for connection in connections:
        if connection in world.free:
            world.ask(connection, what=needs(4 * MIB, 4 * MIB))
    other = world.open("other")
    for _ in range(4):
        request = world.ask(other, what=needs(4 * MIB, 4 * MIB))
        began_s = world.now_s
        while not world.kind(other, request):
            world.wait(0.05)
            world.finish()
            assert world.now_s - began_s <= 1.0
    assert world.cut


def test_memory_goes_to_the_tenant_that_holds_least_for_its_weight():
    world = World(pool_bytes=16 * MIB, queue_bytes=16 * MIB)
    light, heavy, third = world.open("light"), world.open("heavy"), world.open("other")
    world.ask(light, what=needs(64, 2 * MIB - 64), digest=None)
    world.ask(heavy, what=needs(64, 3 * MIB - 64), digest=None)
    world.ask(third, what=needs(64, 8 * MIB - 64))
    waiting = world.open("light"), world.open("heavy")
    for connection in waiting:
        world.ask(connection, what=needs(64, 4 * MIB - 64))
    assert world.blocked.keys() == set(waiting)
    world.wait(1.0)
    assert world.blocked.keys() == set(waiting)
    world.worker()
    world.finish(world.running[0])
    order = [world.tenants[world.works[work][0]] for work in world.started[1:]]
    assert order[0] == "heavy"


def test_a_request_for_more_than_a_share_is_served_though_small_ones_keep_coming():
    world = World(pool_bytes=16 * MIB, queue_bytes=16 * MIB)
    world.worker()
    mine, others = world.open("light"), [world.open("other") for _ in range(6)]
    for connection in others:
        world.ask(connection, what=needs(64, MIB - 64))
    large = world.ask(mine, what=needs(64, 14 * MIB))
    for _ in range(60):
        world.finish()
        for connection in others:
            if connection in world.free:
                world.ask(connection, what=needs(64, MIB - 64))
        world.wait(0.1)
        if world.kind(mine, large):
            break
    assert world.kind(mine, large) == "ReplyResult"


def shared(n_bytes=100, out=100, **changes):
    return dataclasses.replace(needs(n_bytes, out, **changes), payload_bytes=0)


def ask(world, connection, segment, n_bytes=100, out=100, key=None, **changes):
    what = shared(n_bytes, out, **changes)
    return world.ask(connection, key, what, shared=SharedInputs(segment, n_bytes))


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


def test_a_small_result_that_has_no_place_there_travels(world, a):
    segment = world.want(a, 64 * KIB)
    request = ask(world, a, segment, 64 * KIB, 1000)
    world.finish()
    assert world.answer(a, request).segment == 0


def test_inputs_that_must_stay_are_not_written_behind(world, a):
    segment = world.want(a, MIB)
    ask(world, a, segment, keep_inputs=True)
    assert world.outputs[world.running[0]][0] != segment


def test_a_result_gets_a_free_segment_at_once_where_nobody_waits_for_one(world, a, monkeypatch):
    segment = world.want(a, MIB)
    for _ in range(2):
        ask(world, a, segment, keep_inputs=True)
        world.finish()
        monkeypatch.setattr(world, "_Admit", None)  # of a work that does not get its memory at once


@pytest.mark.parametrize(
    ("n_bytes", "offset", "is_another", "said"),
    [
        (MIB + 1, 0, False, "are named"),
        (100, 1, False, "not shared with this connection"),
        (100, 0, True, "not shared with this connection"),
    ],
    ids=["too short", "not granted", "granted to another"],
)
def test_memory_that_is_not_there_cannot_be_named(world, a, b, n_bytes, offset, is_another, said):
    segment, who = world.want(a, MIB), b if is_another else a
    request = ask(world, who, segment + offset, n_bytes)
    assert world.code(who, request) == "bad-placement"
    assert said in world.answer(who, request).failure.message


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


def test_what_one_client_may_write_to_is_not_sent_to_another(world, a, b):
    segments = world.want(a, MIB), world.want(b, MIB)
    first = ask(world, a, segments[0], key="k")
    second = ask(world, b, segments[1], key="k")
    world.finish()
    assert world.answer(a, first).segment == segments[0]
    assert world.answer(b, second).reason.startswith("again: ")


def test_a_large_result_there_is_never_kept(world, a):
    segment = world.want(a, MIB)
    ask(world, a, segment, 100, 500 * KIB, key="k")
    world.finish(compute_s=10.0)
    assert all(work is None for work in world.remembered.values())


def test_a_small_result_is_copied_before_its_client_may_write(world, a):
    segment = world.want(a, MIB)
    ask(world, a, segment, key="k")
    (work,) = world.running
    commands = world.ordered(e.Finished(1, (world.result(work),), world.now_s))
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


def test_nobody_is_cut_off_while_nobody_waits():
    world, _ = crowded()
    world.wait(100.0)
    assert world.cut == []
