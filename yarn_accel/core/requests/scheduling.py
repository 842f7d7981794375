"""Which worker computes what next, and how long that should take.

**Between tenants** start-time fair queueing, for each device kind by itself: a tenant's share stands at a
virtual time, device-seconds had divided by weight, and the one furthest behind is served next.  A batch is
charged what it is expected to take when it starts and what it took when it is finished.  Who had nothing
waiting, or declined, begins again at the time of the others: its share at once, but no credit.  A tenant
whose results have nowhere to go (`TenantQueue.used_bytes`) starts nothing; the others do.

**Within a tenant** by arrival, where each step of priority counts as `priority_step_s` of earlier arrival.
So a higher priority overtakes, but nothing is overtaken for ever: what has waited longer than 15 steps comes
before everything new.

**Batches** as in Triton: entries with one `batch_key`, at most `max_batch_size` and as many bytes as suit the
kind of device (`batch_bytes`); together they use no more memory than their tenant may.  A full batch goes as
soon as a worker is free, another when its first entry has waited `max_queue_delay_s`; with 0 an idle worker
never waits.  A batch never mixes tenants.

**Workers** hold one batch, and one more while the first is expected shorter than `prefetch_below_s`, so that
a short computation does not wait for the way there and back.  Where a worker computes several at a time
(`lanes`) it holds as many, whatever is expected.  Who is idle is served before anybody is sent a second
batch, and who has one before anybody is sent a third.  Where an entry could run on another device kind and
would be finished earlier there, with all that is queued for it done first, it is left to that kind.

**Expected seconds** (`RateTable`) are learned from calibration and from what is served. A rate is the seconds
per unit of work (flops, or bytes for what only moves them) of an operation in a size class, a power of two of
work, on a device. What was never seen is judged by the nearest class of the same operation, then by the
device's other operations, then by a rate no device falls far below.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from yarn_accel.core.requests.records import BatchLimits, BatchQueue, FairShare, QueueEntry, TenantQueue
from yarn_accel.core.requests.settings import MachineSettings

_NEVER = float("inf")
_MAX_IDLE_TENANTS = 1024
#: Deadlines of entries that are over tolerated beside as many that are not.
_SLACK = 64


class Start(NamedTuple):
    """A batch that was given to a worker just now."""

    worker: Hashable
    entries: Sequence[QueueEntry]
    expected_s: float


class Scheduler:
    """All queues and workers; one caller at a time.

    After a change, call `advance` and then `dispatch`, and both again at `wake_s`.
    """

    def __init__(self, settings: MachineSettings) -> None:
        self._settings = settings
        self._limits = BatchLimits(
            settings.max_batch_size,
            settings.max_batch_bytes,
            settings.max_queue_delay_s,
            settings.batch_bytes,
        )
        self._now_s = 0.0
        self._serial = 0
        self._tenants: dict[str, TenantQueue] = {}
        self._groups: dict[str, WorkerGroup] = {}
        #: By what the shell calls them; to be looked at, not changed.
        self.workers: dict[Hashable, WorkerRecord] = {}
        #: Deadlines, and when batches are ready that are not full; to be looked at, not changed.
        self.due: list[tuple[float, int, QueueEntry]] = []
        self.alarms: list[tuple[float, int, BatchQueue]] = []
        self._retry_s = _NEVER
        #: Tenants that have something queued, by name; to be looked at, not changed.
        self.waiting: dict[str, TenantQueue] = {}

    # Changes

    def tenant(self, name: str, weight: float) -> TenantQueue:
        """The queue of a tenant; the weight counts where it is new."""
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) > _MAX_IDLE_TENANTS + len(self.waiting):
                self._forget_tenants()
            queue = TenantQueue(name, weight, self._limits, self._settings.queue_bytes)
            tenant = self._tenants[name] = queue
        return tenant

    def start_at_once(self, entry: QueueEntry, now_s: float) -> Hashable | None:
        """The short way of the common case: nothing waits, and a worker takes the entry at once.

        The same as `add`, `advance` and `dispatch` in every respect, the virtual times among them.

        Returns:
            the worker; None: it is not so simple, nothing has changed, go the long way.
        """
        tenant = entry.tenant
        if self.waiting or self.due or self.alarms or entry.due_s:
            return None
        expected_s = entry.expected_s
        if len(expected_s) != 1 or tenant.used_bytes >= tenant.bound_bytes:
            return None
        may_wait = self._limits.max_delay_s > 0.0
        if may_wait and not tenant.kind_queue(expected_s).queue(entry.batch_key).goes_at_once:
            return None
        ((kind, seconds),) = expected_s.items()
        group = self._groups.get(kind)
        if now_s > self._now_s:
            self._now_s = now_s
        worker = group.next_worker(self._now_s) if group is not None else None
        if group is None or worker is None:
            return None
        entry.worker = worker.name
        share = tenant.shares.get(kind)
        if share is None:
            share = tenant.shares[kind] = FairShare()
        share.lift(group.virtual_s)
        # Not below it after that, so it is the later of the two.
        group.virtual_s = share.start_v
        self._hand_over(worker, tenant, {entry.id: entry}, seconds)
        tenant.used_bytes += entry.memory_bytes
        return worker.name

    def add(self, entry: QueueEntry, now_s: float) -> None:
        """Queue an entry that can be computed."""
        self._hear(now_s)
        tenant = entry.tenant
        queue = tenant.kind_queue(entry.expected_s).queue(entry.batch_key)
        self._serial += 1
        entry.serial = self._serial
        entry.rank = entry.arrived_s - entry.priority * self._settings.priority_step_s
        entry.entered_s = self._now_s
        entry.queue = queue
        entry.is_queued = True
        entry.worker = None
        queue.push(entry)
        tenant.n_queued += 1
        self.waiting[tenant.name] = tenant
        for kind, expected_s in entry.expected_s.items():
            group = self._groups.get(kind) or self._add_group(kind)
            group.n_queued += 1
            group.queued_s += expected_s
            share = tenant.shares[kind]
            if not share.n_queued:
                share.lift(group.virtual_s)
            share.n_queued += 1
        if entry.due_s:
            heapq.heappush(self.due, (entry.due_s, entry.serial, entry))
            if len(self.due) > 2 * sum(each.n_queued for each in self.waiting.values()) + _SLACK:
                # Entries that were started or cancelled meanwhile have no deadline any more.
                self.due = [due for due in self.due if due[2].is_queued and due[2].serial == due[1]]
                heapq.heapify(self.due)
        self._settle(queue)

    def cancel(self, entry: QueueEntry) -> None:
        """Take an entry out that was not started."""
        if entry.is_queued:
            self._remove(entry)

    def finish(self, name: Hashable, entries: Sequence[QueueEntry], busy_s: float, now_s: float) -> str:
        """Take note that a worker answered for entries it has, and how much device time they really took.

        Returns:
            the kind of its device.
        """
        self._hear(now_s)
        worker = self.workers[name]
        kind = worker.group.kind
        batches = worker.batches
        if len(batches) == 1 and len(entries) == len(batches[0].left):
            self._close(worker, batches.pop(), busy_s)
            return kind
        ids = [entry.id for entry in entries]
        for batch in batches:
            done = [entry for entry_id in ids if (entry := batch.left.pop(entry_id, None)) is not None]
            if done:
                self._end(worker.group, batch.tenant, done)
                expected_s = sum(entry.expected_s[kind] for entry in done)
                self._charge(worker.group, batch.tenant, busy_s, expected_s)
        while batches and not batches[0].left:
            del batches[0]
            if batches:
                batches[0].started_s = self._now_s
        worker.batches = [batch for batch in batches if batch.left]
        worker.group.place(worker)
        return kind

    def add_worker(self, name: Hashable, kind: str, now_s: float) -> None:
        """A worker that is new takes batches from now on."""
        self._hear(now_s)
        group = self._groups.get(kind) or self._add_group(kind)
        worker = WorkerRecord(name, group)
        self.workers[name] = group.workers[name] = worker
        group.place(worker)

    def remove_worker(self, name: Hashable, now_s: float) -> list[QueueEntry]:
        """A worker is gone; returns what it had."""
        self._hear(now_s)
        worker = self.workers.pop(name, None)
        if worker is None:
            return []
        group = worker.group
        group.remove(worker)
        lost: list[QueueEntry] = []
        used_s = self._now_s - worker.batches[0].started_s if worker.batches else 0.0
        for batch in worker.batches:
            expected_s = sum(entry.expected_s[group.kind] for entry in batch.left.values())
            lost.extend(batch.left.values())
            self._end(group, batch.tenant, batch.left.values())
            self._charge(group, batch.tenant, used_s, expected_s)
            used_s = 0.0
        return lost

    def advance(self, now_s: float) -> list[QueueEntry]:
        """Let time pass; returns the entries whose deadline passed before they were started."""
        self._hear(now_s)
        expired: list[QueueEntry] = []
        while self.due and self.due[0][0] <= self._now_s:
            _, serial, entry = heapq.heappop(self.due)
            if entry.is_queued and entry.serial == serial:
                self._remove(entry)
                expired.append(entry)
        while self.alarms and self.alarms[0][0] <= self._now_s:
            at_s, _, queue = heapq.heappop(self.alarms)
            if queue.alarm_s == at_s:
                queue.alarm_s = 0.0
                self._settle(queue)
        return expired

    def dispatch(self) -> list[Start]:
        """Give work to every worker that can take some, until there is no worker or nothing for it."""
        starts: list[Start] = []
        self._retry_s = _NEVER
        is_on = bool(self.waiting)
        while is_on:
            for group in self._groups.values():
                while group.idle and group.n_queued and (chosen := self._choose(group)) is not None:
                    self._start(group.next_idle(), *chosen, starts)
            is_on = bool(self.waiting) and self._send_ahead(starts)
        if not self.waiting:
            self._retry_s = _NEVER
        return starts

    def wake_s(self) -> float:
        """When something is to be done though nothing happens; infinity: never."""
        due = self.due
        while due and not (due[0][2].is_queued and due[0][2].serial == due[0][1]):
            heapq.heappop(due)
        wake_s = self._retry_s
        if due and due[0][0] < wake_s:
            wake_s = due[0][0]
        if self.alarms and self.alarms[0][0] < wake_s:
            wake_s = self.alarms[0][0]
        return wake_s

    # For stats and tests

    @property
    def n_queued(self) -> int:
        """Entries that wait."""
        return sum(tenant.n_queued for tenant in self.waiting.values())

    def snapshot(self) -> dict[str, Any]:
        """Queues, shares and workers as plain values, for `stats`."""
        return {
            "queued": self.n_queued,
            "running": sum(group.n_running for group in self._groups.values()),
            "tenants": {
                tenant.name: {
                    "weight": tenant.weight,
                    "queued": tenant.n_queued,
                    "running": tenant.n_running,
                    "device_s": sum(tenant.device_s.values()),
                }
                for tenant in self._tenants.values()
            },
        }

    def validate(self) -> None:
        """Check that the state agrees with itself; for tests.

        Raises:
            AssertionError: it does not.
        """
        queued = [entry for tenant in self.waiting.values() for entry in tenant.entries()]
        for worker in self.workers.values():
            for batch in worker.batches:
                assert all(entry.worker == worker.name for entry in batch.left.values())
                assert not any(entry.is_queued for entry in batch.left.values())
        for tenant in self._tenants.values():
            tenant.validate()
            assert (tenant.n_queued > 0) == (tenant.name in self.waiting)
        for group in self._groups.values():
            group.validate()
            mine = [entry for entry in queued if group.kind in entry.expected_s]
            assert group.n_queued == len(mine)
            assert abs(group.queued_s - sum(entry.expected_s[group.kind] for entry in mine)) < 1e-6
            for tenant in self._tenants.values():
                share = tenant.shares.get(group.kind)
                assert share is None or share.floor_v <= share.start_v <= group.furthest_v + 1e-9
            if group.next_worker(self._now_s) is not None:
                could_run = [self._first(tenant, group) for tenant in self.waiting.values()]
                assert not any(could_run), "a worker is free and something could run"

    # Queues

    def _hear(self, now_s: float) -> None:
        if now_s > self._now_s:
            self._now_s = now_s

    def _forget_tenants(self) -> None:
        """Let go of tenants that have nothing here and owe nothing."""
        for name, tenant in list(self._tenants.items()):
            is_even = all(share.start_v <= self._groups[k].virtual_s for k, share in tenant.shares.items())
            if is_even and not (tenant.n_queued or tenant.n_running or tenant.n_users):
                del self._tenants[name]

    def _add_group(self, kind: str) -> WorkerGroup:
        settings = self._settings
        group = WorkerGroup(kind, settings.prefetch_below_s, settings.lanes.get(kind, 1))
        self._groups[kind] = group
        return group

    def _settle(self, queue: BatchQueue) -> None:
        """Put a queue among those that can be taken, or see to it that this happens when it is ready."""
        if not queue.n_entries:
            return
        ready_s = queue.ready_s()
        if ready_s <= self._now_s:
            queue.owner.publish(queue)
        elif not queue.alarm_s or ready_s < queue.alarm_s:
            queue.alarm_s = ready_s
            self._serial += 1
            heapq.heappush(self.alarms, (ready_s, self._serial, queue))

    def _remove(self, entry: QueueEntry) -> None:
        """Take an entry out of its queue for good."""
        assert entry.queue is not None
        entry.is_queued = False
        entry.queue.forget(entry)
        self._uncount(entry.tenant, entry)
        self._settle(entry.queue)

    def _uncount(self, tenant: TenantQueue, entry: QueueEntry) -> None:
        tenant.n_queued -= 1
        if not tenant.n_queued:
            del self.waiting[tenant.name]
        for kind, expected_s in entry.expected_s.items():
            group = self._groups[kind]
            group.n_queued -= 1
            group.queued_s = group.queued_s - expected_s if group.n_queued else 0.0
            tenant.shares[kind].n_queued -= 1

    # Who gets it

    def _send_ahead(self, starts: list[Start]) -> bool:
        """Give another batch to one busy worker of each kind; whether any got one."""
        was_sent = False
        for group in self._groups.values():
            if group.ready and group.n_queued and (worker := group.next_ready(self._now_s)) is not None:
                chosen = self._choose(group)
                if chosen is not None:
                    self._start(worker, *chosen, starts)
                    was_sent = True
        return was_sent

    def _choose(self, group: WorkerGroup) -> tuple[TenantQueue, BatchQueue] | None:
        """The tenant furthest behind of those that have something for this kind, and its first batch."""
        best: QueueEntry | None = None
        best_tenant: TenantQueue | None = None
        best_v = _NEVER
        declined: list[FairShare] = []
        for tenant in self.waiting.values():
            share = tenant.shares.get(group.kind)
            if share is None or not share.n_queued or share.start_v >= best_v:
                continue
            entry = self._first(tenant, group)
            if entry is None:
                declined.append(share)
            else:
                best, best_tenant, best_v = entry, tenant, share.start_v
        if best is None or best_tenant is None or best.queue is None:
            return None
        group.virtual_s = max(group.virtual_s, best_v)
        for share in declined:
            share.lift(group.virtual_s)
        return best_tenant, best.queue

    def _first(self, tenant: TenantQueue, group: WorkerGroup) -> QueueEntry | None:
        if tenant.used_bytes >= tenant.bound_bytes:
            return None
        best: QueueEntry | None = None
        for queue in tenant.kinds.values():
            if group.kind not in queue.kinds:
                continue
            entry = queue.top(self._now_s)
            if entry is None or (best is not None and best.rank <= entry.rank):
                continue
            if len(queue.kinds) == 1 or self._is_best_here(entry, group):
                best = entry
        return best

    def _is_best_here(self, entry: QueueEntry, group: WorkerGroup) -> bool:
        """Whether no other device kind would be done earlier, even after all that is queued for it."""
        here_s = entry.expected_s[group.kind]
        for kind, there_s in entry.expected_s.items():
            other = self._groups[kind]
            if there_s >= here_s or not other.workers:
                continue
            queued_s = max(other.queued_s / len(other.workers), there_s)
            if here_s > queued_s + other.free_in_s(self._now_s):
                self._retry_s = min(self._retry_s, self._now_s + here_s)
                return False
        return True

    def _start(
        self, worker: WorkerRecord, tenant: TenantQueue, queue: BatchQueue, starts: list[Start]
    ) -> None:
        kind = worker.group.kind
        entries = queue.take(worker.name, kind, tenant.bound_bytes - tenant.used_bytes)
        expected_s = 0.0
        for entry in entries:
            self._uncount(tenant, entry)
            expected_s += entry.expected_s[kind]
            tenant.used_bytes += entry.memory_bytes
        if queue.n_entries:
            self._settle(queue)
        self._hand_over(worker, tenant, {entry.id: entry for entry in entries}, expected_s)
        starts.append(Start(worker.name, entries, expected_s))

    def _hand_over(
        self, worker: WorkerRecord, tenant: TenantQueue, left: dict[int, QueueEntry], expected_s: float
    ) -> None:
        group = worker.group
        worker.batches.append(Batch(tenant, left, expected_s, self._now_s))
        tenant.n_running += len(left)
        group.n_running += len(left)
        self._charge(group, tenant, expected_s, 0.0, is_used=False)
        group.place(worker)

    # Who has it

    def _close(self, worker: WorkerRecord, batch: Batch, busy_s: float) -> None:
        """The common case: all that the worker had, in one answer."""
        group = worker.group
        kind = group.kind
        expected_s = sum([entry.expected_s[kind] for entry in batch.left.values()])
        self._end(group, batch.tenant, batch.left.values())
        self._charge(group, batch.tenant, busy_s, expected_s)
        group.place(worker)

    def _end(self, group: WorkerGroup, tenant: TenantQueue, entries: Collection[QueueEntry]) -> None:
        for entry in entries:
            entry.worker = None
            tenant.used_bytes -= entry.memory_bytes
        tenant.n_running -= len(entries)
        group.n_running -= len(entries)

    def _charge(
        self, group: WorkerGroup, tenant: TenantQueue, taken_s: float, refund_s: float, is_used: bool = True
    ) -> None:
        """Move a tenant's virtual time on by what was taken, less what it was charged for it before."""
        kind = group.kind
        share = tenant.shares[kind]
        share.charge((taken_s - refund_s) / tenant.weight)
        if share.start_v > group.furthest_v:
            group.furthest_v = share.start_v
        if is_used:
            tenant.device_s[kind] = tenant.device_s.get(kind, 0.0) + taken_s
            if not group.n_running and not group.n_queued:
                # Nobody was kept waiting, so nobody owes anybody anything.
                group.virtual_s = group.furthest_v


