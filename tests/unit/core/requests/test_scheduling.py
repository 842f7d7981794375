"""Stories about the scheduler, each described in events and commands; expectations follow what devices do."""

from __future__ import annotations

import pytest

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
from yarn_accel.core.requests.scheduling import RateTable


def item(item_id, tenant="a", *, key=None, cpu=1.0, cuda=None, **more):
    expected = {kind: seconds for kind, seconds in (("cpu", cpu), ("cuda", cuda)) if seconds is not None}
    values = {"priority": 0, "n_bytes": 1, "due_s": 0.0, "arrived_s": 0.0, **more}
    return Item(item_id, tenant, batch_key=key, expected_s=expected, **values)


class Driven:
    """A scheduler and the clock; every event is followed by a check of its state."""

    def __init__(self, **settings):
        settings.setdefault("prefetch_below_s", 0.0)
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


def drained(driven, worker=0):
    """The batches in the order in which one worker gets them, each finished at once."""
    order = []
    commands = driven.up(worker)
    while commands:
        (run,) = commands
        order.append(run.ids)
        commands = driven.finish(worker, *run.ids)
    return order


def test_an_idle_worker_gets_an_item_at_once():
    driven = Driven()
    assert driven.up() == []
    assert driven.arrive(1) == [Run(0, (1,))]
    assert driven.arrive(2) == []
    assert driven.finish(0, 1) == [Run(0, (2,))]


def test_equal_priorities_go_by_arrival_and_higher_ones_first():
    driven = Driven()
    for item_id, priority, arrived_s in ((1, 0, 0.0), (2, 7, 1.0), (3, 0, 0.5), (4, -8, 0.0)):
        driven.arrive(item_id, priority=priority, arrived_s=arrived_s)
    assert drained(driven) == [(2,), (1,), (3,), (4,)]


def test_priority_overtakes_but_not_for_ever():
    driven = Driven(priority_step_s=10.0)
    driven.arrive(1, priority=-8, arrived_s=0.0)
    driven.at(149.0).arrive(2, priority=7)
    driven.at(151.0).arrive(3, priority=7)
    assert drained(driven) == [(2,), (1,), (3,)]


def test_a_lost_item_may_come_again_and_keeps_its_place():
    driven = Driven()
    driven.up()
    driven.arrive(1)
    driven.at(1.0).arrive(2)
    assert driven.down() == [Lost(0, (1,))]
    driven.arrive(1, arrived_s=0.0)
    assert driven.up() == [Run(0, (1,))]
    assert driven.up() == [Lost(0, (1,)), Run(0, (2,))]


def test_expired_work_is_not_started():
    driven = Driven()
    driven.up()
    driven.arrive(1)
    assert driven.arrive(2, due_s=5.0) == [WakeAt(5.0)]
    assert driven.arrive(3, due_s=3.0) == [WakeAt(3.0)]
    assert driven.arrive(4, due_s=4.0) == []
    assert driven.at(3.0).tick() == [Expire(3), WakeAt(4.0)]
    assert driven.at(4.5).finish(0, 1) == [Expire(4), Run(0, (2,))]
    assert driven.at(9.0).tick() == []


def test_what_arrives_too_late_expires_at_once():
    driven = Driven()
    driven.up()
    assert driven.at(7.0).arrive(1, due_s=6.0) == [Expire(1)]


def test_nothing_starts_while_results_have_no_place():
    driven = Driven()
    driven.up()
    driven(Acceptance(0.0, False))
    assert driven.arrive(1) == []
    assert driven(Acceptance(0.0, True)) == [Run(0, (1,))]


# Batches


def test_what_waits_is_taken_together_up_to_the_size():
    driven = Driven(max_batch_size=3)
    for item_id in range(1, 6):
        driven.arrive(item_id, key="lu")
    assert drained(driven) == [(1, 2, 3), (4, 5)]


