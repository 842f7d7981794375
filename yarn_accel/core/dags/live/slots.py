"""Workers as a policy for DAGs has them: a worker with k cores is k machines, WORKER#0 to WORKER#(k-1)."""

from __future__ import annotations

from collections.abc import Iterator

from yarn_accel.core.dags.model import Machine
from yarn_accel.core.tasks.values import ResourceId, ResourceSpec, TaskId


class WorkerSlot:
    """One core of a worker.

    Attributes:
        occupant: what starts, runs or is ending there.
        started_s: since when.
        expected_s: how long it was expected to take, transfers included; None: nobody knew.
        is_ending: its attempt is to end for another task.
    """

    __slots__ = ("expected_s", "is_ending", "machine", "occupant", "started_s", "worker")

    def __init__(self, worker: WorkerSlots, machine: ResourceId) -> None:
        self.worker = worker
        self.machine = machine
        self.occupant: TaskId | None = None
        self.started_s = 0.0
        self.expected_s: float | None = None
        self.is_ending = False


class WorkerSlots:
    """A worker, its cores, and the tasks in its queue that are to stay there.

    Attributes:
        n_given: so many were in its queue after the last plan.
    """

    __slots__ = ("n_given", "name", "node", "queue", "slots")

    def __init__(self, spec: ResourceSpec) -> None:
        self.name = spec.resource
        self.node = spec.node
        self.slots = [WorkerSlot(self, ResourceId(f"{spec.resource}#{n}")) for n in range(spec.cores)]
        self.queue: list[TaskId] = []
        self.n_given = 0


class LyingTask:
    """A task in the queue of a worker; `is_asked_back`: it leaves, unless it has started."""

    __slots__ = ("is_asked_back", "worker")

    def __init__(self, worker: WorkerSlots) -> None:
        self.worker = worker
        self.is_asked_back = False


class WorkerTable:
    """All workers, and where each task is: nowhere, in a queue, or in a slot."""

    def __init__(self) -> None:
        self.workers: dict[ResourceId, WorkerSlots] = {}
        self.slots: dict[ResourceId, WorkerSlot] = {}
        self.slot_of: dict[TaskId, WorkerSlot] = {}
        self.lying: dict[TaskId, LyingTask] = {}

    def join(self, spec: ResourceSpec) -> Iterator[Machine]:
        """A worker is there, and has nothing; its machines."""
        worker = self.workers[spec.resource] = WorkerSlots(spec)
        for slot in worker.slots:
            self.slots[slot.machine] = slot
            yield Machine(slot.machine)

    def leave(self, name: ResourceId) -> Iterator[ResourceId]:
        """A worker is gone; its machines."""
        worker = self.workers.pop(name, None)
        if worker is None:
            return
        for task in [task for task, each in self.lying.items() if each.worker is worker]:
            del self.lying[task]
        for slot in worker.slots:
            del self.slots[slot.machine]
            if slot.occupant is not None:
                del self.slot_of[slot.occupant]
            yield slot.machine

    def occupy(self, slot: WorkerSlot, task: TaskId, now_s: float, expected_s: float | None) -> None:
        """A task starts in a free slot."""
        self.forget_lying(task)
        slot.occupant, slot.started_s, slot.expected_s = task, now_s, expected_s
        self.slot_of[task] = slot

    def vacate(self, task: TaskId) -> WorkerSlot | None:
        """A task is where it was no more; the slot that it had."""
        self.forget_lying(task)
        slot = self.slot_of.pop(task, None)
        if slot is not None:
            slot.occupant, slot.is_ending = None, False
        return slot

    def lay(self, worker: WorkerSlots, task: TaskId, position: int) -> None:
        """A task comes into a worker's queue."""
        worker.queue.insert(position, task)
        self.lying[task] = LyingTask(worker)

    def ask_back(self, task: TaskId) -> None:
        """A task is to leave the queue that it is in."""
        each = self.lying[task]
        each.is_asked_back = True
        each.worker.queue.remove(task)

    def forget_lying(self, task: TaskId) -> None:
        """A task is in no queue any more."""
        each = self.lying.pop(task, None)
        if each is not None and not each.is_asked_back:
            each.worker.queue.remove(task)

    def validate(self) -> None:
        """Raise AssertionError where the table contradicts itself; for tests."""
        occupied = {slot.occupant: slot for slot in self.slots.values() if slot.occupant is not None}
        assert occupied == self.slot_of, "slots and their index differ"
        assert not self.slot_of.keys() & self.lying.keys(), "a task lies where it runs"
        queued = [task for worker in self.workers.values() for task in worker.queue]
        staying = [task for task, each in self.lying.items() if not each.is_asked_back]
        assert sorted(queued) == sorted(staying), "queues and their index differ"