@dataclass(slots=True, eq=False)
class Batch:
    """A batch that a worker was sent; `left` are the entries it has not answered for, by id."""

    tenant: TenantQueue
    left: dict[int, QueueEntry]
    expected_s: float
    started_s: float


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """One worker; of its batches it computes as many as it has lanes, and has one more ready at most."""

    name: Hashable
    group: WorkerGroup
    batches: list[Batch] = field(default_factory=list)

    def left_s(self, now_s: float) -> float:
        """For how long it is still busy; one that should be done is believed to need as long again."""
        if not self.batches:
            return 0.0
        first = self.batches[0]
        left_s = abs(first.started_s + first.expected_s - now_s)
        return left_s + sum(batch.expected_s for batch in self.batches[1:])


@dataclass(slots=True, eq=False)
class WorkerGroup:
    """The workers of one device kind, what is queued for them, and the virtual time of that queue.

    Attributes:
        prefetch_below_s: while a worker is busy for shorter than that, the next batch may be sent ahead.
        n_lanes: batches that a worker computes at a time.
        idle: those with nothing to do, the one that was busy last at the end.
        ready: those with a free lane, or busy for so short that the next batch may be sent ahead, the longest
            busy first.
        queued_s: what all queued entries together should take here.
        virtual_s: the start of the batch that was started last, or was furthest ahead of all before it.
        furthest_v: the largest virtual time any tenant has reached.
    """

    kind: str
    prefetch_below_s: float
    n_lanes: int = 1
    workers: dict[Hashable, WorkerRecord] = field(default_factory=dict)
    idle: dict[Hashable, WorkerRecord] = field(default_factory=dict)
    ready: dict[Hashable, WorkerRecord] = field(default_factory=dict)
    n_queued: int = 0
    n_running: int = 0
    queued_s: float = 0.0
    virtual_s: float = 0.0
    furthest_v: float = 0.0

    def place(self, worker: WorkerRecord) -> None:
        """Put a worker among the idle, the ready, or neither."""
        name = worker.name
        self.idle.pop(name, None)
        self.ready.pop(name, None)
        batches = worker.batches
        if not batches:
            self.idle[name] = worker
        elif len(batches) < self.n_lanes or (
            len(batches) == 1 and batches[0].expected_s < self.prefetch_below_s
        ):
            self.ready[name] = worker

    def next_worker(self, now_s: float) -> WorkerRecord | None:
        """Who gets the next batch: the idle come before the ready."""
        return self.next_idle() if self.idle else self.next_ready(now_s)

    def next_idle(self) -> WorkerRecord:
        """Of the idle, if there are any, the one whose memory is still warm."""
        return self.idle[next(reversed(self.idle))]

    def next_ready(self, now_s: float) -> WorkerRecord | None:
        """Of the ready one with the fewest batches.

        Nothing is put behind a batch that turns out to be long, only beside it.
        """
        best: WorkerRecord | None = None
        for worker in self.ready.values():
            n_batches = len(worker.batches)
            is_behind = n_batches >= self.n_lanes
            if is_behind and now_s - worker.batches[0].started_s >= self.prefetch_below_s:
                continue
            if n_batches == 1:
                return worker
            if best is None or n_batches < len(best.batches):
                best = worker
        return best

    def remove(self, worker: WorkerRecord) -> None:
        """Let go of a worker."""
        for group in (self.workers, self.idle, self.ready):
            group.pop(worker.name, None)

    def free_in_s(self, now_s: float) -> float:
        """When the first of the workers has done what it was sent."""
        return 0.0 if self.idle else min(worker.left_s(now_s) for worker in self.workers.values())

    def validate(self) -> None:
        """Check that the sets agree with the workers.

        Raises:
            AssertionError: they do not.
        """
        assert set(self.idle) == {name for name, worker in self.workers.items() if not worker.batches}
        most = max(2, self.n_lanes)
        assert all(0 < len(worker.batches) < most for worker in self.ready.values())
        assert all(len(worker.batches) <= most for worker in self.workers.values())
        assert all(batch.left for worker in self.workers.values() for batch in worker.batches)
        n_running = sum(len(batch.left) for worker in self.workers.values() for batch in worker.batches)
        assert self.n_running == n_running