def test_a_batch_holds_one_key_of_one_tenant_within_the_bytes():
    driven = Driven(max_batch_bytes=10)
    driven.arrive(1, key="lu", n_bytes=6)
    driven.arrive(2, key="qr", n_bytes=1)
    driven.arrive(3, "b", key="lu", n_bytes=1)
    driven.arrive(4, key="lu", n_bytes=4)
    driven.arrive(5, key="lu", n_bytes=1)
    driven.arrive(6, key=None, n_bytes=1)
    driven.arrive(7, key="big", n_bytes=99)
    assert sorted(drained(driven)) == [(1, 4), (2,), (3,), (5,), (6,), (7,)]


def test_a_batch_has_the_bytes_that_suit_the_kind_of_device():
    driven = Driven(max_batch_bytes=10, batch_bytes={"cuda": 40})
    for item_id in range(1, 7):
        driven.arrive(item_id, key="lu", n_bytes=10, cpu=1.0, cuda=1.0)
    assert driven.up(0, "cuda") == [Run(0, (1, 2, 3, 4))]
    assert driven.up(1, "cpu") == [Run(1, (5,))]


def test_with_delay_a_batch_of_several_kinds_waits_until_it_fills_the_largest():
    driven = Driven(max_queue_delay_s=0.5, max_batch_bytes=10, batch_bytes={"cuda": 20})
    driven.up(0, "cuda")
    assert driven.arrive(1, key="lu", n_bytes=10, cuda=1.0) == [WakeAt(0.5)]
    assert driven.at(0.1).arrive(2, key="lu", n_bytes=10, cuda=1.0) == [Run(0, (1, 2))]


def test_a_batch_uses_no_more_memory_than_its_tenant_may():
    driven = Driven(queue_bytes=100, max_batch_bytes=1000)
    for item_id in range(1, 4):
        driven.arrive(item_id, key="lu", n_bytes=10, memory_bytes=45)
    assert drained(driven) == [(1, 2), (3,)]


def test_with_delay_a_batch_waits_until_full_or_old_enough():
    driven = Driven(max_queue_delay_s=0.5, max_batch_size=3)
    driven.up()
    assert driven.arrive(1, key="lu") == [WakeAt(0.5)]
    assert driven.at(0.1).arrive(2, key="lu") == []
    assert driven.at(0.2).arrive(3, key="lu") == [Run(0, (1, 2, 3))]
    driven.at(1.0).tick()
    assert driven.finish(0, 1, 2, 3) == []
    assert driven.arrive(4, key="lu") == [WakeAt(1.5)]
    assert driven.at(1.2).arrive(5, key="lu") == []
    assert driven.at(1.5).tick() == [Run(0, (4, 5))]


def test_a_batch_that_is_no_longer_full_waits_again():
    driven = Driven(max_queue_delay_s=0.5, max_batch_size=2)
    driven.arrive(1, key="lu")
    driven.at(0.3).arrive(2, key="lu")
    driven(Cancelled(1, 0.3))
    assert driven.up() == []
    driven.at(0.5).tick()
    assert driven.at(0.8).tick() == [Run(0, (2,))]


# Workers


def test_the_next_batch_is_sent_ahead_of_a_short_one():
    driven = Driven(prefetch_below_s=0.005)
    driven.up()
    assert driven.arrive(1, cpu=0.001) == [Run(0, (1,))]
    assert driven.arrive(2, cpu=3.0) == [Run(0, (2,))]
    assert driven.arrive(3, cpu=0.001) == []
    assert driven.finish(0, 1, busy_s=0.001) == []
    assert driven.finish(0, 2, busy_s=3.0) == [Run(0, (3,))]
    driven.arrive(4, cpu=1.0)
    assert driven.down() == [Lost(0, (3, 4))]


def test_nothing_is_sent_ahead_to_who_takes_longer_than_expected():
    driven = Driven(prefetch_below_s=0.005)
    driven.up()
    driven.arrive(1, cpu=0.001)
    driven.at(0.006)
    assert driven.arrive(2, cpu=0.001) == []
    assert driven.finish(0, 1) == [Run(0, (2,))]


