"""Whatever happens in whatever order: one answer each, nothing computed twice, no byte lost or used twice.

`World` checks every command against what a shell can do, and the machine validates itself after every event.
A walk of many steps is drawn from one number, so that likely steps can be likely.
"""

import dataclasses
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.core.requests.world import KIB, MIB, World, needs
from yarn_accel.core.requests import events as e
from yarn_accel.core.requests.records import SharedInputs

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
SHARED = {
    kind: (dataclasses.replace(KINDS[kind], payload_bytes=0), KINDS[kind].payload_bytes)
    for kind in ("small", "keep", "medium", "large")
}
FOUND = {
    "file": needs(reads=READS, input_bytes=256 * KIB, output_bytes=64 * KIB),
    "both": needs(reads=READS, payload_bytes=50 * KIB, input_bytes=200 * KIB, operation="sum"),
}
FAILURES = (e.Failure("rejected", "singular", "no"), e.Failure("internal", "internal-error", "broke"))
#: What happens, and how often.
STEPS = {"open": 4, "worker": 2, "ask": 40, "ask_shared": 8, "want": 5, "give_back": 2, "arrive": 20}
STEPS |= {"looked": 8, "read": 8, "wrote": 6, "checked": 6, "storage_fails": 1, "finish_one": 25}
STEPS |= {"finish_all": 4, "lose": 3, "stop": 3, "go_on": 4, "close": 2, "cancel": 4}
STEPS |= {"memory_runs_out": 1, "wait": 15, "lost_ends": 2}


