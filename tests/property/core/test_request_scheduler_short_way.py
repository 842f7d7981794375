"""The short way into the scheduler ends in the same state as the long way."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.core.requests.scheduler_driver import (
    Acceptance,
    Arrived,
    Cancelled,
    Driver,
    Finished,
    Item,
    Run,
    Tick,
    WakeAt,
    WorkerDown,
    WorkerUp,
)
from tests.unit.core.requests.scheduler_driver import settings as rules

WEIGHTS = {"a": 1.0, "b": 3.0, "c": 0.5}
TIMES = st.sampled_from([0.0, 0.0001, 0.003, 0.02, 1.0])
ITEMS = st.tuples(
    st.just("item"),
    st.sampled_from(sorted(WEIGHTS)),
    st.integers(-2, 2),
    st.sampled_from([None, "k", "l"]),
    st.sampled_from([{"cpu": 0.0004}, {"cpu": 0.0021}, {"cpu": 0.1}, {"cpu": 0.01, "cuda": 0.001}]),
    st.sampled_from([0.0, 0.0, 0.0, 0.05]),
)
STEPS = st.one_of(
    ITEMS,
    ITEMS,
    st.tuples(st.just("done"), st.integers(0, 3), TIMES),
    st.tuples(st.just("done"), st.integers(0, 3), TIMES),
    st.tuples(st.just("cancel"), st.integers(1, 20)),
    st.tuples(st.just("up"), st.integers(0, 2), st.sampled_from(["cpu", "cpu", "cuda"])),
    st.tuples(st.just("down"), st.integers(0, 2)),
    st.tuples(st.just("acceptance"), st.booleans()),
    st.tuples(st.just("tick")),
)


class Pair:
    """Two schedulers that hear the same; the second is asked for the short way first."""

    def __init__(self, max_queue_delay_s):
        these = rules(WEIGHTS.__getitem__, max_batch_size=3, max_queue_delay_s=max_queue_delay_s)
        self.long, self.short = Driver(these), Driver(these)
        self.now_s = 0.0
        self.n_items = self.n_short = 0

    def tell(self, event):
        said = self.long.apply(event)
        assert self.short.apply(event) == said
        assert facts(self.short) == facts(self.long)
        self.short.validate()

    def arrive(self, tenant, priority, batch_key, expected_s, patience_s):
        self.n_items += 1
        due_s = self.now_s + patience_s if patience_s else 0.0
        item = Item(self.n_items, tenant, priority, batch_key, 100, expected_s, due_s, self.now_s)
        before = facts(self.short)
        worker = self.short.start_at_once(item, self.now_s)
        if worker is None:
            assert facts(self.short) == before
            self.tell(Arrived(item, self.now_s))
            return
        self.n_short += 1
        said = self.long.apply(Arrived(item, self.now_s))
        assert [one for one in said if type(one) is not WakeAt] == [Run(worker, (item.id,))]
        assert facts(self.short) == facts(self.long)
        self.short.validate()


def facts(driver):
    """All that later decisions depend on, with the exact virtual times."""
    scheduler = driver.scheduler
    tenants = {
        name: (
            tenant.n_queued,
            tenant.n_running,
            tenant.used_bytes,
            dict(tenant.device_s),
            {kind: dataclasses.astuple(share) for kind, share in tenant.shares.items()},
        )
        for name, tenant in scheduler._tenants.items()
        if tenant.n_queued or tenant.n_running or any(share.start_v for share in tenant.shares.values())
    }
    groups = {
        kind: (group.n_queued, group.n_running, group.queued_s, group.virtual_s, group.furthest_v)
        for kind, group in scheduler._groups.items()
    }
    places = {kind: (list(group.idle), list(group.ready)) for kind, group in scheduler._groups.items()}
    workers = {
        number: [(one.tenant.name, list(one.left), one.expected_s, one.started_s) for one in worker.batches]
        for number, worker in scheduler.workers.items()
    }
    entries = {number: (entry.worker, entry.is_queued) for number, entry in driver.entries.items()}
    return tenants, groups, places, workers, entries


def follow(pair, step):
    what, *values = step
    if what == "item":
        pair.arrive(*values)
    elif what == "done":
        worker = pair.long.scheduler.workers.get(values[0])
        if worker is not None and worker.batches:
            pair.tell(Finished(worker.number, tuple(worker.batches[0].left), values[1], pair.now_s))
    elif what == "cancel":
        pair.tell(Cancelled(values[0], pair.now_s))
    elif what == "up":
        pair.tell(WorkerUp(*values, pair.now_s))
    elif what == "down":
        pair.tell(WorkerDown(*values, pair.now_s))
    elif what == "acceptance":
        pair.tell(Acceptance(pair.now_s, *values))
    else:
        pair.tell(Tick(pair.now_s))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(TIMES, STEPS), max_size=40), st.sampled_from([0.0, 0.0, 0.002]))
def test_the_short_way_is_the_long_way(steps, max_queue_delay_s):
    pair = Pair(max_queue_delay_s)
    pair.tell(WorkerUp(0, "cpu", 0.0))
    for pause_s, step in steps:
        pair.now_s += pause_s
        follow(pair, step)


def test_the_short_way_is_the_usual_one():
    pair = Pair(0.0)
    pair.tell(WorkerUp(0, "cpu", 0.0))
    for _ in range(10):
        pair.now_s += 0.01
        pair.arrive("a", 0, "k", {"cpu": 0.0004}, 0.0)
        pair.tell(Finished(0, (pair.n_items,), 0.0003, pair.now_s))
    assert pair.n_short == 10
