"""Whatever happens to reports and orders: an attempt runs at most once, no end is lost, nothing is kept."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from yarn_accel.core.tasks.attempt_orders import AttemptId, AttemptOrder, attempt_id
from yarn_accel.core.tasks.values import AppId, Form, FormDemand, ResourceId, TaskId
from yarn_accel.core.tasks.worker_messages import (
    AttemptEnd,
    AttemptOutcome,
    OrderNumber,
    WorkerOrder,
    WorkerReport,
    order_document,
    parse_order,
    parse_report,
    report_document,
)
from yarn_accel.core.tasks.worker_state import (
    ClockTicked,
    MemoryMeasured,
    OrderReceived,
    ProcessesEnded,
    RunEnded,
    StartAttempt,
    StopAttempt,
    WorkerAction,
    WorkerCapacity,
    WorkerState,
)

INCARNATION = "00112233445566ff"


class Master:
    """Lists attempts, takes reports in, and drops an attempt when it likes to, or has seen its end."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._n = 0
        self._number = OrderNumber(1, 0)
        self._seen = 0
        self.listed: list[AttemptOrder] = []
        self.ever: set[AttemptId] = set()
        self.ends: dict[AttemptId, AttemptOutcome] = {}

    def change(self) -> None:
        match self._chance.randrange(4):
            case 0 | 1:
                demand = FormDemand(self._chance.randint(1, 3), self._chance.randint(0, 2), 10)
                id_ = attempt_id(1, 1, self._n, 0)
                order = AttemptOrder(id_, AppId("a"), TaskId("t"), Form.CPU, ("x",), demand, time_limit_s=20)
                self._n += 1
                self.listed.insert(self._chance.randint(0, len(self.listed)), order)
                self.ever.add(id_)
            case 2 if self.listed:
                self.listed.pop(self._chance.randrange(len(self.listed)))
            case 3 if self._chance.random() < 0.1:
                self._number = OrderNumber(self._number.master_attempt + 1, 0)
        self._number = self._number._replace(sequence=self._number.sequence + 1)

    def receive(self, report: WorkerReport) -> None:
        if report.sequence <= self._seen:
            return
        self._seen = report.sequence
        for each in report.attempts:
            if each.end is not None:
                assert self.ends.setdefault(each.attempt, each.end.outcome) is each.end.outcome
        self.listed = [each for each in self.listed if each.attempt not in self.ends]
        self._number = self._number._replace(sequence=self._number.sequence + 1)

    def order(self) -> WorkerOrder:
        return WorkerOrder(self._number, INCARNATION, self._seen, tuple(self.listed[:100]))


class World:
    """A worker, its master, and messages between them that wait, get lost and come twice."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._now_s = 0.0
        self._master = Master(self._chance)
        self._state = WorkerState(WorkerCapacity(ResourceId("w"), "w", INCARNATION, 4, 2, 100))
        self._reports: list[WorkerReport] = []
        self._orders: list[WorkerOrder] = []
        self._running: set[AttemptId] = set()
        self._killable: set[AttemptId] = set()
        self.starts: Counter[AttemptId] = Counter()
        self.committed: Counter[AttemptId] = Counter()

    def run(self, n_steps: int) -> None:
        for _ in range(n_steps):
            self._now_s += self._chance.random()
            self._chance.choice(
                [
                    self._master.change,
                    self._send,
                    self._deliver_report,
                    self._deliver_order,
                    self._write,
                    self._end,
                    self._tick,
                ]
            )()
            self._state.validate()

    def settle(self) -> None:
        """The master wants nothing more, and the network is whole."""
        self._master.listed.clear()
        self._master.change()
        self._master.listed.clear()
        for _ in range(60):
            self._now_s += 1.0
            self._reports, self._orders = [], []
            self._send()
            self._deliver_report()
            self._deliver_order()
            self._tick()
            for id_ in sorted(self._killable):
                self._finish(id_, AttemptOutcome.FAILED)
            self._state.validate()
        assert self._state.report(self._now_s).attempts == ()
        assert not self._running
        assert self.starts.keys() <= self._master.ends.keys(), "an end was lost"
        for id_, outcome in self._master.ends.items():
            assert (outcome is AttemptOutcome.DONE) == (self.committed[id_] == 1)

    def _apply(self, actions: tuple[WorkerAction, ...]) -> None:
        for action in actions:
            if isinstance(action, StartAttempt):
                self.starts[action.order.attempt] += 1
                self._running.add(action.order.attempt)
            elif isinstance(action, StopAttempt):
                assert action.attempt in self._running
                self._killable.add(action.attempt)

    def _send(self) -> None:
        self._reports.append(self._state.report(self._now_s))
        self._reports = self._reports[-6:]

    def _deliver_report(self) -> None:
        if self._reports:
            at = self._chance.randrange(len(self._reports))
            again = self._chance.random() < 0.3
            report = self._reports[at] if again else self._reports.pop(at)
            self._master.receive(parse_report(report_document(report)))
        self._orders = [*self._orders[-5:], self._master.order()]

    def _deliver_order(self) -> None:
        if self._orders:
            at = self._chance.randrange(len(self._orders))
            again = self._chance.random() < 0.3
            order = self._orders[at] if again else self._orders.pop(at)
            self._apply(self._state.apply(OrderReceived(parse_order(order_document(order)), self._now_s)))

    def _write(self) -> None:
        if self._running:
            id_ = self._chance.choice(sorted(self._running))
            self._apply(self._state.apply(ProcessesEnded(id_, self._now_s)))

    def _end(self) -> None:
        if self._running:
            outcome = self._chance.choice([AttemptOutcome.DONE, AttemptOutcome.FAILED])
            self._finish(self._chance.choice(sorted(self._running)), outcome)

    def _finish(self, id_: AttemptId, outcome: AttemptOutcome) -> None:
        self._running.discard(id_)
        self._killable.discard(id_)
        self.committed[id_] += outcome is AttemptOutcome.DONE
        for _ in range(1 + (self._chance.random() < 0.2)):
            self._apply(self._state.apply(RunEnded(id_, AttemptEnd(outcome, 0), self._now_s)))

    def _tick(self) -> None:
        self._apply(self._state.apply(ClockTicked(self._now_s)))
        if self._running and self._chance.random() < 0.1:
            id_ = self._chance.choice(sorted(self._running))
            self._apply(self._state.apply(MemoryMeasured(id_, 11, self._now_s)))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_lost_repeated_and_reordered_messages(seed: int) -> None:
    world = World(seed)
    world.run(250)
    assert set(world.starts.values()) <= {1}
    world.settle()
    assert set(world.starts.values()) <= {1}
    assert set(world.committed.values()) <= {0, 1}
