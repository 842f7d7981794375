"""DAGs on machines in virtual time, driven by the policy objects that are to run live.

All that happens in one moment is applied, then the policy decides once, then machines start what they may:
the head of their queue, once its inputs are there. Times are sums of the same numbers as in the plans, and no
clock of SimPy adds delays to itself: so a run that is resumed goes on as if it had never stopped.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from yarn_accel.core.dags.events import (
    DagEvent,
    DagSubmitted,
    Decide,
    MachineJoined,
    ResourceLeft,
    TaskEnded,
    TaskStarted,
)
from yarn_accel.core.dags.model import DagId, task_id_of
from yarn_accel.core.dags.policies.base import DagPolicy
from yarn_accel.core.dags.slowdown_series import SlowdownSeries
from yarn_accel.core.tasks.commands import EnqueueTask, TakeBackTask, TaskCommand
from yarn_accel.core.tasks.events import EndReason
from yarn_accel.core.tasks.outcome import AppOutcome, RunOutcome, TaskOutcome, dag_task_outcome
from yarn_accel.core.tasks.values import Form, ResourceId, TaskId
from yarn_accel.errors import AccelError
from yarn_accel.sim.dag_inputs import InputArrival, with_inputs
from yarn_accel.sim.dag_world import DagArrival, DagWorld, MachineStay

#: Kinds of facts, in the order in which those of one moment are applied.
_END, _LEAVE, _JOIN, _ARRIVE, _WAKE = range(5)


class _RunningDag:
    """A DAG's tasks in the simulated world: where each ran, and until when."""

    __slots__ = ("arrival", "end_s", "hosts", "n_left", "own_makespan_s")

    def __init__(self, arrival: DagArrival) -> None:
        self.arrival = arrival
        n = len(arrival.dag.tasks)
        self.n_left = n
        self.hosts: list[str | None] = [None] * n
        self.end_s = [math.inf] * n
        self.own_makespan_s = 0.0


class _SimulatedMachine:
    """A machine, the queue of its worker, and what runs: the task, its start and its end."""

    __slots__ = ("busy_s", "is_there", "queue", "running", "stay", "wakes_s")

    def __init__(self, stay: MachineStay) -> None:
        self.stay = stay
        self.is_there = False
        self.queue: list[TaskId] = []
        self.running: tuple[TaskId, float, float] | None = None
        self.wakes_s = math.inf
        self.busy_s = 0.0


