"""Whatever happens in whatever order: one answer each, nothing computed twice, no byte lost or used twice.

`World` checks every command against what a shell can do, and the machine validates itself after every event.
"""

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.unit.core.requests.world import KIB, MIB, World, needs
from yarn_accel.core.requests import commands as c
from yarn_accel.core.requests import events as e

READS = ("hdfs://nn/in/x",)
KINDS = {
    "small": needs(100, batch_key="small"),
    "other": needs(200, 40 * KIB, operation="lu", kinds=("cpu", "cuda")),
    "medium": needs(300 * KIB, 300 * KIB),
    "large": needs(MIB, 2 * MIB, operation="lu"),
    "huge": needs(2 * MIB, 5 * MIB, operation="lu"),
    "keep": needs(90 * KIB, 100 * KIB, keep_inputs=True),
    "file": needs(reads=READS),
    "both": needs(reads=READS, payload_bytes=50 * KIB, operation="sum"),
}
FOUND = {
    "file": needs(reads=READS, input_bytes=256 * KIB, output_bytes=64 * KIB),
    "both": needs(reads=READS, payload_bytes=50 * KIB, input_bytes=200 * KIB, operation="sum"),
}
TENANTS = ("light", "heavy", "other")
FAILURES = (
    None,
    None,
    None,
    e.Failure("rejected", "singular", "no"),
    e.Failure("internal", "internal-error", "broke"),
)


