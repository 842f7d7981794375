"""What a policy knows of DAGs, their tasks and the machines: facts in, and the task pool out.

The pool has the tasks whose parents have all ended, and that have not started. A planned task is in the pool
still; only the plan, the policy's, says where it is to run. In a task service all but the numbers of plans
follows from its table: see `core.dags.live`.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain
from typing import NamedTuple

import numpy as np

from yarn_accel.core.dags.events import DagSubmitted
from yarn_accel.core.dags.heft import HeftSchedule, Matrix, heft, ready_row, seconds_matrix
from yarn_accel.core.dags.model import Dag, DagId, DoneTask, Machine, PriorityClass, task_id_of
from yarn_accel.core.dags.timeline import Row
from yarn_accel.core.tasks.values import ResourceId, TaskId

_GONE = -1
_DIGITS = re.compile(r"(\d+)")


class DagTaskState(Enum):
    """Where a task of a DAG is on its way."""

    WAITS = "waits"
    IN_POOL = "in-pool"
    RUNS = "runs"
    DONE = "done"


TO_START = (DagTaskState.IN_POOL, DagTaskState.WAITS)


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
        self.n_moves = 0
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

    def may_enter(self) -> bool:
        """Whether only its DAG's pause keeps it out of the pool."""
        return self.state is DagTaskState.WAITS and not self.n_parents_left


class _AloneTask(NamedTuple):
    """A task in its DAG's own schedule, with its times there."""

    task: DagTaskRecord
    start_s: float
    end_s: float