#: How much a new observation counts against what is known.
_SHARE_OF_NEW = 0.2
#: Nothing is believed to be so much faster or slower than before at once: a stolen core is not a new device.
_MAX_CHANGE = 8.0
#: Observations after which a rate moves slowly.
_N_EARLY = 4
#: Units of work per second of a device kind nothing is known of.
_FIRST_GUESS = {"cpu": 2e9, "cuda": 2e11}
#: An operation never seen on a device is not believed to be short, so that nothing is queued up behind it.
_LEAST_GUESS_S = 0.01


def size_class(work: float) -> int:
    """The power of two below an amount of work.

    >>> size_class(0), size_class(1), size_class(1023), size_class(1024)
    (0, 0, 9, 10)
    """
    return max(int(work).bit_length() - 1, 0)


@dataclass(slots=True)
class Rate:
    """The speed of an operation in one size class on one device; `n_seen` 0: unknown."""

    s_per_unit: float = 0.0
    n_seen: int = 0

    def learn(self, s_per_unit: float) -> None:
        """Take one more observation into account."""
        known = self.s_per_unit
        if not self.n_seen:
            self.s_per_unit = s_per_unit
        else:
            share = _SHARE_OF_NEW
            if self.n_seen < _N_EARLY and share * (self.n_seen + 1) < 1.0:
                share = 1.0 / (self.n_seen + 1)
            if s_per_unit > known * _MAX_CHANGE:
                s_per_unit = known * _MAX_CHANGE
            elif s_per_unit < known / _MAX_CHANGE:
                s_per_unit = known / _MAX_CHANGE
            self.s_per_unit = known + share * (s_per_unit - known)
        self.n_seen += 1