class Requests(RuleBasedStateMachine):
    """Clients, workers, storage and time in any order."""

    @initialize(
        pool=st.sampled_from([8 * MIB, 16 * MIB]),
        queue=st.sampled_from([2 * MIB, 8 * MIB]),
        delay_s=st.sampled_from([0.0, 0.0, 0.05]),
        attempts=st.integers(1, 2),
    )
    def start(self, pool, queue, delay_s, attempts):
        self.world = World(
            pool_bytes=pool,
            queue_bytes=queue,
            max_queue_delay_s=delay_s,
            max_attempts=attempts,
            max_in_flight=6,
            max_batch_size=3,
        )
        self.n_workers = 0
        self.segments = {}
        self.digests = {}

    def connection(self, data, among=None):
        among = self.world.connections if among is None else among
        return data.draw(st.sampled_from(sorted(among)))

    @rule(tenant=st.sampled_from(TENANTS))
    def open(self, tenant):
        if len(self.world.connections) < 8:
            self.world.open(tenant)

    @rule(kind=st.sampled_from(["cpu", "cpu", "cuda"]))
    def worker(self, kind):
        if len(self.world.workers) < 3:
            self.n_workers += 1
            self.world.worker(self.n_workers, kind)

    @precondition(lambda self: self.world.connections.keys() - self.world.blocked.keys())
    @rule(
        data=st.data(),
        kind=st.sampled_from(sorted(KINDS)),
        key=st.sampled_from("abcd"),
        digest=st.sampled_from([b"1", b"1", b"2", None]),
        writes=st.sampled_from(["", "", "hdfs://nn/out/x"]),
        priority=st.integers(-1, 1),
        deadline_s=st.sampled_from([0.0, 0.0, 0.3]),
    )
    def ask(self, data, kind, key, digest, writes, priority, deadline_s):
        world = self.world
        connection = self.connection(data, world.connections.keys() - world.blocked.keys())
        more = {"writes": writes, "priority": priority, "deadline_s": deadline_s}
        world.ask(connection, f"{kind} {key}", KINDS[kind], digest, **more)

    @precondition(lambda self: self.segments)
    @rule(data=st.data(), kind=st.sampled_from(["small", "keep", "medium"]), key=st.sampled_from("abcd"))
    def ask_shared(self, data, kind, key):
        world = self.world
        mine = [(to, segment) for segment, to in world.shared.items() if to in world.connections]
        mine = [each for each in mine if each[0] not in world.blocked]
        if mine:
            connection, segment = data.draw(st.sampled_from(sorted(mine)))
            what = KINDS[kind]
            place = e.SharedInputs(segment, what.payload_bytes)
            what = dataclasses.replace(what, payload_bytes=0)
            world.ask(connection, f"shared {kind} {key}", what, b"d", shared=place)

    @precondition(lambda self: self.world.connections)
    @rule(data=st.data(), n_bytes=st.sampled_from([100 * KIB, 500 * KIB, MIB]))
    def want(self, data, n_bytes):
        connection = self.connection(data)
        segment = self.world.want(connection, n_bytes)
        if segment is not None:
            self.segments[segment] = connection

    @precondition(lambda self: self.segments)
    @rule(data=st.data())
    def give_back(self, data):
        segment = data.draw(st.sampled_from(sorted(self.segments)))
        if self.segments[segment] in self.world.connections:
            self.world.give_back(self.segments[segment], segment)

    @rule(data=st.data(), digest=st.sampled_from([b"1", b"2"]))
    def arrive(self, data, digest):
        world = self.world
        coming = [w for w, work in world.machine._state.works.items() if work.state.value == "receiving"]
        coming = [work for work in coming if world.works[work][0] in world.connections]
        if coming:
            world.apply(e.Arrived(data.draw(st.sampled_from(coming)), digest, world.now_s))

    @rule()
    def looked(self):
        for work in list(self.world.looks):
            kind = self.world.requests[work].key.split()[0]
            self.world.looks.remove(work)
            self.world.apply(e.Looked(work, b"stamps", FOUND[kind], self.world.now_s))

    @rule(is_larger=st.booleans())
    def read(self, is_larger):
        for work in list(self.world.reads):
            kind = self.world.requests[work].key.split()[0]
            self.world.reads.remove(work)
            what = dataclasses.replace(FOUND[kind], output_bytes=MIB) if is_larger else None
            self.world.apply(e.InputsRead(work, what, 1000, self.world.now_s))

    @rule(stamp=st.sampled_from(["x", "y", None]))
    def wrote(self, stamp):
        self.world.wrote(stamp)

    @rule(stamp=st.sampled_from(["x", "y", None]))
    def checked(self, stamp):
        self.world.checked(stamp)

    @rule(data=st.data())
    def storage_fails(self, data):
        world = self.world
        works = world.looks + world.reads + world.writes + world.checks
        if works:
            world.storage_failed(data.draw(st.sampled_from(works)))

    @rule(data=st.data(), failure=st.sampled_from(FAILURES), compute_s=st.sampled_from([1e-6, 0.2]))
    def finish_one(self, data, failure, compute_s):
        if self.world.running:
            work = data.draw(st.sampled_from(self.world.running))
            self.world.finish(work, failure=failure, compute_s=compute_s)

    @rule()
    def finish_all(self):
        self.world.finish()

    @precondition(lambda self: self.world.workers)
    @rule(data=st.data())
    def lose(self, data):
        worker = data.draw(st.sampled_from(sorted(self.world.workers)))
        mine = self.world.runs[worker]
        suspects = data.draw(st.sets(st.sampled_from(mine))) if mine else set()
        overwritten = data.draw(st.sets(st.sampled_from(sorted(suspects)))) if suspects else set()
        self.world.lose(worker, suspects, overwritten)

    @precondition(lambda self: self.world.connections)
    @rule(data=st.data())
    def stop(self, data):
        self.world.stop(self.connection(data))

    @precondition(lambda self: self.world.stopped & self.world.connections.keys())
    @rule(data=st.data())
    def go_on(self, data):
        self.world.go_on(self.connection(data, self.world.stopped & self.world.connections.keys()))

    @precondition(lambda self: self.world.connections)
    @rule(data=st.data())
    def close(self, data):
        self.world.close(self.connection(data))

    @rule(data=st.data())
    def cancel(self, data):
        waits = sorted((to, request) for to, request, _, _ in self.world.machine.waiting())
        if waits:
            self.world.cancel(*data.draw(st.sampled_from(waits)))

    @rule(can_create=st.booleans())
    def memory_runs_out(self, can_create):
        self.world.can_create = can_create

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.0, 3.0, 700.0]))
    def wait(self, seconds):
        self.world.wait(seconds)

    def teardown(self):
        """With workers, storage and time every request is answered; with all gone, all memory is back."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.can_create = True
        for connection in list(world.stopped & world.connections.keys()):
            world.go_on(connection)
        for kind in ("cpu", "cuda"):
            self.n_workers += 1
            world.worker(self.n_workers, kind)
        for _ in range(200):
            self.one_step()
            if not list(world.machine.waiting()):
                break
        assert not list(world.machine.waiting()), "somebody waits for ever"
        for connection in list(world.connections):
            world.close(connection)
        self.one_step()
        world.drain()
        assert world.is_drained
        pool = world.machine.snapshot()["pool"]
        assert pool["used_bytes"] == pool["kept_bytes"]
        assert pool["lent_bytes"] == 0
        assert set(world.works) == {work for work in world.remembered.values() if work is not None}
        assert not {name for name in world.machine._state.tenants} or pool["kept_bytes"]

    def one_step(self):
        world = self.world
        for connection, request, stage, _ in list(world.machine.waiting()):
            if stage == "receive" and connection not in world.blocked:
                work = world.machine._state.connections[connection].receiving
                if work is not None and work.request_id == request:
                    world.arrive(connection, request, b"1")
        self.looked()
        self.read(False)
        world.checked()
        world.wrote()
        world.finish()
        world.wait(0.5)


def test_nothing_is_computed_twice_for_a_key_while_it_is_under_way():
    world = World()
    world.worker()
    connections = [world.open() for _ in range(5)]
    requests = [(connection, world.ask(connection, "key")) for connection in connections]
    assert len(world.started) == 1
    world.finish()
    assert {type(world.answer(*request)) for request in requests} == {c.Reply}


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
