"""Which worker computes what next: events in, commands out, nothing else touched.

**Between tenants** start-time fair queueing, for each device kind by itself: a tenant's share stands at a
virtual time, device-seconds had divided by weight, and the one furthest behind is served next.  A batch is
charged what it is expected to take when it starts and what it took when it is finished.  Who had nothing
waiting, or declined, begins again at the time of the others: its share at once, but no credit.

**Within a tenant** by arrival, where each step of priority counts as `priority_step_s` of earlier arrival.
So a higher priority overtakes, but nothing is overtaken for ever: what has waited longer than 15 steps comes
before everything new.

**Batches** as in Triton: items with one `batch_key`, at most `max_batch_size` and `max_batch_bytes` together.
A full batch goes as soon as a worker is free, another when its first item has waited `max_queue_delay_s`;
with 0 an idle worker never waits.  A batch never mixes tenants.

**Workers** hold one batch, and one more while the first is expected shorter than `prefetch_below_s`, so that
a short computation does not wait for the way there and back.  Devices that copy while they compute
(`prefetched_kinds`) hold one more whatever is expected.  Who is idle is served before anybody is sent a
second batch.  Where an item could run on another device kind and would be finished earlier there, with all
that is queued for it done first, it is left to that kind.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from yarn_accel.core.crew import Batch, Crew, Worker
from yarn_accel.core.queues import BatchLimits, Line, Record, Tenant
from yarn_accel.core.scheduling_events import (
    Arrived,
    Cancelled,
    Command,
    Drop,
    Event,
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

__all__ = [
    "Arrived",
    "Cancelled",
    "Command",
    "Drop",
    "Event",
    "Expire",
    "Finished",
    "Item",
    "Lost",
    "Room",
    "Run",
    "Scheduler",
    "SchedulerSettings",
    "Tick",
    "WakeAt",
    "WorkerDown",
    "WorkerUp",
]

_NEVER = float("inf")
_MAX_IDLE_TENANTS = 1024
#: Deadlines of items that are over tolerated beside as many that are not.
_SLACK = 64


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """How the scheduler decides.

    Attributes:
        weight_of: the weight of a tenant by its name, above 0; asked once for each time it comes.
        prefetched_kinds: device kinds that copy the next batch in while they compute.
    """

    weight_of: Callable[[str], float]
    max_batch_size: int = 64
    max_batch_bytes: int = 4 * 1024 * 1024
    max_queue_delay_s: float = 0.0
    prefetch_below_s: float = 0.005
    priority_step_s: float = 10.0
    prefetched_kinds: tuple[str, ...] = ("cuda",)


class Scheduler:
    """The state of all queues and workers; one caller at a time."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._limits = BatchLimits(
            settings.max_batch_size, settings.max_batch_bytes, settings.max_queue_delay_s
        )
        self._now_s = 0.0
        self._is_open = True
        self._serial = 0
        self._records: dict[int, Record] = {}
        self._tenants: dict[str, Tenant] = {}
        self._waiting: dict[str, Tenant] = {}
        self._crews: dict[str, Crew] = {}
        self._workers: dict[int, Worker] = {}
        self._due: list[tuple[float, int, Record]] = []
        self._alarms: list[tuple[float, int, Line]] = []
        self._retry_s = _NEVER
        self._wake_s = _NEVER
        self._out: list[Command] = []
        self._handlers: dict[type, Callable[[Any], None]] = {
            Arrived: self._arrived,
            Finished: self._finished,
            Cancelled: self._cancelled,
            WorkerUp: self._worker_up,
            WorkerDown: self._worker_down,
            Room: self._room,
            Tick: self._tick,
        }

    def apply(self, event: Event) -> list[Command]:
        """Take note of what happened and say what to do now, in this order.

        Raises:
            ValueError: an item whose id is known already or that runs nowhere; nothing has changed.
        """
        if event.now_s > self._now_s:
            self._now_s = event.now_s
        self._out = []
        self._handlers[type(event)](event)
        now_s = self._now_s
        if self._wake_s <= now_s:
            self._wake_s = _NEVER
        if self._due and self._due[0][0] <= now_s:
            self._expire()
        while self._alarms and self._alarms[0][0] <= now_s:
            self._ring()
        self._dispatch()
        if self._due or self._alarms or self._retry_s < _NEVER:
            self._set_alarm()
        return self._out

    def start_at_once(self, item: Item, now_s: float) -> int | None:
        """The short way of the common case: nothing waits, and a worker takes the item at once.

        The same as `Arrived` in every respect, the virtual times among them, but the worker is returned
        in place of a `Run`.  None: it is not so simple, nothing has changed, apply `Arrived`.
        """
        if self._waiting or not self._is_open or self._due or self._alarms or item.due_s:
            return None
        tenant = self._tenants.get(item.tenant)
        if tenant is None or len(item.expected_s) != 1 or item.id in self._records:
            return None
        line = tenant.lane(item).line(item.batch_key)
        if not line.goes_at_once:
            return None
        ((kind, expected_s),) = item.expected_s.items()
        crew = self._crews.get(kind)
        if now_s > self._now_s:
            self._now_s = now_s
        worker = crew.next_worker(self._now_s) if crew is not None else None
        if crew is None or worker is None:
            return None
        self._serial += 1
        record = Record(item, item.arrived_s, self._serial, self._now_s, line, worker.number)
        self._records[item.id] = record
        share = tenant.shares[kind]
        share.lift(crew.virtual_s)
        # Not below it after that, so it is the later of the two.
        crew.virtual_s = share.start_v
        self._hand_over(worker, tenant, {item.id: record}, expected_s)
        return worker.number

    # Events

    def _arrived(self, event: Arrived) -> None:
        item = event.item
        if item.id in self._records or not item.expected_s:
            raise ValueError(f"item {item.id} is known already or can run nowhere")
        tenant = self._tenants.get(item.tenant) or self._add_tenant(item.tenant)
        lane = tenant.lane(item)
        line = lane.line(item.batch_key)
        self._serial += 1
        rank = item.arrived_s - item.priority * self._settings.priority_step_s
        record = Record(item, rank, self._serial, self._now_s, line)
        self._records[item.id] = record
        line.push(record)
        tenant.n_queued += 1
        self._waiting[item.tenant] = tenant
        for name, expected_s in item.expected_s.items():
            crew = self._crews.get(name) or self._add_crew(name)
            crew.n_queued += 1
            crew.queued_s += expected_s
            share = tenant.shares[name]
            if not share.n_queued:
                share.lift(crew.virtual_s)
            share.n_queued += 1
        if item.due_s:
            heapq.heappush(self._due, (item.due_s, record.serial, record))
            if len(self._due) > 2 * len(self._records) + _SLACK:
                # What was started or cancelled meanwhile has no deadline any more.
                self._due = [entry for entry in self._due if entry[2].is_queued]
                heapq.heapify(self._due)
        self._settle(line)

    def _finished(self, event: Finished) -> None:
        worker = self._workers.get(event.worker)
        if worker is None:
            return
        if len(worker.batches) == 1 and event.ids == tuple(worker.batches[0].left):
            self._finish(worker, worker.batches.pop(), event.busy_s)
            return
        for batch in worker.batches:
            done = [record for item_id in event.ids if (record := batch.left.pop(item_id, None)) is not None]
            if done:
                self._end(worker.crew, batch.tenant, done)
                expected_s = sum(record.item.expected_s[worker.crew.kind] for record in done)
                self._charge(worker.crew, batch.tenant, event.busy_s, expected_s)
        while worker.batches and not worker.batches[0].left:
            del worker.batches[0]
            if worker.batches:
                worker.batches[0].started_s = self._now_s
        worker.batches = [batch for batch in worker.batches if batch.left]
        worker.crew.place(worker)

    def _finish(self, worker: Worker, batch: Batch, busy_s: float) -> None:
        """The common case: all that the worker had, in one answer."""
        kind = worker.crew.kind
        expected_s = sum([record.item.expected_s[kind] for record in batch.left.values()])
        self._end(worker.crew, batch.tenant, batch.left.values())
        self._charge(worker.crew, batch.tenant, busy_s, expected_s)
        worker.crew.place(worker)

    def _cancelled(self, event: Cancelled) -> None:
        record = self._records.get(event.id)
        if record is not None and record.is_queued:
            self._remove(record)
            self._out.append(Drop(event.id))

    def _worker_up(self, event: WorkerUp) -> None:
        self._lose(event.worker)
        crew = self._crews.get(event.device_kind) or self._add_crew(event.device_kind)
        worker = Worker(event.worker, crew)
        self._workers[event.worker] = crew.workers[event.worker] = worker
        worker.crew.place(worker)

    def _worker_down(self, event: WorkerDown) -> None:
        self._lose(event.worker)

    def _room(self, event: Room) -> None:
        self._is_open = event.is_open

    def _tick(self, event: Tick) -> None:
        pass

    # What to look at

    def snapshot(self) -> dict[str, Any]:
        """Queues, shares and workers as plain values, for `stats`."""
        return {
            "queued": sum(tenant.n_queued for tenant in self._waiting.values()),
            "running": sum(crew.n_running for crew in self._crews.values()),
            "is_open": self._is_open,
            "tenants": {
                tenant.name: {
                    "weight": tenant.weight,
                    "queued": tenant.n_queued,
                    "running": tenant.n_running,
                    "device_s": sum(tenant.device_s.values()),
                }
                for tenant in self._tenants.values()
            },
            "workers": {
                worker.number: {
                    "kind": worker.crew.kind,
                    "batches": [len(batch.left) for batch in worker.batches],
                    "free_in_s": worker.left_s(self._now_s),
                }
                for worker in self._workers.values()
            },
        }

    def explain(self, item_id: int) -> str:
        """One sentence about where an item is and what it waits for."""
        record = self._records.get(item_id)
        if record is None:
            return f"item {item_id} is not here: never arrived, or over"
        item = record.item
        if record.worker is not None:
            return f"item {item_id} of {item.tenant} is on worker {record.worker}"
        tenant = self._tenants[item.tenant]
        n_ahead = sum((other.rank, other.serial) < (record.rank, record.serial) for other in tenant.records())
        place = (
            f"item {item_id} of {item.tenant} (weight {tenant.weight:g}) is queued behind {n_ahead} of its"
        )
        return f"{place} tenant: {self._hindrance(record)}"

    def _hindrance(self, record: Record) -> str:
        crews = [self._crews[kind] for kind in record.item.expected_s]
        if not self._is_open:
            return "results have nowhere to go"
        if not any(crew.workers for crew in crews):
            return "no worker of kind " + " or ".join(crew.kind for crew in crews)
        if record.line.ready_s() > self._now_s:
            return f"its batch may fill for {record.line.ready_s() - self._now_s:.6f} s more"
        if any(crew.idle for crew in crews):
            return "another device kind will be done with it earlier"
        return "all workers are busy"

    def validate(self) -> None:
        """Check that the state agrees with itself; for tests.

        Raises:
            AssertionError: it does not.
        """
        queued = [record for record in self._records.values() if record.is_queued]
        running = {item_id for w in self._workers.values() for b in w.batches for item_id in b.left}
        assert not any(record.is_over for record in self._records.values())
        assert running == {i for i, record in self._records.items() if record.worker is not None}
        assert {id(r) for t in self._waiting.values() for r in t.records()} == {id(r) for r in queued}
        for tenant in self._tenants.values():
            tenant.validate()
            assert (tenant.n_queued > 0) == (tenant.name in self._waiting)
        for crew in self._crews.values():
            crew.validate()
            mine = [record for record in queued if crew.kind in record.item.expected_s]
            assert crew.n_queued == len(mine)
            assert abs(crew.queued_s - sum(r.item.expected_s[crew.kind] for r in mine)) < 1e-6
            assert all(
                share.floor_v <= share.start_v <= crew.furthest_v + 1e-9
                for tenant in self._tenants.values()
                if (share := tenant.shares.get(crew.kind)) is not None
            )
            if self._is_open and crew.next_worker(self._now_s) is not None:
                could_run = [self._first(tenant, crew) for tenant in self._waiting.values()]
                assert not any(could_run), "a worker is free and something could run"

    # What waits

    def _add_tenant(self, name: str) -> Tenant:
        if len(self._tenants) > _MAX_IDLE_TENANTS + len(self._waiting):
            self._forget_tenants()
        tenant = self._tenants[name] = Tenant(name, self._settings.weight_of(name), self._limits)
        return tenant

    def _forget_tenants(self) -> None:
        """Let go of tenants that have nothing here and owe nothing."""
        for name, tenant in list(self._tenants.items()):
            is_even = all(share.start_v <= self._crews[k].virtual_s for k, share in tenant.shares.items())
            if is_even and not tenant.n_queued and not tenant.n_running:
                del self._tenants[name]

    def _add_crew(self, name: str) -> Crew:
        settings = self._settings
        is_always_fed = name in settings.prefetched_kinds
        crew = self._crews[name] = Crew(name, _NEVER if is_always_fed else settings.prefetch_below_s)
        return crew

    def _settle(self, line: Line) -> None:
        """Put a line among those that can be taken, or see to it that this happens when it is ready."""
        if not line.n_items:
            return
        ready_s = line.ready_s()
        if ready_s <= self._now_s:
            line.lane.publish(line)
        elif not line.alarm_s or ready_s < line.alarm_s:
            line.alarm_s = ready_s
            self._serial += 1
            heapq.heappush(self._alarms, (ready_s, self._serial, line))

    def _ring(self) -> None:
        at_s, _, line = heapq.heappop(self._alarms)
        if line.alarm_s == at_s:
            line.alarm_s = 0.0
            self._settle(line)

    def _expire(self) -> None:
        while self._due and self._due[0][0] <= self._now_s:
            record = heapq.heappop(self._due)[2]
            if record.is_queued:
                self._remove(record)
                self._out.append(Expire(record.item.id))

    def _remove(self, record: Record) -> None:
        """Take an item out of its queue for good."""
        del self._records[record.item.id]
        record.is_over = True
        record.line.forget(record)
        self._uncount(self._tenants[record.item.tenant], record)
        self._settle(record.line)

    def _uncount(self, tenant: Tenant, record: Record) -> None:
        tenant.n_queued -= 1
        if not tenant.n_queued:
            del self._waiting[tenant.name]
        for name, expected_s in record.item.expected_s.items():
            crew = self._crews[name]
            crew.n_queued -= 1
            crew.queued_s = crew.queued_s - expected_s if crew.n_queued else 0.0
            tenant.shares[name].n_queued -= 1

    # Who gets it

    def _dispatch(self) -> None:
        """Give work to every worker that can take some, until there is no worker or nothing for it."""
        self._retry_s = _NEVER
        if not self._is_open or not self._waiting:
            return
        is_on = True
        while is_on:
            for crew in self._crews.values():
                while crew.idle and crew.n_queued:
                    chosen = self._choose(crew)
                    if chosen is None:
                        break
                    self._start(crew.next_idle(), *chosen)
            is_on = bool(self._waiting) and self._send_ahead()
        if not self._waiting:
            self._retry_s = _NEVER

    def _send_ahead(self) -> bool:
        """Give a second batch to one busy worker of each kind; whether any got one."""
        was_sent = False
        for crew in self._crews.values():
            if crew.ready and crew.n_queued and (worker := crew.next_ready(self._now_s)) is not None:
                chosen = self._choose(crew)
                if chosen is not None:
                    self._start(worker, *chosen)
                    was_sent = True
        return was_sent

    def _choose(self, crew: Crew) -> tuple[Tenant, Line] | None:
        """The tenant furthest behind of those that have something for this kind, and its first line."""
        best: Record | None = None
        best_tenant: Tenant | None = None
        best_v = _NEVER
        declined = []
        for tenant in self._waiting.values():
            share = tenant.shares.get(crew.kind)
            if share is None or not share.n_queued or share.start_v >= best_v:
                continue
            record = self._first(tenant, crew)
            if record is None:
                declined.append(share)
            else:
                best, best_tenant, best_v = record, tenant, share.start_v
        if best is None or best_tenant is None:
            return None
        crew.virtual_s = max(crew.virtual_s, best_v)
        for share in declined:
            share.lift(crew.virtual_s)
        return best_tenant, best.line

    def _first(self, tenant: Tenant, crew: Crew) -> Record | None:
        best: Record | None = None
        for lane in tenant.lanes.values():
            if crew.kind not in lane.kinds:
                continue
            record = lane.top(self._now_s)
            if record is None or (best is not None and best.rank <= record.rank):
                continue
            if len(lane.kinds) == 1 or self._is_best_here(record.item, crew):
                best = record
        return best

    def _is_best_here(self, item: Item, crew: Crew) -> bool:
        """Whether no other device kind would be done earlier, even after all that is queued for it."""
        here_s = item.expected_s[crew.kind]
        for name, there_s in item.expected_s.items():
            other = self._crews[name]
            if there_s >= here_s or not other.workers:
                continue
            queued_s = max(other.queued_s / len(other.workers), there_s)
            if here_s > queued_s + other.free_in_s(self._now_s):
                self._retry_s = min(self._retry_s, self._now_s + here_s)
                return False
        return True

    def _start(self, worker: Worker, tenant: Tenant, line: Line) -> None:
        crew = worker.crew
        records = line.take(worker.number)
        expected_s = 0.0
        for record in records:
            self._uncount(tenant, record)
            expected_s += record.item.expected_s[crew.kind]
        if line.n_items:
            self._settle(line)
        left = {record.item.id: record for record in records}
        self._hand_over(worker, tenant, left, expected_s)
        self._out.append(Run(worker.number, tuple(left)))

    def _hand_over(self, worker: Worker, tenant: Tenant, left: dict[int, Record], expected_s: float) -> None:
        crew = worker.crew
        worker.batches.append(Batch(tenant, left, expected_s, self._now_s))
        tenant.n_running += len(left)
        crew.n_running += len(left)
        self._charge(crew, tenant, expected_s, 0.0, is_used=False)
        crew.place(worker)

    # Who has it

    def _end(self, crew: Crew, tenant: Tenant, records: Collection[Record]) -> None:
        for record in records:
            record.is_over = True
            del self._records[record.item.id]
        tenant.n_running -= len(records)
        crew.n_running -= len(records)

    def _charge(
        self, crew: Crew, tenant: Tenant, taken_s: float, refund_s: float, is_used: bool = True
    ) -> None:
        """Move a tenant's virtual time on by what was taken, less what it was charged for it before."""
        share = tenant.shares[crew.kind]
        share.charge((taken_s - refund_s) / tenant.weight)
        if share.start_v > crew.furthest_v:
            crew.furthest_v = share.start_v
        if is_used:
            tenant.device_s[crew.kind] = tenant.device_s.get(crew.kind, 0.0) + taken_s
            if not crew.n_running and not crew.n_queued:
                # Nobody was kept waiting, so nobody owes anybody anything.
                crew.virtual_s = crew.furthest_v

    def _lose(self, number: int) -> None:
        worker = self._workers.pop(number, None)
        if worker is None:
            return
        crew = worker.crew
        crew.remove(worker)
        lost: list[int] = []
        used_s = self._now_s - worker.batches[0].started_s if worker.batches else 0.0
        for batch in worker.batches:
            expected_s = sum(record.item.expected_s[crew.kind] for record in batch.left.values())
            lost.extend(batch.left)
            self._end(crew, batch.tenant, list(batch.left.values()))
            self._charge(crew, batch.tenant, used_s, expected_s)
            used_s = 0.0
        if lost:
            self._out.append(Lost(number, tuple(lost)))

    def _set_alarm(self) -> None:
        while self._due and not self._due[0][2].is_queued:
            heapq.heappop(self._due)
        wake_s = self._retry_s
        if self._due:
            wake_s = min(wake_s, self._due[0][0])
        if self._alarms:
            wake_s = min(wake_s, self._alarms[0][0])
        if wake_s < self._wake_s:
            self._wake_s = wake_s
            self._out.append(WakeAt(wake_s))
