"""The rows of a plan, as they follow from the table of a task service.

A worker with k cores is k machines of the plan, WORKER#0 to WORKER#(k-1). The table says which tasks are
done, run or wait, and on which cores. The plan has numbers of them: ranks, where each is to run, and when.
All that a row says beside its numbers is a copy, made again from the table where that has changed.
"""

from __future__ import annotations

from typing import NamedTuple

from yarn_accel.core.dags.events import DagSubmitted
from yarn_accel.core.dags.model import DagId, DoneTask, Machine, SubmittedDag
from yarn_accel.core.dags.policies.base import DagPolicy
from yarn_accel.core.dags.state import DagRecord, DagTaskRecord, DagTaskState, MachineRecord
from yarn_accel.core.tasks.records import Assignment, ServedApp, ServedTask, TaskState, TaskWorker
from yarn_accel.core.tasks.table import TaskTable
from yarn_accel.core.tasks.values import AppId, ResourceId


class LiveDag:
    """A DAG from its submission until its application has ended.

    Attributes:
        record: its row in the plan, once it was planned, and also after its end.
        machines: the most that were there at once.
        is_known: something was known of all its tasks when it was first planned.
        is_admitted: the plan has it, or has had it.
        is_over: it was cancelled, or has failed.
    """

    __slots__ = ("app", "dag", "is_admitted", "is_known", "is_over", "machines", "own_makespan_s", "record")

    def __init__(self, app: ServedApp, dag: SubmittedDag) -> None:
        self.app = app
        self.dag = dag
        self.record: DagRecord | None = None
        self.machines: tuple[Machine, ...] = ()
        self.own_makespan_s: float | None = None
        self.is_known = self.is_admitted = self.is_over = False


class Place(NamedTuple):
    """One core of a worker: a machine of the plan."""

    worker: TaskWorker
    slot: int

    @property
    def occupant(self) -> Assignment | None:
        """The attempt that starts, runs or is ending there."""
        return self.worker.slots[self.slot]


class Changes(NamedTuple):
    """What has changed in the table.

    Attributes:
        are_some: anything.
        are_large: more follows than that the next tasks of workers start.
    """

    are_some: bool
    are_large: bool


