"""The life of one request, from its header to the memory that comes back, also when its worker is lost."""

from __future__ import annotations

import pytest

from tests.unit.core.requests.world import KIB, MIB, World, needs
from yarn_accel.core.requests import events as e
from yarn_accel.core.requests.records import SharedInputs
from yarn_accel.core.requests.settings import TenantSettings

READS = ("hdfs://nn/in/x",)
FOUND = needs(reads=READS, input_bytes=256, output_bytes=200)


@pytest.mark.parametrize("stage", ["looked", "read", "wrote"])
def test_a_failure_of_the_storage_is_the_answer(world, a, stage):
    request = world.ask(a, what=needs(reads=READS), writes="hdfs://nn/out/y")
    work = world.looks[0]
    if stage != "looked":
        world.looked(FOUND)
    if stage == "wrote":
        world.read()
        world.finish()
    world.storage_failed(work)
    assert world.code(a, request) == "storage"
    assert world.used_bytes == 0


@pytest.mark.parametrize(
    ("what", "more", "code"),
    [
        (needs(5 * MIB), {}, "request-too-large"),
        (needs(MIB, 16 * MIB), {}, "request-too-large"),
        (needs(reads=("hdfs://nn/input/x",)), {}, "forbidden-uri"),
        (needs(reads=("hdfs://nn/other",)), {}, "forbidden-uri"),
        (needs(), {"writes": "hdfs://nn/in/x"}, "forbidden-uri"),
        (needs(), {"shared": SharedInputs(7, 100)}, "bad-placement"),
        (needs(reads=READS), {"shared": SharedInputs(7, 100)}, "bad-placement"),
    ],
)
def test_what_is_not_allowed_is_refused_and_its_connection_goes_on(world, a, what, more, code):
    request = world.ask(a, what=what, **more)
    assert world.code(a, request) == code
    assert not world.blocked
    assert not world.works


@pytest.mark.parametrize(
    ("tenant", "account", "has_entries", "is_allowed"),
    [
        ("alice@A", "alice", False, True),
        ("alice@A", "alice", True, False),
        ("bob@A", "bob", True, True),
        ("carol@A", "carol", True, False),
        ("bob@B", "robert", True, False),
        ("bob", "", True, True),
        ("dave", "", False, False),
        ("alice@A", "", False, False),
    ],
)
def test_entries_narrow_what_a_user_may_and_widen_what_a_tenant_may(tenant, account, has_entries, is_allowed):
    """Of a principal the entry of its own name counts, else the one of its account, else that of all."""
    all_of_nn, none = TenantSettings(read_prefixes=("hdfs://nn/",)), TenantSettings()
    entries = {"alice": none, "bob": all_of_nn, "carol@A": none, "carol": all_of_nn, "*": none}
    world = World(tenants=entries if has_entries else {}, users=all_of_nn)
    connection = world.open(tenant, account)
    request = world.ask(connection, what=needs(reads=("hdfs://nn/x",)))
    assert (world.kind(connection, request) == "") is is_allowed


def test_who_has_too_many_requests_under_way_comes_again():
    world = World(max_in_flight=2)
    a = world.open()
    requests = [world.ask(a) for _ in range(3)]
    assert [world.kind(a, request) for request in requests] == ["", "", "ReplyBusy"]
    assert not world.blocked


def test_what_was_not_started_before_its_deadline_is_refused():
    world = World()
    a = world.open()
    request = world.ask(a, deadline_s=2.0)
    patient = world.ask(a)
    world.wait(1.9)
    assert not world.kind(a, request)
    world.wait(0.2)
    assert world.code(a, request) == "deadline-exceeded"
    world.worker()
    assert len(world.running) == 1
    world.finish()
    assert world.kind(a, patient) == "ReplyResult"


def test_a_drain_finishes_what_is_under_way_and_takes_nothing_new(world, a):
    world.stop(a)
    request = world.ask(a)
    world.drain()
    late = world.ask(a)
    assert world.answer(a, late).reason == "shutting down"
    world.finish()
    assert world.kind(a, request) == "ReplyResult"
    assert not world.is_drained, "it has not left"
    world.go_on(a)
    assert world.is_drained