def test_a_device_that_copies_while_it_computes_has_its_next_batch_whatever_is_expected():
    driven = Driven(lanes={"cuda": 2})
    driven.up(0, "cuda")
    assert driven.arrive(1, cpu=None, cuda=100.0) == [Run(0, (1,))]
    assert driven.at(50.0).arrive(2, cpu=None, cuda=100.0) == [Run(0, (2,))]
    assert driven.arrive(3, cpu=None, cuda=100.0) == [], "one ahead, not two"
    assert driven.finish(0, 1, busy_s=60.0) == [Run(0, (3,))]


def test_only_the_kinds_that_are_named_are_sent_work_ahead_of_time():
    driven = Driven(lanes={"cuda": 2})
    driven.up(0, "cpu")
    driven.arrive(1)
    assert driven.arrive(2) == []


def test_each_lane_of_a_device_has_a_batch_and_no_worker_gets_a_third_before_another_its_second():
    driven = Driven(lanes={"cuda": 3}, prefetch_below_s=0.005)
    driven.up(0, "cuda")
    assert [driven.arrive(i, cpu=None, cuda=100.0) for i in (1, 2)] == [[Run(0, (1,))], [Run(0, (2,))]]
    driven.up(1, "cuda")
    assert driven.arrive(3, cpu=None, cuda=100.0) == [Run(1, (3,))]
    assert driven.at(9.0).arrive(4, cpu=None, cuda=100.0) == [Run(1, (4,))]
    assert {run for i in (5, 6) for run in driven.arrive(i, cpu=None, cuda=100.0)} == {
        Run(0, (5,)),
        Run(1, (6,)),
    }
    assert driven.arrive(7, cpu=None, cuda=0.001) == [], "three, not four"
    assert driven.finish(0, 1, busy_s=60.0) == [Run(0, (7,))]
    assert driven.down(0) == [Lost(0, (2, 5, 7))]


def test_who_is_idle_comes_before_who_can_take_a_second_batch():
    """The cuda group is asked first, as it came first, and yet the idle cpu gets what it does sooner."""
    driven = Driven(lanes={"cuda": 2})
    driven.up(0, "cuda")
    driven.arrive(1, cpu=None, cuda=10.0)
    driven.up(1, "cpu")
    assert driven.arrive(2, cpu=1.5, cuda=1.0) == [Run(1, (2,))]
    assert driven.arrive(3, cpu=1.5, cuda=1.0) == [Run(0, (3,))]
    assert driven.arrive(4, cpu=1.5, cuda=1.0) == []


def test_a_batch_may_be_answered_in_parts():
    driven = Driven(prefetch_below_s=0.005)
    for item_id in (1, 2, 3):
        driven.arrive(item_id, key="lu", cpu=1.0)
    assert driven.up() == [Run(0, (1, 2, 3))]
    driven.arrive(4)
    assert driven.finish(0, 2, busy_s=0.5) == []
    assert driven.finish(0, 3, 1, busy_s=0.5) == [Run(0, (4,))]


def test_work_goes_where_it_will_be_done_first():
    driven = Driven()
    driven.up(0, "cpu")
    driven.up(1, "cuda")
    assert driven.arrive(1, cpu=10.0, cuda=1.0) == [Run(1, (1,))]
    # Done at 2 there, at 10 here.
    assert driven.arrive(2, cpu=10.0, cuda=1.0) == [WakeAt(10.0)]
    for item_id in range(3, 10):
        driven.arrive(item_id, cpu=10.0, cuda=1.0)
    # With ten seconds of work before the end of the line, the slow worker helps.
    assert driven.arrive(10, cpu=10.0, cuda=1.0) == [Run(0, (2,))]


def test_work_for_one_kind_does_not_block_work_for_another():
    driven = Driven()
    driven.up(0, "cpu")
    driven.arrive(1, cpu=None, cuda=1.0)
    assert driven.arrive(2) == [Run(0, (2,))]
    assert driven.up(1, "cuda") == [Run(1, (1,))]


def test_who_overran_is_not_believed_to_be_free_soon():
    driven = Driven()
    driven.up(0, "cpu")
    driven.up(1, "cuda")
    driven.arrive(1, cpu=10.0, cuda=1.0)
    assert driven.arrive(2, cpu=10.0, cuda=1.0) == [WakeAt(10.0)]
    assert driven.at(11.0).tick() == [Run(0, (2,))]