class PlannedRows:
    """Makes the rows of a plan follow a table.

    Attributes:
        table: the world.
        places: by machine, in the order in which the workers came.
        dags: the DAGs of the table.
    """

    def __init__(self, inner: DagPolicy) -> None:
        self.table = TaskTable()
        self.places: dict[ResourceId, Place] = {}
        self.dags: dict[AppId, LiveDag] = {}
        self._inner = inner
        self._state = inner.state
        self._workers: dict[ResourceId, TaskWorker] = {}
        #: Of the table, when its workers were looked at last.
        self._n_kind_changes = 0

    def follow(self, table: TaskTable) -> None:
        """Follow this table from now on; all that rows say of it is made again, but where it has changed."""
        self.table = table
        for dag in self._state.dags.values():
            app = self.dags[AppId(dag.dag_id)].app
            if not app.is_over:
                pairs = zip(dag.tasks, app.tasks, strict=True)
                self._state.set_states(
                    dag,
                    [
                        row.state if task.id in table.changed else _state_of(task, dag.is_paused)
                        for row, task in pairs
                    ],
                )
        for machine, place in self.places.items():
            host, held = self._state.machine(machine), place.occupant
            if host is not None and (host.running is None or host.running.task not in table.changed):
                is_known = held is not None and held.task.id not in table.changed
                host.running = self.row(held.task) if held is not None and is_known else None

    # ---- what the table says

    def row(self, task: ServedTask) -> DagTaskRecord | None:
        """The row of a task; None: its DAG is not planned yet, or no more."""
        dag = self._state.dags.get(DagId(task.app.id))
        return None if dag is None else dag.tasks[task.partition]

    def may_go(self, row: DagTaskRecord) -> bool:
        """Whether a task may be given to a worker: its predecessors are done, and it is nowhere."""
        task = self.table.tasks[row.task]
        return task.assignment is None and task.id in task.app.ready

    def may_start(self, row: DagTaskRecord) -> bool:
        """Whether a task may be given to a worker, or waits at one, if only until it is taken back."""
        task = self.table.tasks[row.task]
        held = task.assignment
        return task.id in task.app.ready if held is None else held.is_queued

    def new_machines(self) -> list[Machine]:
        """The machines of workers that came since the last decision."""
        workers = self.table.resources.values()
        return [Machine(each) for one in workers if one.id not in self._workers for each in _machines(one)]

    # ---- what has changed there

    def catch_up(self, now_s: float) -> Changes:
        """Let the rows be as the table has it: ends first, as each leaves a core to a start."""
        changed = self.table.take_changed()
        are_large = self._follow_apps()
        rest: list[ServedTask] = []
        done: list[tuple[DagTaskRecord, DoneTask]] = []
        for task in changed:
            row = self.row(task)
            if row is not None and row.state is DagTaskState.RUNS:
                if not _is_there(task, row):  # it may run or have run elsewhere by now
                    are_large = True
                    self._state.give_up(row, task.ready_s)
                elif task.done is not None:
                    done.append((row, task.done))
                    continue
            elif row is not None and row.state is DagTaskState.IN_POOL and _has_run(task, row):
                are_large = True
                self._state.give_up(row, task.ready_s)
            rest.append(task)
        for row, end in done:
            are_large = are_large or bool(row.dag.dag.children[row.number])
            self._state.finish(row, end.end_s)
        if self.table.n_kind_changes != self._n_kind_changes:
            self._n_kind_changes = self.table.n_kind_changes
            are_large = self._leave(now_s) or are_large
            there = [task for task in rest if self._is_known(task)]
            rest = [task for task in rest if not self._is_known(task)]
            for task in there:
                are_large = self._follow(task) or are_large
            are_large = self._join(now_s) or are_large
        for task in rest:
            are_large = self._follow(task) or are_large
        return Changes(bool(changed) or are_large, are_large)

    def note_order(self, task: ServedTask) -> None:
        """An order was carried out: what changed of its task is known."""
        if self.table.changed.pop(task.id, None) is not None:
            self._follow(task)

    def admit(self, live: LiveDag) -> None:
        """Let the plan have a DAG, from its next decision on."""
        live.is_admitted = True
        app, dag = live.app, live.dag
        done = {task.partition: task.done for task in app.tasks if task.done is not None}
        terms = dag.terms
        self._state.submit(
            DagSubmitted(DagId(app.id), dag.dag, terms.priority_class, dag.arrival_s, done, app.is_paused)
        )

    def _follow_apps(self) -> bool:
        """Take in which DAGs are there, over or paused; says whether that has changed."""
        table, state, is_changed = self.table, self._state, False
        for name, live in list(self.dags.items()):
            app, record = live.app, state.dags.get(DagId(name))
            is_gone = table.apps.get(name) is not app
            if (is_gone or app.is_over) and not live.is_over:
                live.is_over = is_changed = True
                state.cancel(DagId(name))
            elif record is not None and record.is_paused is not app.is_paused:
                is_changed = True
                state.pause(record, app.is_paused, app.resumed_s)
            if is_gone:
                is_changed = True
                del self.dags[name]
        if len(self.dags) < len(table.apps):
            for name, app in table.apps.items():
                if name not in self.dags and app.dag is not None:
                    is_changed = True
                    self.dags[name] = LiveDag(app, app.dag)
        return is_changed

    def _leave(self, now_s: float) -> bool:
        """Forget workers that are no more; says whether there were any."""
        there = self.table.resources
        gone = [each for name, each in self._workers.items() if there.get(name) is not each]
        for worker in gone:
            del self._workers[worker.id]
            for machine in _machines(worker):
                del self.places[machine]
                self._state.leave(machine, now_s)
        return bool(gone)

    def _join(self, now_s: float) -> bool:
        """Let the plan have workers that are new; says whether there were any."""
        new = [worker for name, worker in self.table.resources.items() if name not in self._workers]
        for worker in new:
            self._workers[worker.id] = worker
            for slot, machine in enumerate(_machines(worker)):
                self.places[machine] = Place(worker, slot)
                self._state.join(Machine(machine), now_s)
        if new:
            self._inner.admit(now_s)
        return bool(new)

    def _is_known(self, task: ServedTask) -> bool:
        """Whether the plan has the worker on which a task runs or ran, if any."""
        held = _running(task)
        if task.done is not None:
            return task.done.machine in self.places
        return held is None or self._workers.get(held.worker.id) is held.worker

    def _follow(self, task: ServedTask) -> bool:
        """Let a row that does not run, or goes on to, be as the table has its task; as `are_large`."""
        row, held = self.row(task), _running(task)
        if row is None:
            live = self.dags.get(task.app.id)
            since_s = held.slot_s if held is not None else task.done.end_s if task.done is not None else None
            if since_s is None or live is None or live.is_admitted or live.is_over or not live.app.n_open:
                return True
            # It runs already, so its DAG counts now.
            self.admit(live)
            self._inner.admit(since_s)
            row = self.row(task)
            if row is None:
                return True
        row.n_moves = task.n_moves
        if task.done is not None:
            if row.state is not DagTaskState.DONE:
                self._state.run(row, self._host(task.done.machine), task.done.start_s, is_extra=True)
                self._state.finish(row, task.done.end_s)
            return bool(row.dag.dag.children[row.number])
        if held is None:
            return True
        host, is_extra = self._host(held.place), held.slot is None
        if row.state is not DagTaskState.RUNS or (not is_extra and host.running is not row):
            self._state.run(row, host, held.slot_s, is_extra=is_extra)
        return False

    def _host(self, machine: ResourceId) -> MachineRecord:
        """A machine; a new one of no place where it has left meanwhile."""
        return self._state.machine(machine) or MachineRecord(Machine(machine))

    # ---- for tests

    def validate(self) -> None:
        """Raise AssertionError where a row says else than the table, and nothing is to be caught up."""
        if self.table.changed or any(live.app.is_over for live in self.dags.values()):
            return
        for dag in self._state.dags.values():
            live = self.dags[AppId(dag.dag_id)]
            if dag.is_paused is not live.app.is_paused:
                return
            for row, task in zip(dag.tasks, live.app.tasks, strict=True):
                assert (row.task, row.n_moves) == (task.id, task.n_moves)
                assert row.state is _state_of(task, dag.is_paused), (
                    f"{task.id}: {row.state}, and the table has {task.state}"
                )
        for machine, place in self.places.items():
            host = self._state.machine(machine)
            held = place.occupant
            running = None if held is None else self.row(held.task)
            assert host is None or host.running is running, f"{machine}: not what runs there"


def _machines(worker: TaskWorker) -> list[ResourceId]:
    return [worker.place(slot) for slot in range(len(worker.slots))]


def _running(task: ServedTask) -> Assignment | None:
    """The attempt of a task that starts, runs or is ending."""
    held = task.assignment
    return held if held is not None and held.is_counted and not held.is_queued else None


def _is_there(task: ServedTask, row: DagTaskRecord) -> bool:
    """Whether a task runs, or is done, on the worker where its row has it, if perhaps on another core."""
    held = _running(task)
    place = task.done.machine if task.done is not None else "" if held is None else held.worker.place(0)
    return row.host is not None and row.host.name.rpartition("#")[0] == place.rpartition("#")[0]


def _has_run(task: ServedTask, row: DagTaskRecord) -> bool:
    """Whether a task that waits has run, to no good end, since its row began to wait."""
    return task.assignment is None and task.done is None and row.in_pool_since_s < task.ready_s


def _state_of(task: ServedTask, is_paused: bool) -> DagTaskState:
    if task.state is TaskState.DONE:
        return DagTaskState.DONE
    if _running(task) is not None:
        return DagTaskState.RUNS
    return DagTaskState.WAITS if task.n_missing or is_paused else DagTaskState.IN_POOL