def test_stages_are_those_that_clients_are_driven(world, a):
    world.ask(a)
    world.ask(a)
    world.ask(a, what=needs(reads=READS))
    world.ask(a, digest=None)
    assert [stage for _, _, stage in world.waiting] == ["compute", "queue", "read", "receive"]


def test_a_worker_gets_its_next_batch_before_the_answer_goes(world, a):
    first = world.ask(a, what=needs(operation="slow"))
    world.ask(a, what=needs(operation="lu"))
    result = world.result(world.work_of(a, first))
    world.runs[1].clear()
    commands = world.ordered(e.Finished(1, (result,), world.now_s))
    assert [type(command).__name__ for command in commands][:2] == ["Run", "ReplyResult"]


def test_a_small_request_that_nothing_stops_takes_two_commands():
    world = World()
    world.worker()
    a = world.open()
    world.ask(a)
    world.finish()
    work = world.new_work(a, 77, "key", needs(64 * KIB // 4))
    event = e.Received(work, b"d", world.now_s)
    assert [type(command).__name__ for command in world.ordered(event)] == ["Receive", "Run"]


# A worker is lost: its works are computed elsewhere, so often as is reasonable


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
    request = world.ask(a, what=needs(reads=READS))
    world.looked()
    world.read()
    world.lose(1, world.running, world.running)
    world.looked()
    world.read()
    world.worker(2)
    world.finish()
    assert world.kind(a, request) == "ReplyResult"
    assert world.used_bytes == 0


def test_memory_that_a_worker_may_still_write_to_is_nobodys_until_it_has_ended(world, a):
    request = world.ask(a, what=needs(100 * KIB, 100 * KIB))
    world.worker(2)
    (lost,) = [number for number, works in world.runs.items() if works]
    world.lose(lost, world.running, is_running=True)
    assert world.answer(a, request).reason == "again: the worker on cpu died"
    leaked_bytes = world.machine.snapshot()["pool"]["leaked_bytes"]
    assert leaked_bytes == world.used_bytes >= 200 * KIB
    again = world.ask(a, what=needs(100 * KIB, 100 * KIB))
    world.finish()
    assert world.kind(a, again) == "ReplyResult"
    pool = world.machine.snapshot()["pool"]
    assert pool["used_bytes"] == leaked_bytes + pool["kept_bytes"]
    world.end(lost)
    pool = world.machine.snapshot()["pool"]
    assert pool["used_bytes"] == pool["kept_bytes"]
    assert pool["leaked_bytes"] == 0


def test_files_are_read_anew_when_a_worker_may_still_write_where_they_lie(world, a):
    request = world.ask(a, what=needs(reads=READS))
    world.looked(FOUND)
    world.read()
    world.lose(1, world.running, is_running=True)
    world.looked(FOUND)
    world.read()
    world.worker(2)
    world.finish()
    assert world.kind(a, request) == "ReplyResult"
    world.end(1)
    assert world.machine.snapshot()["pool"]["leaked_bytes"] == 0


def test_a_client_whose_shared_memory_a_worker_may_still_write_to_begins_anew(world, a):
    segment = world.want(a, 200 * KIB)
    what = needs(100 * KIB, 100 * KIB, payload_bytes=0)
    world.ask(a, what=what, shared=SharedInputs(segment, 100 * KIB))
    world.lose(1, is_running=True)
    assert world.cut == [a]
    assert world.machine.snapshot()["pool"]["leaked_bytes"] == world.used_bytes > 0
    world.end(1)
    assert world.used_bytes == 0


def test_a_worker_that_ends_before_its_clients_connection_leaves_nothing(world, a):
    """The connection's end is under way: its memory comes back as if nothing had been."""
    segment = world.want(a, 200 * KIB)
    what = needs(100 * KIB, 100 * KIB, payload_bytes=0)
    world.ask(a, what=what, shared=SharedInputs(segment, 100 * KIB))
    lost = tuple(e.LostWork(work, False, True) for work in world.runs.pop(1))
    world.ordered(e.WorkerLost(1, lost, "died", world.now_s, "worker-lost", True))
    world.ordered(e.WorkerEnded(1, world.now_s))
    world.ordered(e.ConnectionClosed(a, world.now_s))
    assert world.used_bytes == 0


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