class DagRecord:
    """A DAG from its arrival to its end.

    Attributes:
        own: its schedule alone on the machines that were there when it was first planned.
        seconds: w, row per task, column per machine.
        pool: its tasks in the pool, by falling rank.
        running: its tasks that run.
        delay_s: DelayTime of equation (3), when it was last computed.
        slowdown: equation (3) at the last decision.
        last_end_s: the last end of a task that has ended.
        is_paused: its pool is empty; tasks that could be there wait.
        plans_waiting: tasks that wait for parents are planned, too.
        begins_s: when the first task of the pool that is not planned starts about.
        goes_on_s: seconds from then until the last of them has about ended.
        n_unplanned: how many these are: the last of the pool.
    """

    __slots__ = (
        "_below_s",
        "_first_left",
        "_n_ended_first",
        "_n_own_begun",
        "_own_at",
        "_own_points_s",
        "_own_running",
        "_own_tasks",
        "_shared_s",
        "_unplanned",
        "arrival_s",
        "begins_s",
        "dag",
        "dag_id",
        "delay_s",
        "goes_on_s",
        "is_paused",
        "last_end_s",
        "least_s",
        "n_left",
        "n_unplanned",
        "own",
        "plans_waiting",
        "pool",
        "priority_class",
        "running",
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
        self.least_s: list[float] = []
        self.delay_s = 0.0
        self.slowdown = 1.0
        self.last_end_s = -math.inf
        self.is_paused = event.is_paused
        self.plans_waiting = False
        self.begins_s, self.goes_on_s, self.n_unplanned = -math.inf, 0.0, 0
        self.n_left = len(event.dag.tasks)
        self.pool: list[DagTaskRecord] = []
        self.running: list[DagTaskRecord] = []
        positions = {number: position for position, number in enumerate(own.order)}
        self.tasks = [DagTaskRecord(self, number, positions[number]) for number in range(self.n_left)]
        self.drop_caches()

    def drop_caches(self) -> None:
        """Forget what is computed again where it is asked for; at any moment this changes nothing."""
        self._n_ended_first = 0
        self._first_left = self.tasks[self.own.order[0]]
        self._below_s: list[float] | None = None
        self._shared_s: list[float] | None = None
        #: Of the tasks of this pool that are not planned: their number and work, and the longest ways from
        #: the beginnings of the first and the last to the end of the DAG.
        self._unplanned: tuple[int, float, float, float] | None = None
        #: When tasks start or end in the own schedule, and what runs before one of these moments.
        self._own_points_s: list[float] = []
        self._own_at = -1
        self._own_running: list[_AloneTask] = []
        #: All by their starts there, of which so many have begun.
        self._own_tasks: list[_AloneTask] = []
        self._n_own_begun = 0

    def remaining_s(self) -> float:
        """The largest rank of what has not ended: the paper's remaining makespan."""
        while self._first_left.state is DagTaskState.DONE:
            self._n_ended_first += 1
            if self._n_ended_first >= len(self.tasks):
                return 0.0
            self._first_left = self.tasks[self.own.order[self._n_ended_first]]
        return self._first_left.rank

    def running_alone(self, local_s: float) -> list[_AloneTask]:
        """The tasks that run in the own schedule so long after its start.

        A task that ends just then still counts; one that starts just then does not.
        """
        if not self._own_points_s:
            starts_s, ends_s = self.own.start_s.tolist(), self.own.end_s.tolist()
            self._own_points_s = sorted({*starts_s, *ends_s})
            self._own_tasks = sorted(
                (_AloneTask(*each) for each in zip(self.tasks, starts_s, ends_s, strict=True)),
                key=lambda each: each.start_s,
            )
        # The same tasks run all the time between two such moments.
        at = bisect_left(self._own_points_s, local_s)
        if at != self._own_at:
            if at < self._own_at:
                self._own_running, self._n_own_begun = [], 0
            self._own_at = at
            tasks, first = self._own_tasks, self._n_own_begun
            last = bisect_left(tasks, local_s, first, key=lambda each: each.start_s)
            there = chain(self._own_running, tasks[first:last])
            self._own_running, self._n_own_begun = [each for each in there if local_s <= each.end_s], last
        return self._own_running

    def put_in_pool(self, task: DagTaskRecord) -> None:
        """The task may start."""
        insort(self.pool, task, key=lambda each: each.position)
        self._unplanned = None

    def take_from_pool(self, task: DagTaskRecord) -> None:
        """The task has started."""
        self.pool.remove(task)
        self._unplanned = None

    def set_seconds(self, seconds: Matrix) -> None:
        """Tasks are expected to take so long on each machine."""
        self.seconds = seconds
        self.least_s = seconds.min(axis=1).tolist()
        self._below_s = self._shared_s = self._unplanned = None

    @property
    def shared_s(self) -> list[float]:
        """Of each task the seconds that it takes where all machines work on such tasks."""
        if self._shared_s is None:
            with np.errstate(divide="ignore"):
                self._shared_s = (1 / (1 / self.seconds).sum(axis=1)).tolist()
        return self._shared_s

    @property
    def below_s(self) -> list[float]:
        """Of each task the longest way from its end to the DAG's, each task on its fastest machine."""
        if self._below_s is None:
            least_s, children = self.least_s, self.dag.children
            self._below_s = below_s = [0.0] * len(least_s)
            for number in reversed(self.dag.topological):
                below_s[number] = max((least_s[at] + below_s[at] for at, _ in children[number]), default=0.0)
        return self._below_s

    def estimate(self, begins_s: float) -> float:
        """The first task of the pool that is not planned begins then; returns when the last ends about."""
        self.begins_s, self.goes_on_s = begins_s, self._sums()[1]
        return begins_s + self.goes_on_s

    def last_unplanned_end_s(self, now_s: float) -> float:
        """When what comes behind the tasks that are not planned has ended: behind the first or the last."""
        n_tasks, work_s, first_s, last_s = self._sums()
        begins_s = self.begins_s
        return max(begins_s + first_s, begins_s + work_s * (n_tasks - 1) / n_tasks + last_s, now_s + first_s)

    def _sums(self) -> tuple[int, float, float, float]:
        """Of the tasks that are not planned: number, work shared, and what follows the first and the last."""
        if self._unplanned is None or self._unplanned[0] != self.n_unplanned:
            tasks = self.pool[max(0, len(self.pool) - self.n_unplanned) :]
            first, last = tasks[0].number, tasks[-1].number
            least_s, below_s = self.least_s, self.below_s
            work_s = sum(self.shared_s[task.number] for task in tasks)
            ends_s = (least_s[first] + below_s[first], least_s[last] + below_s[last])
            self._unplanned = (self.n_unplanned, work_s, *ends_s)
        return self._unplanned

    def unplanned_start_s(self, task: DagTaskRecord, now_s: float) -> float:
        """When a task whose parents have ended starts about: now, or behind what is planned."""
        if not self.n_unplanned or task.state is not DagTaskState.IN_POOL:
            return now_s
        at = bisect_left(self.pool, task.position, key=lambda each: each.position)
        share = max(0.0, 1 - (len(self.pool) - at) / self.n_unplanned)
        return max(now_s, self.begins_s + share * self.goes_on_s)


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
        #: Their names.
        self.names: tuple[ResourceId, ...] = ()
        #: What came into the pool since the policy last asked.
        self.entered: list[DagTaskRecord] = []
        #: So often DAGs or machines came, went or were paused.
        self.n_changes = 0
        #: The policy plans tasks that wait for parents, too.
        self.plans_waiting = False
        self._tasks: dict[TaskId, DagTaskRecord] = {}
        self._by_name: dict[ResourceId, MachineRecord] = {}
        self._not_admitted: list[DagSubmitted] = []
        self._joined: list[Machine] = []

    # Facts

    def submit(self, event: DagSubmitted) -> None:
        """A DAG arrived; it counts from `admit` on."""
        self._not_admitted.append(event)

    def join(self, machine: Machine, now_s: float) -> None:
        """A machine joined; it counts from `admit` on."""
        if machine.machine in self._by_name:
            self.leave(machine.machine, now_s)
        self._joined.append(machine)

    def leave(self, name: ResourceId, now_s: float) -> None:
        """A machine left: its queue and its unfinished task go back to the pool."""
        self._joined = [each for each in self._joined if each.machine != name]
        host = self._by_name.pop(name, None)
        if host is None:
            return
        self.machines.remove(host)
        host.column = _GONE
        self.n_changes += 1
        self._number_machines()
        if host.running is not None:
            self.give_up(host.running, now_s)
        for dag in self.dags.values():
            for task in dag.pool:
                if task.host is host:
                    self.unplan(task)
        host.published = []

    def run(self, task: DagTaskRecord, host: MachineRecord, now_s: float, *, is_extra: bool = False) -> None:
        """A task runs since then, wherever it was planned; `is_extra`: it is more than the machine holds."""
        if task.state is DagTaskState.IN_POOL:
            task.dag.take_from_pool(task)
        elif task.state is DagTaskState.WAITS:  # of a DAG that was paused too late for it
            self._set_rows(task)
        for each in self.machines:
            if task in each.published:
                each.published.remove(task)
        if task.state is not DagTaskState.RUNS:
            task.dag.running.append(task)
        task.state, task.host = DagTaskState.RUNS, host
        if not is_extra:
            host.running = task
        task.start_s, task.seconds = now_s, 0.0
        if host.column >= 0:  # it has not left meanwhile
            # Live a task fetches its inputs after its start; a simulated one starts when they are there.
            task.start_s = max(now_s, float(task.ready_s[host.column]))
            task.seconds = float(task.row[host.column])
        task.end_s = task.start_s + task.seconds

    def finish(self, task: DagTaskRecord, now_s: float) -> None:
        """A task that ran is done."""
        assert task.host is not None
        if task.host.running is task:
            task.host.running = None
        task.state = DagTaskState.DONE
        if now_s != task.end_s:
            task.start_s = min(task.start_s, now_s)
            task.seconds, task.end_s = now_s - task.start_s, now_s
        dag = task.dag
        dag.n_left -= 1
        dag.running.remove(task)
        dag.last_end_s = max(dag.last_end_s, task.start_s + task.seconds)
        if not dag.n_left:
            self._forget(dag)
            return
        for number, _ in dag.dag.children[task.number]:
            child = dag.tasks[number]
            child.n_parents_left -= 1
            if not child.n_parents_left:
                self._enter_pool(child, now_s)

    def give_up(self, task: DagTaskRecord, now_s: float) -> None:
        """A task that ran has to run again."""
        if task.state is DagTaskState.IN_POOL:
            task.dag.take_from_pool(task)
        else:
            task.dag.running.remove(task)
        if task.host is not None and task.host.running is task:
            task.host.running = None
        self.unplan(task)
        self.unplan_waiting(task.dag)
        self._enter_pool(task, now_s)

    def cancel(self, dag_id: DagId) -> None:
        """A DAG is no more: its machines count as free."""
        self._not_admitted = [each for each in self._not_admitted if each.dag_id != dag_id]
        dag = self.dags.get(dag_id)
        if dag is None:
            return
        for host in self.machines:
            if host.running is not None and host.running.dag is dag:
                host.running = None
            host.published = [task for task in host.published if task.dag is not dag]
        for task in dag.tasks:
            task.state, task.host = DagTaskState.DONE, None
        dag.pool, dag.running = [], []
        self._forget(dag)

    def pause(self, dag: DagRecord, is_paused: bool, now_s: float) -> None:
        """Empty a DAG's pool, or fill it again; what runs is left alone."""
        dag.is_paused = is_paused
        self.n_changes += 1
        if is_paused:
            dag.pool = []
        for task in dag.tasks:
            if task.state is DagTaskState.IN_POOL:
                task.state = DagTaskState.WAITS
            if task.state is DagTaskState.WAITS:
                self.unplan(task)
                if not task.n_parents_left:
                    self._enter_pool(task, now_s)

    def set_states(self, dag: DagRecord, states: Sequence[DagTaskState]) -> None:
        """Let the tasks of a DAG be in these states, whatever they were in; their numbers stay."""
        for task, state in zip(dag.tasks, states, strict=True):
            task.state = state
        for task in dag.tasks:
            parents = (dag.tasks[number] for number, _ in dag.dag.parents[task.number])
            task.n_parents_left = sum(each.state is not DagTaskState.DONE for each in parents)
        in_pool = (task for task in dag.tasks if task.state is DagTaskState.IN_POOL)
        dag.pool = sorted(in_pool, key=lambda task: task.position)
        dag.running = [task for task in dag.tasks if task.state is DagTaskState.RUNS]
        dag.n_left = sum(task.state is not DagTaskState.DONE for task in dag.tasks)

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
            self.n_changes += 1
            self._number_machines()
        if not self.machines:
            return
        specs = [host.machine for host in self.machines]
        for event in sorted(self._not_admitted, key=lambda each: (each.now_s, each.dag_id)):
            seconds = self.seconds_matrix(event.dag, specs)
            own = heft(event.dag, specs, self.bandwidth_bytes_per_s, seconds=seconds)
            self.n_changes += 1
            dag = self.dags[event.dag_id] = DagRecord(event, own)
            dag.set_seconds(seconds)
            dag.plans_waiting = self.plans_waiting
            self._tasks.update((task.task, task) for task in dag.tasks)
            for number, done in event.done.items():
                self._take_done(dag.tasks[number], done)
            for task in dag.tasks:
                if not task.n_parents_left and task.state is DagTaskState.WAITS:
                    self._enter_pool(task, now_s)
        self._not_admitted = []

    # The plan

    def unplan(self, task: DagTaskRecord) -> None:
        """It is to run nowhere for now."""
        task.host = None

    def unplan_waiting(self, dag: DagRecord) -> None:
        """What waits for parents is planned anew, where it was: it must not stand before one of them."""
        for task in dag.tasks:
            if task.state is DagTaskState.WAITS and task.host is not None:
                self.unplan(task)

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
            dag.set_seconds(self.seconds_matrix(dag.dag, specs))
            for task in dag.pool:
                self._set_rows(task)

    def machine(self, name: ResourceId) -> MachineRecord | None:
        """One that is there since `admit`."""
        return self._by_name.get(name)

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
            assert all(each.state in TO_START for each in host.published)
        for dag in self.dags.values():
            assert dag.n_left == sum(task.state is not DagTaskState.DONE for task in dag.tasks) > 0
            assert all(task.state is DagTaskState.RUNS for task in dag.running)
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
        task.dag.put_in_pool(task)
        self._set_rows(task)
        self.entered.append(task)

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
        self.names = tuple(host.name for host in self.machines)
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
        task.dag.last_end_s = max(task.dag.last_end_s, task.start_s + task.seconds)
        for number, _ in task.dag.dag.children[task.number]:
            task.dag.tasks[number].n_parents_left -= 1

    def _forget(self, dag: DagRecord) -> None:
        self.n_changes += 1
        del self.dags[dag.dag_id]
        for task in dag.tasks:
            del self._tasks[task.task]


def _by_number(name: str) -> tuple[list[tuple[int, str]], str]:
    """A key by which m2 comes before m10."""
    parts = _DIGITS.split(name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts if part], name
