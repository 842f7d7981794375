"""A policy for DAGs as a policy of a task service: the object that simulations drive, driven live.

The inner policy plans; what it plans takes effect like this. A task starts by an order when its core is free
in the table, where it then counts as started, as in a simulation. More tasks wait at a worker that is busy,
see `queues`, where no end there can make them the wrong ones: the ends of what is before them on that worker
make nothing ready, or nothing of as high a class. So a worker never starts by itself what a successor of its
last task would have come before; the successor's order follows from the report of the end. Starts and ends
from which nothing follows but that the next ones start make no new plan, until a worker has begun half of
what waited there.

The table says where each task is, and `rows` makes the plan follow it. A task is in one place: it is given to
another machine once the worker from which it was asked back has said that it did not start it. A worker may
begin a task of its queue just before it hears what is to run instead. Then both run by the table, and so they
do in the plan; the one that began has no core of its own until one is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from yarn_accel.core.dags.live.expected_times import MOST_ADMITTED, ExpectedTimes, OwnMakespans
from yarn_accel.core.dags.live.queues import MOST_QUEUED, WorkerQueues
from yarn_accel.core.dags.live.rows import Place, PlannedRows
from yarn_accel.core.dags.model import DagFacts, DagId, PriorityClass
from yarn_accel.core.dags.policies.base import DagPolicy
from yarn_accel.core.dags.policies.registry import DAG_POLICIES, make_dag_policy
from yarn_accel.core.dags.state import DagRecord, DagTaskRecord, DagTaskState
from yarn_accel.core.tasks.commands import EndTask, StartTask, TaskCommand
from yarn_accel.core.tasks.durations import DurationStore
from yarn_accel.core.tasks.events import TaskMeasurement
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.policies.registry import POLICIES, make
from yarn_accel.core.tasks.policy import TaskPolicy
from yarn_accel.core.tasks.records import Assignment, Drop
from yarn_accel.core.tasks.table import TaskTable
from yarn_accel.core.tasks.values import AppId, Form, TaskId
from yarn_accel.errors import ConfigError

#: While something waits, plans are made anew so often, as what runs may take longer than expected.
_REPLAN_S = 1.0
_LEARN_S = 1.0
#: One task is ended so often at most; then it runs to its end.
MOST_INTERRUPTS = 3
#: A wait that is shorter is not worth what is lost.
_LEAST_WAIT_S = 1.0


class LiveDagPolicy(TaskPolicy):
    """One policy for DAGs in a task service.

    Args:
        inner: the policy, new.
        durations: what is learned of tasks' times.
    """

    def __init__(self, inner: DagPolicy, durations: DurationStore) -> None:
        self._inner = inner
        inner.orders_queues = False
        # As many again may lie at a worker, and twice as many come soon there.
        inner.horizon = 4 * MOST_QUEUED
        self._rows = PlannedRows(inner)
        self._times = ExpectedTimes(durations, self._rows)
        inner.state.seconds_matrix = self._times.matrix
        self._own = OwnMakespans(inner.state, self._times)
        self._queues = WorkerQueues(inner, self._rows)
        self._is_changed = False
        self._now_s = self._decided_s = self._learned_s = 0.0

    def follow(self, table: TaskTable) -> None:
        """From now on the plan follows this table."""
        self._rows.follow(table)

    def plan(self, table: TaskTable, figures: FigureStore, now_s: float) -> Iterator[TaskCommand]:
        """Take in what has changed, plan anew where that changes anything, and order what is to be now."""
        self._now_s = now_s
        changes = self._rows.catch_up(now_s)
        if changes.are_large or (changes.are_some and self._queues.is_short()):
            self._is_changed = True
        self._admit_some()
        if not (self._is_changed or self._is_late()):
            return
        self._is_changed, self._decided_s = False, now_s
        self._refresh_times()
        self._inner.decide(now_s)
        self._own.note_admitted(self._rows.dags)
        has_ordered = False
        for command in self._commands():
            has_ordered = True
            yield command
        if not has_ordered and self._is_stuck():
            # Times that are not as planned may put tasks of static plans before those that they wait for.
            for dag in self._inner.state.dags.values():
                self._inner.state.unplan_waiting(dag)
                for task in dag.pool:
                    self._inner.state.unplan(task)
            self._inner.decide(now_s)
            yield from self._commands()

    def learn(
        self,
        table: TaskTable,
        figures: FigureStore,
        assignment: Assignment,
        measured: TaskMeasurement,
        ran_s: float,
    ) -> None:
        """Learn how long a task takes, without what it fetched; by its worker's own clock."""
        task, dag = assignment.task, assignment.app.dag
        if dag is not None and not assignment.app.is_over:
            has_transfers = any(n_bytes for _, n_bytes in dag.dag.parents[task.partition])
            happened_s = max(0.0, ran_s - measured.read_s) if has_transfers else ran_s
            node, expected_s = assignment.worker.spec.node, self._expected_s(assignment)
            self._times.learn(dag, task.partition, node, happened_s, expected_s)

    def _expected_s(self, assignment: Assignment) -> float | None:
        """Seconds that a task was expected to take where it runs; None: it is not planned."""
        row, host = self._rows.row(assignment.task), self._inner.state.machine(assignment.place)
        if row is None or host is None:
            return None
        if row.state is DagTaskState.RUNS:
            return row.seconds or None
        return row.dag.seconds.item(row.number, host.column) or None

    def facts(self, app: AppId) -> DagFacts | None:
        """What is known of a DAG; None: it was never planned, as there was no machine yet."""
        live = self._rows.dags.get(app)
        if live is None or live.record is None:
            return None
        record, own_s, n_moved = live.record, self._own.seconds(live), live.app.n_moved
        if DagId(app) not in self._inner.state.dags:
            return DagFacts(own_s, record.slowdown, None, n_moved)
        slowdown = self._inner.slowdowns.at(self._now_s)[app]
        return DagFacts(own_s, slowdown, self._predicted_end_s(record), n_moved)

    def own_makespan_s(self, app: AppId) -> float | None:
        """M_own of a DAG whose last task has just ended, with what is known by now; None: nobody knows."""
        live = self._rows.dags.get(app)
        # The first report of a worker may have that end: then no decision knows of its machines yet.
        return None if live is None else self._own.at_end(live, self._rows.new_machines())

    def explain(self, task: TaskId) -> str:
        """Where a task that waits is planned, and why there; empty: nowhere."""
        found = self._rows.table.tasks.get(task)
        record = None if found is None else self._rows.row(found)
        if record is None or record.state is not DagTaskState.IN_POOL:
            return ""
        if record.host is None:
            if not record.dag.n_unplanned:
                return ""
            begins_s = record.dag.unplanned_start_s(record, self._now_s) - self._now_s
            return f"starts in about {begins_s:.3g} s, behind all that is planned"
        begins_s = max(0.0, record.start_s - self._now_s)
        reason = self._inner.reason(record, self._now_s)
        return f"planned on {record.host.name} in {begins_s:.3g} s: {reason}"

    def slowdowns(self) -> dict[str, float]:
        """SD by equation (3) of all DAGs now."""
        return self._inner.slowdowns.at(self._now_s)

    def validate(self) -> None:
        """Raise AssertionError where the state contradicts itself; for tests."""
        self._inner.validate()
        self._rows.validate()

    def _is_stuck(self) -> bool:
        """Whether nothing runs or is about to, though it could."""
        workers = self._rows.table.resources.values()
        if not self._inner.state.machines or any(each.running or each.queued for each in workers):
            return False
        return any(self._rows.may_go(task) for dag in self._inner.state.active() for task in dag.pool)

    def _is_late(self) -> bool:
        """Whether something waits longer than the plan says."""
        state = self._inner.state
        if self._now_s < self._decided_s + _REPLAN_S or not any(dag.pool for dag in state.dags.values()):
            return False
        if self._is_stuck():
            return True
        return any(host.running is not None and host.running.end_s < self._now_s for host in state.machines)

    def _admit_some(self) -> None:
        """Let the plan have some DAGs that wait, high classes first, then in their order."""
        n_left = MOST_ADMITTED
        if not self._rows.places:
            return
        lives = self._rows.dags.values()
        waiting = [each for each in lives if not each.is_admitted and not each.is_over and each.app.n_open]
        for live in sorted(waiting, key=lambda each: each.dag.terms.priority_class):
            if n_left <= 0:
                return
            self._rows.admit(live)
            self._is_changed = True
            n_left -= len(live.dag.dag.tasks)
        for live in lives:
            if n_left <= 0:
                return
            if live.record is not None and live.own_makespan_s is None:
                n_left -= self._own.compute(live)

    def _refresh_times(self) -> None:
        """Plan with what was learned; not at every end, as it takes time proportional to the tasks."""
        state = self._inner.state
        if state.machines and self._now_s >= self._learned_s + _LEARN_S:
            names = self._times.take_changed()
            if names:
                self._learned_s = self._now_s
                state.refresh_seconds([dag for dag in state.dags.values() if dag.dag_id in names])

    def _predicted_end_s(self, record: DagRecord) -> float | None:
        """What runs or is planned, with the longest way behind it; None where nothing is planned."""
        now_s = self._now_s
        placed = (task for task in record.tasks if task.state in (DagTaskState.RUNS, DagTaskState.IN_POOL))
        ends = [max(now_s, task.start_s + task.rank) for task in placed if task.host is not None]
        if record.n_unplanned:
            ends.append(max(now_s, record.begins_s + record.goes_on_s))
            ends += (
                record.unplanned_start_s(task, now_s) + task.rank
                for task in record.pool[-record.n_unplanned :][:1]
            )
        return max(ends, default=None)

    # ---- orders

    def _commands(self) -> Iterator[TaskCommand]:
        self._queues.keep(self._now_s)
        yield from self._queues.take_back(self._now_s)
        for host, queue in self._inner.machine_plans():
            place = self._rows.places[host.name]
            if place.occupant is None:
                head = self._queues.next(host, queue)
                if head is not None and self._rows.may_go(head):
                    yield from self._start(place, head)
        yield from self._queues.queue(self._now_s)
        yield from self._interrupt()

    def _start(self, place: Place, row: DagTaskRecord) -> Iterator[StartTask]:
        assert row.host is not None
        now_s, column = self._now_s, row.host.column
        end_s = max(now_s, float(row.ready_s[column])) + float(row.row[column])
        reason = self._inner.reason(row, now_s)
        yield StartTask(row.task, place.worker.id, Form.CPU, reason, end_s - now_s)
        task = self._rows.table.tasks[row.task]
        if task.assignment is None:
            self._is_changed = True  # it was refused
        else:
            self._rows.table.use_slot(task.assignment, place.slot)
            self._rows.note_order(task)

    def _interrupt(self) -> Iterator[TaskCommand]:
        """End what gives way to preemptive tasks that no machine takes soon."""
        lives = self._rows.dags.items()
        allowed = {app for app, live in lives if live.dag.terms.may_interrupt}
        waiting = [
            task
            for dag in self._inner.state.active()
            if allowed and dag.priority_class is PriorityClass.PREEMPTIVE
            for task in dag.pool
            if self._rows.may_start(task)
        ]
        if not waiting:
            return
        running = [
            (held, row)
            for place in self._rows.places.values()
            if (held := place.occupant) is not None and (row := self._rows.row(held.task)) is not None
        ]
        for held, row, for_task in choose_interrupted(waiting, running, allowed, self._now_s):
            row.end_s = self._now_s
            yield EndTask(row.task, held.worker.id, f"gives way to {for_task.task}")


