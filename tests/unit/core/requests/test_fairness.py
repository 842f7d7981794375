"""Simulated tenants on simulated workers: who gets how many device-seconds."""

import collections
import heapq
import itertools
import random

import pytest

from tests.examples import first
from tests.unit.core.requests.scheduler_driver import (
    Arrived,
    Driver,
    Finished,
    Item,
    Run,
    Tick,
    WakeAt,
    WorkerUp,
)
from tests.unit.core.requests.scheduler_driver import settings as rules

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 4.0}


class Simulation:
    """Tenants that each keep `window` items waiting, workers that take their time, and a clock of its own.

    Args:
        n_workers: how many workers there are.
        sizes: per tenant, a function that draws the device-seconds of its next item.
        estimate: what is expected of an item that really takes so long.
    """

    def __init__(self, n_workers, sizes, *, window=8, estimate=lambda seconds: seconds, key=None, **settings):
        self.random = random.Random(4)
        self.scheduler = Driver(rules(WEIGHTS.__getitem__, **settings))
        self.sizes, self.window, self.estimate, self.key = sizes, window, estimate, key
        self.now_s, self.wake_s, self.next_id = 0.0, None, 0
        self.seconds_of, self.tenant_of, self.arrived_s, self.answers = {}, {}, {}, []
        self.busy_until_s, self.used_s = collections.defaultdict(float), collections.Counter()
        self.waits_s = collections.defaultdict(list)
        for worker in range(n_workers):
            self.apply(WorkerUp(worker, "cpu", 0.0))

    def apply(self, event):
        for command in self.scheduler.apply(event):
            if isinstance(command, Run):
                self.run(command)
            elif isinstance(command, WakeAt):
                self.wake_s = command.at_s

    def run(self, run):
        started_s = max(self.now_s, self.busy_until_s[run.worker])
        busy_s = sum(self.seconds_of[item_id] for item_id in run.ids)
        self.busy_until_s[run.worker] = started_s + busy_s
        heapq.heappush(self.answers, (started_s + busy_s, run.worker, run.ids, busy_s))
        for item_id in run.ids:
            self.waits_s[self.tenant_of[item_id]].append(started_s - self.arrived_s[item_id])

    def arrive(self, tenant):
        self.next_id += 1
        seconds = self.sizes[tenant](self.random)
        self.seconds_of[self.next_id] = seconds
        self.tenant_of[self.next_id] = tenant
        self.arrived_s[self.next_id] = self.now_s
        expected = {"cpu": self.estimate(seconds)}
        self.apply(Arrived(Item(self.next_id, tenant, 0, self.key, 1, expected, 0.0, self.now_s), self.now_s))

    def come(self, *tenants):
        for tenant in tenants:
            for _ in range(self.window):
                self.arrive(tenant)

    def go_on(self, until_s, *, staying="abc"):
        """Let time pass; a tenant that stays sends an item for each answer."""
        while self.answers and self.answers[0][0] <= until_s:
            if self.wake_s is not None and self.wake_s < self.answers[0][0]:
                self.now_s, self.wake_s = self.wake_s, None
                self.apply(Tick(self.now_s))
                continue
            self.now_s, worker, ids, busy_s = heapq.heappop(self.answers)
            tenant = self.tenant_of[ids[0]]
            self.used_s[tenant] += busy_s
            self.apply(Finished(worker, ids, busy_s, self.now_s))
            for _ in ids:
                if tenant in staying:
                    self.arrive(tenant)
        self.now_s = until_s
        self.scheduler.validate()

    def shares(self, since):
        used_s = {tenant: self.used_s[tenant] - since[tenant] for tenant in "abc"}
        return {tenant: seconds / sum(used_s.values()) for tenant, seconds in used_s.items()}


def mixed(rng):
    """Very different sizes: from half a millisecond to two seconds."""
    return rng.choice([0.0005, 0.01, 0.01, 0.1, 0.5, 2.0])


SIZES = {
    "equal": dict.fromkeys("abc", lambda rng: 0.1),
    "mixed": dict.fromkeys("abc", mixed),
    "heavy tenant small": {"a": lambda rng: 1.0, "b": mixed, "c": lambda rng: 0.01},
    "heavy tenant large": {"a": lambda rng: 0.005, "b": lambda rng: 0.05, "c": lambda rng: rng.random() * 3},
}


@pytest.mark.parametrize(
    ("sizes", "n_workers", "key"),
    first(4, sorted(itertools.product(SIZES, (3, 1), (None, "k")), key=lambda each: each[1:] != (3, None))),
)
def test_under_overload_device_seconds_are_shared_by_weight(sizes, n_workers, key):
    simulation = Simulation(n_workers, SIZES[sizes], key=key, window=64, max_batch_size=4)
    simulation.come(*"abc")
    simulation.go_on(20.0)
    before = simulation.used_s.copy()
    simulation.go_on(270.0)
    shares = simulation.shares(before)
    for tenant, weight in WEIGHTS.items():
        assert shares[tenant] == pytest.approx(weight / 7, rel=0.05)


@pytest.mark.parametrize("factor", [0.02, 50.0])
def test_wrong_estimates_are_corrected_by_what_was_really_used(factor):
    """One tenant's work is misjudged by a factor of fifty, either way: it neither gains nor pays."""
    simulation = Simulation(2, SIZES["mixed"], window=8)
    simulation.estimate = lambda seconds: seconds * factor if simulation.next_id % 3 == 0 else seconds
    simulation.come(*"abc")
    simulation.go_on(700.0)
    shares = simulation.shares(collections.Counter())
    for tenant, weight in WEIGHTS.items():
        assert shares[tenant] == pytest.approx(weight / 7, rel=0.05)


def test_a_tenant_that_was_idle_gets_its_share_at_once_but_no_credit():
    simulation = Simulation(2, dict.fromkeys("abc", lambda rng: rng.choice([0.001, 0.01, 0.1])))
    simulation.come("a", "b")
    simulation.go_on(1000.0)
    assert simulation.shares(collections.Counter())["b"] == pytest.approx(2 / 3, rel=0.02)
    before = simulation.used_s.copy()
    simulation.come("c")
    simulation.go_on(1004.0)
    at_once = simulation.shares(before)["c"]
    assert at_once == pytest.approx(4 / 7, rel=0.15)
    before = simulation.used_s.copy()
    simulation.go_on(1104.0)
    assert simulation.shares(before)["c"] == pytest.approx(4 / 7, rel=0.05)


def test_who_used_an_idle_machine_owes_nothing_when_others_come():
    simulation = Simulation(1, SIZES["equal"])
    simulation.come("c")
    simulation.go_on(500.0)
    simulation.go_on(600.0, staying="")
    before = simulation.used_s.copy()
    simulation.come(*"abc")
    simulation.go_on(610.0)
    assert simulation.shares(before)["c"] == pytest.approx(4 / 7, rel=0.1)


def test_a_small_tenant_beside_a_flood_waits_for_one_batch_only():
    """Whoever asks for little waits for what runs, not for what others have queued."""
    sizes = {"a": lambda rng: 0.001, "b": lambda rng: 0.1, "c": lambda rng: 0.1}
    simulation = Simulation(1, sizes, window=500)
    simulation.come("b", "c")
    simulation.go_on(3.0)
    simulation.window = 1
    simulation.come("a")
    simulation.go_on(30.0)
    waits_s = simulation.waits_s["a"]
    assert len(waits_s) > 100
    assert max(waits_s) <= 0.31
