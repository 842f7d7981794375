"""Stories about the scheduler, each told in events and commands."""

from tests.unit.core.requests.scheduler_driver import (
    Arrived,
    Cancelled,
    Driver,
    Drop,
    Expire,
    Finished,
    Item,
    Lost,
    Room,
    Run,
    Tick,
    WakeAt,
    WorkerDown,
    WorkerUp,
)
from tests.unit.core.requests.scheduler_driver import (
    settings as rules,
)


def item(
    item_id, tenant="a", *, priority=0, key=None, n_bytes=1, cpu=1.0, cuda=None, due_s=0.0, arrived_s=0.0
):
    expected = {} if cpu is None else {"cpu": cpu}
    if cuda is not None:
        expected["cuda"] = cuda
    return Item(item_id, tenant, priority, key, n_bytes, expected, due_s, arrived_s)


class Told:
    """A scheduler and the clock; every event is followed by a check of its state."""

    def __init__(self, **settings):
        settings.setdefault("prefetch_below_s", 0.0)
        settings.setdefault("prefetched_kinds", ())
        weights = settings.pop("weights", {})
        self.scheduler = Driver(rules(lambda name: weights.get(name, 1.0), **settings))
        self.now_s = 0.0

    def __call__(self, event):
        commands = self.scheduler.apply(event)
        self.scheduler.validate()
        return commands

    def at(self, now_s):
        self.now_s = now_s
        return self

    def arrive(self, item_id, tenant="a", **more):
        return self(Arrived(item(item_id, tenant, **{"arrived_s": self.now_s, **more}), self.now_s))

    def up(self, worker=0, kind="cpu"):
        return self(WorkerUp(worker, kind, self.now_s))

    def down(self, worker=0):
        return self(WorkerDown(worker, self.now_s))

    def finish(self, worker, *ids, busy_s=1.0):
        return self(Finished(worker, ids, busy_s, self.now_s))

    def tick(self):
        return self(Tick(self.now_s))


def drained(told, worker=0):
    """The batches in the order in which one worker gets them, each finished at once."""
    order = []
    commands = told.up(worker)
    while commands:
        (run,) = commands
        order.append(run.ids)
        commands = told.finish(worker, *run.ids)
    return order


def test_an_idle_worker_gets_an_item_at_once():
    told = Told()
    assert told.up() == []
    assert told.arrive(1) == [Run(0, (1,))]
    assert told.arrive(2) == []
    assert told.finish(0, 1) == [Run(0, (2,))]


def test_equal_priorities_go_by_arrival_and_higher_ones_first():
    told = Told()
    for item_id, priority, arrived_s in ((1, 0, 0.0), (2, 7, 1.0), (3, 0, 0.5), (4, -8, 0.0)):
        told.arrive(item_id, priority=priority, arrived_s=arrived_s)
    assert drained(told) == [(2,), (1,), (3,), (4,)]


def test_priority_overtakes_but_not_for_ever():
    told = Told(priority_step_s=10.0)
    told.arrive(1, priority=-8, arrived_s=0.0)
    told.at(149.0).arrive(2, priority=7)
    told.at(151.0).arrive(3, priority=7)
    assert drained(told) == [(2,), (1,), (3,)]


def test_an_unknown_worker_or_item_changes_nothing():
    told = Told()
    told.up()
    told.arrive(1)
    assert told.finish(9, 1) == []
    assert told.finish(0, 5) == []
    assert told.finish(0, 1) == []
    assert told.finish(0, 1) == []
    assert told.scheduler.snapshot()["tenants"]["a"]["device_s"] == 1.0


def test_a_lost_item_may_come_again_and_keeps_its_place():
    told = Told()
    told.up()
    told.arrive(1)
    told.at(1.0).arrive(2)
    assert told.down() == [Lost(0, (1,))]
    told.arrive(1, arrived_s=0.0)
    assert told.up() == [Run(0, (1,))]
    assert told.up() == [Lost(0, (1,)), Run(0, (2,))]


def test_cancelled_work_is_dropped_unless_it_runs():
    told = Told()
    told.up()
    told.arrive(1)
    told.arrive(2)
    assert told(Cancelled(2, 0.0)) == [Drop(2)]
    assert told(Cancelled(1, 0.0)) == []
    assert told(Cancelled(2, 0.0)) == []
    assert told.finish(0, 1) == []


def test_expired_work_is_not_started():
    told = Told()
    told.up()
    told.arrive(1)
    assert told.arrive(2, due_s=5.0) == [WakeAt(5.0)]
    assert told.arrive(3, due_s=3.0) == [WakeAt(3.0)]
    assert told.arrive(4, due_s=4.0) == []
    assert told.at(3.0).tick() == [Expire(3), WakeAt(4.0)]
    assert told.at(4.5).finish(0, 1) == [Expire(4), Run(0, (2,))]
    assert told.at(9.0).tick() == []


