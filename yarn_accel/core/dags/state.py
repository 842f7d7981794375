"""What a policy knows of DAGs, their tasks and the machines: events in, and the task pool out.

The pool has the tasks whose parents have all ended, and that have not started. A planned task is in the pool
still; only the plan, the policy's, says where it is to run.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum

import numpy as np

from yarn_accel.core.dags.events import DagCancelled, DagPaused, DagSubmitted, MachineJoined
from yarn_accel.core.dags.heft import HeftSchedule, Matrix, heft, ready_row, seconds_matrix
from yarn_accel.core.dags.model import Dag, DagId, DoneTask, Machine, PriorityClass, task_id_of
from yarn_accel.core.dags.slowdown import PlanTable
from yarn_accel.core.dags.timeline import Row
from yarn_accel.core.tasks.events import EndReason, ResourceLeft, TaskEnded, TaskStarted
from yarn_accel.core.tasks.values import ResourceId, TaskId

_GONE = -1
_DIGITS = re.compile(r"(\d+)")


class DagTaskState(Enum):
    """Where a task of a DAG is on its way."""

    WAITS = "waits"
    IN_POOL = "in-pool"
    RUNS = "runs"
    DONE = "done"


_MAY_START = (DagTaskState.IN_POOL, DagTaskState.WAITS)


class MachineRecord:
    """A machine: its column in all rows (-1 when it has left), and what runs there."""

    __slots__ = ("column", "machine", "published", "running")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.column = _GONE
        self.running: DagTaskRecord | None = None
        #: The tasks in the queue of its worker, as it was ordered.
        self.published: list[DagTaskRecord] = []

    @property
    def name(self) -> ResourceId:
        """Its id."""
        return self.machine.machine


class DagTaskRecord:
    """A task from its DAG's arrival to its end.

    Attributes:
        host: where it is planned, runs or ran; None: nowhere yet.
        start_s: when it starts there or started.
        end_s: when it ends or ended.
        seconds: how long it takes there or took.
        last_queue: the machine in whose worker's queue it was last.
        ready_s: row: when its inputs are on each machine; while it is in the pool.
        finish_s: row: its finish on each machine when it was planned.
        n_moves: how often it went from one machine's queue to another's.
        n_interrupts: how often it was ended for a task of a higher class.
        is_overdue: it was planned before all others because it had waited too long.
        note: what else its owner should know of the placement.
    """

    __slots__ = (
        "dag",
        "end_s",
        "finish_s",
        "host",
        "in_pool_since_s",
        "is_overdue",
        "last_queue",
        "latest_ready_s",
        "least_s",
        "n_interrupts",
        "n_moves",
        "n_parents_left",
        "note",
        "number",
        "position",
        "ready_s",
        "row",
        "seconds",
        "start_s",
        "state",
        "task",
    )

    def __init__(self, dag: DagRecord, number: int, position: int) -> None:
        self.dag = dag
        self.number = number
        self.position = position
        self.task = task_id_of(dag.dag_id, dag.dag.tasks[number].task)
        self.n_parents_left = len(dag.dag.parents[number])
        self.state = DagTaskState.WAITS
        self.host: MachineRecord | None = None
        self.start_s = self.seconds = self.end_s = 0.0
        self.last_queue: MachineRecord | None = None
        self.in_pool_since_s = 0.0
        self.n_moves = self.n_interrupts = 0
        self.is_overdue = False
        self.note = ""
        self.least_s = self.latest_ready_s = 0.0
        self.row: Row
        self.ready_s: Row
        self.finish_s: Row

    @property
    def rank(self) -> float:
        """Its upward rank, in seconds."""
        return self.dag.own.ranks[self.number]


class DagRecord:
    """A DAG from its arrival to its end.

    Attributes:
        own: its schedule alone on the machines that were there when it was first planned.
        seconds: w, row per task, column per machine.
        pool: its tasks in the pool, by falling rank.
        slowdown: equation (3) at the last decision.
        is_paused: its pool is empty; tasks that could be there wait.
    """

    __slots__ = (
        "_n_ended_first",
        "arrival_s",
        "dag",
        "dag_id",
        "is_paused",
        "n_left",
        "own",
        "pool",
        "priority_class",
        "seconds",
        "slowdown",
        "tasks",
    )

    def __init__(self, event: DagSubmitted, own: HeftSchedule) -> None:
        self.dag_id: DagId = event.dag_id
        self.dag: Dag = event.dag
        self.priority_class: PriorityClass = event.priority_class
        self.arrival_s = event.now_s
        self.own = own
        self.seconds: Matrix
        self.slowdown = 1.0
        self.is_paused = event.is_paused
        self.n_left = len(event.dag.tasks)
        self.pool: list[DagTaskRecord] = []
        positions = {number: position for position, number in enumerate(own.order)}
        self.tasks = [DagTaskRecord(self, number, positions[number]) for number in range(self.n_left)]
        self._n_ended_first = 0

    def remaining_s(self) -> float:
        """The largest rank of what has not ended: the paper's remaining makespan."""
        order = self.own.order
        while self._n_ended_first < len(order):
            number = order[self._n_ended_first]
            if self.tasks[number].state is not DagTaskState.DONE:
                return self.own.ranks[number]
            self._n_ended_first += 1
        return 0.0