class Walk:
    """Clients, workers, storage and time in any order."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        choice = self.random.choice
        self.world = World(
            pool_bytes=choice([8 * MIB, 16 * MIB]),
            queue_bytes=choice([2 * MIB, 8 * MIB]),
            max_queue_delay_s=choice([0.0, 0.0, 0.05]),
            max_attempts=choice([1, 2]),
            reply_cache_bytes=choice([8 * KIB, MIB, MIB]),
            reply_cache_age_s=choice([5.0, 600.0]),
            max_in_flight=6,
            max_batch_size=3,
        )
        self.n_workers = 0

    def run(self, n_steps):
        for _ in range(2):
            self.open()
        self.worker()
        for step in self.random.choices(list(STEPS), list(STEPS.values()), k=n_steps):
            getattr(self, step)()

    def one(self, among):
        among = sorted(among)
        return self.random.choice(among) if among else None

    def open(self):
        if len(self.world.connections) < 8:
            self.world.open(self.random.choice(["light", "heavy", "other"]))

    def worker(self):
        if len(self.world.workers) < 3:
            self.n_workers += 1
            self.world.worker(self.n_workers, self.random.choice(["cpu", "cpu", "cuda"]))

    def ask(self):
        connection, choice = self.one(self.world.free), self.random.choice
        if connection is not None:
            kind = choice(list(KINDS))
            digest = choice([*[b"1"] * 6, b"2", *[None] * 3])
            key = choice("abc")
            writes = "hdfs://nn/out/x" if (key == "c") != (self.random.random() < 0.05) else ""
            more = {"writes": writes, "priority": choice([-1, 0, 1])}
            more["deadline_s"] = choice([0.0, 0.0, 0.0, 0.3])
            self.world.ask(connection, f"{kind} {key}", KINDS[kind], digest, **more)

    def ask_shared(self):
        world = self.world
        mine = self.one((to, segment) for segment, to in world.shared.items() if to in world.free)
        if mine is not None:
            kind = self.random.choice(list(SHARED))
            what, n_bytes = SHARED[kind]
            key = f"shared {kind} {self.random.choice('ab')}"
            world.ask(mine[0], key, what, b"d", shared=SharedInputs(mine[1], n_bytes))

    def want(self):
        connection = self.one(self.world.connections)
        if connection is not None:
            self.world.want(connection, self.random.choice([100 * KIB, 500 * KIB, MIB]))

    def give_back(self):
        mine = self.one((to, segment) for segment, to in self.world.shared.items())
        if mine is not None:
            self.world.give_back(*mine)

    def arrive(self):
        connection = self.one(self.world.sending)
        if connection is not None:
            request = self.world.works[self.world.sending[connection]]
            self.world.arrive(*request, self.random.choice([*[b"1"] * 6, b"2"]))

    def looked(self):
        works, self.world.looks = self.world.looks, []
        for work in works:
            kind = self.world.requests[work].key.split()[0]
            self.world.apply(e.Looked(work, b"stamps", FOUND[kind], self.world.now_s))

    def read(self):
        self.world.read()

    def wrote(self):
        self.world.wrote(self.random.choice(["x", "x", "y", None]))

    def checked(self):
        self.world.checked(self.random.choice(["x", "x", "y", None]))

    def storage_fails(self):
        world = self.world
        work = self.one(world.looks + world.reads + world.writes + world.checks)
        if work is not None:
            world.storage_failed(work)

    def finish_one(self):
        work = self.one(self.world.running)
        if work is not None:
            failure = self.random.choice(FAILURES) if self.random.random() < 0.1 else None
            self.world.finish(work, failure=failure, compute_s=self.random.choice([1e-6, 0.2]))

    def finish_all(self):
        self.world.finish()

    def lose(self):
        worker = self.one(self.world.workers)
        if worker is not None:
            suspects = [work for work in self.world.runs[worker] if self.random.random() < 0.5]
            overwritten = [work for work in suspects if self.random.random() < 0.3]
            self.world.lose(worker, suspects, overwritten, is_running=self.random.random() < 0.3)

    def lost_ends(self):
        worker = self.one(self.world.leaked)
        if worker is not None:
            self.world.end(worker)

    def stop(self):
        connection = self.one(self.world.connections)
        if connection is not None:
            self.world.stop(connection)

    def go_on(self):
        connection = self.one(self.world.stopped & self.world.connections.keys())
        if connection is not None:
            self.world.go_on(connection)

    def close(self):
        connection = self.one(self.world.connections)
        if connection is not None:
            self.world.close(connection)

    def cancel(self):
        waits = self.one((to, request) for to, request, _ in self.world.waiting)
        if waits is not None and waits[0] not in self.world.sending:
            self.world.cancel(*waits)

    def memory_runs_out(self):
        self.world.can_create = not self.world.can_create

    def wait(self):
        self.world.wait(self.random.choice([0.01, 0.01, 0.2, 0.2, 1.0, 3.0, 6.0]))

    # The end

    def end(self):
        """With workers, storage and time every request is answered; with all gone, all memory is back."""
        world = self.world
        world.can_create = True
        for worker in list(world.leaked):
            world.end(worker)
        for connection in list(world.stopped & world.connections.keys()):
            world.go_on(connection)
        for kind in ("cpu", "cuda"):
            self.n_workers += 1
            world.worker(self.n_workers, kind)
        for _ in range(200):
            self.everything()
            if not world.waiting:
                break
        assert not world.waiting, "somebody waits for ever"
        for connection in list(world.connections):
            world.close(connection)
        self.everything()
        world.drain()
        assert world.is_drained
        pool = world.machine.snapshot()["pool"]
        assert pool["used_bytes"] == pool["kept_bytes"]
        assert pool["shared_bytes"] == pool["leaked_bytes"] == 0
        assert set(world.works) == {work for work in world.remembered.values() if work is not None}
        assert bool(world.machine._state.tenants) == bool(pool["kept_bytes"])

    def everything(self):
        for work in list(self.world.sending.values()):
            self.world.arrive(*self.world.works[work], b"1")
        self.looked()
        self.read()
        self.checked()
        self.wrote()
        self.world.finish()
        self.world.wait(0.5)


@settings(max_examples=examples(500), deadline=None)
@given(seed=st.integers(0, 1 << 32), n_steps=st.integers(20, 200))
def test_whatever_happens_the_books_are_right(seed, n_steps):
    walk = Walk(seed)
    walk.run(n_steps)
    walk.end()


class Rivals:
    """A tenant whose clients stop at any moment, and one that always takes its answers at once."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.world = World(pool_bytes=32 * MIB, queue_bytes=16 * MIB)
        self.world.worker(1)
        self.stopped = []

    def provoke(self):
        """Have the tenant that stops hold whatever it can."""
        world, choice = self.world, self.random.choice
        if len(self.stopped) < 6:
            self.stopped.append(world.open("light"))
        connection = choice(self.stopped)
        if connection not in world.free:
            self.stopped = [each for each in self.stopped if each in world.connections]
            return
        world.stop(connection)
        if self.random.random() < 0.2:
            world.want(connection, choice([MIB, 4 * MIB]))
        n_bytes = choice([64, MIB, 3 * MIB])
        what = needs(n_bytes, choice([64, MIB, 4 * MIB]), operation="lu")
        world.ask(connection, what=what, digest=choice([b"d", b"d", None]))

    def run(self, n_steps):
        world = self.world
        mine = world.open("other")
        for _ in range(n_steps):
            for _ in range(self.random.randrange(4)):
                self.provoke()
            request = world.ask(mine, what=needs(self.random.choice([64, MIB, 4 * MIB]), 4 * MIB))
            began_s = world.now_s
            while not world.kind(mine, request):
                assert world.now_s - began_s <= 1.0, world.machine.snapshot()
                world.finish()
                world.wait(0.02)
            world.wait(self.random.choice([0.0, 0.1, 1.0]))


@settings(max_examples=examples(50), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_clients_that_stop_delay_another_tenant_by_a_second_at_most(seed):
    """Computing takes no time here, so what is waited for is memory, and results that leave."""
    Rivals(seed).run(25)