class DagSimulation:
    """One run of a world under one policy.

    Args:
        world: what is there.
        policy: a new one.
        shuffle: reorders what happens in one moment; for tests.
    """

    def __init__(
        self,
        world: DagWorld,
        policy: DagPolicy,
        shuffle: Callable[[list[DagEvent]], None] | None = None,
    ) -> None:
        self.now_s = 0.0
        self.n_ended = 0
        self.n_tasks = sum(len(each.dag.tasks) for each in world.dags)
        self.n_decisions = 0
        self._world = world
        self._policy = policy
        self._shuffle = shuffle
        self._machines = {stay.machine.machine: _SimulatedMachine(stay) for stay in world.machines}
        self._dags = {each.dag_id: _RunningDag(each) for each in world.dags}
        self._place_of: dict[TaskId, tuple[_RunningDag, int]] = {
            task_id_of(each.dag_id, task.task): (self._dags[each.dag_id], number)
            for each in world.dags
            for number, task in enumerate(each.dag.tasks)
        }
        self._without_own: set[DagId] = set()
        #: Why each queued task is there, or what writes it; of one that runs all that is to be read of it.
        self._reasons: dict[TaskId, str | Callable[[], str]] = {}
        #: Since when each queued task is where it is.
        self._placed_s: dict[TaskId, float] = {}
        self._ended: list[TaskOutcome] = []
        self._n_interrupted = 0
        self._slowdowns = SlowdownSeries()
        #: Facts since the last checkpoint.
        self._facts: list[list[Any]] = []
        self._queue: list[tuple[float, int, str]] = []
        for stay in world.machines:
            self._queue.append((stay.joins_s, _JOIN, stay.machine.machine))
            if stay.leaves_s < math.inf:
                self._queue.append((stay.leaves_s, _LEAVE, stay.machine.machine))
        self._queue += [(each.arrival_s, _ARRIVE, each.dag_id) for each in world.dags]
        heapq.heapify(self._queue)

    def run(self) -> RunOutcome:
        """Go to the end.

        Raises:
            AccelError: there are tasks left that no machine will ever run.
        """
        while self.step():
            pass
        return self.outcome()

    def step(self) -> bool:
        """Go to the next moment in which something happens; False when nothing is left."""
        if self.n_ended == self.n_tasks or not self._queue:
            return False
        self.now_s = now_s = self._queue[0][0]
        facts: list[tuple[int, str]] = []
        while self._queue and self._queue[0][0] == now_s:
            _, kind, name = heapq.heappop(self._queue)
            facts.append((kind, name))
        events = [event for kind, name in facts for event in self._happen(kind, name)]
        if events:
            if self._shuffle is not None:
                self._shuffle(events)
            for event in events:
                self._policy.apply(event)
            self._decide()
        while self._start_heads() and self._world.moves_when_placed:
            # What comes next on these machines is queued there, and its files begin to move.
            self._decide()
        return True

    def outcome(self) -> RunOutcome:
        """What the run amounts to; see `run`."""
        left = sum(each.n_left for each in self._dags.values())
        if left:
            raise AccelError(
                f"{left} tasks are left, and no machine will ever run them",
                cure="let a machine stay until the DAGs have ended",
            )
        dags = {
            str(dag_id): AppOutcome(
                each.arrival.arrival_s, max(each.end_s), own_makespan_s=each.own_makespan_s
            )
            for dag_id, each in self._dags.items()
        }
        tasks = tuple(sorted(self._ended, key=lambda each: (each.start_s, each.node, each.end_s)))
        first_s = min(each.start_s for each in dags.values())
        last_s = max(each.end_s for each in dags.values())
        there_s = sum(
            max(0.0, min(stay.leaves_s, last_s) - max(stay.joins_s, first_s)) for stay in self._world.machines
        )
        busy_s = sum(each.busy_s for each in self._machines.values())
        utilisation = busy_s / there_s if there_s else 0.0
        moved = self._policy.n_moved
        slowdowns = {
            name: (*points, (dags[name].end_s, dags[name].slowdown))
            for name, points in self._slowdowns.by_dag(dags).items()
        }
        return RunOutcome(
            self._policy.name,
            dags,
            tasks,
            utilisation=utilisation,
            moved=moved,
            interrupted=self._n_interrupted,
            slowdowns=slowdowns,
        )

    # What happens

    def _happen(self, kind: int, name: str) -> Iterator[DagEvent]:
        machine = self._machines.get(ResourceId(name))
        if kind == _WAKE:
            return
        if kind == _END:
            # An end that was planned before the machine left.
            if machine and machine.running and machine.running[2] == self.now_s:
                yield from self._fact("end", name)
        elif kind == _LEAVE:
            yield from self._fact("leave", name)
        elif kind == _JOIN:
            yield from self._fact("join", name)
        else:
            yield from self._fact("arrive", name)

    def _fact(self, what: str, name: str, *more: Any, now_s: float | None = None) -> Iterator[DagEvent]:
        """Change the world; the policy is to be informed of what comes out."""
        at_s = self.now_s if now_s is None else now_s
        self._facts.append([what, at_s, name, *more])
        if what == "arrive":
            arrival = self._dags[DagId(name)].arrival
            self._without_own.add(arrival.dag_id)
            yield DagSubmitted(arrival.dag_id, arrival.dag, arrival.priority_class, at_s)
            return
        machine = self._machines[ResourceId(name)]
        if what == "join":
            machine.is_there = True
            yield MachineJoined(machine.stay.machine, at_s)
        elif what == "leave":
            self._n_interrupted += machine.running is not None
            machine.is_there, machine.running, machine.queue = False, None, []
            yield ResourceLeft(ResourceId(name), at_s)
        elif what == "start":
            yield self._started(machine, TaskId(more[0]), at_s, more[1])
        else:
            yield self._ended_on(machine, at_s)

    def _started(self, machine: _SimulatedMachine, task: TaskId, at_s: float, reason: str) -> TaskStarted:
        dag, number = self._place_of[task]
        seconds = dag.arrival.dag.tasks[number].seconds_on(machine.stay.machine)
        machine.running = task, at_s, at_s + seconds
        machine.wakes_s = math.inf
        name = machine.stay.machine.machine
        self._reasons[task] = with_inputs(
            reason,
            [
                InputArrival(dag.arrival.dag.tasks[parent].task, str(dag.hosts[parent]), ready_s)
                for ready_s, parent in self._arrivals(task, name)
            ],
        )
        self._placed_s.pop(task, None)
        heapq.heappush(self._queue, (at_s + seconds, _END, name))
        return TaskStarted(task, name, Form.CPU, at_s)

    def _ended_on(self, machine: _SimulatedMachine, at_s: float) -> TaskEnded:
        assert machine.running is not None
        task, start_s, _ = machine.running
        machine.running = None
        machine.busy_s += at_s - start_s
        name = machine.stay.machine.machine
        dag, number = self._place_of[task]
        dag.hosts[number], dag.end_s[number] = name, at_s
        dag.n_left -= 1
        self.n_ended += 1
        of_dag = dag.arrival.dag.tasks[number].task
        self._ended.append(
            dag_task_outcome(dag.arrival.dag_id, of_dag, name, start_s, at_s, self._reason(task))
        )
        return TaskEnded(task, name, EndReason.DONE, at_s)

    # What the policy orders

    def _decide(self) -> None:
        commands = self._policy.apply(Decide(self.now_s))
        values = self._policy.slowdowns.at(self.now_s) if self._slowdowns.is_next_kept else {}
        self._facts.append(["decide", self.now_s, values])
        self._slowdowns.add(self.now_s, values)
        self.n_decisions += 1
        self._note_own()
        for command in commands:
            self._enact(command)

    def _note_own(self) -> None:
        for dag_id in list(self._without_own):
            record = self._policy.state.dags.get(dag_id)
            if record is not None:
                self._dags[dag_id].own_makespan_s = record.own.makespan_s
                self._without_own.remove(dag_id)

    def _enact(self, command: TaskCommand) -> None:
        machine = self._machines[command.resource]
        if isinstance(command, TakeBackTask):
            machine.queue.remove(command.task)
            self._placed_s.pop(command.task, None)
        elif isinstance(command, EnqueueTask):
            machine.queue.insert(command.position, command.task)
            self._reasons[command.task] = command.why
            self._placed_s[command.task] = self.now_s
        else:
            raise AccelError(f"policy {self._policy.name} ordered {command}, which no worker of DAGs does")

    def _reason(self, task: TaskId) -> str:
        why = self._reasons[task]
        return why if isinstance(why, str) else why()

    def _start_heads(self) -> bool:
        """Start what can; says whether there was anything."""
        has_started = False
        for name, machine in self._machines.items():
            if machine.running is None and machine.queue and machine.is_there:
                head = machine.queue[0]
                ready_s = self._ready_s(head, name)
                if ready_s <= self.now_s:
                    machine.queue.pop(0)
                    has_started = True
                    for event in self._fact("start", name, head, self._reason(head)):
                        self._policy.apply(event)
                elif ready_s < math.inf and ready_s != machine.wakes_s:
                    machine.wakes_s = ready_s
                    heapq.heappush(self._queue, (ready_s, _WAKE, name))
        return has_started

    def _ready_s(self, task: TaskId, name: ResourceId) -> float:
        """When a task's inputs are on a machine; infinite while a parent has not ended."""
        ready_s = self._place_of[task][0].arrival.arrival_s
        for at_s, _ in self._arrivals(task, name):
            if at_s > ready_s:
                ready_s = at_s
        return ready_s

    def _arrivals(self, task: TaskId, name: ResourceId) -> list[tuple[float, int]]:
        """When what each parent makes is on a machine, and the parent."""
        dag, number = self._place_of[task]
        if not (parents := dag.arrival.dag.parents[number]):
            return []
        moves_s = self._placed_s.get(task, self.now_s) if self._world.moves_when_placed else -math.inf
        hosts, ends_s, found = dag.hosts, dag.end_s, []
        for parent, n_bytes in parents:
            end_s = ends_s[parent]
            if hosts[parent] != name:
                end_s = max(end_s, moves_s) + n_bytes / self._world.bandwidth_bytes_per_s
            found.append((end_s, parent))
        return found

    # Checkpoints

    def checkpoint(self) -> str:
        """All since the last checkpoint, and the plan, as one line of JSON."""
        facts, self._facts = self._facts, []
        queued = (task for machine in self._machines.values() for task in machine.queue)
        document = {
            "facts": facts,
            "plan": self._policy.plan_document(),
            "reasons": {task: self._reason(task) for task in queued},
            "placed_s": self._placed_s,
        }
        return json.dumps(document, separators=(",", ":"))

    def restore(self, lines: Iterable[str]) -> None:
        """Make a new simulation what it was at the last of these checkpoints of the same world and policy."""
        document: dict[str, Any] = {}
        for line in lines:
            document = json.loads(line)
            for fact in document["facts"]:
                self._replay(fact)
        if not document:
            return
        plan = document["plan"]
        self._policy.restore_plan(plan)
        for name, tasks in plan["published"].items():
            self._machines[ResourceId(name)].queue = [TaskId(task) for task in tasks]
        self._reasons.update((TaskId(task), reason) for task, reason in document["reasons"].items())
        self._placed_s = {TaskId(task): at_s for task, at_s in document.get("placed_s", {}).items()}
        # What takes no time and began now has still to end now.
        self._queue = [each for each in self._queue if each[:2] == (self.now_s, _END) or each[0] > self.now_s]
        heapq.heapify(self._queue)
        self._facts = []
        self._start_heads()

    def _replay(self, fact: list[Any]) -> None:
        what, self.now_s, *more = fact
        if what == "decide":
            self._policy.admit(self.now_s)
            self._slowdowns.add(self.now_s, more[0])
            self.n_decisions += 1
            self._note_own()
            return
        for event in self._fact(what, *more):
            self._policy.apply(event)


def simulate_dags(world: DagWorld, policy: DagPolicy) -> RunOutcome:
    """Run a world to its end; see `DagSimulation.run`."""
    return DagSimulation(world, policy).run()