class DagState:
    """All DAGs that have not ended, and all machines.

    Args:
        bandwidth_bytes_per_s: between any two machines.
    """

    def __init__(self, bandwidth_bytes_per_s: float) -> None:
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        #: How long tasks take where; replaced where that is learned.
        self.seconds_matrix: Callable[[Dag, Sequence[Machine]], Matrix] = seconds_matrix
        self.dags: dict[DagId, DagRecord] = {}
        #: Those there, by column: in the order in which they joined, by name where they joined together.
        self.machines: list[MachineRecord] = []
        self.table = PlanTable()
        #: What came into the pool since the policy last asked.
        self.entered: list[DagTaskRecord] = []
        #: Ids that events named and nobody knows.
        self.n_unknown = 0
        self._slowdowns_at_s = -np.inf
        self._tasks: dict[TaskId, DagTaskRecord] = {}
        self._by_name: dict[ResourceId, MachineRecord] = {}
        self._not_admitted: list[DagSubmitted] = []
        self._joined: list[Machine] = []

    # Facts

    def submit(self, event: DagSubmitted) -> None:
        """A DAG arrived; it counts from `admit` on."""
        if event.dag_id in self.dags:
            self.n_unknown += 1
            return
        self._not_admitted.append(event)

    def join(self, event: MachineJoined) -> None:
        """A machine joined; it counts from `admit` on."""
        if event.machine.machine in self._by_name:
            self.leave(ResourceLeft(event.machine.machine, event.now_s))
        self._joined.append(event.machine)

    def leave(self, event: ResourceLeft) -> None:
        """A machine left: its queue and its unfinished task go back to the pool."""
        self._joined = [each for each in self._joined if each.machine != event.resource]
        host = self._by_name.pop(event.resource, None)
        if host is None:
            self.n_unknown += 1
            return
        self.machines.remove(host)
        host.column = _GONE
        self._number_machines()
        if host.running is not None:
            self._return(host.running, event.now_s)
        for dag in self.dags.values():
            for task in dag.pool:
                if task.host is host:
                    self.unplan(task)
        host.published = []

    def start(self, event: TaskStarted) -> None:
        """A task runs; it is adopted where another machine was planned."""
        task, host = self._tasks.get(event.task), self._by_name.get(event.resource)
        if task is None or host is None or task.state not in _MAY_START or task.n_parents_left:
            self.n_unknown += 1
            return
        if task.state is DagTaskState.IN_POOL:
            task.dag.pool.remove(task)
        else:  # of a DAG that was paused too late for it
            self._set_rows(task)
        for each in self.machines:
            if task in each.published:
                each.published.remove(task)
        task.state, task.host, host.running = DagTaskState.RUNS, host, task
        # Live a task fetches its inputs after its start; a simulated one starts when they are there.
        task.start_s = max(event.now_s, float(task.ready_s[host.column]))
        task.seconds = float(task.row[host.column])
        task.end_s = task.start_s + task.seconds
        self.table.plan(task.dag.dag_id, task.number, task.start_s, task.seconds)

    def end(self, event: TaskEnded) -> None:
        """A task ended, or has to run again."""
        task = self._tasks.get(event.task)
        if task is None or task.state is not DagTaskState.RUNS:
            if event.reason is not EndReason.TAKEN_BACK:
                self.n_unknown += 1
            return
        assert task.host is not None
        if event.reason is not EndReason.DONE:
            self._return(task, event.now_s)
            return
        task.host.running = None
        task.state = DagTaskState.DONE
        if event.now_s != task.end_s:
            task.start_s = min(task.start_s, event.now_s)
            task.seconds, task.end_s = event.now_s - task.start_s, event.now_s
        dag = task.dag
        dag.n_left -= 1
        if not dag.n_left:
            self._forget(dag)
            return
        self.table.plan(dag.dag_id, task.number, task.start_s, task.seconds)
        for number, _ in dag.dag.children[task.number]:
            child = dag.tasks[number]
            child.n_parents_left -= 1
            if not child.n_parents_left:
                self._enter_pool(child, event.now_s)

    def cancel(self, event: DagCancelled) -> None:
        """A DAG is no more: its machines count as free."""
        self._not_admitted = [each for each in self._not_admitted if each.dag_id != event.dag_id]
        dag = self.dags.get(event.dag_id)
        if dag is None:
            self.n_unknown += 1
            return
        for host in self.machines:
            if host.running is not None and host.running.dag is dag:
                host.running = None
            host.published = [task for task in host.published if task.dag is not dag]
        for task in dag.tasks:
            task.state, task.host = DagTaskState.DONE, None
        dag.pool = []
        self._forget(dag)

    def pause(self, event: DagPaused) -> None:
        """Empty a DAG's pool, or fill it again; see `DagPaused`."""
        self._not_admitted = [
            replace(each, is_paused=event.is_paused) if each.dag_id == event.dag_id else each
            for each in self._not_admitted
        ]
        dag = self.dags.get(event.dag_id)
        if dag is None or dag.is_paused is event.is_paused:
            return
        dag.is_paused = event.is_paused
        if event.is_paused:
            dag.pool = []
        for task in dag.tasks:
            if task.state is DagTaskState.IN_POOL:
                task.state = DagTaskState.WAITS
            if task.state is DagTaskState.WAITS:
                self.unplan(task)
                if not task.n_parents_left:
                    self._enter_pool(task, event.now_s)

    def active(self) -> Iterator[DagRecord]:
        """The DAGs that are not paused."""
        return (dag for dag in self.dags.values() if not dag.is_paused)

    def admit(self, now_s: float) -> None:
        """Take in what joined and arrived since: in the order of names, whatever that of the events was."""
        if self._joined:
            for machine in sorted(self._joined, key=lambda each: _by_number(each.machine)):
                host = self._by_name[machine.machine] = MachineRecord(machine)
                self.machines.append(host)
            self._joined = []
            self._number_machines()
        if not self.machines:
            return
        specs = [host.machine for host in self.machines]
        for event in sorted(self._not_admitted, key=lambda each: (each.now_s, each.dag_id)):
            seconds = self.seconds_matrix(event.dag, specs)
            own = heft(event.dag, specs, self.bandwidth_bytes_per_s, seconds=seconds)
            dag = self.dags[event.dag_id] = DagRecord(event, own)
            dag.seconds = seconds
            self._tasks.update((task.task, task) for task in dag.tasks)
            least_s = dag.seconds.min(axis=1)
            self.table.add(dag.dag_id, dag.arrival_s, own.start_s, own.end_s, least_s)
            for number, done in event.done.items():
                self._take_done(dag.tasks[number], done)
            for task in dag.tasks:
                if not task.n_parents_left and task.state is DagTaskState.WAITS:
                    self._enter_pool(task, now_s)
        self._not_admitted = []

    # The plan

    def store_plan(self) -> None:
        """Let slowdowns count with the times that the tasks of the pool have now."""
        tasks = list(self.pool())
        numbers = [task.number for task in tasks]
        start_s, seconds = [task.start_s for task in tasks], [task.seconds for task in tasks]
        self.table.plan_many([len(dag.pool) for dag in self.dags.values()], numbers, start_s, seconds)

    def unplan(self, task: DagTaskRecord) -> None:
        """It is to run nowhere for now."""
        task.host = None
        self.table.plan(task.dag.dag_id, task.number, np.nan, np.nan)

    def unplan_waiting(self, dag: DagRecord) -> None:
        """What waits for parents is planned anew, where it was: it must not stand before one of them."""
        for task in dag.tasks:
            if task.state is DagTaskState.WAITS and task.host is not None:
                self.unplan(task)

    def update_slowdowns(self, now_s: float) -> None:
        """Equation (3), of all DAGs."""
        self._slowdowns_at_s = now_s
        for dag_id, value in self.table.slowdowns(now_s).items():
            self.dags[DagId(dag_id)].slowdown = value

    def slowdowns(self, now_s: float) -> dict[str, float]:
        """Equation (3) of all DAGs: what a policy that goes by it decided by just now, else by its plan."""
        if self._slowdowns_at_s == now_s:
            return {dag_id: dag.slowdown for dag_id, dag in self.dags.items()}
        return self.table.slowdowns(now_s)

    def free_s(self, now_s: float) -> Row:
        """When each machine has done what runs there.

        What takes longer than expected is expected to take as long again as it is late.
        """
        return np.array(
            [now_s + abs(host.running.end_s - now_s) if host.running else now_s for host in self.machines]
        )

    def refresh_seconds(self, dags: Iterable[DagRecord]) -> None:
        """Tasks of these DAGs are expected to take other times than before."""
        specs = [host.machine for host in self.machines]
        for dag in dags:
            dag.seconds = self.seconds_matrix(dag.dag, specs)
            self.table.set_least(dag.dag_id, dag.seconds.min(axis=1))
            for task in dag.pool:
                self._set_rows(task)

    def task(self, task: TaskId) -> DagTaskRecord:
        """A task of a DAG that has not ended; KeyError for others."""
        return self._tasks[task]

    def pool(self) -> Iterable[DagTaskRecord]:
        """All tasks in the pool."""
        return (task for dag in self.dags.values() for task in dag.pool)

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself; for tests."""
        for column, host in enumerate(self.machines):
            assert host.column == column
            assert self._by_name[host.name] is host
            assert host.running is None or host.running.state is DagTaskState.RUNS
            waiting = (DagTaskState.IN_POOL, DagTaskState.WAITS)
            assert all(each.state in waiting for each in host.published)
        assert list(self.table.dags()) == list(self.dags)
        for dag in self.dags.values():
            assert dag.n_left == sum(task.state is not DagTaskState.DONE for task in dag.tasks) > 0
            in_pool = [task for task in dag.tasks if task.state is DagTaskState.IN_POOL]
            assert sorted(in_pool, key=lambda task: task.position) == dag.pool
            for task in dag.tasks:
                parents = [dag.tasks[number] for number, _ in dag.dag.parents[task.number]]
                assert task.n_parents_left == sum(each.state is not DagTaskState.DONE for each in parents)

    # Parts of these

    def _enter_pool(self, task: DagTaskRecord, now_s: float) -> None:
        if task.dag.is_paused:
            task.state = DagTaskState.WAITS
            return
        task.state, task.in_pool_since_s = DagTaskState.IN_POOL, now_s
        insort(task.dag.pool, task, key=lambda each: each.position)
        self._set_rows(task)
        self.entered.append(task)

    def _return(self, task: DagTaskRecord, now_s: float) -> None:
        """A task that ran has to run again."""
        assert task.host is not None
        task.host.running = None
        self.unplan(task)
        self.unplan_waiting(task.dag)
        self._enter_pool(task, now_s)

    def _set_rows(self, task: DagTaskRecord) -> None:
        dag, n_machines = task.dag, len(self.machines)
        arrivals = []
        for number, n_bytes in dag.dag.parents[task.number]:
            parent = dag.tasks[number]
            assert parent.host is not None
            arrivals.append((parent.end_s, parent.host.column, n_bytes))
        task.ready_s = ready_row(arrivals, n_machines, self.bandwidth_bytes_per_s, dag.arrival_s)
        task.row = dag.seconds[task.number]
        task.least_s = float(task.row.min()) if n_machines else 0.0
        task.latest_ready_s = float(task.ready_s.max()) if n_machines else 0.0
        task.finish_s = np.full(n_machines, np.nan)

    def _number_machines(self) -> None:
        """Machines have other columns now: all rows are computed again."""
        for column, host in enumerate(self.machines):
            host.column = column
        if not self.machines:
            return
        self.refresh_seconds(self.dags.values())

    def _take_done(self, task: DagTaskRecord, done: DoneTask) -> None:
        """A task had ended before; where its machine is not known any more, its files come from far."""
        task.state = DagTaskState.DONE
        task.host = self._by_name.get(done.machine) or MachineRecord(Machine(done.machine))
        task.start_s, task.end_s, task.seconds = done.start_s, done.end_s, done.end_s - done.start_s
        task.dag.n_left -= 1
        self.table.plan(task.dag.dag_id, task.number, task.start_s, task.seconds)
        for number, _ in task.dag.dag.children[task.number]:
            task.dag.tasks[number].n_parents_left -= 1

    def _forget(self, dag: DagRecord) -> None:
        self.table.remove(dag.dag_id)
        del self.dags[dag.dag_id]
        for task in dag.tasks:
            del self._tasks[task.task]


def _by_number(name: str) -> tuple[list[tuple[int, str]], str]:
    """A key by which m2 comes before m10."""
    parts = _DIGITS.split(name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts if part], name
