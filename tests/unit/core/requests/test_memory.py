"""Segments: sizes, reuse, the ceiling, who waits for them, and who may not keep them."""

import pytest

from tests.unit.core.requests.world import KIB, MIB, World, needs
from yarn_accel.core.requests import commands as c
from yarn_accel.core.requests import events as e
from yarn_accel.core.requests.memory import LEAST_BYTES, class_bytes

LARGE = needs(2 * MIB, 2 * MIB)
REPLY = needs(64, 4 * MIB)


@pytest.fixture
def world():
    """16 MiB, of which each of two tenants may keep 8."""
    world = World()
    world.worker()
    return world


@pytest.mark.parametrize(
    ("n_bytes", "size"),
    [(0, LEAST_BYTES), (1, LEAST_BYTES), (65537, 98304), (98305, 131072), (MIB, MIB), (MIB + 1, 1572864)],
)
def test_sizes_are_powers_of_two_and_halves_between(n_bytes, size):
    assert class_bytes(n_bytes) == size


def test_the_last_segment_freed_is_reused_first(world):
    a = world.open()
    works = [world.ask(a) for _ in range(2)]
    world.finish()
    world.finish()
    before = dict(world.memory)
    world.ask(a)
    assert world.memory == before
    assert works


def test_free_segments_of_other_sizes_make_space(world):
    a = world.open()
    for _ in range(4):
        world.ask(a, what=needs(MIB, 2 * MIB))
    for _ in range(4):
        world.finish()
    assert sum(world.memory.values()) == 12 * MIB
    world.ask(a, what=needs(2 * MIB, 14 * MIB - 64 * KIB))
    assert len(world.running) == 1
    assert sum(world.memory.values()) <= 16 * MIB


def test_the_segment_that_was_freed_first_is_given_up_first(world):
    a = world.open()
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


def test_who_waits_is_not_read_from_and_served_in_order():
    world = World(pool_bytes=8 * MIB)
    a, b, d = world.open(), world.open(), world.open()
    world.ask(a, what=needs(64, 6 * MIB - 64))
    world.ask(b, "large", needs(64, 4 * MIB - 64))
    world.ask(d, "small", needs(64, MIB))
    assert world.blocked.keys() == {b, d}, "a small one does not pass a large one"
    world.worker()
    world.finish()
    assert not world.blocked
    assert [world.requests[work].key for work in world.works] == ["large", "small"]


def test_nobody_passes_who_waits_though_a_segment_of_its_size_is_free():
    world = World(pool_bytes=8 * MIB)
    world.worker()
    a, b, d = world.open(), world.open(), world.open()
    world.ask(a)
    world.finish()
    world.ask(a, what=needs(64, 6 * MIB - 64))
    world.ask(b, "large", needs(64, 4 * MIB - 64))
    world.ask(d, "small")
    assert world.blocked.keys() == {b, d}


def test_a_segment_that_cannot_be_made_is_tried_again(world):
    a = world.open()
    world.can_create = False
    request = world.ask(a)
    world.wait(1.0)
    assert a in world.blocked
    world.can_create = True
    world.wait(0.2)
    world.finish()
    assert world.kind(a, request) == "ReplyResult"


def test_memory_that_is_freed_serves_at_once_though_none_can_be_made(world):
    a, b = world.open(), world.open()
    world.ask(a)
    world.can_create = False
    request = world.ask(b)
    world.finish()
    assert len(world.running) == 1
    world.finish()
    assert world.kind(b, request) == "ReplyResult"


def test_who_left_while_its_memory_was_made_leaves_it_to_others(world):
    a, b = world.open(), world.open()
    machine, now_s = world.machine, world.now_s
    (_, create) = machine.apply(e.Received(a, 1, "k", needs(), b"d", now_s))
    assert isinstance(create, c.CreateSegment)
    machine.apply(e.ConnectionClosed(a, now_s))
    machine.apply(e.SegmentCreated(create.segment, now_s))
    machine.validate()
    (receive, _) = machine.apply(e.Received(b, 1, "k", needs(), b"d", now_s))
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
    assert "not taken" in world.machine.explain(3)
    request = world.ask(other, what=REPLY)
    world.finish()
    assert world.kind(other, request) == "ReplyResult"
    world.go_on(a)
    assert len(world.running) == 1


def stopped(world, tenant="light", n=4, what=REPLY):
    """Connections of a tenant that hold replies which they do not read."""
    connections = [world.open(tenant) for _ in range(n)]
    for connection in connections:
        world.stop(connection)
        world.ask(connection, what=what)
        world.finish()
        world.wait(0.05)
    return connections


def test_who_reads_nothing_is_cut_off_when_another_tenant_waits():
    world = World(queue_bytes=16 * MIB, pool_bytes=24 * MIB)
    world.worker()
    connections = stopped(world)
    assert not world.cut
    other = world.open("other")
    request = world.ask(other, what=needs(64, 6 * MIB - 64))
    assert other in world.blocked
    world.wait(0.6)
    assert world.cut == connections[:1], "the one that stands still for longest, and no more than needed"
    world.finish()
    assert world.kind(other, request) == "ReplyResult"


def test_nobody_is_cut_off_for_a_request_of_the_same_tenant():
    world = World(queue_bytes=16 * MIB, pool_bytes=24 * MIB)
    world.worker()
    world.open("other")
    stopped(world, n=3)
    world.ask(world.open("other"), what=needs(64, 6 * MIB - 64), digest=None)
    one = world.open("light")
    world.ask(one, what=needs(64, 8 * MIB - 64))
    world.wait(10.0)
    assert [world.tenants[connection] for connection in world.cut] == []
    assert one in world.blocked


def test_who_stays_within_its_share_is_not_cut_off():
    world = World(queue_bytes=16 * MIB, pool_bytes=24 * MIB)
    world.worker()
    stopped(world, n=2)
    other = world.open("other")
    world.ask(other, what=needs(64, 16 * MIB - 64))
    world.wait(10.0)
    assert world.cut == []
    assert other in world.blocked


def test_who_moves_is_not_cut_off():
    world = World(queue_bytes=16 * MIB, pool_bytes=24 * MIB)
    world.worker()
    connections = stopped(world)
    other = world.open("other")
    world.ask(other, what=needs(64, 6 * MIB - 64))
    for _ in range(10):
        world.wait(0.3)
        for connection in connections:
            world.apply(e.Moved(connection, world.now_s))
    assert world.cut == []
    world.wait(0.6)
    assert len(world.cut) == 1


def test_nobody_is_cut_off_while_nobody_waits():
    world = World(queue_bytes=16 * MIB, pool_bytes=24 * MIB)
    world.worker()
    stopped(world)
    world.wait(100.0)
    assert world.cut == []


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
    connections = stopped(world, n=6, what=needs(4 * MIB, 4 * MIB))
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
