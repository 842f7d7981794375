"""The scheduler by itself, driven by values: what happens, and what it comes to."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping

from tests.unit.core.requests.world import settings as limits
from yarn_accel.core.requests.records import QueueEntry
from yarn_accel.core.requests.scheduling import Scheduler
from yarn_accel.core.requests.settings import TenantSettings

_NEVER = float("inf")


Item = namedtuple(
    "Item", "id tenant priority batch_key n_bytes expected_s due_s arrived_s memory_bytes", defaults=[0]
)

# What happens
Arrived = namedtuple("Arrived", "item now_s")
WorkerUp = namedtuple("WorkerUp", "worker device_kind now_s")
WorkerDown = namedtuple("WorkerDown", "worker now_s")
Finished = namedtuple("Finished", "worker ids busy_s now_s")
Cancelled = namedtuple("Cancelled", "id now_s")
Tick = namedtuple("Tick", "now_s")
Acceptance = namedtuple("Acceptance", "now_s is_open")

# What it comes to
Run = namedtuple("Run", "worker ids")
Lost = namedtuple("Lost", "worker ids")
Expire = namedtuple("Expire", "id")
Drop = namedtuple("Drop", "id")
WakeAt = namedtuple("WakeAt", "at_s")


class Weights(Mapping):
    """Settings of tenants by a function of their names."""

    def __init__(self, weight_of):
        self.weight_of = weight_of

    def __getitem__(self, name):
        return TenantSettings(self.weight_of(name))

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0


def settings(weight_of, **changes):
    return limits(tenants=Weights(weight_of), **changes)


class Driver:
    """Applies events to a scheduler, as the machine does, and says what followed."""

    def __init__(self, settings):
        self.scheduler = Scheduler(settings)
        self._weight_of = lambda name: settings.tenant(name).weight
        self.entries = {}
        self.now_s = 0.0
        self.is_open = True
        self._wake_s = _NEVER
        self._bound_bytes = settings.queue_bytes

    def apply(self, event):
        out = []
        self.now_s = max(self.now_s, event.now_s)
        getattr(self, f"_{type(event).__name__}")(event, out)
        if self._wake_s <= self.now_s:
            self._wake_s = _NEVER
        out += [Expire(self.entries.pop(entry.id).id) for entry in self.scheduler.advance(self.now_s)]
        out += [Run(s.worker, tuple(entry.id for entry in s.entries)) for s in self.scheduler.dispatch()]
        wake_s = self.scheduler.wake_s()
        if wake_s < self._wake_s:
            self._wake_s = wake_s
            out.append(WakeAt(wake_s))
        return out

    def entry(self, item):
        tenant = self.scheduler.tenant(item.tenant, self._weight_of(item.tenant))
        tenant.bound_bytes = self._bound_bytes if self.is_open else 0
        entry = QueueEntry(item.id, tenant, item.expected_s, item.arrived_s, item.batch_key, item.n_bytes)
        entry.priority, entry.due_s, entry.memory_bytes = item.priority, item.due_s, item.memory_bytes
        return entry

    def start_at_once(self, item, now_s):
        """The worker that took it, or None."""
        entry = self.entry(item)
        worker = self.scheduler.start_at_once(entry, now_s)
        if worker is None:
            return None
        self.now_s = max(self.now_s, now_s)
        self.entries[item.id] = entry
        return worker

    def snapshot(self):
        return self.scheduler.snapshot()

    def validate(self):
        self.scheduler.validate()

    def _Arrived(self, event, out):
        entry = self.entries[event.item.id] = self.entry(event.item)
        self.scheduler.add(entry, event.now_s)

    def _WorkerUp(self, event, out):
        self._lose(event, out)
        self.scheduler.add_worker(event.worker, event.device_kind, event.now_s)

    def _WorkerDown(self, event, out):
        self._lose(event, out)

    def _lose(self, event, out):
        lost = tuple(entry.id for entry in self.scheduler.remove_worker(event.worker, event.now_s))
        for item_id in lost:
            del self.entries[item_id]
        if lost:
            out.append(Lost(event.worker, lost))

    def _Finished(self, event, out):
        done = [self.entries[item_id] for item_id in event.ids if item_id in self.entries]
        done = [entry for entry in done if entry.worker == event.worker and not entry.is_queued]
        if done:
            self.scheduler.finish(event.worker, done, event.busy_s, event.now_s)
            for entry in done:
                del self.entries[entry.id]

    def _Cancelled(self, event, out):
        entry = self.entries.get(event.id)
        if entry is not None and entry.is_queued:
            self.scheduler.cancel(entry)
            del self.entries[event.id]
            out.append(Drop(event.id))

    def _Acceptance(self, event, out):
        self.is_open = event.is_open
        for tenant in self.scheduler._tenants.values():
            tenant.bound_bytes = self._bound_bytes if event.is_open else 0

    def _Tick(self, event, out):
        pass