def test_what_arrives_too_late_expires_at_once():
    told = Told()
    told.up()
    assert told.at(7.0).arrive(1, due_s=6.0) == [Expire(1)]


def test_nothing_starts_while_results_have_no_room():
    told = Told()
    told.up()
    told(Room(0.0, False))
    assert told.arrive(1) == []
    assert "are not taken" in told.scheduler.explain(1)
    assert told(Room(0.0, True)) == [Run(0, (1,))]


# Batches


def test_what_waits_is_taken_together_up_to_the_size():
    told = Told(max_batch_size=3)
    for item_id in range(1, 6):
        told.arrive(item_id, key="lu")
    assert drained(told) == [(1, 2, 3), (4, 5)]


def test_a_batch_holds_one_key_of_one_tenant_within_the_bytes():
    told = Told(max_batch_bytes=10)
    told.arrive(1, key="lu", n_bytes=6)
    told.arrive(2, key="qr", n_bytes=1)
    told.arrive(3, "b", key="lu", n_bytes=1)
    told.arrive(4, key="lu", n_bytes=4)
    told.arrive(5, key="lu", n_bytes=1)
    told.arrive(6, key=None, n_bytes=1)
    told.arrive(7, key="big", n_bytes=99)
    assert sorted(drained(told)) == [(1, 4), (2,), (3,), (5,), (6,), (7,)]


def test_without_delay_an_idle_worker_never_waits_for_company():
    told = Told(max_queue_delay_s=0.0)
    told.up()
    assert told.arrive(1, key="lu") == [Run(0, (1,))]


def test_with_delay_a_batch_waits_until_full_or_old_enough():
    told = Told(max_queue_delay_s=0.5, max_batch_size=3)
    told.up()
    assert told.arrive(1, key="lu") == [WakeAt(0.5)]
    assert "may fill" in told.scheduler.explain(1)
    assert told.at(0.1).arrive(2, key="lu") == []
    assert told.at(0.2).arrive(3, key="lu") == [Run(0, (1, 2, 3))]
    told.at(1.0).tick()
    assert told.finish(0, 1, 2, 3) == []
    assert told.arrive(4, key="lu") == [WakeAt(1.5)]
    assert told.at(1.2).arrive(5, key="lu") == []
    assert told.at(1.5).tick() == [Run(0, (4, 5))]


def test_what_does_not_batch_never_waits_for_the_delay():
    told = Told(max_queue_delay_s=0.5)
    told.up()
    assert told.arrive(1) == [Run(0, (1,))]


def test_a_batch_that_is_no_longer_full_waits_again():
    told = Told(max_queue_delay_s=0.5, max_batch_size=2)
    told.arrive(1, key="lu")
    told.at(0.3).arrive(2, key="lu")
    told(Cancelled(1, 0.3))
    assert told.up() == []
    told.at(0.5).tick()
    assert told.at(0.8).tick() == [Run(0, (2,))]


# Workers


def test_the_next_batch_is_sent_ahead_of_a_short_one():
    told = Told(prefetch_below_s=0.005)
    told.up()
    assert told.arrive(1, cpu=0.001) == [Run(0, (1,))]
    assert told.arrive(2, cpu=3.0) == [Run(0, (2,))]
    assert told.arrive(3, cpu=0.001) == []
    assert told.finish(0, 1, busy_s=0.001) == []
    assert told.finish(0, 2, busy_s=3.0) == [Run(0, (3,))]
    told.arrive(4, cpu=1.0)
    assert told.down() == [Lost(0, (3, 4))]


def test_nothing_is_sent_ahead_to_who_takes_longer_than_expected():
    told = Told(prefetch_below_s=0.005)
    told.up()
    told.arrive(1, cpu=0.001)
    told.at(0.006)
    assert told.arrive(2, cpu=0.001) == []
    assert told.finish(0, 1) == [Run(0, (2,))]


def test_a_device_that_copies_while_it_computes_has_its_next_batch_whatever_is_expected():
    told = Told(prefetched_kinds=("cuda",))
    told.up(0, "cuda")
    assert told.arrive(1, cpu=None, cuda=100.0) == [Run(0, (1,))]
    assert told.at(50.0).arrive(2, cpu=None, cuda=100.0) == [Run(0, (2,))]
    assert told.arrive(3, cpu=None, cuda=100.0) == [], "one ahead, not two"
    assert told.finish(0, 1, busy_s=60.0) == [Run(0, (3,))]


def test_only_the_kinds_that_are_named_are_sent_work_ahead_of_time():
    told = Told(prefetched_kinds=("cuda",))
    told.up(0, "cpu")
    told.arrive(1)
    assert told.arrive(2) == []
    assert rules(lambda name: 1.0).prefetched_kinds == ("cuda",)


