"""Whatever happens in whatever order, every item gets exactly one fate and no worker idles beside work."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.examples import examples
from tests.unit.core.requests.scheduler_driver import (
    Acceptance,
    Arrived,
    Cancelled,
    Driver,
    Drop,
    Expire,
    Finished,
    Item,
    Lost,
    Run,
    Tick,
    WakeAt,
    WorkerDown,
    WorkerUp,
)
from tests.unit.core.requests.scheduler_driver import settings as rules

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 4.0}
KINDS = ("cpu", "cuda")
expectations = st.dictionaries(st.sampled_from(KINDS), st.sampled_from([0.0, 0.001, 0.1, 3.0]), min_size=1)


class SchedulerMachine(RuleBasedStateMachine):
    """A shell that believes nothing: it keeps its own books and compares."""

    @initialize(
        size=st.integers(1, 4),
        max_bytes=st.sampled_from([0, 10, 100]),
        delay_s=st.sampled_from([0.0, 0.5]),
        prefetch_s=st.sampled_from([0.0, 0.005]),
        lanes=st.fixed_dictionaries({}, optional={kind: st.integers(1, 3) for kind in KINDS}),
    )
    def start(self, size, max_bytes, delay_s, prefetch_s, lanes):
        values = {"max_batch_size": size, "max_batch_bytes": max_bytes, "max_queue_delay_s": delay_s}
        values |= {"prefetch_below_s": prefetch_s, "lanes": lanes}
        self.settings = rules(WEIGHTS.__getitem__, **values)
        self.scheduler = Driver(self.settings)
        self.now_s, self.wake_s, self.is_open, self.next_id = 100.0, None, True, 0
        self.items, self.queued, self.workers, self.on_worker, self.fates = {}, set(), {}, {}, {}

    def apply(self, event):
        if self.wake_s is not None and self.wake_s <= self.now_s:
            self.wake_s = None
        for command in self.scheduler.apply(event):
            if isinstance(command, Run):
                self.take_run(command)
            elif isinstance(command, Lost):
                assert command.ids
                self.settle(command.ids, "lost")
            elif isinstance(command, Expire):
                assert 0 < self.items[command.id].due_s <= self.now_s
                self.queued.remove(command.id)
                self.settle([command.id], "expired")
            elif isinstance(command, Drop):
                assert isinstance(event, Cancelled)
                assert command.id == event.id
                self.queued.remove(command.id)
                self.settle([command.id], "dropped")
            else:
                assert isinstance(command, WakeAt)
                assert command.at_s > self.now_s
                self.wake_s = command.at_s
        self.scheduler.validate()

    def take_run(self, run):
        assert self.is_open
        assert 1 <= len(run.ids) <= self.settings.max_batch_size
        items = [self.items[item_id] for item_id in run.ids]
        assert len({(item.tenant, item.batch_key) for item in items}) == 1
        if len(items) > 1:
            assert items[0].batch_key is not None
            assert sum(item.n_bytes for item in items) <= self.settings.max_batch_bytes
        for item in items:
            assert self.workers[run.worker] in item.expected_s
            assert not 0 < item.due_s <= self.now_s
            self.queued.remove(item.id)
            self.on_worker[item.id] = run.worker

    def settle(self, ids, fate):
        for item_id in ids:
            assert item_id not in self.fates
            self.fates[item_id] = fate
            self.on_worker.pop(item_id, None)

    @rule(
        tenant=st.sampled_from("abc"),
        priority=st.integers(-8, 7),
        batch_key=st.sampled_from([None, "x", "y"]),
        n_bytes=st.sampled_from([0, 7, 60]),
        expected_s=expectations,
        due_in_s=st.sampled_from([None, None, 0.3, 2.0, -1.0]),
    )
    def arrive(self, tenant, priority, batch_key, n_bytes, expected_s, due_in_s):
        self.next_id += 1
        times_s = 0.0 if due_in_s is None else self.now_s + due_in_s, self.now_s - 1
        item = Item(self.next_id, tenant, priority, batch_key, n_bytes, expected_s, *times_s)
        self.items[item.id] = item
        self.queued.add(item.id)
        self.apply(Arrived(item, self.now_s))

    @rule(item_id=st.integers(0, 60))
    def cancel(self, item_id):
        was_queued = item_id in self.queued
        self.apply(Cancelled(item_id, self.now_s))
        assert not was_queued or self.fates[item_id] == "dropped"

    @rule(worker=st.integers(0, 2), kind=st.sampled_from(KINDS))
    def worker_comes(self, worker, kind):
        self.workers[worker] = kind
        lost = {item_id for item_id, where in self.on_worker.items() if where == worker}
        self.apply(WorkerUp(worker, kind, self.now_s))
        assert all(self.fates[item_id] == "lost" for item_id in lost)

    @rule(worker=st.integers(0, 2))
    def worker_goes(self, worker):
        self.workers.pop(worker, None)
        lost = {item_id for item_id, where in self.on_worker.items() if where == worker}
        self.apply(WorkerDown(worker, self.now_s))
        assert all(self.fates[item_id] == "lost" for item_id in lost)

    @precondition(lambda self: self.on_worker)
    @rule(data=st.data(), busy_s=st.sampled_from([0.0, 0.01, 5.0]))
    def finish_some(self, data, busy_s):
        worker = data.draw(st.sampled_from(sorted(set(self.on_worker.values()))))
        mine = sorted(item_id for item_id, where in self.on_worker.items() if where == worker)
        ids = data.draw(st.lists(st.sampled_from(mine), min_size=1, unique=True))
        self.settle(ids, "finished")
        self.apply(Finished(worker, tuple(ids), busy_s, self.now_s))

    @precondition(lambda self: self.on_worker)
    @rule(data=st.data())
    def finish_a_worker(self, data):
        worker = data.draw(st.sampled_from(sorted(set(self.on_worker.values()))))
        ids = tuple(item_id for item_id, where in self.on_worker.items() if where == worker)
        self.settle(ids, "finished")
        self.apply(Finished(worker, ids, 0.02, self.now_s))

    @rule(worker=st.integers(0, 3), item_id=st.integers(0, 60))
    def finish_late_or_twice(self, worker, item_id):
        if self.on_worker.get(item_id) != worker:
            before = self.scheduler.snapshot()
            self.apply(Finished(worker, (item_id,), 1.0, self.now_s))
            assert self.scheduler.snapshot()["tenants"] == before["tenants"]

    @rule(is_open=st.booleans())
    def acceptance(self, is_open):
        self.is_open = is_open
        self.apply(Acceptance(self.now_s, is_open))

    @rule(seconds=st.sampled_from([0.001, 0.5, 3.0]))
    def wait(self, seconds):
        until_s = self.now_s + seconds
        while self.wake_s is not None and self.wake_s <= until_s:
            self.now_s = self.wake_s
            self.apply(Tick(self.now_s))
        self.now_s = until_s
        self.apply(Tick(self.now_s))

    @rule()
    def time_goes_back(self):
        self.apply(Tick(self.now_s - 50.0))

    @invariant()
    def every_item_is_in_one_place(self):
        places = [self.queued, set(self.on_worker), set(self.fates)]
        assert sum(map(len, places)) == len(self.items)
        assert set().union(*places) == set(self.items)
        snapshot = self.scheduler.snapshot()
        assert (snapshot["queued"], snapshot["running"]) == (len(self.queued), len(self.on_worker))
        entries = self.scheduler.entries
        assert {each for each in entries if entries[each].is_queued} == self.queued
        assert {each for each in entries if entries[each].worker is not None} == set(self.on_worker)

    def teardown(self):
        """With workers, memory and time, nothing is left behind."""
        if not hasattr(self, "scheduler"):
            return
        self.acceptance(True)
        for worker, kind in enumerate(KINDS):
            self.worker_comes(worker, kind)
        for _ in range(2 * len(self.items) + 2):
            if not self.queued and not self.on_worker:
                return
            for worker in sorted(set(self.on_worker.values())):
                ids = tuple(item_id for item_id, where in self.on_worker.items() if where == worker)
                self.settle(ids, "finished")
                self.apply(Finished(worker, ids, 0.02, self.now_s))
            self.wait(3.0)
        raise AssertionError(f"left behind: {self.queued or self.on_worker}")


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