class RateTable:
    """Seconds per unit of work by (operation, size class, device).

    A device is named as the caller likes, ``cuda:0`` or just ``cpu``; its kind is what stands before the
    colon.
    """

    def __init__(self) -> None:
        self._rates: dict[tuple[str, str], dict[int, Rate]] = {}

    def rate(self, operation: str, work: float, device: str) -> Rate:
        """The rate that computations of this size are measured by."""
        classes = self._rates.setdefault((operation, device), {})
        return classes.setdefault(size_class(work), Rate())

    def observe(self, operation: str, work: float, device: str, seconds: float) -> float:
        """Learn from one computation, or from one entry's part of a batch; returns what is expected now."""
        if seconds <= 0.0:
            return self.expected_s(operation, work, device)
        rate = self.rate(operation, work, device)
        rate.learn(seconds / max(work, 1.0))
        return rate.s_per_unit * max(work, 1.0)

    def expected_s(self, operation: str, work: float, device: str) -> float:
        """Seconds such a computation should take; above 0, however little is known."""
        work = max(work, 1.0)
        classes = self._rates.get((operation, device), {})
        seen = [known for known, rate in classes.items() if rate.n_seen]
        if seen:
            wanted = size_class(work)
            nearest = min(seen, key=lambda known: abs(known - wanted))
            return classes[nearest].s_per_unit * work
        return max(work * self._typical(device), _LEAST_GUESS_S)

    def _typical(self, device: str) -> float:
        """Seconds per unit of work of a device for an operation it was never seen with: its middle rate."""
        known = sorted(
            rate.s_per_unit
            for (_, other), classes in self._rates.items()
            if other == device
            for rate in classes.values()
            if rate.n_seen
        )
        return known[len(known) // 2] if known else 1.0 / _FIRST_GUESS.get(device.partition(":")[0], 2e9)