def test_who_is_idle_comes_before_who_can_take_a_second_batch():
    """The cuda group is asked first, as it came first, and yet the idle cpu gets what it does sooner."""
    told = Told(prefetched_kinds=("cuda",))
    told.up(0, "cuda")
    told.arrive(1, cpu=None, cuda=10.0)
    told.up(1, "cpu")
    assert told.arrive(2, cpu=1.5, cuda=1.0) == [Run(1, (2,))]
    assert told.arrive(3, cpu=1.5, cuda=1.0) == [Run(0, (3,))]
    assert told.arrive(4, cpu=1.5, cuda=1.0) == []


def test_a_batch_may_be_answered_in_parts():
    told = Told(prefetch_below_s=0.005)
    for item_id in (1, 2, 3):
        told.arrive(item_id, key="lu", cpu=1.0)
    assert told.up() == [Run(0, (1, 2, 3))]
    told.arrive(4)
    assert told.finish(0, 2, busy_s=0.5) == []
    assert told.finish(0, 3, 1, busy_s=0.5) == [Run(0, (4,))]


def test_an_idle_worker_comes_before_a_short_queue():
    told = Told(prefetch_below_s=0.005)
    told.up(0)
    told.arrive(1, cpu=0.001)
    told.up(1)
    assert told.arrive(2, cpu=0.001) == [Run(1, (2,))]


def test_work_goes_where_it_will_be_done_first():
    told = Told()
    told.up(0, "cpu")
    told.up(1, "cuda")
    assert told.arrive(1, cpu=10.0, cuda=1.0) == [Run(1, (1,))]
    # Done at 2 there, at 10 here.
    assert told.arrive(2, cpu=10.0, cuda=1.0) == [WakeAt(10.0)]
    assert "another device kind" in told.scheduler.explain(2)
    for item_id in range(3, 10):
        told.arrive(item_id, cpu=10.0, cuda=1.0)
    # With ten seconds of work before the end of the line, the slow worker helps.
    assert told.arrive(10, cpu=10.0, cuda=1.0) == [Run(0, (2,))]


def test_work_for_one_kind_does_not_block_work_for_another():
    told = Told()
    told.up(0, "cpu")
    told.arrive(1, cpu=None, cuda=1.0)
    assert told.arrive(2) == [Run(0, (2,))]
    assert "no worker of kind cuda" in told.scheduler.explain(1)
    assert told.up(1, "cuda") == [Run(1, (1,))]


def test_the_slow_kind_takes_everything_when_the_fast_one_is_gone():
    told = Told()
    told.up(0, "cpu")
    told.up(1, "cuda")
    told.arrive(1, cpu=10.0, cuda=1.0)
    assert told.down(1) == [Lost(1, (1,))]
    assert told.arrive(1, cpu=10.0, cuda=1.0) == [Run(0, (1,))]


def test_who_overran_is_not_believed_to_be_free_soon():
    told = Told()
    told.up(0, "cpu")
    told.up(1, "cuda")
    told.arrive(1, cpu=10.0, cuda=1.0)
    assert told.arrive(2, cpu=10.0, cuda=1.0) == [WakeAt(10.0)]
    assert told.at(11.0).tick() == [Run(0, (2,))]


# Looking in


def test_explain_says_what_an_item_waits_for():
    told = Told()
    told.up()
    told.arrive(1)
    told.arrive(2)
    told.arrive(3, priority=1)
    explain = told.scheduler.explain
    assert explain(1) == "on worker 0"
    assert explain(2) == "queued behind 1 of its tenant a (weight 1): all workers are busy"


def test_many_tenants_and_keys_leave_nothing_behind():
    told = Told()
    told.scheduler.apply(WorkerUp(0, "cpu", 0.0))
    for number in range(5000):
        (run,) = told.scheduler.apply(Arrived(item(number, f"t{number}", key=number), number))
        told.scheduler.apply(Finished(0, run.ids, 1.0, number))
    assert len(told.scheduler.snapshot()["tenants"]) < 2000
    told.scheduler.validate()


def test_deadlines_of_what_is_done_are_not_kept_behind_one_that_waits():
    told = Told()
    told.up()
    told.arrive(0, cpu=None, cuda=1.0, due_s=1e6)
    for number in range(1, 3000):
        told.scheduler.apply(Arrived(item(number, due_s=2e6), 0.0))
        told.scheduler.apply(Finished(0, (number,), 1.0, 0.0))
    assert len(told.scheduler.scheduler._due) < 200
    told.scheduler.validate()


def test_cancelling_over_and_over_leaves_nothing_behind():
    told = Told(max_queue_delay_s=1.0)
    for number in range(3000):
        told.scheduler.apply(Arrived(item(number, key=number % 2, priority=number % 16 - 8, due_s=1e9), 0.0))
        assert Drop(number) in told.scheduler.apply(Cancelled(number, 0.0))
    told.scheduler.validate()
    scheduler = told.scheduler.scheduler
    (tenant,) = scheduler._tenants.values()
    (kinds,) = tenant.kinds.values()
    n_dead = len(scheduler._due) + len(scheduler._alarms) + len(kinds._heap)
    n_dead += sum(len(queue._heap) for queue in kinds.queues.values())
    assert n_dead < 600