def test_many_tenants_and_keys_leave_nothing_behind():
    driven = Driven()
    driven.scheduler.apply(WorkerUp(0, "cpu", 0.0))
    for number in range(5000):
        (run,) = driven.scheduler.apply(Arrived(item(number, f"t{number}", key=number), number))
        driven.scheduler.apply(Finished(0, run.ids, 1.0, number))
    assert len(driven.scheduler.snapshot()["tenants"]) < 2000
    driven.scheduler.validate()


def test_deadlines_of_what_is_done_are_not_kept_behind_one_that_waits():
    driven = Driven()
    driven.up()
    driven.arrive(0, cpu=None, cuda=1.0, due_s=1e6)
    for number in range(1, 3000):
        driven.scheduler.apply(Arrived(item(number, due_s=2e6), 0.0))
        driven.scheduler.apply(Finished(0, (number,), 1.0, 0.0))
    assert len(driven.scheduler.scheduler.due) < 200
    driven.scheduler.validate()


def test_cancelling_over_and_over_leaves_nothing_behind():
    driven = Driven(max_queue_delay_s=1.0)
    for number in range(3000):
        what = item(number, key=number % 2, priority=number % 16 - 8, due_s=1e9)
        driven.scheduler.apply(Arrived(what, 0.0))
        assert Drop(number) in driven.scheduler.apply(Cancelled(number, 0.0))
    driven.scheduler.validate()
    scheduler = driven.scheduler.scheduler
    (tenant,) = scheduler._tenants.values()
    (kinds,) = tenant.kinds.values()
    heaps = [scheduler.due, scheduler.alarms, kinds._heap, *(queue._heap for queue in kinds.queues.values())]
    assert sum(map(len, heaps)) < 600


def test_what_was_seen_is_expected_early_on_as_the_mean():
    rates = RateTable()
    for seconds in (1.0, 2.0, 3.0):
        rates.observe("lu", 1e9, "cpu", seconds)
    assert rates.expected_s("lu", 1e9, "cpu") == pytest.approx(2.0)
    assert rates.expected_s("lu", 1.05e9, "cpu") == pytest.approx(2.1)


def test_what_was_not_seen_is_judged_by_what_is_nearest():
    rates = RateTable()
    rates.observe("lu", 1e6, "cpu", 1e-2)
    rates.observe("lu", 1e9, "cpu", 1.0)
    assert rates.expected_s("lu", 1e10, "cpu") == pytest.approx(10.0)
    assert rates.expected_s("lu", 1e5, "cpu") == pytest.approx(1e-3)
    assert rates.expected_s("qr", 1e9, "cpu") in (pytest.approx(1.0), pytest.approx(10.0))
    assert rates.expected_s("lu", 2e9, "cuda:0") == pytest.approx(0.01)
    assert rates.expected_s("lu", 2e9, "unheard-of") == pytest.approx(1.0)


def test_what_was_never_seen_is_not_called_short():
    rates = RateTable()
    assert rates.expected_s("new", 10, "cpu") == 0.01
    rates.observe("new", 10, "cpu", 1e-5)
    assert rates.expected_s("new", 10, "cpu") == pytest.approx(1e-5)


def test_it_is_never_nothing():
    rates = RateTable()
    never_seen_s = rates.expected_s("echo", 0, "cpu")
    assert rates.observe("echo", 0, "cpu", 0.0) == never_seen_s > 0
    assert rates.expected_s("echo", 0, "cpu") == never_seen_s


def test_it_follows_a_device_that_changes_and_is_not_upset_by_one_hiccup():
    rates = RateTable()
    for _ in range(20):
        rates.observe("lu", 1e9, "cpu", 1.0)
    rates.observe("lu", 1e9, "cpu", 1000.0)
    assert rates.expected_s("lu", 1e9, "cpu") < 3.0
    for _ in range(30):
        rates.observe("lu", 1e9, "cpu", 4.0)
    assert rates.expected_s("lu", 1e9, "cpu") == pytest.approx(4.0, rel=0.05)