def choose_interrupted(
    waiting: Sequence[DagTaskRecord],
    running: Sequence[tuple[Assignment, DagTaskRecord]],
    allowed: Collection[str],
    now_s: float,
) -> Iterator[tuple[Assignment, DagTaskRecord, DagTaskRecord]]:
    """Attempts to end, and for which task: the lowest class first, in it what has run least.

    Args:
        waiting: preemptive tasks that are ready, and do not run.
        running: all that runs.
        allowed: DAGs whose attempts may be ended.
    """
    late = [task for task in waiting if task.start_s > now_s + _LEAST_WAIT_S]
    # What should have ended is believed to run on as long as it is late, as in the plan.
    n_ending = sum(held.drop is Drop.END for held, _ in running)
    victims = [
        (held, task)
        for held, task in running
        if held.drop is None
        and task.dag.priority_class is not PriorityClass.PREEMPTIVE
        and task.dag.dag_id in allowed
        and held.task.n_interrupts < MOST_INTERRUPTS
        and abs(task.end_s - now_s) > _LEAST_WAIT_S
    ]
    victims.sort(key=lambda each: (-each[1].dag.priority_class, now_s - each[0].since_s, each[1].task))
    for (held, task), for_task in zip(victims, late[n_ending:], strict=False):
        yield held, task, for_task


def make_service_policy(
    name: str, settings: Mapping[str, Any], figures: FigureStore, bandwidth_bytes_per_s: float
) -> TaskPolicy:
    """A new policy that knows nothing yet.

    Args:
        name: of `POLICIES` or `DAG_POLICIES`.
        settings: those that it takes.
        figures: what is known from before; the policy learns into it.
        bandwidth_bytes_per_s: at which a task fetches what another one made.

    Raises:
        ConfigError: an unknown name or setting, or a value out of range; names the known ones.
    """
    if name in POLICIES:
        return make(name, settings)
    if name not in DAG_POLICIES:
        known = ", ".join((*POLICIES, *DAG_POLICIES))
        raise ConfigError(f"policy: no policy is called {name!r}; known: {known}")
    return LiveDagPolicy(make_dag_policy(name, bandwidth_bytes_per_s, settings), figures.durations)
